"""Images of half their size in the first share of a run."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from manigraph.bench.data import random_dataset
from manigraph.build import Job, build
from manigraph.catalogue import ALGORITHMS, RECIPES
from manigraph.config import BackboneConfig, Config
from manigraph.contract import Batch
from manigraph.data.batches import BatchConfig
from manigraph.errors import UserError
from manigraph.training.estimate import Estimate, estimate_run
from manigraph.training.loop import TrainingConfig
from tests.helpers import assert_bitwise_equal, copied, recorded_inputs


def config_for(algorithm: str = "fixmatch", fraction: float = 0.5, **method: Any) -> Config[Any]:
    config = RECIPES.get("svhn_16px")(algorithm)
    return replace(
        config,
        method=replace(config.method, **method),
        data=replace(config.data, image_size=None, labels=40, validation=20),
        batch=BatchConfig(labelled=4, unlabelled=6),
        backbone=BackboneConfig("cnn13", width=1 / 32),
        training=TrainingConfig(steps=6, half_size_fraction=fraction),
    )


def job_for(config: Config[Any], side: int = 16) -> Job:
    with torch.random.fork_rng():
        return build(config, dataset=random_dataset(400, side=side))


def test_images_are_averaged_over_squares() -> None:
    views = {"image": torch.arange(32.0).reshape(1, 2, 4, 4)}
    batch = Batch(views, torch.tensor([3]), {"first": 2 * views["image"]}, class_images=-views["image"])
    half = batch.half_size()
    expected = torch.tensor([[[2.5, 4.5], [10.5, 12.5]], [[18.5, 20.5], [26.5, 28.5]]])
    assert torch.equal(half.labelled["image"][0], expected)
    assert torch.equal(half.unlabelled["first"][0], 2 * expected)
    assert half.class_images is not None
    assert torch.equal(half.class_images[0], -expected)
    assert torch.equal(half.labels, batch.labels)


@pytest.mark.parametrize("algorithm", [*ALGORITHMS])
def test_the_first_steps_see_small_images_and_the_others_whole_ones(algorithm: str) -> None:
    config = config_for(algorithm)
    if ALGORITHMS.get(algorithm).needs_weight_average:
        config = replace(config, training=replace(config.training, swa_fraction=0.5))
    job = job_for(config)
    sides = []
    for _ in range(6):
        with recorded_inputs(job.trainer.algorithm.model.backbone) as inputs:
            job.trainer.train_step(next(job.batches))
        sides.append({images.shape[2] for images in inputs})
    assert sides == [{8}] * 3 + [{16}] * 3


def test_without_a_fraction_nothing_is_made_smaller() -> None:
    job = job_for(config_for(fraction=0.0))
    with recorded_inputs(job.trainer.algorithm.model.backbone) as inputs:
        job.trainer.train_step(next(job.batches))
    assert {images.shape[2] for images in inputs} == {16}


def test_a_small_step_is_the_step_of_a_small_batch() -> None:
    no_dropout = BackboneConfig("cnn13", width=1 / 32, dropout=0.0)
    small = job_for(replace(config_for(), backbone=no_dropout))
    whole = job_for(replace(config_for(fraction=0.0), backbone=no_dropout))
    small.trainer.train_step(next(small.batches))
    whole.trainer.train_step(next(whole.batches).half_size())
    assert_bitwise_equal(small.trainer.algorithm.state_dict(), whole.trainer.algorithm.state_dict())


def test_the_estimate_measures_both_kinds_of_step_and_leaves_no_trace() -> None:
    job = job_for(config_for())
    before = copied(job.trainer.algorithm.state_dict())
    with recorded_inputs(job.trainer.algorithm.model.backbone) as inputs:
        estimate = estimate_run(job.trainer, job.batches, lambda: 1, 0)
    assert {images.shape[2] for images in inputs} == {8, 16}
    assert estimate.half_size_steps == 3
    assert estimate.seconds == pytest.approx(
        3 * estimate.seconds_per_step + 3 * estimate.seconds_per_half_size_step
    )
    assert_bitwise_equal(job.trainer.algorithm.state_dict(), before)
    job.trainer.step = 4
    later = estimate_run(job.trainer, job.batches, lambda: 1, 0)
    assert later.seconds == pytest.approx(2 * later.seconds_per_step)


def test_steps_that_are_expected_to_take_longer_count_for_more() -> None:
    estimate = Estimate(1, 4.0, 0.0, 1, half_size_steps=10, seconds_per_half_size_step=1.0)
    assert [estimate.seconds_of(steps) for steps in (0, 3, 10, 12)] == [0, 3, 10, 18]


@pytest.mark.parametrize(
    ("config", "side", "message"),
    [
        (replace(config_for(), backbone=BackboneConfig("small_cnn")), 16, "'small_cnn' takes images of one"),
        (config_for(), 17, "17x17 pixels cannot be halved"),
        (config_for(), 14, "at least 16"),
        (config_for("manifold_graph", nodes="labelled_images"), 16, "labelled images as nodes have one size"),
    ],
)
def test_what_cannot_be_halved_is_refused(config: Config[Any], side: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        job_for(config, side)


def test_a_run_of_small_images_alone_is_refused() -> None:
    with pytest.raises(ValueError, match=r"use data\.image_size"):
        TrainingConfig(half_size_fraction=1.0)
