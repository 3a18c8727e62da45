"""Short runs that several files look at."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from manigraph.catalogue import RECIPES
from manigraph.config import BackboneConfig, Config
from manigraph.engine import train
from manigraph.runs import RunDirectory
from manigraph.training.loop import TrainingConfig

VALIDATION = 90
K = 3
VARIANTS: dict[str, dict[str, Any]] = {
    "per_image": {"prototype_update": "per_image", "num_heads": 2, "scale": 0.5},
    "shared": {"prototype_update": "shared"},
    "none": {"prototype_update": "none"},
    "labelled_images": {"prototype_update": "per_image", "nodes": "labelled_images"},
    "mean_teacher": {"comparison": "mean_teacher", "prototype_update": "per_image"},
}


def quick(algorithm: str, **method: Any) -> Config[Any]:
    """A few steps on digits."""
    config = RECIPES.get("digits")(algorithm)
    return replace(
        config,
        data=replace(config.data, labels=30, validation=VALIDATION),
        backbone=BackboneConfig("small_cnn", width=0.25),
        training=TrainingConfig(steps=8, log_every=4),
        method=replace(config.method, **method),
    )


@pytest.fixture(scope="session")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunDirectory]:
    """A run of Manifold Graph of one of the variants; each is trained once."""
    folder, trained = tmp_path_factory.mktemp("runs"), dict[str, RunDirectory]()

    def run(variant: str) -> RunDirectory:
        if variant not in trained:
            config = quick("manifold_graph", warmup_fraction=0.0, prototypes_per_class=K, **VARIANTS[variant])
            trained[variant] = train(config, folder, name=variant)[0]
        return trained[variant]

    return run
