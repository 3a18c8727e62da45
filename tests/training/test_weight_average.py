"""SWA and fast-SWA in the loop: which weights enter the average, what it is, and that it goes on exactly."""

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from manigraph.algorithms.supervised import Supervised
from manigraph.contract import Batch
from manigraph.training.loop import Trainer, TrainingConfig
from manigraph.training.schedule import SuperConvergence
from tests.helpers import assert_bitwise_equal, normal, tiny_backbone

FAST_SWA = {"swa_fraction": 330 / 480, "swa_every": 3 / 480}
SWA = {"swa_fraction": 330 / 480, "swa_every": 30 / 480}


def trainer_of(steps: int, **settings: float) -> Trainer:
    torch.manual_seed(0)
    algorithm = Supervised(Supervised.Config(), tiny_backbone(), 3)
    schedule = SuperConvergence(max_learning_rate=0.1, shape="cosine_cycles", max_momentum=0.9)
    config = TrainingConfig(steps=steps, **settings)  # type: ignore[arg-type]
    return Trainer(algorithm, schedule, config, torch.Generator())


def batch_of(step: int) -> Batch:
    images = normal(6, 1, 8, 8, seed=step, dtype=torch.float32)
    return Batch(labelled={"image": images}, labels=torch.arange(6) % 3, unlabelled={})


def weight_of(trainer: Trainer) -> Tensor:
    return trainer.algorithm.model.linear.weight.detach().clone()


def entering(trainer: Trainer) -> list[int]:
    """The steps after which the weights enter, by looking at the counter of the average."""
    assert trainer.average is not None
    steps = []
    for step in range(trainer.config.steps):
        before = int(trainer.average.n_averaged)
        trainer.train_step(batch_of(step))
        if int(trainer.average.n_averaged) > before:
            assert int(trainer.average.n_averaged) == before + 1
            steps.append(step + 1)
    return steps


def naive_steps(total: int, begin: Fraction, every: Fraction) -> list[int]:
    """The first step at or after each of begin + every, begin + 2 every, … 1; each step once."""
    steps: list[int] = []
    place = begin + every
    while place <= 1:
        step = 1
        while Fraction(step, total) < place:
            step += 1
        if step not in steps:
            steps.append(step)
        place += every
    return steps


@pytest.mark.parametrize("total", [96, 37, 40])
@pytest.mark.parametrize(
    ("begin", "every"), [((150, 480), (3, 480)), ((150, 480), (30, 480)), ((1, 3), (1, 7)), ((0, 1), (1, 10))]
)
def test_which_weights_enter(total: int, begin: tuple[int, int], every: tuple[int, int]) -> None:
    first, interval = Fraction(*begin), Fraction(*every)
    trainer = trainer_of(total, swa_fraction=float(1 - first), swa_every=float(interval))
    assert entering(trainer) == naive_steps(total, first, interval)


def test_fast_swa_takes_ten_weights_of_each_cycle_and_swa_the_last_one() -> None:
    # 480 steps stand for 480 epochs.
    fast, slow = (naive_steps(480, Fraction(150, 480), Fraction(n, 480)) for n in (3, 30))
    assert fast == list(range(153, 481, 3))
    assert slow == list(range(180, 481, 30))
    schedule = SuperConvergence(shape="cosine_cycles")
    for step in slow[:-1]:
        # The update that led there had the lowest rate, the next one starts a cycle.
        assert schedule.at((step - 1) / 480).learning_rate < 0.4 * schedule.at(step / 480).learning_rate


def test_without_an_interval_the_weights_of_all_steps_enter() -> None:
    assert entering(trainer_of(10, swa_fraction=0.4)) == [7, 8, 9, 10]
    assert entering(trainer_of(10, swa_fraction=0.4, swa_every=0.01)) == [7, 8, 9, 10]


@pytest.mark.parametrize("settings", [FAST_SWA, SWA], ids=["fast-SWA", "SWA"])
def test_the_average_is_the_mean_of_the_weights_that_entered(settings: dict[str, float]) -> None:
    trainer = trainer_of(64, **settings)
    due = naive_steps(64, Fraction(150, 480), Fraction(round(480 * settings["swa_every"]), 480))
    kept = []
    for step in range(1, 65):
        trainer.train_step(batch_of(step))
        if step in due:
            kept.append(weight_of(trainer))
    average = trainer.evaluated_algorithm().model.linear.weight
    assert len(kept) == (44 if settings is FAST_SWA else 11)
    torch.testing.assert_close(average, torch.stack(kept).mean(dim=0), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(average, weight_of(trainer), atol=1e-4)


def test_weights_count_until_the_first_ones_have_entered() -> None:
    trainer = trainer_of(16, **SWA)
    for step in range(5):
        trainer.train_step(batch_of(step))
        assert trainer.evaluated_algorithm() is trainer.algorithm
    trainer.train_step(batch_of(5))  # 6/16 is 180/480
    assert trainer.evaluated_algorithm() is not trainer.algorithm


@pytest.mark.parametrize("settings", [FAST_SWA, SWA], ids=["fast-SWA", "SWA"])
def test_a_run_goes_on_exactly_in_the_middle_of_a_cycle(settings: dict[str, float]) -> None:
    whole = trainer_of(96, **settings)
    for step in range(69):  # a cycle of 6 steps began at 66
        whole.train_step(batch_of(step))
    snapshot = whole.snapshot()
    other = trainer_of(96, **settings)
    other.restore(snapshot)
    for step in range(69, 96):
        assert other.schedule.at(other.step / 96) == whole.schedule.at(whole.step / 96)
        whole.train_step(batch_of(step))
        other.train_step(batch_of(step))
    assert_bitwise_equal(other.snapshot().tensors, whole.snapshot().tensors)
    assert other.average is not None
    assert int(other.average.n_averaged) == (66 if settings is FAST_SWA else 11)


def test_an_interval_longer_than_the_average_is_refused() -> None:
    for fraction in (0.0, 0.2):
        with pytest.raises(ValueError, match="swa_every must be from 0 to swa_fraction"):
            TrainingConfig(swa_fraction=fraction, swa_every=0.3)
