"""The learning-rate range test (Smith 2017; Smith & Topin 2019): how high may the learning rate go?

A network is trained from its start while the learning rate grows from step to step. The loss falls, reaches a
valley and climbs again; the highest rate that is still in the valley bounds the maximal rate of the
super-convergence schedule. `docs/lr-find.md` says on what the constants below rest.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from manigraph.contract import Batch
from manigraph.errors import NonFiniteLossError, UserError
from manigraph.training.loop import Trainer
from manigraph.training.schedule import Rates, SuperConvergence

MEMORY = 0.2
"""Over how much of a decade of rates the loss is averaged, so that more steps do not mean more lag."""
STOP = 2.0
"""The test is over when the averaged loss is this multiple of what it was at first."""
FALL = 0.1
"""The loss must fall by this share, or nothing was learned from which to propose a rate."""
CLIMB = 0.1
"""The valley ends where the loss has climbed back by this share of its fall."""
SAFETY = 3.0
"""The proposal is this much below the end of the valley."""
LEARNED = 0.05
"""From this share of its start on the loss has hardly a gradient left, and no rate can make it climb."""
SLOWNESS = 10_000
"""The method sees a run this many times as long as the test, so that its progress stands still."""

Ending = Literal["highest", "climbed", "not_finite"]


@dataclass(frozen=True)
class RangeTest:
    """Which learning rates are tried, in how many steps."""

    steps: int = 200
    lowest: float = 1e-4
    highest: float = 10.0

    def __post_init__(self) -> None:
        if self.steps < 20:
            raise UserError(f"the range test takes at least 20 steps, got {self.steps}")
        if not 0 < self.lowest < self.highest < math.inf:
            raise UserError(
                f"the range test needs 0 < lowest < highest, got lowest {self.lowest:g} and highest "
                f"{self.highest:g}"
            )

    @property
    def memory(self) -> float:
        """Steps over which the loss is averaged."""
        decades = math.log10(self.highest / self.lowest)
        return max(1.0, MEMORY * (self.steps - 1) / decades)


@dataclass(frozen=True)
class ExponentialSweep(SuperConvergence):
    """In the place of a run's schedule: the rate grows by the same factor from step to step.

    Momentum is the schedule's lowest, which is what holds at the maximal rate. The method's own progress
    stands (almost) still where the schedule has its maximum, so that whatever a method fades in is there
    as it is when it meets that rate: a graph after its warm-up, a consistency weight after its ramp.
    """

    test: RangeTest = RangeTest()

    @property
    def total_steps(self) -> int:
        """Length of the run in which the test pretends to be."""
        return SLOWNESS * self.test.steps

    @property
    def first_step(self) -> int:
        """The step of that run at which the test begins; all of it fits in."""
        peak = round((self.warmup + self.ramp_up) * self.total_steps)
        return min(peak, self.total_steps - self.test.steps)

    def at(self, progress: float) -> Rates:
        """The rates at a share of the long run; out of the test's share they stay at its ends."""
        test = self.test
        step = min(max(round(progress * self.total_steps) - self.first_step, 0), test.steps - 1)
        growth = math.log(test.highest / test.lowest)
        return Rates(test.lowest * math.exp(growth * step / (test.steps - 1)), self.min_momentum)


class Proposal(NamedTuple):
    """What follows from a curve."""

    rate: float | None
    """The maximal learning rate to use, to two digits; None if the curve does not justify any."""
    valley_end: float | None
    """The highest rate before the loss climbed."""
    reason: str
    """In words, why this rate or why none."""


