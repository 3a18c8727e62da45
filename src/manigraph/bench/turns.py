"""Contenders that take turns: how every ratio is measured.

A machine may be shared and noisy, so no absolute time is worth much. All contenders do their work once in
every round, in an order that is reversed from round to round; each round gives one ratio, and what counts is
the median of the rounds' ratios with its 95 % interval. Rounds are added until that interval is narrow.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Work = Callable[[], object]

COLD_FACTOR = 8
"""How much longer the first call of short work may take than later ones."""
LEAST_FOR_AN_INTERVAL = 6
"""Of fewer values even the whole range holds the median with less than 95 %."""


@dataclass(frozen=True)
class Patience:
    """How long to measure."""

    tolerance: float = 0.01
    """Stop when half the interval of the ratio is at most this share of it."""
    least_rounds: int = 6
    most_rounds: int = 60
    most_seconds: float = 100.0
    """With the warm-up."""
    warm_up: int = 1
    """Rounds that pay for memory and kernels, and are not counted."""
    least_turn: float = 0.25
    """Seconds that a turn lasts at least; work that takes less is done several times in a turn."""

    def scaled(self, scale: float) -> "Patience":
        """Shorter, for a quick look, or longer."""
        return Patience(
            tolerance=self.tolerance,
            least_rounds=max(1, round(scale * self.least_rounds)),
            most_rounds=max(1, round(scale * self.most_rounds)),
            most_seconds=scale * self.most_seconds,
            warm_up=self.warm_up if scale >= 1 else 1,
            least_turn=min(1.0, scale) * self.least_turn,
        )


@dataclass(frozen=True)
class Target:
    """What a ratio should reach."""

    kind: Literal["at most", "at least"]
    bound: float

    def is_reached(self, ratio: float) -> bool:
        """Whether the ratio is on the right side."""
        return ratio <= self.bound if self.kind == "at most" else ratio >= self.bound

    def __str__(self) -> str:
        return f"{'≤' if self.kind == 'at most' else '≥'} {self.bound:g}"


@dataclass(frozen=True)
class Ratio:
    """One line of the benchmark: the time of one contender by the time of another."""

    setting: str
    what: str
    versus: str
    ratio: float
    """Median over the rounds."""
    low: float
    """95 % interval of that median."""
    high: float
    milliseconds: float
    """Median time of `what`."""
    versus_milliseconds: float
    rounds: int
    target: str = ""
    reached: bool | None = None
    """Whether the target is reached, if there is one."""


def take_turns(
    contenders: Mapping[str, Work], patience: Patience, on_round: Callable[[int], None] = lambda _: None
) -> dict[str, list[float]]:
    """Seconds of each contender in each round, until the ratios of all to the first are known well enough."""
    names = list(contenders)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    repeats = dict.fromkeys(names, 1)
    began = time.perf_counter()
    for turn in range(-patience.warm_up, patience.most_rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            took = _seconds_of(contenders[name], repeats[name])
            if turn >= 0:
                seconds[name].append(took)
            elif took < COLD_FACTOR * patience.least_turn:
                took = _seconds_of(contenders[name], 1)  # that of the first call pays for memory and kernels
                repeats[name] = max(1, math.ceil(patience.least_turn / max(took, 1e-3)))
        on_round(max(0, turn + 1))
        if turn + 1 < patience.least_rounds:
            continue
        if time.perf_counter() - began > patience.most_seconds or _is_settled(seconds, patience.tolerance):
            break
    return seconds


def _seconds_of(work: Work, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - start) / repeats


def _is_settled(seconds: Mapping[str, Sequence[float]], tolerance: float) -> bool:
    first, *others = seconds.values()
    if len(first) < LEAST_FOR_AN_INTERVAL:
        return False
    return all(_half_width(_ratios(times, first)) <= tolerance for times in others)


def _half_width(ratios: Sequence[float]) -> float:
    low, high = median_interval(ratios)
    return (high - low) / 2 / statistics.median(ratios)


def _ratios(times: Sequence[float], versus: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(times, versus, strict=True)]


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the median, from the order of the values alone; of fewer than 9 the whole range."""
    ordered = sorted(values)
    n = len(ordered)
    # The number of values below the true median is binomial(n, 1/2): cut off at most 2.5 % at either end.
    cut, below = 0, 0.5**n
    while below <= 0.025 and cut < (n - 1) // 2:
        cut += 1
        below += math.comb(n, cut) * 0.5**n
    return (ordered[max(0, cut - 1)], ordered[n - max(1, cut)])


def ratio_of(
    seconds: Mapping[str, Sequence[float]],
    what: str,
    versus: str,
    *,
    setting: str,
    target: Target | None = None,
) -> Ratio:
    """The time of `what` by that of `versus`."""
    ratios = _ratios(seconds[what], seconds[versus])
    low, high = median_interval(ratios)
    ratio = statistics.median(ratios)
    return Ratio(
        setting=setting,
        what=what,
        versus=versus,
        ratio=round(ratio, 4),
        low=round(low, 4),
        high=round(high, 4),
        milliseconds=round(1000 * statistics.median(seconds[what]), 3),
        versus_milliseconds=round(1000 * statistics.median(seconds[versus]), 3),
        rounds=len(ratios),
        target="" if target is None else str(target),
        reached=None if target is None else target.is_reached(ratio),
    )
