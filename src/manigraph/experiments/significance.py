"""Whether one method is better than another: paired t-tests over runs that share their split."""

import math
import statistics
from collections.abc import Iterable, Sequence

from manigraph.experiments.grid import Result
from manigraph.significance import PairedTest, paired_test

Pair = tuple[Result, Result]


def pairs(ours: Iterable[Result], theirs: Iterable[Result]) -> list[Pair]:
    """Results of two rows that share data set, number of labels and seed.

    Raises:
        ValueError: Two that should share their split do not.
    """
    by_split = {_labels_and_seed(result): result for result in theirs}
    found = [(a, by_split[_labels_and_seed(a)]) for a in ours if _labels_and_seed(a) in by_split]
    for a, b in found:
        if a.split != b.split:
            raise ValueError(f"{a.cell} and {b.cell} were measured on different splits: measure both again")
    return found


def _labels_and_seed(result: Result) -> tuple[str, int, int]:
    return result.cell.recipe, result.cell.labels, result.cell.seed


def difference_test(found: Sequence[Pair]) -> PairedTest:
    """Of our error minus theirs, in points of per cent; for pairs of one data set and number of labels."""
    return paired_test([a.test_error - b.test_error for a, b in found])


def ratio_test(found: Sequence[Pair]) -> PairedTest:
    """Of our error by theirs, over all data sets and numbers of labels, as a change in per cent.

    The mean is a geometric one. With a seed, fewer labels are some of more labels, so these pairs are not
    independent: all pairs of a data set and a seed are one number, their mean.
    """
    groups: dict[tuple[str, int], list[float]] = {}
    for a, b in found:
        logarithm = math.log(a.test_error / b.test_error)
        groups.setdefault((a.cell.recipe, a.cell.seed), []).append(logarithm)
    test = paired_test([statistics.fmean(group) for group in groups.values()])
    low, high = (None if end is None else _change(end) for end in (test.low, test.high))
    return PairedTest(test.size, _change(test.mean), low, high, test.p)


def _change(logarithm: float) -> float:
    """100 · (ratio - 1)."""
    return 100 * math.expm1(logarithm)
