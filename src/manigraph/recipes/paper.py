"""The paper's protocol (METHOD 6) on SVHN, CIFAR-10 and CIFAR-100: CNN-13, 282,000 steps of 32 + 128 images.

A GPU takes hours for a run, two CPU cores months; `recipes/small.py` has versions for small machines.
"""

from typing import Any

from manigraph.config import Config, DataConfig
from manigraph.data.augmentation import AugmentationConfig
from manigraph.data.preprocessing import PreprocessingConfig
from manigraph.recipes.parts import method_config

SVHN_MEAN = (0.4376821, 0.4437697, 0.47280442)
SVHN_STD = (0.19803012, 0.20101562, 0.19703614)

# VAT's own perturbation for SVHN is 3.5 for pixels from -0.5 to 0.5; standardised, it is 1 / std as long.
SVHN_VAT_EPSILON = 3.5 * 3 / sum(SVHN_STD)


def svhn(algorithm: str) -> Config[Any]:
    """1,000 labels, given channel statistics, shifts of 2 pixels, no mirroring."""
    return Config(
        algorithm=algorithm,
        method=method_config(algorithm, epsilon=7.0 if algorithm == "manifold_graph" else SVHN_VAT_EPSILON),
        data=DataConfig(name="svhn", labels=1000, validation=1000),
        preprocessing=PreprocessingConfig(kind="standardise", mean=SVHN_MEAN, std=SVHN_STD),
    )


def cifar10(algorithm: str) -> Config[Any]:
    """4,000 labels, ZCA, shifts of 2 pixels and mirroring."""
    return Config(
        algorithm=algorithm,
        method=method_config(algorithm, epsilon=8.0),
        data=DataConfig(name="cifar10", labels=4000, validation=1000),
        preprocessing=PreprocessingConfig(kind="zca"),
        augmentation=AugmentationConfig(flip=True),
    )


def cifar100(algorithm: str) -> Config[Any]:
    """10,000 labels, otherwise as CIFAR-10."""
    return Config(
        algorithm=algorithm,
        method=method_config(algorithm, epsilon=27.0 if algorithm == "manifold_graph" else 30.0),
        data=DataConfig(name="cifar100", labels=10_000, validation=2500),
        preprocessing=PreprocessingConfig(kind="zca"),
        augmentation=AugmentationConfig(flip=True),
    )
