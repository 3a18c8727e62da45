"""scikit-learn's digits: 8×8 pixels, trained in about a minute on two cores."""

from typing import Any

from manigraph.catalogue import ALGORITHMS
from manigraph.config import BackboneConfig, Config, DataConfig
from manigraph.data.batches import AugmentationConfig
from manigraph.training.loop import TrainingConfig
from manigraph.training.schedule import SuperConvergence


def digits(algorithm: str) -> Config[Any]:
    """20 labels, small CNN, one-pixel shifts; settings chosen on validation images."""
    method = ALGORITHMS.get(algorithm)
    settings: dict[str, dict[str, Any]] = {}
    return Config(
        algorithm=algorithm,
        method=method.Config(**settings.get(algorithm, {})),
        data=DataConfig(name="digits", labels=20),
        backbone=BackboneConfig(name="small_cnn"),
        augmentation=AugmentationConfig(translation=1),
        schedule=SuperConvergence(max_learning_rate=0.1),
        training=TrainingConfig(steps=600, ema_decay=0.98),
    )
