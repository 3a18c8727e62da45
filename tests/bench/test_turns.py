"""Contenders take turns on a clock that only they move."""

import math
from collections.abc import Callable, Mapping, Sequence

import pytest

from manigraph.bench import turns
from manigraph.bench.turns import Patience, Ratio, Target, median_interval, ratio_of, take_turns
from manigraph.cli.bench import show_ratios


class Clock:
    """Stands still but for the seconds that contenders say they take."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


class Race:
    """Contenders whose seconds in each round, warm-up included, are known."""

    def __init__(self, clock: Clock, seconds: Mapping[str, Callable[[int], float]]) -> None:
        self.clock = clock
        self.seconds = seconds
        self.calls: list[str] = []
        self.rounds: list[int] = []

    def run(self, patience: Patience) -> dict[str, list[float]]:
        contenders = {name: self._work(name) for name in self.seconds}
        return take_turns(contenders, patience, self.rounds.append)

    def _work(self, name: str) -> Callable[[], None]:
        def work() -> None:
            self.clock.now += self.seconds[name](self.calls.count(name))
            self.calls.append(name)

        return work


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(turns, "time", clock)
    return clock


def always(seconds: float) -> Callable[[int], float]:
    return lambda _: seconds


def one_after_the_other(*seconds: float) -> Callable[[int], float]:
    """Over and over again."""
    return lambda turn: seconds[turn % len(seconds)]


# The interval of the median


@pytest.mark.parametrize(
    ("n", "first", "last"),
    [(1, 1, 1), (2, 1, 2), (6, 1, 6), (8, 1, 8), (9, 2, 8), (12, 3, 10), (15, 4, 12), (20, 6, 15)],
)
def test_ranks_of_the_interval(n: int, first: int, last: int) -> None:
    # Those of every table of the sign test; the values are 10, 20, ..., not in their order.
    values = [10.0 * (1 + (7 * i + 3) % n) for i in range(n)]
    assert sorted(values) == [10.0 * (1 + i) for i in range(n)]
    assert median_interval(values) == (10.0 * first, 10.0 * last)


@pytest.mark.parametrize("n", range(6, 61))
def test_the_interval_is_the_narrowest_that_holds_the_median_in_95_of_100_cases(n: int) -> None:
    def outside(rank: int) -> float:
        """How likely the median is below the value of this rank: at most rank - 1 heads in n throws."""
        return sum(math.comb(n, heads) for heads in range(rank)) / float(2**n)

    low, high = median_interval(list(range(1, n + 1)))
    assert low + high == n + 1
    assert outside(int(low)) <= 0.025 < outside(int(low) + 1)


# Turns


def test_the_order_is_reversed_from_round_to_round(clock: Clock) -> None:
    race = Race(clock, {"a": always(1), "b": always(2), "c": always(3)})
    race.run(Patience(least_rounds=3, most_rounds=3, warm_up=0))
    assert race.calls == ["a", "b", "c", "c", "b", "a", "a", "b", "c"]


def test_the_order_is_reversed_from_the_warm_up_to_the_first_round(clock: Clock) -> None:
    race = Race(clock, {"a": always(2), "b": always(3)})
    race.run(Patience(least_rounds=1, most_rounds=1, warm_up=1))
    assert race.calls == ["b", "a", "a", "b"]


def test_rounds_that_warm_up_are_not_counted(clock: Clock) -> None:
    race = Race(clock, {"a": lambda turn: 1.0 if turn >= 2 else 50.0, "b": lambda turn: 3.0 + turn})
    seconds = race.run(Patience(least_rounds=3, most_rounds=3, warm_up=2))
    assert seconds == {"a": [1.0, 1.0, 1.0], "b": [5.0, 6.0, 7.0]}
    assert race.rounds == [0, 0, 1, 2, 3]


def test_short_work_is_done_several_times_in_a_turn(clock: Clock) -> None:
    race = Race(clock, {"a": always(0.1), "b": always(0.3)})
    seconds = race.run(Patience(least_rounds=2, most_rounds=2, warm_up=1, least_turn=0.25))
    assert race.calls == ["b", "b", "a", "a", *3 * ["a"], "b", "b", *3 * ["a"]]
    assert seconds == {"a": pytest.approx([0.1, 0.1]), "b": pytest.approx([0.3, 0.3])}


def test_how_often_is_not_decided_by_the_first_call_which_pays_for_more(clock: Clock) -> None:
    race = Race(clock, {"a": lambda turn: 0.1 if turn else 0.9})
    race.run(Patience(least_rounds=1, most_rounds=1, warm_up=1, least_turn=0.25))
    assert len(race.calls) == 2 + 3


def test_long_work_is_done_once_in_a_turn(clock: Clock) -> None:
    race = Race(clock, {"a": always(0.25), "b": always(9)})
    race.run(Patience(least_rounds=1, most_rounds=1, warm_up=1, least_turn=0.25))
    assert race.calls == ["b", "a", "a", "a", "b"]


def test_it_stops_when_all_ratios_are_settled(clock: Clock) -> None:
    race = Race(clock, {"a": always(1), "b": always(2), "c": always(3)})
    seconds = race.run(Patience(least_rounds=7, most_rounds=30, warm_up=1))
    assert [len(times) for times in seconds.values()] == [7, 7, 7]


def test_fewer_rounds_than_an_interval_needs_settle_nothing(clock: Clock) -> None:
    race = Race(clock, {"a": always(1), "b": always(2)})
    assert len(race.run(Patience(least_rounds=1, most_rounds=30, warm_up=0))["a"]) == 6


def test_one_unsettled_ratio_is_enough_to_go_on(clock: Clock) -> None:
    race = Race(clock, {"a": always(1), "b": always(2), "c": one_after_the_other(3, 4)})
    seconds = race.run(Patience(least_rounds=4, most_rounds=20, most_seconds=180, warm_up=0))
    assert [len(times) for times in seconds.values()] == [20, 20, 20]


def test_ratios_to_the_first_contender_settle_and_not_seconds(clock: Clock) -> None:
    # A machine that is busy in every other round slows both down.
    race = Race(clock, {"a": one_after_the_other(1, 3), "b": one_after_the_other(2, 6)})
    assert len(race.run(Patience(least_rounds=7, most_rounds=30, warm_up=0))["a"]) == 7


@pytest.mark.parametrize(("tolerance", "rounds"), [(0.06, 7), (0.04, 20)])
def test_settled_is_within_the_tolerance_to_either_side(clock: Clock, tolerance: float, rounds: int) -> None:
    # Ratios of 1.9, 2 and 2.1, over and over: 5 % to either side of 2.
    race = Race(clock, {"a": always(1), "b": one_after_the_other(1.9, 2, 2.1)})
    patience = Patience(tolerance=tolerance, least_rounds=7, most_rounds=20, warm_up=0)
    assert len(race.run(patience)["b"]) == rounds


def test_one_wild_round_does_not_keep_it_going(clock: Clock) -> None:
    # Of 8 rounds the interval is the whole range, of 9 it leaves out one at either end.
    race = Race(clock, {"a": always(1), "b": lambda turn: 9.0 if turn == 2 else 2.0})
    assert len(race.run(Patience(least_rounds=3, most_rounds=30, warm_up=0))["b"]) == 9


def test_it_stops_when_the_time_is_over(clock: Clock) -> None:
    # Rounds of 5 and 7 seconds, never settled: 24 after the fourth, 29 after the fifth.
    race = Race(clock, {"a": always(2), "b": one_after_the_other(3, 5)})
    patience = Patience(least_rounds=2, most_rounds=60, most_seconds=28, warm_up=0)
    assert len(race.run(patience)["a"]) == 5


def test_the_least_rounds_are_made_however_long_they_take(clock: Clock) -> None:
    race = Race(clock, {"a": always(200), "b": one_after_the_other(300, 500)})
    patience = Patience(least_rounds=3, most_rounds=60, most_seconds=29, warm_up=2)
    assert len(race.run(patience)["a"]) == 3


@pytest.mark.parametrize(("scale", "expected"), [(0.25, (2, 15, 45.0, 1)), (2, (16, 120, 360.0, 2))])
def test_scaled_patience(scale: float, expected: tuple[int, int, float, int]) -> None:
    patience = Patience(tolerance=0.02, least_rounds=8, most_rounds=60, most_seconds=180.0, warm_up=2)
    scaled = patience.scaled(scale)
    assert (scaled.least_rounds, scaled.most_rounds, scaled.most_seconds, scaled.warm_up) == expected
    assert scaled.tolerance == 0.02
    assert Patience().scaled(0.001).least_rounds == Patience().scaled(0.001).most_rounds == 1


# What is reported

SECONDS: Mapping[str, Sequence[float]] = {
    "ours": [0.0012, 0.0018, 0.002],
    "theirs": [0.004, 0.003, 0.005],
}


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    # 0.3, 0.6 and 0.4; that of the medians would be 0.45.
    assert ratio_of(SECONDS, "ours", "theirs", setting="small") == Ratio(
        setting="small",
        what="ours",
        versus="theirs",
        ratio=0.4,
        low=0.3,
        high=0.6,
        milliseconds=1.8,
        versus_milliseconds=4.0,
        rounds=3,
        target="",
        reached=None,
    )


@pytest.mark.parametrize(
    ("target", "text", "reached"),
    [
        (Target("at most", 0.39), "≤ 0.39", False),
        (Target("at most", 0.5), "≤ 0.5", True),
        (Target("at least", 0.39), "≥ 0.39", True),
        (Target("at least", 0.5), "≥ 0.5", False),
    ],
)
def test_targets(target: Target, text: str, reached: bool) -> None:
    ratio = ratio_of(SECONDS, "ours", "theirs", setting="small", target=target)
    assert (ratio.target, ratio.reached) == (text, reached)


@pytest.mark.parametrize("kind", ["at most", "at least"])
def test_a_bound_that_is_met_exactly_is_reached(kind: str) -> None:
    target = Target("at most", 1.25) if kind == "at most" else Target("at least", 1.25)
    assert target.is_reached(1.25)


@pytest.mark.parametrize(("scale", "shown"), [(1.0, True), (0.99, False)])
def test_only_whole_measurements_are_judged(
    capsys: pytest.CaptureFixture[str], scale: float, shown: bool
) -> None:
    ratio = ratio_of(SECONDS, "ours", "theirs", setting="small", target=Target("at most", 0.5))
    show_ratios("Steps", [ratio], scale)
    assert ("≤ 0.5, reached" in capsys.readouterr().out) is shown