@dataclass(frozen=True)
class RangeTestResult:
    """The curve, step by step, and what follows from it."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    smoothed: tuple[float, ...]
    """Bias-corrected exponential average of the losses."""
    ending: Ending
    """`highest`: all rates were tried; `climbed`: the loss was far above its start; `not_finite`."""
    ended_at: float
    """The last rate that was tried."""
    proposal: Proposal


def range_test(
    trainer: Trainer,
    batches: Iterator[Batch],
    test: RangeTest,
    on_step: Callable[[int, float, float], None] = lambda step, rate, loss: None,
) -> RangeTestResult:
    """Train the trainer's algorithm with growing rates and read the curve.

    Clipping and weight decay are the trainer's own, since the rate is sought for training with them. The
    algorithm is trained on and of no use afterwards; random numbers are drawn as in training.

    Args:
        trainer: Not stepped itself; gives algorithm, schedule, settings and generator.
        batches: What to train on.
        test: Rates and steps.
        on_step: Called with the number of steps done, the rate and the averaged loss.
    """
    schedule = trainer.schedule
    sweep = ExponentialSweep(
        max_learning_rate=test.lowest,
        warmup=schedule.warmup,
        ramp_up=schedule.ramp_up,
        ramp_down=schedule.ramp_down,
        max_momentum=schedule.max_momentum,
        min_momentum=schedule.min_momentum,
        test=test,
    )
    config = replace(
        trainer.config, steps=sweep.total_steps, log_every=1, ema_decay=0.0, evaluate_every=0, select="last"
    )
    stepper = Trainer(trainer.algorithm, sweep, config, trainer.generator)
    stepper.step = sweep.first_step
    stepper.algorithm.train()

    rates: list[float] = []
    losses: list[float] = []
    average = Average(test.memory)
    ending: Ending = "highest"
    for step in range(test.steps):
        rate = sweep.at(stepper.step / config.steps).learning_rate
        try:
            record = stepper.train_step(next(batches))
        except NonFiniteLossError:
            ending = "not_finite"
            break
        assert record is not None, "every step is logged"
        rates.append(record.learning_rate)
        losses.append(record.loss)
        average.add(record.loss)
        on_step(step + 1, record.learning_rate, average.values[-1])
        start = first_step(average.values, test.memory)
        if step > start and average.values[-1] > STOP * abs(average.values[start]):
            ending = "climbed"
            break
    smoothed = tuple(average.values)
    return RangeTestResult(
        rates=tuple(rates),
        losses=tuple(losses),
        smoothed=smoothed,
        ending=ending,
        ended_at=rate,
        proposal=propose(rates, smoothed, test.memory, not_finite=ending == "not_finite"),
    )


class Average:
    """Exponential average over about `memory` values, corrected for its start at 0."""

    def __init__(self, memory: float) -> None:
        self.values: list[float] = []
        self._decay = 1 - 1 / max(memory, 1.0)
        self._sum = self._weight = 0.0

    def add(self, value: float) -> None:
        """Take in one more value."""
        self._sum = self._decay * self._sum + (1 - self._decay) * value
        self._weight = self._decay * self._weight + (1 - self._decay)
        self.values.append(self._sum / self._weight)


def first_step(smoothed: Sequence[float], memory: float) -> int:
    """Where the average has its full length; before, it is little more than single batches."""
    return min(round(memory), len(smoothed) - 1)


def propose(
    rates: Sequence[float], smoothed: Sequence[float], memory: float, *, not_finite: bool = False
) -> Proposal:
    """The maximal learning rate for a curve of averaged losses.

    The valley ends at the last rate before the loss has climbed from its lowest point by a tenth of its
    fall, or was not finite; the proposal is a third of that rate. Measured on the fall and not as a
    multiple of the lowest loss, because with few labels that is almost 0 and any noise a multiple of it; not
    taken from the lowest point, because in a flat valley chance decides where that is.

    Where few labels are learned by heart the loss is flat for another reason: it sends no gradient, and
    rates go by untested at which training would explode. So the proposal is never above the rate at which
    the loss is down to a twentieth; up to there it fell.
    """
    if not rates:
        return Proposal(None, None, "the loss was not finite at the lowest learning rate")
    start = first_step(smoothed, memory)
    first = smoothed[start]
    best = min(range(start, len(smoothed)), key=smoothed.__getitem__)
    fall = first - smoothed[best]
    if fall <= FALL * abs(first):
        return Proposal(None, None, "the loss never fell clearly below where it began")
    limit = smoothed[best] + CLIMB * fall
    beyond = next((i for i in range(best, len(smoothed)) if smoothed[i] > limit), None)
    learned = next((rates[i] for i in range(start, best + 1) if smoothed[i] < LEARNED * first), None)
    end = None
    if beyond is not None or not_finite:
        end = rates[-1 if beyond is None else beyond - 1]
    if learned is not None and (end is None or learned < end / SAFETY):
        why = f"the loss is almost 0 from a learning rate of {learned:.2g} on and says nothing of higher ones"
        return Proposal(_two_digits(learned), end, why)
    if end is None:
        return Proposal(None, None, f"no learning rate up to {rates[-1]:.2g} made the loss climb")
    what = "is not finite" if beyond is None else "climbs"
    why = f"the loss {what} beyond a learning rate of {end:.2g}, and a third of it leaves room"
    return Proposal(_two_digits(end / SAFETY), end, why)


def _two_digits(rate: float) -> float:
    return float(f"{rate:.2g}")
