"""As good as half an hour of one CPU core allows: Manifold Graph with all that helps, others by that clock.

All have ResNet-9 at a quarter of its width and images as they are. `manifold_graph` is the combination:
FixMatch's comparison with a teacher's targets through a graph of few prototypes, images of half their
size for the first six tenths, and on CIFAR-10 Muon. What else was tried is in `docs/results.md`. Other
methods are as in `svhn_16px`.
"""

from dataclasses import replace
from typing import Any

from manigraph.config import BackboneConfig, Config
from manigraph.data.preprocessing import PreprocessingConfig
from manigraph.recipes import small
from manigraph.recipes.parts import averaged, with_settings

STEPS = {"manifold_graph": 11_000, "fixmatch": 8_500, "pi_vat": 4_600}
"""What takes 1,800 s of a core of the slowest machine that was met, a Xeon at 2.5 GHz with both cores at
work; newer ones need a third of that. Methods without a number have FixMatch's."""
STEPS_BY_MUON = 10_500
"""Of the combination; each takes longer."""

WEIGHT_DECAY = {"manifold_graph": 1e-3, "fixmatch": 1e-3}
"""Chosen on validation images; the others keep that of `svhn_16px`, which was chosen with Π-VAT too."""

COMBINATION = {
    "comparison": "fixmatch",
    "target_decay": 0.99,
    "entropy_weight": 0.0,
    "ramp_fraction": 0.0,
    "prototypes_per_class": 5,
    "prototype_update": "shared",
    "warmup_fraction": 0.2,
    "anchored_view": "student",
}


def svhn_30min(algorithm: str) -> Config[Any]:
    """SVHN with 250 labels."""
    return _half_hour(small.svhn_16px(algorithm), labels=250, times_epsilon=2)


def cifar10_30min(algorithm: str) -> Config[Any]:
    """CIFAR-10 with 4,000 labels."""
    # Half of what the paper's factor makes of SVHN's: `cifar10-epsilon` in `docs/results.md`.
    return _half_hour(small.cifar10_16px(algorithm), labels=4000, times_epsilon=1, muon_turn=0.3)


def _half_hour(
    config: Config[Any], *, labels: int, times_epsilon: float, muon_turn: float = 0.0
) -> Config[Any]:
    training = replace(config.training, steps=STEPS.get(config.algorithm, STEPS["fixmatch"]))
    if config.algorithm in WEIGHT_DECAY:
        training = replace(training, weight_decay=WEIGHT_DECAY[config.algorithm], decay_at_labels=0)
    method, preprocessing = config.method, config.preprocessing
    if config.algorithm == "manifold_graph":
        method = with_settings(method, **COMBINATION)
        preprocessing = PreprocessingConfig(
            kind="standardise", mean=preprocessing.mean, std=preprocessing.std
        )
        training = replace(training, ema_decay=0.0, half_size_fraction=0.6)  # the teacher is an average
        if muon_turn:
            training = replace(training, muon_turn=muon_turn, steps=STEPS_BY_MUON)
    elif hasattr(method, "epsilon"):
        method = with_settings(method, epsilon=method.epsilon * times_epsilon)
    return averaged(
        replace(
            config,
            method=method,
            data=replace(config.data, image_size=None, labels=labels),
            preprocessing=preprocessing,
            augmentation=replace(config.augmentation, translation=2),
            backbone=BackboneConfig(name="resnet9", width=0.25, dropout=config.backbone.dropout),
            training=training,
        )
    )
