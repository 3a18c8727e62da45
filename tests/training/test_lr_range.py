import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from manigraph.algorithms.base import Algorithm
from manigraph.algorithms.manifold_graph import ManifoldGraphMethod
from manigraph.algorithms.supervised import Supervised
from manigraph.catalogue import BACKBONES
from manigraph.contract import Batch, DataRequest, StepContext, StepOutput
from manigraph.errors import NonFiniteLossError, UserError
from manigraph.training.loop import Trainer, TrainingConfig
from manigraph.training.lr_range import SAFETY, Average, RangeTest, RangeTestResult, propose, range_test
from manigraph.training.schedule import SuperConvergence
from tests.helpers import batch_for, tiny_backbone

TEST = RangeTest(steps=50, lowest=1e-3, highest=1e2)


def make_batch() -> Batch:
    images = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return Batch(labelled={"image": images}, labels=torch.arange(8) % 3, unlabelled={})


def make_trainer(algorithm: Algorithm[Any], **training: Any) -> Trainer:
    schedule = SuperConvergence(warmup=0.1, ramp_up=0.3, ramp_down=0.4, min_momentum=0.0)
    return Trainer(algorithm, schedule, TrainingConfig(steps=500, **training), torch.Generator())


class _Slope(Algorithm["_Slope.Config"]):
    """A loss whose gradient is 1: each update is the learning rate itself."""

    @dataclass(frozen=True)
    class Config:
        not_finite_from: int | None = None

    weights: list[float]
    contexts: list[StepContext]

    def data_request(self) -> DataRequest:
        return DataRequest()

    def training_step(self, batch: Batch, context: StepContext) -> StepOutput:
        weight = self.model.linear.bias[0]
        self.weights.append(weight.item())
        self.contexts.append(context)
        spoilt = self.config.not_finite_from is not None and len(self.weights) > self.config.not_finite_from
        return StepOutput({"slope": 1000 + weight * (math.nan if spoilt else 1)})


def slope(not_finite_from: int | None = None) -> _Slope:
    algorithm = _Slope(_Slope.Config(not_finite_from), BACKBONES.get("mlp")((4,), width=0.1), 3)
    algorithm.weights, algorithm.contexts = [], []
    return algorithm.double()


def explore(algorithm: Algorithm[Any], test: RangeTest = TEST, **training: Any) -> RangeTestResult:
    return range_test(make_trainer(algorithm, **training), itertools.repeat(make_batch()), test)


def test_exponential_rates_and_the_lowest_momentum_reach_the_weights() -> None:
    """With momentum 0 and a gradient of 1, every step is as long as its learning rate."""
    algorithm = slope()
    result = explore(algorithm, weight_decay=0.0, log_every=7, ema_decay=0.9)
    expected = [1e-3 * 10 ** (5 * k / 49) for k in range(50)]
    assert result.rates == pytest.approx(expected)
    taken = [before - after for before, after in itertools.pairwise(algorithm.weights)]
    assert taken == pytest.approx(expected[:-1], rel=1e-6)
    assert result.losses == pytest.approx([1000 + weight for weight in algorithm.weights])


def test_the_method_is_where_it_meets_the_maximal_rate() -> None:
    algorithm = slope()
    explore(algorithm)
    assert len(algorithm.contexts) == 50
    assert all(0.4 <= context.progress < 0.4002 for context in algorithm.contexts)


@pytest.mark.parametrize(("warmup_fraction", "graph_is_on"), [(0.2, True), (1.0, False)])
def test_a_graph_is_on_if_it_ever_is(warmup_fraction: float, graph_is_on: bool) -> None:
    config = ManifoldGraphMethod.Config(warmup_fraction=warmup_fraction, prototypes_per_class=2)
    algorithm = ManifoldGraphMethod(config, tiny_backbone(), 3)
    range_test(make_trainer(algorithm), itertools.repeat(batch_for(algorithm)), RangeTest(20, 1e-5, 1e-4))
    assert bool(algorithm.model.graph_is_on) is graph_is_on


