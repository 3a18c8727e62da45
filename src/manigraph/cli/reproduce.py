"""`manigraph reproduce`: measure a table of results, continuing where it stopped."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from manigraph.cli.results import print_table
from manigraph.errors import UnknownNameError, UserError
from manigraph.experiments.engines import EngineName, engine_named
from manigraph.options import parse

if TYPE_CHECKING:
    from manigraph.experiments.grid import Cell, Failure, Result, ResultsFile
    from manigraph.experiments.tables import Column, Row, Table


@dataclass(frozen=True)
class ReproduceOptions:
    """Measure a table: every row at every number of labels, over several seeds.

    What is already in the results file is not measured again, and a run that was killed goes on from its last
    checkpoint, so a table can be stopped at any time and continued by the same command.
    """

    table: Literal[
        "main",
        "svhn-labels",
        "cifar10-labels",
        "ablation",
        "small-tuning",
        "digits",
        "digits-methods",
        "digits-tuning",
        "digits-choices",
    ]
    """The paper's: `main`, `svhn-labels` and `cifar10-labels` with fewer labels, `ablation`. `small-tuning`:
    how the settings of the small scale were chosen, on validation images. On digits: `digits`, the paper's
    methods with equal steps; `digits-methods`, all methods with equal network passes; `digits-tuning` and
    `digits-choices`, how settings were chosen."""
    scale: Literal["paper", "small"] = "small"
    """Of the paper's tables: `paper` has its network and its 282,000 steps, for GPUs; `small` is for two CPU
    cores."""
    labels: tuple[int, ...] = ()
    """Numbers of labels; by default the table's."""
    seeds: int | None = None
    """How many seeds; by default the table's."""
    rows: tuple[str, ...] = ()
    """Algorithms or titles of rows to measure; by default all rows of the table."""
    results: Path | None = None
    """Results file; by default results/SCALE.json for the paper's tables, else results/TABLE.json."""
    runs: Path = Path("runs/reproduce")
    """Folder in which the run directories are made."""
    jobs: int = os.cpu_count() or 1
    """Runs at the same time."""
    threads: int = 0
    """Threads of each run on a CPU; 0 shares the cores among the jobs."""
    engine: EngineName = "local"
    """Where runs are computed: processes of this machine, a Ray cluster (RAY_ADDRESS; extra `ray`), or jobs
    of SLURM (extra `slurm`). All machines must see the same folders."""
    hours: float = 24.0
    """With slurm: time limit of a run; one that is cut off goes on when the command is given again."""
    partition: str = ""
    """With slurm: where to send the jobs."""
    first_steps: int = 0
    """Only the first steps of every run, of one seed, to see that all of them work; no results are kept."""
    plan: bool = False
    """Only say what would be measured, and what it would cost."""


