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
from manigraph.data.preprocessing import PreprocessingConfig
from manigraph.data.sources.arrays import from_arrays
from manigraph.errors import UserError
from manigraph.pair import speed
from manigraph.training.estimate import Estimate, estimate_run
from manigraph.training.execution import Execution
from manigraph.training.loop import TrainingConfig
from manigraph.training.processes import Processes
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


def test_the_time_that_is_planned_with_knows_of_both_kinds_of_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def made_up(*_: object) -> Estimate:
        return Estimate(1, 4.0, 100.0, 1, half_size_steps=3, seconds_per_half_size_step=1.0)

    monkeypatch.setattr(speed, "estimate_run", made_up)
    config = config_for()
    processes = Processes(torch.device("cpu"))
    found = speed.measured_speed(config, random_dataset(400, side=16), Execution(), processes)
    assert (found.step, found.evaluation) == (2.5, 85.0)


def test_a_run_that_is_taken_up_again_in_its_small_part_ends_the_same() -> None:
    whole, first, second = (job_for(config_for("manifold_graph")) for _ in range(3))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for _ in range(6):
            whole.trainer.train_step(next(whole.batches))
        torch.manual_seed(0)
        for _ in range(2):
            first.trainer.train_step(next(first.batches))
        snapshot, place = first.trainer.snapshot(), first.batches.state_dict()
        torch.manual_seed(1)
        second.batches.load_state_dict(place)
        second.trainer.restore(snapshot)
        for _ in range(4):
            second.trainer.train_step(next(second.batches))
    assert_bitwise_equal(second.trainer.algorithm.state_dict(), whole.trainer.algorithm.state_dict())


@pytest.mark.parametrize(
    ("steps", "fraction", "small"), [(6, 0.95, 5), (1, 0.7, 0), (10, 0.55, 6), (10, 0.26, 3)]
)
def test_the_end_of_a_run_is_for_whole_images(steps: int, fraction: float, small: int) -> None:
    assert TrainingConfig(steps=steps, half_size_fraction=fraction).half_size_steps == small


def test_a_plain_average_is_of_whole_images() -> None:
    TrainingConfig(half_size_fraction=0.5, swa_fraction=0.5)
    TrainingConfig(half_size_fraction=0.1, swa_fraction=0.9)  # 1 - 0.9 is below 0.1
    with pytest.raises(ValueError, match="weights of small images would be averaged"):
        TrainingConfig(half_size_fraction=0.6, swa_fraction=0.5)


@pytest.mark.parametrize("name", ["cnn13", "wide_resnet28_2", "resnet9"])
def test_networks_of_any_size(name: str) -> None:
    job = job_for(replace(config_for("supervised"), backbone=BackboneConfig(name, width=1 / 16)))
    with recorded_inputs(job.trainer.algorithm.model.backbone) as inputs:
        job.trainer.train_step(next(job.batches))
    assert {images.shape[2] for images in inputs} == {8}


def test_images_may_be_wider_than_high() -> None:
    images = random_dataset(400, side=22).images[:, :, :16]
    build(config_for("supervised"), dataset=from_arrays(images, torch.arange(400) % 10))
    with pytest.raises(UserError, match="21x16 pixels cannot be halved"):
        build(config_for("supervised"), dataset=from_arrays(images[..., 1:], torch.arange(400) % 10))


def test_vectors_have_no_size() -> None:
    config = replace(config_for("supervised"), backbone=BackboneConfig("mlp"))
    config = replace(config, preprocessing=PreprocessingConfig())
    with pytest.raises(UserError, match="vectors have no size that could be halved"):
        build(config, dataset=from_arrays(torch.randn(400, 5), torch.arange(400) % 10))


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
