"""scikit-learn's digits: 8×8 pixels, trained in about a minute on two cores.

Settings were chosen on 300 validation images held out of the training images, never on test images: with
label draws 10 to 13, and, for the balanced targets, with draw 3, the worst. `docs/digits.md` says what was
tried. Methods share all settings that they have in common, unless one of them was better off with its own.
"""

from dataclasses import replace
from typing import Any

from manigraph.config import BackboneConfig, Config, DataConfig
from manigraph.data.augmentation import AugmentationConfig
from manigraph.data.strong_augmentation import StrongAugmentationConfig
from manigraph.recipes.parts import average_for, averaged, method_config
from manigraph.training.loop import TrainingConfig
from manigraph.training.schedule import SuperConvergence

METHOD_SETTINGS: dict[str, Any] = {
    "consistency": "mse",
    "consistency_weight": 4.0,
    "balance_weight": 1.0,
    "balance_memory": 1280,
    "ramp_fraction": 0.4,
    "epsilon": 0.5,
    "warmup_fraction": 0.2,
    "prototypes_per_class": 5,
    "prototype_update": "shared",
}
"""What departs from the paper's settings, for the methods that have the setting."""

OWN_SETTINGS: dict[str, dict[str, Any]] = {
    "pseudo_label": {"threshold": 0.8, "pseudo_label_weight": 1.0},
    "mean_teacher": {"teacher_decay": 0.97},
    "temporal_ensembling": {"consistency_weight": 25.0},
    "sntg": {"neighbours_weight": 6.0},
    "fast_swa": {"consistency_weight": 10.0},
    "deep_cotraining": {"agreement_weight": 10.0, "balance_memory": 0},
    "compact_clustering": {"clustering_weight": 0.3},
    "mixup": {"entropy_weight": 1.0},  # mixing alone makes its own targets ever less sure
    "mixmatch": {"mixed_consistency_weight": 40.0},
    "fixmatch": {"consistency_weight": 1.0, "balance_memory": 0},
}
"""What one method needs and others must not have: the best of what `digits-tuning` tried."""


def digits(algorithm: str) -> Config[Any]:
    """20 labels, small CNN, one-pixel shifts and small rotations."""
    config = digits_shared(algorithm)
    own = OWN_SETTINGS.get(algorithm, {})
    config = replace(config, method=replace(config.method, **own))
    if algorithm == "fixmatch":  # eight pixels bear less than photographs
        milder = StrongAugmentationConfig(magnitude=0.5, cutout=0.25, fill=0.0)
        return replace(config, strong=milder)
    if algorithm == "compact_clustering":  # with dropout its graph is of masks as much as of images
        return replace(config, backbone=replace(config.backbone, dropout=0.0))
    return config


def digits_shared(algorithm: str) -> Config[Any]:
    """The same before any method had settings of its own: what `digits-tuning` starts from."""
    # Features are so long that with a scale of 1 every image would hear only itself.
    clustering = {"scale": 0.05} if algorithm == "compact_clustering" else {}
    return averaged(
        Config(
            algorithm=algorithm,
            method=method_config(algorithm, **METHOD_SETTINGS, **clustering),
            data=DataConfig(name="digits", labels=20, stratify="equal", validation=0),
            backbone=BackboneConfig(name="small_cnn"),
            augmentation=AugmentationConfig(translation=1, rotation=10.0, scale=0.1),
            schedule=SuperConvergence(max_learning_rate=0.1),
            training=TrainingConfig(
                steps=500,
                weight_decay=1e-3,
                ema_decay=average_for(algorithm, 0.98),
                max_gradient_norm=3.0,
            ),
        )
    )