def test_a_loss_that_is_not_finite_ends_the_test() -> None:
    result = explore(slope(not_finite_from=30))
    assert result.ending == "not_finite"
    assert len(result.rates) == len(result.losses) == len(result.smoothed) == 30
    assert result.ended_at == pytest.approx(1e-3 * 10 ** (5 * 30 / 49))


def test_not_even_one_finite_step_gives_no_proposal() -> None:
    result = explore(slope(not_finite_from=0))
    assert result.rates == ()
    assert result.proposal.rate is None


def changing_batches() -> Iterator[Batch]:
    """So much noise that nothing can be learned by heart."""
    noise = torch.Generator().manual_seed(1)
    batch = make_batch()
    while True:
        images = batch.labelled["image"]
        changed = images + torch.randn(images.shape, generator=noise)
        yield Batch(labelled={"image": changed}, labels=batch.labels, unlabelled={})


@pytest.mark.parametrize("by_heart", [False, True])
def test_where_training_really_explodes_the_proposal_is_below_and_trains(by_heart: bool) -> None:
    """By heart: one batch again and again, whose loss is 0 and climbs only far above what training bears."""

    def batches() -> Iterator[Batch]:
        return itertools.repeat(make_batch()) if by_heart else changing_batches()

    def trainer(max_learning_rate: float) -> Trainer:
        torch.manual_seed(0)
        algorithm = Supervised(Supervised.Config(), tiny_backbone(), 3)
        schedule = SuperConvergence(max_learning_rate=max_learning_rate)
        return Trainer(algorithm, schedule, TrainingConfig(steps=60, log_every=60), torch.Generator())

    def final_loss(max_learning_rate: float) -> float:
        losses: list[float] = []
        trainer(max_learning_rate).run(batches(), lambda record: losses.append(record.loss))
        return losses[-1]

    result = range_test(trainer(0.1), batches(), RangeTest(100, 1e-4, 1e4))
    rate, valley_end, _ = result.proposal
    assert rate is not None
    assert valley_end is not None
    assert result.ending == "climbed"
    assert 1e-3 < rate < valley_end < result.ended_at < 1e4
    assert final_loss(rate) < 0.3 * result.losses[0]
    with pytest.raises(NonFiniteLossError):
        final_loss(100 * valley_end)
    if by_heart:
        with pytest.raises(NonFiniteLossError):
            final_loss(valley_end / SAFETY)


def test_steps_are_told_as_they_are_made() -> None:
    told: list[tuple[int, float, float]] = []
    batches: Iterator[Batch] = itertools.repeat(make_batch())
    result = range_test(make_trainer(slope()), batches, TEST, lambda *step: told.append(step))
    assert told == list(zip(range(1, 51), result.rates, result.smoothed, strict=True))


def test_the_average_is_exponential_and_corrected_for_its_start() -> None:
    """Decay 1 - 1/4: after 8, 4, 0 it is (8·(3/4)² + 4·(3/4) + 0) / ((3/4)² + 3/4 + 1) = 7.5 / 2.3125."""
    average = Average(memory=4)
    for value in (8.0, 4.0, 0.0):
        average.add(value)
    assert average.values == pytest.approx([8, (8 * 0.75 + 4) / 1.75, 7.5 / 2.3125])


def test_the_average_covers_the_same_rates_whatever_the_number_of_steps() -> None:
    assert RangeTest(201, 1e-4, 1e1).memory == pytest.approx(8)
    assert RangeTest(2001, 1e-4, 1e1).memory == pytest.approx(80)
    assert RangeTest(20, 1e-9, 1e9).memory == 1


# Curves whose answer is known


RATES = [10 ** (-4 + 5 * k / 199) for k in range(200)]


def valley(rate: float, floor: float, climb: float) -> float:
    """Falls from 2 + floor to floor by a rate of 0.01, and goes up beyond `climb`."""
    fall = 2 * max(0.0, 1 - (math.log10(rate) + 4) / 2)
    return floor + fall + max(0.0, 10 * (math.log10(rate) - math.log10(climb)))


