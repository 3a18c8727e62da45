"""Tells when a method no longer works although its loss is finite: the known ways to collapse.

A warning must not come in a run that goes well, so a sign has to stay for a number of records and for a
share of the run, whichever is longer. Records alone would not do: in a long run with a record every 20 of
282,000 steps, five of them are a moment. The share alone would not do either: in a short run it may be a
single batch. A run with fewer records than a kind needs is never warned of; its error is soon to be seen.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Collapse:
    """A kind of collapse: a sign of health at one end of its range, for long."""

    sign: str
    """Name of the sign of health."""
    above: float
    """From here on the sign is a bad one; the value itself counts."""
    settling: float
    """Share of the run, from the sign's first record on, in which it may be anything."""
    records: int
    """Bad records in a row that are needed."""
    duration: float
    """Share of the run over which they must reach."""
    warning: str


KINDS: Mapping[str, Collapse] = {
    # Not every single prediction: runs that took nearly all images for one class stayed at 0.97 to 0.98. With
    # two balanced classes, a batch of 160 has so many of one by chance once in 10^34 times; where the labels
    # themselves are uneven, see `UNEVEN`. The duration is for data whose labels do not show it, and the
    # first steps, in which fresh networks often say one class for all, are left out. On digits the largest
    # class has at most 0.46 of the predictions in the first steps, and 0.21 later.
    "one_class": Collapse(
        sign="largest_class",
        above=0.95,
        settling=0.05,
        records=5,
        duration=0.05,
        warning="nearly all predictions fall into one class: try a lower --schedule.max_learning_rate and, "
        "if the method learns from unlabelled images, --method.ramp_fraction 0.4, --method.balance_weight 1 "
        "--method.balance_memory 1280 or a lower --method.consistency_weight and --method.entropy_weight",
    ),
    # Of P = 200 prototypes, an entropy of 0.99 log P is an effective number of 190. Fresh ones may be near
    # that (0.92 on digits, 0.75 at most later), so they get a tenth of the run to become something.
    "uniform_attention": Collapse(
        sign="attention_entropy",
        above=0.99,
        settling=0.1,
        records=10,
        duration=0.1,
        warning="images attend to all prototypes alike, so the graph tells them nothing: try a larger "
        "--method.scale (4), a larger --method.prototype_weight or a larger --method.anchor_weight",
    ),
    # A mean cosine of 0.999 is an angle of 2.6 degrees; on digits it is 0.6 to 0.73.
    "equal_prototypes": Collapse(
        sign="prototype_similarity",
        above=0.999,
        settling=0.1,
        records=10,
        duration=0.1,
        warning="the prototypes of a class are all alike, as if it had only one: try a larger "
        "--method.divergence_weight or a lower --method.margin_divergence",
    ),
}

UNEVEN = 0.75
"""If a class has a larger share of the labels than this, most predictions may well fall into it: then only
every single one is a bad sign."""


@dataclass
class _Streak:
    """What is remembered of one kind."""

    first_seen: float | None = None
    """Progress at the sign's first record."""
    since: float | None = None
    """Progress at the first bad record in a row."""
    records: int = 0
    told: bool = False


class CollapseWatch:
    """Sees every record of a run, and warns of each kind of collapse once.

    Args:
        largest_share: Of a class among the labels.
    """

    def __init__(self, largest_share: float = 0.0) -> None:
        self._streaks = {name: _Streak() for name in KINDS}
        self._above = {name: kind.above for name, kind in KINDS.items()}
        if largest_share > UNEVEN:
            self._above["one_class"] = 1.0

    def see(self, health: Mapping[str, float], progress: float) -> str | None:
        """Take in a record.

        Args:
            health: Signs of health at this step.
            progress: Share of the run that is done, from 0 to 1.

        Returns:
            A sentence with what is seen and what to try if a kind of collapse is recognised for the first
            time. Of two at once, the second follows at the next record.
        """
        found = [kind for kind in KINDS if self._is_seen(kind, health, progress)]
        if not found:
            return None
        self._streaks[found[0]].told = True
        return KINDS[found[0]].warning

    def _is_seen(self, name: str, health: Mapping[str, float], progress: float) -> bool:
        kind, streak = KINDS[name], self._streaks[name]
        if kind.sign in health and streak.first_seen is None:
            streak.first_seen = progress
        settled = streak.first_seen is not None and progress >= streak.first_seen + kind.settling
        if not settled or not health.get(kind.sign, -1.0) >= self._above[name]:
            streak.since, streak.records = None, 0
            return False
        if streak.since is None:
            streak.since = progress
        streak.records += 1
        return not streak.told and streak.records >= kind.records and progress >= streak.since + kind.duration

    def state_dict(self) -> dict[str, Any]:
        """What an interrupted run must keep to warn as an uninterrupted one; plain values for JSON."""
        return {name: asdict(streak) for name, streak in self._streaks.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what `state_dict` gave."""
        self._streaks = {name: _Streak(**state.get(name, {})) for name in KINDS}
