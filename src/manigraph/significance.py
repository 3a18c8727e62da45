"""Whether a mean difference is more than chance: the paired t-test."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

SIGNIFICANT = 0.05
CONFIDENCE = 0.95


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
