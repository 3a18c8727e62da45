"""`manigraph reproduce TABLE`: measure a whole table of results."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from manigraph.cli.results import print_table, title
from manigraph.errors import UserError
from manigraph.options import parse

if TYPE_CHECKING:
    from manigraph.experiments.grid import Cell, Result, ResultsFile

METHODS = ("supervised", "label_spreading", "pi_model", "vat", "pi_vat", "manifold_graph")


@dataclass(frozen=True)
class ReproduceOptions:
    """Measure a table: every method at every number of labels, over several seeds.

    What is already in the results file is not measured again, so a stopped run can be continued.
    """

    table: Annotated[Literal["digits"], tyro.conf.Positional]
    """Which table."""
    labels: tuple[int, ...] = (20, 50)
    """Numbers of labels."""
    seeds: int = 5
    """Number of seeds, counted from 0."""
    methods: tuple[str, ...] = METHODS
    """Algorithms, and `label_spreading`."""
    results: Path | None = None
    """Results file; by default results/TABLE.json."""
    runs: Path = Path("runs/reproduce")
    """Folder in which the run directories are made."""
    jobs: int = os.cpu_count() or 1
    """Runs at the same time, one thread each."""


def run(arguments: list[str]) -> int:
    """Measure what is missing, with progress, and print the table."""
    options: ReproduceOptions = parse(ReproduceOptions, arguments, program="manigraph reproduce")
    if options.seeds < 1 or options.jobs < 1:
        raise UserError("--seeds and --jobs must be at least 1")

    from manigraph.experiments.grid import Cell, ResultsFile, run_grid

    cells = [
        Cell(options.table, method, labels, seed)
        for labels in options.labels
        for seed in range(options.seeds)
        for method in options.methods
    ]
    results = ResultsFile(options.results or Path("results") / f"{options.table}.json")
    missing = sum(results.find(cell) is None for cell in cells)
    console = Console()
    console.print(
        f"{len(cells)} cells, {len(cells) - missing} done before, {missing} to measure; "
        f"results in {results.path}",
        highlight=False,
    )
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    with progress:
        task = progress.add_task("measuring", total=missing)

        def report(result: "Result") -> None:
            cell = result.cell
            progress.advance(task)
            progress.console.print(
                f"{title(cell.algorithm):<30} {cell.labels:>4} labels  seed {cell.seed}  "
                f"error {result.test_error:5.2f} %  {result.seconds:6.1f} s",
                highlight=False,
            )

        run_grid(cells, results, options.runs, jobs=options.jobs, on_result=report)
    print_results(results, cells, options)
    return 0


def print_results(results: "ResultsFile", cells: Sequence["Cell"], options: ReproduceOptions) -> None:
    """Mean and spread over seeds: a row for each method, a column for each number of labels."""
    from manigraph.experiments.grid import mean_and_spread

    def summary(method: str, labels: int) -> str:
        found = [results.find(c) for c in cells if c.algorithm == method and c.labels == labels]
        errors = [result.test_error for result in found if result is not None]
        mean, spread = mean_and_spread(errors)
        return f"{mean:.2f} ± {spread:.2f}"

    print_table(
        f"Test error %, mean ± standard deviation over {options.seeds} seeds",
        [f"{labels} labels" for labels in options.labels],
        [(m, [summary(m, labels) for labels in options.labels]) for m in options.methods],
    )
