"""What a grid will cost, from what its cells took before or from measured steps of their recipes."""

import heapq
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace

from manigraph.experiments.grid import Cell, Result, ResultsFile, of_one_run
from manigraph.experiments.outsiders import OUTSIDERS
from manigraph.recipes.measured import Measurements
from manigraph.runs import machine


@dataclass(frozen=True)
class Room:
    """What cells are computed with."""

    jobs: int
    """Cells at the same time."""
    threads: int
    """Of each of them."""
    cores: int
    """Of this machine."""
    gpus: int = 0
    """Of this machine; where there are any, each cell takes one."""
    shared: bool = True
    """Whether all cells share this machine; else each has `threads` cores, or a GPU, of one like it."""

    def share(self) -> float:
        """The part of the machine that a cell alone can use."""
        return 1.0 if self.gpus else self.useful_threads() / self.cores

    def crowding(self) -> float:
        """How much longer a cell takes because of the others."""
        if not self.shared:
            return 1.0
        return max(1.0, self.jobs / self.gpus if self.gpus else self.jobs * self.share())

    def useful_threads(self) -> int:
        """More than there are cores bring nothing."""
        return min(self.threads, self.cores)


@dataclass(frozen=True)
class Cost:
    """Of all cells together."""

    seconds: float
    """Until the last cell is done."""
    guessed: int = 0
    """Cells that are counted as long as the longest that is known of their recipe."""
    unknown: int = 0
    """Cells of which nothing is known; they are not in it."""


def expected_cost(
    cells: Iterable[Cell],
    results: ResultsFile,
    measurements: Measurements,
    calibration: float,
    room: Room,
) -> Cost:
    """What these cells will take, in this order.

    Args:
        cells: To be measured.
        results: What was measured before, and how long that took.
        measurements: Seconds of a step of each recipe and algorithm, on all of some machine.
        calibration: How fast this machine is (`calibration_seconds`).
        room: What they are computed with.
    """
    trained = [cells[0] for cells in of_one_run(cells)]  # asking them takes no time
    if not trained:
        return Cost(0.0)
    room = replace(room, jobs=min(room.jobs, len(trained)))
    guessed, unknown = 0, 0
    free = [0.0] * room.jobs
    """When each job has time for another cell."""
    for cell in trained:
        seconds = _seconds(cell, results, measurements, calibration, room)
        if seconds is None:
            seconds = _longest_of_recipe(cell, measurements, calibration, room)
            guessed += seconds is not None
        if seconds is None:
            unknown += 1
        else:
            heapq.heapreplace(free, free[0] + seconds * room.crowding())
    return Cost(max(free), guessed, unknown)


def _seconds(
    cell: Cell, results: ResultsFile, measurements: Measurements, calibration: float, room: Room
) -> float | None:
    """Of a cell with its threads and without others beside it, by the best that is known."""
    before = _same_but_for_seed_and_labels(cell, results)
    here = [result for result in before if result.machine == machine()]
    if here:
        return _seconds_before(here, room)
    if cell.algorithm in OUTSIDERS:
        return 0.0
    measured = measurements.get(cell.recipe, {}).get(cell.algorithm)
    if measured is not None:
        return measured.seconds_here(cell.config().training.steps, calibration) / room.share()
    return _seconds_before(before, room) if before else None


def _same_but_for_seed_and_labels(cell: Cell, results: ResultsFile) -> list[Result]:
    return [
        result
        for result in results.results
        if result.seconds is not None
        and replace(result.cell, seed=cell.seed, labels=cell.labels) == cell
        and result.digest == result.cell.digest()
    ]


def _seconds_before(results: list[Result], room: Room) -> float:
    """With other threads in inverse proportion."""
    return (
        statistics.median(r.seconds * r.threads for r in results if r.seconds is not None)
        / room.useful_threads()
    )


def _longest_of_recipe(
    cell: Cell, measurements: Measurements, calibration: float, room: Room
) -> float | None:
    steps = cell.config().training.steps
    known = [m.seconds_here(steps, calibration) for m in measurements.get(cell.recipe, {}).values()]
    return max(known) / room.share() if known else None
