"""Counted errors: intervals and tests against tables, enumeration and simulation."""

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from manigraph.chance import Disagreement, difference_interval, error_interval, images_needed, mcnemar


@pytest.mark.parametrize(("wrong", "images"), [(0, 7), (1, 7), (7, 7), (3, 40), (12, 100), (250, 1000)])
def test_error_interval_is_wilsons(wrong: int, images: int) -> None:
    expected = stats.binomtest(wrong, images).proportion_ci(method="wilson")
    assert error_interval(wrong, images) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_error_interval_by_hand() -> None:
    # z = 1.959964, n = 10, p = 0: middle = (z²/2n) / (1 + z²/n) = 0.192073 / 1.384146 = 0.138766,
    # half = z / 1.384146 · √(z² / (4 · 100)) = 1.416010 · 0.0979982 = 0.138766.
    assert error_interval(0, 10) == pytest.approx((0.0, 0.277533), abs=1e-6)


@pytest.mark.parametrize(("wrong", "images"), [(0, 0), (3, 2), (-1, 5)])
def test_what_is_no_share_is_refused(wrong: int, images: int) -> None:
    with pytest.raises(ValueError, match="is no share"):
        error_interval(wrong, images)


def test_mcnemar_by_counting_all_ways_to_fall() -> None:
    """Of all 2^m ways in which m coins fall, those at least as unequal as what was seen."""
    for first, second in product(range(6), repeat=2):
        m = first + second
        falls = [sum(coins) for coins in product((0, 1), repeat=m)]
        as_unequal = [heads for heads in falls if abs(2 * heads - m) >= abs(first - second)]
        assert mcnemar(Disagreement(50, first, second)) == pytest.approx(len(as_unequal) / 2**m)


def test_mcnemar_by_hand() -> None:
    # Six coins all alike: 2 / 2^6. Five: 2 / 2^5, which is not below 0.05.
    assert mcnemar(Disagreement(30, 0, 6)) == 0.03125
    assert mcnemar(Disagreement(30, 5, 0)) == 0.0625
    assert mcnemar(Disagreement(30, 0, 0)) == 1.0


def test_many_images_do_not_overflow() -> None:
    assert 0 < mcnemar(Disagreement(100_000, 3000, 3200)) < 0.05


def test_difference_has_the_sign_of_the_first() -> None:
    seen = Disagreement(200, 4, 20)
    assert seen.difference == pytest.approx(-0.08)
    low, high = difference_interval(seen)
    assert low < -0.08 < high < 0
    assert difference_interval(Disagreement(200, 20, 4)) == pytest.approx((-high, -low))


def test_difference_interval_holds_the_truth_in_95_of_100_cases() -> None:
    generator = np.random.default_rng(0)
    first, second, images, cases = 0.05, 0.12, 60, 4000
    counts = generator.multinomial(images, [first, second, 1 - first - second], size=cases)
    held = 0
    for only_first, only_second, _ in counts.tolist():
        low, high = difference_interval(Disagreement(images, only_first, only_second))
        held += low <= first - second <= high
    assert held / cases == pytest.approx(0.95, abs=0.015)


def test_with_the_images_needed_the_test_finds_the_difference_in_80_of_100_cases() -> None:
    generator = np.random.default_rng(1)
    first, second = 0.06, 0.14
    images = images_needed(first + second, first - second)
    counts = generator.multinomial(images, [first, second, 1 - first - second], size=4000)
    found = np.mean([mcnemar(Disagreement(images, a, b)) < 0.05 for a, b, _ in counts.tolist()])
    # The exact test is somewhat stricter than the normal law from which the number comes.
    assert 0.72 < found < 0.83


def test_images_needed_by_hand() -> None:
    # d = δ = 0.1: (1.959964 · 0.316228 + 0.841621 · √0.09)² / 0.01 = (0.619795 + 0.252486)² · 100 = 76.09.
    assert images_needed(0.1, 0.1) == 77
    assert images_needed(0.1, -0.1) == 77
    assert images_needed(0.2, 0.01) > 50 * images_needed(0.2, 0.1)


@pytest.mark.parametrize(("disagreeing", "difference"), [(0.1, 0.0), (0.1, 0.2), (1.5, 0.1), (0.0, math.nan)])
def test_impossible_differences_are_refused(disagreeing: float, difference: float) -> None:
    with pytest.raises(ValueError, match="cannot come from"):
        images_needed(disagreeing, difference)
