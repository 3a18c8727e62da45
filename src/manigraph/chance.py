"""What counted errors can tell: how sure an error is, whether two differ, how many images it would take.

Two models are compared on the same images, so only those count that one of them gets wrong and the other
does not (McNemar 1947). Tests are exact; intervals are those that hold for few images too (Wilson 1927;
Bonett & Price 2012).
"""

import math
from statistics import NormalDist
from typing import NamedTuple

from manigraph.significance import CONFIDENCE, SIGNIFICANT

POWER = 0.8
"""Chance to find a difference that is there, for which the number of images is reckoned."""


class Interval(NamedTuple):
    """Where a share lies, with 95 % confidence."""

    low: float
    high: float


class Disagreement(NamedTuple):
    """Two models on the same images, in numbers of images."""

    images: int
    first_only: int
    """Images that only the first model gets wrong."""
    second_only: int
    """Images that only the second one gets wrong."""

    @property
    def difference(self) -> float:
        """Error of the first minus that of the second, as a share."""
        return (self.first_only - self.second_only) / self.images


def error_interval(wrong: int, images: int) -> Interval:
    """Wilson's interval of a share of `wrong` among `images`."""
    if not 0 <= wrong <= images or images == 0:
        raise ValueError(f"{wrong} wrong among {images} images is no share")
    z = _quantile(1 - (1 - CONFIDENCE) / 2)
    share, weight = wrong / images, z * z / images
    middle = (share + weight / 2) / (1 + weight)
    half = z / (1 + weight) * math.sqrt(share * (1 - share) / images + weight / (4 * images))
    # At the ends the formula gives 0 and 1 up to rounding.
    low, high = max(middle - half, 0.0), min(middle + half, 1.0)
    return Interval(0.0 if wrong == 0 else low, 1.0 if wrong == images else high)


def difference_interval(seen: Disagreement) -> Interval:
    """Bonett and Price's interval of the difference of the two errors."""
    n = seen.images + 2
    first, second = (seen.first_only + 1) / n, (seen.second_only + 1) / n
    spread = math.sqrt((first + second - (first - second) ** 2) / n)
    half = _quantile(1 - (1 - CONFIDENCE) / 2) * spread
    return Interval(max(first - second - half, -1.0), min(first - second + half, 1.0))


def mcnemar(seen: Disagreement) -> float:
    """Two-sided p-value: were both equally good, how often would they disagree as unequally as this?

    Exact: the images on which they disagree are thrown coins. 2 Σ_{k ≤ min} C(m, k) / 2^m, at most 1.
    """
    m, fewer = seen.first_only + seen.second_only, min(seen.first_only, seen.second_only)
    tail = sum(math.comb(m, k) for k in range(fewer + 1))
    return min(1.0, float(2 * tail / 2**m))


def images_needed(disagreeing: float, difference: float) -> int:
    """Images with which a difference would be found with a chance of 80 %.

    (z_{α/2} √d + z_β √(d - δ²))² / δ², with d the share on which the models disagree and δ the difference
    of their errors (Miettinen 1968).
    """
    delta = abs(difference)
    if not 0 < delta <= disagreeing <= 1:
        raise ValueError(f"a difference of {delta} cannot come from {disagreeing} of the images")
    half, power = _quantile(1 - SIGNIFICANT / 2), _quantile(POWER)
    root = half * math.sqrt(disagreeing) + power * math.sqrt(disagreeing - delta * delta)
    return math.ceil((root / delta) ** 2)


def _quantile(share: float) -> float:
    return NormalDist().inv_cdf(share)
