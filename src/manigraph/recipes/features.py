"""Photographs through a pretrained network: what is trained is the head on its features, in a minute or less.

Settings were chosen on validation images of CIFAR-10 with label draws 10 and 11, never on test images;
`docs/features.md` says what was tried. Features are good from the first step, and a network that starts from
scratch on top of them loses them where labels are few. So there is none: the linear layer works on
the features themselves, and the graph, whose layers are as wide as they are, on the 512 directions in which
they vary most.
"""

import math
from typing import Any

from manigraph.config import BackboneConfig, Config, DataConfig
from manigraph.data.augmentation import AugmentationConfig
from manigraph.data.batches import BatchConfig
from manigraph.data.preprocessing import PreprocessingConfig
from manigraph.recipes.parts import average_for, averaged, method_config
from manigraph.training.loop import TrainingConfig
from manigraph.training.schedule import SuperConvergence

ENCODER = "efficientnet_lite0"

METHOD_SETTINGS: dict[str, Any] = {
    "consistency": "mse",
    "consistency_weight": 4.0,
    "balance_weight": 1.0,
    "balance_memory": 1280,
    "ramp_fraction": 0.4,
    "epsilon": 2.0,
    "warmup_fraction": 0.2,
    "prototypes_per_class": 5,
    "prototype_update": "shared",
}
"""What departs from the paper's settings, for the methods that have the setting. Views of a vector differ in
nothing, so what the student resists is the virtual adversarial perturbation alone: ε is 1/18 of the length of
a vector."""


def cifar10_features(algorithm: str) -> Config[Any]:
    """CIFAR-10 with 250 labels."""
    data = DataConfig(name="cifar10", features=ENCODER, labels=250, stratify="equal", validation=1000)
    return on_features(algorithm, data)


def folder_features(algorithm: str) -> Config[Any]:
    """Your own photographs, all labels; a fifth of them is held out for validation.

    Classes are taken to be about equally frequent among the unlabelled ones. Where they are not:
    `--method.balance_weight 0 --method.balance_memory 0`.
    """
    return on_features(algorithm, DataConfig(name="folder", features=ENCODER))


def folder_fine_tuned(algorithm: str) -> Config[Any]:
    """Your own photographs at 96 pixels; all layers of the pretrained network learn. Not tuned, and slow."""
    side = 96
    epsilon = math.sqrt(3 * side * side) / 32  # a sixteenth of the deviation of a pixel, which is about ½
    return averaged(
        Config(
            algorithm=algorithm,
            method=method_config(algorithm, **(METHOD_SETTINGS | {"epsilon": epsilon})),
            data=DataConfig(name="folder", image_size=side),
            batch=BatchConfig(labelled=16, unlabelled=32),
            # What the network was trained with: values from -1 to 1.
            preprocessing=PreprocessingConfig(
                kind="standardise", mean=(127 / 255,) * 3, std=(128 / 255,) * 3
            ),
            augmentation=AugmentationConfig(translation=6),
            backbone=BackboneConfig(name=ENCODER),
            schedule=SuperConvergence(max_learning_rate=0.01),
            training=TrainingConfig(
                steps=300,
                ema_decay=average_for(algorithm, 0.98),
                max_gradient_norm=3.0,
            ),
        )
    )


def on_features(algorithm: str, data: DataConfig) -> Config[Any]:
    """A method as it is best trained on the features of a pretrained network."""
    graph = algorithm == "manifold_graph"
    return averaged(
        Config(
            algorithm=algorithm,
            # Leading directions make longer vectors than the entries of the paper's features.
            method=method_config(algorithm, **METHOD_SETTINGS, **({"scale": 0.5} if graph else {})),
            data=data,
            batch=BatchConfig(labelled=64, unlabelled=192),
            preprocessing=PreprocessingConfig(kind="pca" if graph else "standardise"),
            backbone=BackboneConfig(name="leading" if graph else "head"),
            # Vectors are long (1,280 entries of deviation 1), and so is the gradient of a layer on them.
            schedule=SuperConvergence(max_learning_rate=0.01),
            training=TrainingConfig(
                steps=600,
                weight_decay=1e-3,
                ema_decay=average_for(algorithm, 0.98),
                max_gradient_norm=3.0,
            ),
        )
    )
