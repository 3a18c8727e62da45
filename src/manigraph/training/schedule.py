"""The super-convergence schedule (Smith & Topin 2019) as the paper uses it, in shares of the run."""

from dataclasses import dataclass
from typing import NamedTuple

from torch.optim import Optimizer


class Rates(NamedTuple):
    """What the optimiser uses in one step."""

    learning_rate: float
    momentum: float


@dataclass(frozen=True)
class SuperConvergence:
    """Warm-up, ramp up, ramp down, ending: four straight lines.

    The paper: 2e-4 → 2e-3 in 2k iterations, → 2e-2 in 120k, → 2e-3 in 120k, → 2e-5 in 40k; momentum
    .95, falling to .85 while the rate climbs and rising back while it falls. Here the rates are
    multiples of the maximal one and the stages shares of the run, so that a short run has the same
    shape.
    """

    max_learning_rate: float = 2e-2
    """Highest learning rate, reached between ramp-up and ramp-down."""
    warmup: float = 2 / 282
    """Share of the run in which the rate climbs from 1/100 to 1/10 of the maximum."""
    ramp_up: float = 120 / 282
    """Share in which it climbs to the maximum."""
    ramp_down: float = 120 / 282
    """Share in which it falls back to 1/10; what is left of the run takes it to 1/1000."""
    max_momentum: float = 0.95
    """Momentum outside the cycle."""
    min_momentum: float = 0.85
    """Momentum at the maximal learning rate."""

    def __post_init__(self) -> None:
        if not 0 < self.max_learning_rate < float("inf"):
            raise ValueError(f"max_learning_rate must be positive and finite, got {self.max_learning_rate}")
        stages = (self.warmup, self.ramp_up, self.ramp_down)
        if min(stages) < 0 or sum(stages) > 1 + 1e-9:
            raise ValueError(f"the stages of the schedule must be shares of the run, got {stages}")

    def at(self, progress: float) -> Rates:
        """Learning rate and momentum when `progress` (0 to 1) of the run is over."""
        high, top, bottom = self.max_learning_rate, self.max_momentum, self.min_momentum
        ends = (
            self.warmup,
            self.warmup + self.ramp_up,
            self.warmup + self.ramp_up + self.ramp_down,
        )
        if progress < ends[0]:
            return Rates(_line(progress / self.warmup, high / 100, high / 10), top)
        if progress < ends[1]:
            t = (progress - ends[0]) / self.ramp_up
            return Rates(_line(t, high / 10, high), _line(t, top, bottom))
        if progress < ends[2]:
            t = (progress - ends[1]) / self.ramp_down
            return Rates(_line(t, high, high / 10), _line(t, bottom, top))
        t = (progress - ends[2]) / max(1 - ends[2], 1e-9)
        return Rates(_line(min(t, 1.0), high / 10, high / 1000), top)

    def apply(self, optimizer: Optimizer, progress: float) -> Rates:
        """Write the rates into the keys the optimiser really reads."""
        rates = self.at(progress)
        for group in optimizer.param_groups:
            assert "momentum" in group, "the schedule needs an optimiser with momentum"
            group["lr"], group["momentum"] = rates
        return rates


def _line(t: float, start: float, end: float) -> float:
    return start + t * (end - start)
