"""Which weights of a run count: the last ones, or the best of some that were looked at on the way."""

import copy
from typing import Any, Literal

from torch import Tensor

from manigraph.algorithms.base import Algorithm
from manigraph.training.checkpoint import Snapshot

SelectionRule = Literal["last", "validation", "test"]

Part = Literal["validation", "test"]


def part_looked_at(rule: SelectionRule) -> Part:
    """On which images errors are measured on the way: validation, unless the choice is made on test."""
    return "test" if rule == "test" else "validation"


CHOSEN_ON_TEST = "chosen on test images: too good, not an estimate for new images"


class Selection:
    """Keeps the weights with the lowest error so far; the first of equals."""

    def __init__(self, rule: SelectionRule) -> None:
        self.rule = rule
        self.step: int | None = None
        self.error = float("inf")
        self._weights: dict[str, Tensor] = {}

    def consider(self, step: int, error: float, algorithm: Algorithm[Any]) -> None:
        """Remember these weights if they are better than all before."""
        if error < self.error:
            self.step, self.error = step, error
            self._weights = {name: value.detach().clone() for name, value in algorithm.state_dict().items()}

    def snapshot(self) -> Snapshot:
        """What is remembered, to be kept with the run."""
        return Snapshot(
            self._weights, {"step": self.step, "error": None if self.step is None else self.error}
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Take up what `snapshot` gave."""
        self.step, error = snapshot.values["step"], snapshot.values["error"]
        self.error = float("inf") if error is None else error
        self._weights = dict(snapshot.tensors)

    def chosen(self, algorithm: Algorithm[Any]) -> Algorithm[Any]:
        """A copy of the algorithm with the chosen weights; the algorithm itself if nothing was considered."""
        if self.step is None:
            return algorithm
        chosen = copy.deepcopy(algorithm)
        chosen.load_state_dict(self._weights)
        return chosen
