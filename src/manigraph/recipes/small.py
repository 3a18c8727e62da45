"""Real images on a small machine: CNN-13 at a quarter of its width, 32 + 64 images, 3,000 steps.

Nothing here is tuned yet; the settings are the paper's wherever they do not have to be smaller.
"""

from dataclasses import replace
from typing import Any

from manigraph.config import BackboneConfig, Config, DataConfig
from manigraph.data.batches import BatchConfig
from manigraph.recipes import paper
from manigraph.recipes.parts import averaged, method_config
from manigraph.training.loop import TrainingConfig


def svhn_small(algorithm: str) -> Config[Any]:
    """SVHN with 1,000 labels."""
    return _small(paper.svhn(algorithm))


def cifar10_small(algorithm: str) -> Config[Any]:
    """CIFAR-10 with 4,000 labels."""
    return _small(paper.cifar10(algorithm))


def cifar100_small(algorithm: str) -> Config[Any]:
    """CIFAR-100 with 10,000 labels."""
    return _small(paper.cifar100(algorithm))


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