def run(arguments: list[str]) -> int:
    """Measure what is missing, with progress, and print the table."""
    options: ReproduceOptions = parse(ReproduceOptions, arguments, program="manigraph reproduce")
    for name in ("jobs", "seeds"):
        if (getattr(options, name) or 1) < 1 or getattr(options, name) == 0:
            raise UserError(f"--{name} must be at least 1, got {getattr(options, name)}")
    if options.threads < 0 or options.first_steps < 0:
        raise UserError(
            f"--threads and --first_steps must be at least 0, got {options.threads} and {options.first_steps}"
        )

    from manigraph.experiments.grid import ResultsFile, run_grid

    table = chosen_table(options)
    results = ResultsFile(_results_path(options))
    cells = table.cells()
    console = Console()
    without_data = _say_missing_data(cells, console)
    cells = {cell: row for cell, row in cells.items() if cell not in without_data}
    missing = [cell for cell in cells if results.find(cell) is None]
    console.print(
        f"{len(cells)} cells, {len(cells) - len(missing)} done before, {len(missing)} to measure; "
        f"results in {results.path}",
        highlight=False,
    )
    if missing:
        console.print(_cost_in_words(missing, results, options), highlight=False)
    failures: list[Failure] = []
    if missing and not options.plan:
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        ) as progress:
            task = progress.add_task("measuring", total=len(missing))

            def report(result: "Result") -> None:
                progress.advance(task)
                progress.console.print(_in_words(result, cells[result.cell], table), highlight=False)

            engine = engine_named(
                options.engine,
                jobs=options.jobs,
                threads=options.threads or max(1, (os.cpu_count() or 1) // options.jobs),
                folder=options.runs,
                hours=options.hours,
                partition=options.partition,
            )
            failures = run_grid(missing, results, options.runs, engine, on_result=report)
    if not options.first_steps and not options.plan:
        print_results(results, table)
    return _say_failures(failures, cells, console)


def chosen_table(options: ReproduceOptions) -> "Table":
    """The table, with the columns, rows and seeds that are asked for."""
    from dataclasses import replace

    from manigraph.experiments.paper import PAPER_TABLES, paper_table
    from manigraph.experiments.small import SMALL_TABLES
    from manigraph.experiments.tables import DIGITS_TABLES

    if options.table in PAPER_TABLES:
        table = paper_table(options.table, options.scale)
    else:
        table = {**DIGITS_TABLES, **SMALL_TABLES}[options.table]
    names = {name for row in table.rows for name in (row.algorithm, row.title)}
    for name in options.rows:
        if name not in names:
            raise UnknownNameError("row", name, names)
    columns = table.columns
    if options.labels:
        known = {column.labels for column in columns}
        data = {column.title.partition(f"{column.labels} labels")[0] for column in columns}
        if len(data) == 1:  # any number of labels of one data set
            (title,) = data
            columns = tuple(
                replace(columns[0], title=f"{title}{labels} labels", labels=labels)
                for labels in options.labels
            )
        elif not set(options.labels) <= known:
            raise UserError(
                f"--labels of this table are {', '.join(map(str, sorted(known)))}, got "
                f"{', '.join(map(str, options.labels))}"
            )
        else:
            columns = tuple(column for column in columns if column.labels in options.labels)
    seeds = table.seeds
    if options.seeds is not None:
        seeds = (*seeds, *range(max(seeds) + 1, max(seeds) + 1 + options.seeds))[: options.seeds]
    rows = tuple(
        row for row in table.rows if not options.rows or {row.algorithm, row.title} & set(options.rows)
    )
    if options.first_steps:
        seeds = seeds[:1]
        steps = ("--training.steps", str(options.first_steps))
        rows = tuple(replace(row, options=(*row.options, *steps)) for row in rows)
    return replace(table, columns=columns, seeds=seeds, rows=rows)


def _results_path(options: ReproduceOptions) -> Path:
    from manigraph.experiments.paper import PAPER_TABLES

    if options.results:
        return options.results
    if options.first_steps:
        return options.runs / "first-steps.json"
    return Path("results") / f"{options.scale if options.table in PAPER_TABLES else options.table}.json"


def _say_missing_data(cells: "dict[Cell, Row]", console: Console) -> "set[Cell]":
    """Cells whose images are not here; reading the others once spares every run to decode them."""
    from manigraph.build import load_dataset

    problems: dict[str, str] = {}
    for name in dict.fromkeys(cell.config().data.name for cell in cells):
        try:
            load_dataset(next(c.config().data for c in cells if c.config().data.name == name))
        except UserError as error:
            problems[name] = str(error)
            console.print(f"left out, since there are no images: {error}", highlight=False)
    return {cell for cell in cells if cell.config().data.name in problems}


def _cost_in_words(missing: "list[Cell]", results: "ResultsFile", options: ReproduceOptions) -> str:
    from manigraph.cli.list import about
    from manigraph.experiments.cost import expected_cost
    from manigraph.recipes.measured import calibration_seconds, read_measured

    cores = os.cpu_count() or 1
    cost = expected_cost(
        missing, results, read_measured(), calibration_seconds(), jobs=options.jobs, cores=cores
    )
    if cost.unknown == len(missing):
        return "What they take is not known before the first of them is done."
    text = f"They take {about(cost.seconds)} on this machine, {options.jobs} at a time"
    return text + (f", and {cost.unknown} more of which nothing is known." if cost.unknown else ".")


def _in_words(result: "Result", row: "Row", table: "Table") -> str:
    cell = result.cell
    took = "went on from before" if result.seconds is None else f"{result.seconds:6.1f} s"
    error = result.error(table.part)
    return f"{row.title:<34} {cell.labels:>5} labels  seed {cell.seed:>2}  error {error:5.2f} %  {took}"


def _say_failures(failures: "list[Failure]", cells: "dict[Cell, Row]", console: Console) -> int:
    stopped = [failure for failure in failures if failure.stopped]
    broken = [failure for failure in failures if not failure.stopped]
    for failure in broken:
        cell, title = failure.cell, cells[failure.cell].title
        console.print(
            f"failed: {title}, {cell.labels} labels, seed {cell.seed}: {failure.reason}", highlight=False
        )
    if stopped:
        console.print("stopped; the same command goes on from here", highlight=False)
    return 1 if broken else 130 if stopped else 0


def print_results(results: "ResultsFile", table: "Table") -> None:
    """Mean and spread over seeds: a column for each number of labels, the paper's figures beside it."""
    from manigraph.experiments.grid import mean_and_spread
    from manigraph.training.selection import CHOSEN_ON_TEST

    dishonest = False

    def summary(row: "Row", column: "Column") -> str:
        nonlocal dishonest
        cells = [results.find(table.cell(row, column, seed)) for seed in table.seeds]
        found = [result for result in cells if result]
        if not found:
            return "–"
        mean, spread = mean_and_spread([result.error(table.part) for result in found])
        marked = any(result.selected_on == "test" for result in found)
        dishonest |= marked
        few = f" ({len(found)})" if len(found) < len(cells) else ""
        return f"{mean:.2f} ± {spread:.2f}{few}" + (" ‡" if marked else "")

    def published(row: "Row", column: "Column") -> str:
        if (row.title, column.title) not in table.published:
            return ""
        mean, spread = table.published[row.title, column.title]
        return f"{mean:.2f} ± {spread:.2f}"

    with_paper = {
        c.title for c in table.columns if any((r.title, c.title) in table.published for r in table.rows)
    }
    titles, seeds = [], ", ".join(str(seed) for seed in table.seeds)
    for column in table.columns:
        titles += [column.title] + (["the paper"] if column.title in with_paper else [])
    print_table(
        f"{table.heading}: {table.part} error %, mean ± standard deviation over seeds {seeds}",
        titles,
        [
            (
                row.title,
                [
                    text
                    for column in table.columns
                    for text in (
                        [summary(row, column)]
                        + ([published(row, column)] if column.title in with_paper else [])
                    )
                ],
            )
            for row in table.rows
        ],
    )
    if dishonest:
        Console().print(f"‡ {CHOSEN_ON_TEST}", highlight=False)
