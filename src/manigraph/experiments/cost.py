"""What a grid will cost, from what its cells took before or from measured steps of their recipes."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from manigraph.experiments.grid import Cell, ResultsFile
from manigraph.experiments.outsiders import OUTSIDERS
from manigraph.recipes.measured import Measurements


@dataclass(frozen=True)
class Cost:
    """Of all cells together."""

    seconds: float
    """Until the last cell is done, with several at a time."""
    unknown: int
    """Cells of which nothing is known; they are not in it."""


def expected_cost(
    cells: Iterable[Cell],
    results: ResultsFile,
    measurements: Measurements,
    calibration: float,
    *,
    jobs: int,
    cores: int,
) -> Cost:
    """What these cells will take.

    Args:
        cells: To be measured.
        results: What was measured before, and how long that took.
        measurements: Seconds of a step of each recipe and algorithm, on all cores of some machine.
        calibration: How fast this machine is (`calibration_seconds`).
        jobs: Cells at the same time; they share the cores.
        cores: How many there are for all jobs; each job has `cores / jobs` of them.
    """
    core_seconds, unknown = 0.0, 0
    for cell in cells:
        seconds = _core_seconds_before(cell, results)
        if seconds is None:
            seconds = _core_seconds_by_recipe(cell, measurements, calibration, cores)
        if seconds is None:
            unknown += 1
        else:
            core_seconds += seconds
    return Cost(core_seconds / max(1, min(jobs, cores) * max(1, cores // jobs)), unknown)


def _core_seconds_before(cell: Cell, results: ResultsFile) -> float | None:
    """As long as the same run with other seeds and labels took, if its length was the same."""
    known = [
        r.seconds * r.threads
        for r in results.results
        if r.seconds is not None
        and (r.cell.recipe, r.cell.algorithm, r.cell.options) == (cell.recipe, cell.algorithm, cell.options)
        and r.config.get("training") == _training(cell)
    ]
    return statistics.median(known) if known else None


def _training(cell: Cell) -> object:
    from manigraph.config import deciding_settings

    return deciding_settings(cell.config())["training"]


def _core_seconds_by_recipe(
    cell: Cell, measurements: Measurements, calibration: float, cores: int
) -> float | None:
    if cell.algorithm in OUTSIDERS:
        return 0.0
    measured = measurements.get(cell.recipe, {}).get(cell.algorithm)
    if measured is None:
        return None
    return cores * measured.seconds_here(cell.config().training.steps, calibration)
