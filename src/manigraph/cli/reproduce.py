"""`manigraph reproduce TABLE`: measure a whole table of results."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from manigraph.cli.results import print_table
from manigraph.errors import UnknownNameError, UserError
from manigraph.options import parse

if TYPE_CHECKING:
    from manigraph.experiments.grid import Result, ResultsFile
    from manigraph.experiments.tables import Row, Table


@dataclass(frozen=True)
class ReproduceOptions:
    """Measure a table: every row at every number of labels, over several seeds.

    What is already in the results file is not measured again, so a stopped run can be continued.
    """

    table: Annotated[
        Literal["digits", "digits-methods", "digits-tuning", "digits-choices"], tyro.conf.Positional
    ]
    """`digits`: the paper's methods, equal steps; `digits-methods`: all methods, equal network passes;
    `digits-tuning` and `digits-choices`: how settings were chosen, on validation images."""
    labels: tuple[int, ...] = ()
    """Numbers of labels; by default the table's."""
    seeds: tuple[int, ...] = ()
    """Seeds; by default the table's."""
    rows: tuple[str, ...] = ()
    """Algorithms to measure; by default all rows of the table."""
    results: Path | None = None
    """Results file; by default results/TABLE.json."""
    runs: Path = Path("runs/reproduce")
    """Folder in which the run directories are made."""
    jobs: int = os.cpu_count() or 1
    """Runs at the same time, one thread each."""


def run(arguments: list[str]) -> int:
    """Measure what is missing, with progress, and print the table."""
    options: ReproduceOptions = parse(ReproduceOptions, arguments, program="manigraph reproduce")
    if options.jobs < 1:
        raise UserError(f"--jobs must be at least 1, got {options.jobs}")

    from dataclasses import replace

    from manigraph.experiments.grid import ResultsFile, run_grid
    from manigraph.experiments.tables import TABLES

    table = TABLES[options.table]
    for name in options.rows:
        if name not in (row.algorithm for row in table.rows):
            raise UnknownNameError("row", name, {row.algorithm for row in table.rows})
    table = replace(
        table,
        labels=options.labels or table.labels,
        seeds=options.seeds or table.seeds,
        rows=tuple(row for row in table.rows if not options.rows or row.algorithm in options.rows),
    )
    cells = {
        table.cell(row, labels, seed): row
        for labels in table.labels
        for seed in table.seeds
        for row in table.rows
    }
    results = ResultsFile(options.results or Path("results") / f"{options.table}.json")
    missing = sum(results.find(cell) is None for cell in cells)
    console = Console()
    console.print(
        f"{len(cells)} cells, {len(cells) - missing} done before, {missing} to measure; "
        f"results in {results.path}",
        highlight=False,
    )
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task("measuring", total=missing)

        def report(result: "Result") -> None:
            cell = result.cell
            progress.advance(task)
            progress.console.print(
                f"{cells[cell].title:<34} {cell.labels:>4} labels  seed {cell.seed:>2}  "
                f"error {result.error(table.part):5.2f} %  {result.seconds:6.1f} s",
                highlight=False,
            )

        run_grid(cells, results, options.runs, jobs=options.jobs, on_result=report)
    print_results(results, table)
    return 0


def print_results(results: "ResultsFile", table: "Table") -> None:
    """Mean and spread over seeds: a column for each number of labels."""
    from manigraph.experiments.grid import mean_and_spread
    from manigraph.training.selection import CHOSEN_ON_TEST

    dishonest = False

    def summary(row: "Row", labels: int) -> str:
        nonlocal dishonest
        cells = [results.find(table.cell(row, labels, seed)) for seed in table.seeds]
        found = [result for result in cells if result]
        mean, spread = mean_and_spread([result.error(table.part) for result in found])
        marked = any(result.selected_on == "test" for result in found)
        dishonest |= marked
        return f"{mean:.2f} ± {spread:.2f}" + (" ‡" if marked else "")

    seeds = ", ".join(str(seed) for seed in table.seeds)
    print_table(
        f"{table.heading}: {table.part} error %, mean ± standard deviation over seeds {seeds}",
        [f"{labels} labels" for labels in table.labels],
        [(row.title, [summary(row, labels) for labels in table.labels]) for row in table.rows],
    )
    if dishonest:
        Console().print(f"‡ {CHOSEN_ON_TEST}", highlight=False)