@pytest.mark.parametrize("floor", [0.2, 1.0])
@pytest.mark.parametrize("climb", [0.02, 0.3])
def test_a_clear_valley_gives_a_third_of_its_end(floor: float, climb: float) -> None:
    """A tenth of the fall, 2, is climbed within 0.02 of a decade: less than a step."""
    curve = [valley(rate, floor, climb) for rate in RATES]
    rate, valley_end, reason = propose(RATES, curve, memory=1)
    assert valley_end == pytest.approx(climb, rel=0.1)
    assert rate == pytest.approx(climb / SAFETY, rel=0.12)
    assert rate == float(f"{rate:.2g}")
    assert "climbs beyond" in reason


def test_noise_on_a_floor_of_almost_nothing_is_no_climb() -> None:
    """Memorised labels: 0.01 after 0.001 is ten times the lowest loss and still nothing."""
    curve = [valley(rate, 0.001, 1.0) + (0.01 if k % 2 else 0.0) for k, rate in enumerate(RATES)]
    assert propose(RATES, curve, memory=1).valley_end == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize(("climb", "valley_end"), [(1.0, 1.0), (1e9, None)])
def test_rates_after_all_is_learned_count_for_nothing(climb: float, valley_end: float | None) -> None:
    """The loss falls by 1 a decade from 2: it is below 0.1, a twentieth, from 10^-2.1 = 0.0079 on."""
    proposal = propose(RATES, [valley(rate, 0.0, climb) for rate in RATES], memory=1)
    assert proposal.rate == pytest.approx(0.0079, rel=0.08)
    assert proposal.valley_end == (None if valley_end is None else pytest.approx(valley_end, rel=0.1))
    assert "almost 0" in proposal.reason


def test_a_bump_on_the_way_down_is_not_the_end() -> None:
    curve = [valley(rate, 0.2, 0.3) + (0.5 if 1e-3 < rate < 2e-3 else 0.0) for rate in RATES]
    assert propose(RATES, curve, memory=1).valley_end == pytest.approx(0.3, rel=0.1)


def test_a_loss_that_never_climbs_justifies_nothing() -> None:
    curve = [valley(rate, 0.2, 1e9) for rate in RATES]
    assert propose(RATES, curve, memory=1) == (
        None,
        None,
        "no learning rate up to 10 made the loss climb",
    )


def test_falling_noise_justifies_nothing() -> None:
    noise = torch.empty(200, dtype=torch.float64).normal_(0, 0.2, generator=torch.Generator().manual_seed(0))
    average = Average(memory=8)
    for k, wobble in enumerate(noise.tolist()):
        average.add(3 - 2 * k / 199 + wobble)
    assert propose(RATES, average.values, memory=8).rate is None


def test_noise_that_goes_nowhere_justifies_nothing() -> None:
    noise = torch.empty(200, dtype=torch.float64).normal_(3, 0.2, generator=torch.Generator().manual_seed(0))
    average = Average(memory=8)
    for value in noise.tolist():
        average.add(value)
    rate, _, reason = propose(RATES, average.values, memory=8)
    assert rate is None
    assert "never fell" in reason


def test_a_loss_that_only_climbs_justifies_nothing() -> None:
    rate, _, reason = propose(RATES, [1 + 100 * rate for rate in RATES], memory=1)
    assert rate is None
    assert "never fell" in reason


def test_a_sudden_end_is_the_end_of_the_valley() -> None:
    curve = [valley(rate, 0.2, 1e9) for rate in RATES[:150]]
    rate, valley_end, reason = propose(RATES[:150], curve, memory=1, not_finite=True)
    assert valley_end == RATES[149]
    assert rate == pytest.approx(RATES[149] / SAFETY, rel=0.05)
    assert "not finite beyond" in reason


@pytest.mark.parametrize(
    ("steps", "lowest", "highest", "message"),
    [
        (19, 1e-4, 1.0, "at least 20 steps, got 19"),
        (50, 0.0, 1.0, "got lowest 0 and"),
        (50, 1.0, 1.0, "lowest < highest"),
        (50, 1.0, math.inf, "highest inf"),
        (50, math.nan, 1.0, "lowest nan"),
    ],
)
def test_impossible_ranges_are_refused(steps: int, lowest: float, highest: float, message: str) -> None:
    with pytest.raises(UserError, match=message):
        RangeTest(steps, lowest, highest)
