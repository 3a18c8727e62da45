"""Whether one method is better than another: paired t-tests over runs that share their split."""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from manigraph.experiments.grid import Result

SIGNIFICANT = 0.05
CONFIDENCE = 0.95

Pair = tuple[Result, Result]


class PairedTest(NamedTuple):
    """A mean difference, and how sure it is."""

    size: int
    """Differences that went into it."""
    mean: float
    low: float | None
    """Ends of the 95 % interval; None where there is no test."""
    high: float | None
    p: float | None
    """Two-sided; None if there are fewer than two differences, or none of them differs from the others."""

    @property
    def is_significant(self) -> bool:
        """Whether it was tested and chance alone would rarely do it."""
        return self.p is not None and self.p < SIGNIFICANT


def paired_test(differences: Sequence[float]) -> PairedTest:
    """Student's t-test of differences against 0; they are taken to be normal and independent."""
    mean = statistics.fmean(differences)
    # Equal up to rounding: nothing to estimate a spread from.
    if len(differences) < 2 or statistics.stdev(differences) <= 1e-12 * (1 + abs(mean)):
        return PairedTest(len(differences), mean, None, None, None)
    from scipy import stats

    test = stats.ttest_1samp(differences, 0.0)
    low, high = test.confidence_interval(CONFIDENCE)
    return PairedTest(len(differences), mean, float(low), float(high), float(test.pvalue))


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
