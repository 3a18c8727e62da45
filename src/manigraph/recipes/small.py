"""Real images on a small machine.

`svhn_16px` and its like are the protocol of `docs/results.md`: images reduced to half their side, CNN-13 at
an eighth of its width, 6,000 steps of 32 + 64 images; one to five minutes on one core. The others have
images as they are, CNN-13 at a quarter of its width and 3,000 steps, and are not tuned.
"""

from dataclasses import replace
from typing import Any

from manigraph.config import BackboneConfig, Config, DataConfig
from manigraph.data.batches import BatchConfig
from manigraph.recipes import paper
from manigraph.recipes.parts import average_for, averaged, method_config, with_settings
from manigraph.training.loop import TrainingConfig

SVHN_EPSILON = {"manifold_graph": 1.75, "pi_vat": 3.5, "vat": 7.0}
"""At 16×16 pixels; chosen for each method on validation images (`docs/results.md`). The paper has 7 at 32×32
for its own."""

NOISY_BY_DROPOUT = ("pi_model", "temporal_ensembling", "sntg", "fast_swa")
"""Methods that compare two predictions which only shifts and dropout make differ: they keep it. All others
are without at 16×16 pixels, chosen likewise; the paper's is for networks of eight times the width."""

MIXMATCH_WEIGHT = 5.0
"""At 16×16 pixels; chosen likewise. With its paper's 75, and with 20, all images fall into one class."""

WEIGHT_DECAY, DECAY_AT_LABELS = 5e-3, 250
"""At 16×16 pixels, of all methods; chosen likewise. With 2e-4 a network learns 250 labelled images by heart,
and consistency then makes one class of all others; more labels need less."""

MEASURED_BY_SQUARES = ("pi_model", "vat", "pi_vat", "manifold_graph")
"""Methods of the paper that compare all predictions, sure or not; by squares and with a ramp where labels are
few, chosen likewise for the last two and taken over for the others. Other methods have a ramp of their own or
need none."""


def svhn_small(algorithm: str) -> Config[Any]:
    """SVHN with 1,000 labels."""
    return _small(paper.svhn(algorithm))


def cifar10_small(algorithm: str) -> Config[Any]:
    """CIFAR-10 with 4,000 labels."""
    return _small(paper.cifar10(algorithm))


def cifar100_small(algorithm: str) -> Config[Any]:
    """CIFAR-100 with 10,000 labels."""
    return _small(paper.cifar100(algorithm))


def svhn_16px(algorithm: str) -> Config[Any]:
    """SVHN at 16×16 pixels with 1,000 labels."""
    return _reduced(paper.svhn(algorithm))


def cifar10_16px(algorithm: str) -> Config[Any]:
    """CIFAR-10 at 16×16 pixels with 4,000 labels."""
    return _reduced(paper.cifar10(algorithm), times_epsilon=8 / 7)  # as in the paper


def cifar100_16px(algorithm: str) -> Config[Any]:
    """CIFAR-100 at 16×16 pixels with 10,000 labels."""
    return _reduced(paper.cifar100(algorithm), times_epsilon=27 / 7)


def fashion_mnist(algorithm: str) -> Config[Any]:
    """Fashion-MNIST with 1,000 labels; the paper has no figures for it."""
    return _small(
        Config(
            algorithm=algorithm,
            method=method_config(algorithm, epsilon=7.0),
            data=DataConfig(name="fashion_mnist", labels=1000, validation=1000),
        )
    )


def folder(algorithm: str) -> Config[Any]:
    """Your own images, all labels; a fifth of them is held out for validation."""
    return _small(
        Config(
            algorithm=algorithm,
            method=method_config(algorithm, epsilon=7.0),
            data=DataConfig(name="folder"),
        )
    )


def _small(config: Config[Any]) -> Config[Any]:
    return averaged(
        replace(
            config,
            batch=BatchConfig(labelled=32, unlabelled=64),
            backbone=BackboneConfig(name="cnn13", width=0.25),
            training=TrainingConfig(steps=3000),
        )
    )


def _reduced(config: Config[Any], times_epsilon: float = 1.0) -> Config[Any]:
    width = 1 / 8
    # Dot products of embeddings shrink with the number of features, 128 in the paper.
    settings: dict[str, Any] = {"scale": 1 / width}
    if config.algorithm in SVHN_EPSILON:
        settings["epsilon"] = SVHN_EPSILON[config.algorithm] * times_epsilon
    if config.algorithm in ("fixmatch", "manifold_graph"):
        settings["threshold"] = 0.8  # chosen likewise
    if config.algorithm == "mixmatch":
        settings["mixed_consistency_weight"] = MIXMATCH_WEIGHT
    if config.algorithm in MEASURED_BY_SQUARES:
        settings |= {"consistency": "mse", "ramp_fraction": 0.4}
    dropout = None if config.algorithm in NOISY_BY_DROPOUT else 0.0
    return averaged(
        replace(
            config,
            method=with_settings(config.method, **settings),
            data=replace(config.data, image_size=16),
            augmentation=replace(config.augmentation, translation=1),
            batch=BatchConfig(labelled=32, unlabelled=64),
            backbone=BackboneConfig(name="cnn13", width=width, dropout=dropout),
            schedule=replace(config.schedule, max_learning_rate=0.1),
            training=TrainingConfig(
                steps=6000,
                weight_decay=WEIGHT_DECAY,
                decay_at_labels=DECAY_AT_LABELS,
                ema_decay=average_for(config.algorithm, 0.99),
            ),
        )
    )
