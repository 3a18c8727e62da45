"""Lean steps are the same steps: after each, all weights and memories are equal to ours."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from manigraph.bench.data import random_dataset
from manigraph.bench.lean import LEAN, lean_step
from manigraph.build import Job, build
from manigraph.catalogue import ALGORITHMS, RECIPES
from manigraph.config import BackboneConfig, Config
from manigraph.contract import Batch
from manigraph.data.batches import BatchConfig
from tests.helpers import copied

SETTINGS: Mapping[str, Any] = {
    "warmup_fraction": 0.0,
    "prototypes_per_class": 3,
    "embedding_size": 6,
    "hidden_size": 8,
    "margin_divergence": 0.3,  # low enough for fresh prototypes to count as alike
    "threshold": 0.2,  # between the sure and the unsure predictions of a fresh network
    "pixel_epsilon": 0.5,
}
"""Small sizes, and settings with which no term is zero; each is used where a method knows it."""

NOT_KEPT = ("num_updates", "graph_is_on")
"""Buffers that a lean step has no use for."""


@pytest.fixture(autouse=True)
def _own_random_numbers() -> Iterator[None]:
    with torch.random.fork_rng():
        yield


def tiny_config(name: str, **training: Any) -> Config[Any]:
    """The paper's recipe with a tiny network, in so few steps that every ramp is on its way in the second."""
    config = RECIPES.get("cifar10")(name)
    known = {field.name: field.default for field in fields(config.method)}
    settings = {key: value for key, value in SETTINGS.items() if known.get(key)}  # what is off stays off
    return replace(
        config,
        method=replace(config.method, **settings),
        data=replace(config.data, labels=40, validation=0),
        preprocessing=replace(config.preprocessing, kind="standardise"),
        backbone=BackboneConfig("cnn13", width=1 / 16),
        batch=BatchConfig(labelled=10, unlabelled=20),
        training=replace(config.training, steps=4, **training),
    )


def precise_job(config: Config[Any]) -> Job:
    """In float64, so that only rounding far below any mistake is left."""
    job = build(config, dataset=random_dataset(100, side=8))
    job.trainer.algorithm.double()
    if job.trainer.average is not None:
        job.trainer.average.double()
    return job


def precise(batch: Batch) -> Batch:
    return replace(
        batch,
        labelled={name: view.double() for name, view in batch.labelled.items()},
        unlabelled={name: view.double() for name, view in batch.unlabelled.items()},
    )


def assert_same_steps(job: Job) -> None:
    """Three steps of both, the third with the images of the first, of which something may be remembered."""
    lean = lean_step(job)
    trainer = job.trainer
    before = copied(dict(trainer.algorithm.named_parameters()))
    first, second = precise(next(job.batches)), precise(next(job.batches))
    for number, batch in enumerate((first, second, first)):
        torch.manual_seed(number)
        trainer.train_step(batch)
        torch.manual_seed(number)
        lean(batch)
        ours, theirs = trainer.algorithm.state_dict(), lean.modules.state_dict()
        for name in [name for name in ours if not name.endswith(NOT_KEPT)]:
            close = torch.allclose(theirs[name].double(), ours[name].double(), rtol=1e-10, atol=1e-10)
            assert close, f"{name} after step {number}"
    assert not [name for name, p in trainer.algorithm.named_parameters() if torch.equal(p, before[name])]


def test_every_method_has_a_lean_step() -> None:
    assert set(LEAN) == set(ALGORITHMS)


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_a_lean_step_is_our_step(name: str) -> None:
    """With dropout: the masks of all passes are drawn in the same order."""
    assert_same_steps(precise_job(tiny_config(name)))


def test_gradients_are_shortened() -> None:
    assert_same_steps(precise_job(tiny_config("pi_vat", max_gradient_norm=0.01)))


@pytest.mark.parametrize(("fraction", "every"), [(1.0, 0.5), (1.0, 0.2), (0.5, 0.25)])
def test_weights_are_averaged(fraction: float, every: float) -> None:
    """After steps 2 and 4 of 4, after all, or after steps 3 and 4."""
    job = precise_job(tiny_config("fast_swa", swa_fraction=fraction, swa_every=every))
    lean, trainer = lean_step(job), job.trainer
    assert trainer.average is not None
    for number in range(4):
        batch = precise(next(job.batches))
        torch.manual_seed(number)
        trainer.train_step(batch)
        torch.manual_seed(number)
        lean(batch)
        if trainer.average.n_averaged > 0:
            averaged: list[Tensor] = list(trainer.average.module.parameters())
            torch.testing.assert_close(lean.average, averaged, rtol=1e-10, atol=1e-10)
    assert trainer.average.n_averaged > 1


def test_a_step_starts_where_the_job_is_and_leaves_it_alone() -> None:
    """Momentum and random numbers too."""
    job = precise_job(tiny_config("pi_vat"))
    job.trainer.train_step(precise(next(job.batches)))
    before, noise = copied(job.trainer.algorithm.state_dict()), job.trainer.generator.get_state()
    lean_step(job)(precise(next(job.batches)))
    assert all(torch.equal(value, before[key]) for key, value in job.trainer.algorithm.state_dict().items())
    assert torch.equal(job.trainer.generator.get_state(), noise)
    assert_same_steps(job)


@pytest.mark.parametrize(
    ("name", "settings", "training"),
    [
        ("pi_vat", {"balance_memory": 10}, {}),
        ("pi_vat", {"consistency": "mse"}, {}),
        ("pi_vat", {"num_power_iterations": 2}, {}),
        ("mean_teacher", {"entropy_weight": 0.1}, {}),
        ("manifold_graph", {"warmup_fraction": 0.1}, {}),
        ("pi_vat", {}, {"ema_decay": 0.9}),
        ("pi_vat", {}, {"precision": "bfloat16"}),
        ("pi_vat", {}, {"swa_fraction": 0.5}),
        ("fast_swa", {}, {"swa_every": 0.0}),
    ],
)
def test_other_settings_are_refused(name: str, settings: dict[str, Any], training: dict[str, Any]) -> None:
    config = tiny_config(name, **training)
    config = replace(config, method=replace(config.method, **settings))
    (setting,) = settings.keys() | training.keys()
    with pytest.raises(ValueError, match=f"lean steps .*{setting}"):
        lean_step(build(config, dataset=random_dataset(100, side=8)))
