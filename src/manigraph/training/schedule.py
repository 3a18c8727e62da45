"""Learning rate and momentum over a run, in shares of it.

Super-convergence (Smith & Topin 2019) as the paper uses it, or the cosine cycles of fast-SWA (Athiwaratkun et
al. 2019).
"""

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from torch.optim import Optimizer

from manigraph.contract import NEUTRAL

Shape = Literal["super_convergence", "cosine_cycles"]


class Rates(NamedTuple):
    """What the optimiser uses in one step."""

    learning_rate: float
    momentum: float


@dataclass(frozen=True)
class SuperConvergence:
    """Warm-up, ramp up, ramp down, ending: four straight lines. Or, if `shape` says so, a cosine with cycles.

    The paper: 2e-4 → 2e-3 in 2k iterations, → 2e-2 in 120k, → 2e-3 in 120k, → 2e-5 in 40k; momentum
    .95, falling to .85 while the rate climbs and rising back while it falls. Here the rates are
    multiples of the maximal one and the stages shares of the run, so that a short run has the same
    shape.

    Cosine cycles, with η the maximal rate: η/2 (1 + cos(π t / l0)) up to t = l, then the last c of it again
    and again. Athiwaratkun et al.: l = 180, l0 = 210 and c = 30 epochs, here of a run of 480 (ten cycles), so
    that a cycle goes from 0.19 η to 0.05 η. Momentum is `max_momentum` throughout; theirs is .9.
    """

    max_learning_rate: float = 2e-2
    """Highest learning rate, reached between ramp-up and ramp-down, or where a cosine begins."""
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
    shape: Shape = field(default="super_convergence", metadata=NEUTRAL)
    """Four lines, for which the stages above are, or a cosine with cycles, for which those below are."""
    cosine: float = field(default=180 / 480, metadata=NEUTRAL)
    """l, share of the run after which cycles begin."""
    cosine_zero: float = field(default=210 / 480, metadata=NEUTRAL)
    """l0, share after which the cosine would be 0, if no cycle began before."""
    cycle: float = field(default=30 / 480, metadata=NEUTRAL)
    """c, share that one cycle takes."""

    def __post_init__(self) -> None:
        if not 0 < self.max_learning_rate < float("inf"):
            raise ValueError(f"max_learning_rate must be positive and finite, got {self.max_learning_rate}")
        stages = (self.warmup, self.ramp_up, self.ramp_down)
        if min(stages) < 0 or sum(stages) > 1 + 1e-9:
            raise ValueError(f"the stages of the schedule must be shares of the run, got {stages}")
        if not 0 < self.cycle <= self.cosine <= min(self.cosine_zero, 1):
            raise ValueError(
                f"cycles need 0 < cycle <= cosine <= cosine_zero, and cosine at most 1, got {self.cycle}, "
                f"{self.cosine} and {self.cosine_zero}"
            )

    def at(self, progress: float) -> Rates:
        """Learning rate and momentum when `progress` (0 to 1) of the run is over."""
        return self._cosine(progress) if self.shape == "cosine_cycles" else self._four_lines(progress)

    def _cosine(self, progress: float) -> Rates:
        if progress >= self.cosine:
            # Rounding must not put the first step of a cycle at the end of the one before.
            cycles = math.floor((progress - self.cosine) / self.cycle + 1e-9) + 1
            progress -= cycles * self.cycle
        return Rates(
            self.max_learning_rate / 2 * (1 + math.cos(math.pi * progress / self.cosine_zero)),
            self.max_momentum,
        )

    def _four_lines(self, progress: float) -> Rates:
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
