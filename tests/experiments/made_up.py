"""Results that were never measured."""

from pathlib import Path
from typing import Any

from manigraph.experiments.grid import Cell, Result, ResultsFile
from manigraph.experiments.paper import paper_table
from manigraph.experiments.report import ROWS
from manigraph.experiments.tables import Column

SVHN, CIFAR10 = "svhn_16px", "cifar10_16px"
TABLE = paper_table("main", "small")


def made_up(
    title: str, labels: int, errors: list[float], *, recipe: str = SVHN, **changes: Any
) -> list[Result]:
    """Results of a row for seeds 0, 1, …, one for each error."""
    cells = [TABLE.cell(ROWS[title], Column("", recipe, labels), seed) for seed in range(len(errors))]
    return [made_up_result(cell, error, **changes) for cell, error in zip(cells, errors, strict=True)]


def made_up_result(cell: Cell, error: float, **changes: Any) -> Result:
    values: dict[str, Any] = {
        "digest": cell.digest(),
        "calibration_error": 1.0,
        "split": f"{cell.recipe} {cell.labels} {cell.seed}",
        "seconds": 3600.0,
        "commit": "0123456789abcdef",
        "machine": {"processor": "a processor", "cores": 2},
    }
    return Result(cell=cell, test_error=error, **(values | changes))


def results_file(folder: Path, *groups: list[Result]) -> ResultsFile:
    """With these results, written."""
    file = ResultsFile(folder / "small.json")
    for group in groups:
        for result in group:
            file.add(result)
    return file
