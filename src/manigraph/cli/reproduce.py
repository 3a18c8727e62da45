"""`manigraph reproduce TABLE`: measure a table of results, continuing where it stopped."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from manigraph.cli.results import print_table
from manigraph.data.locations import DATA_VARIABLE
from manigraph.errors import Interrupted, UnknownNameError, UserError
from manigraph.experiments.engines import Engine, EngineName, LocalEngine, available_cores, engine_named
from manigraph.options import parse
from manigraph.runs import can_be_written

if TYPE_CHECKING:
    from collections.abc import Mapping

    from manigraph.config import DataConfig
    from manigraph.experiments.grid import Cell, Failure, Result, ResultsFile
    from manigraph.experiments.tables import Column, Row, Table

FEW_TEST_IMAGES = 100
"""Of first steps: with all of them, a run of a large network would test for longer than it trains."""


@dataclass(frozen=True)
class ReproduceOptions:
    """Measure a table: every row at every number of labels, over several seeds.

    What is already in the results file is not measured again, and a run that was killed goes on from its last
    checkpoint, so a table can be stopped at any time and continued by the same command.
    """

    table: Annotated[
        Literal[
            "main",
            "svhn-labels",
            "cifar10-labels",
            "ablation",
            "small-tuning",
            "16px-tuning",
            "graph-tuning",
            "cifar10-epsilon",
            "30min",
            "30min-muon",
            "30min-limit",
            "30min-fast",
            "30min-tuning",
            "30min-tuning-cifar10",
            "features",
            "features-tuning",
            "digits",
            "digits-methods",
            "digits-tuning",
            "digits-choices",
        ],
        tyro.conf.Positional,
    ]
    """Of the paper:
    - main: the columns with most labels, and CIFAR-100
    - svhn-labels, cifar10-labels: fewer and more labels
    - ablation: Manifold Graph with a part taken away
    Beyond it, half an hour of one core:
    - 30min: the best that it gives, beside single methods
    - 30min-limit: the same steps if all labels were known
    - 30min-muon: by SGD and by Muon
    - 30min-fast: on a core three times as fast
    How settings were chosen, on validation images:
    - small-tuning, 16px-tuning, graph-tuning
    - cifar10-epsilon: whether ε explains a result
    - 30min-tuning, 30min-tuning-cifar10
    Heads on the features of a pretrained network:
    - features, and features-tuning for their settings
    Digits:
    - digits: the paper's methods, equal steps
    - digits-methods: all methods, equal network passes
    - digits-tuning, digits-choices: their settings"""
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
    data_dir: Path | None = None
    """Folder of the data sets; by default MANIGRAPH_DATA, else the user's cache folder."""
    jobs: int | None = None
    """Runs at the same time; by default as many as there are GPUs, or else cores; with ray or slurm as many
    as there is room for."""
    threads: int = 0
    """Threads of each run on a CPU; 0 shares the cores among the jobs, and means 1 with ray or slurm."""
    engine: EngineName = "local"
    """Where runs are computed: processes of this machine, a Ray cluster (RAY_ADDRESS; extra `ray`), or jobs
    of SLURM (extra `slurm`). All machines must see the same folders."""
    gpus: int = 0
    """With ray or slurm: GPUs of each run. On this machine each run takes one if there are any."""
    hours: float = 24.0
    """With slurm: time limit of a job; a run that comes to it goes on in another job."""
    partition: str = ""
    """With slurm: where to send the jobs."""
    first_steps: int = 0
    """Only the first steps of every run, of one seed and tested on 100 images, to see that all of them work.
    What they give is kept apart, in the folder `first-steps` below that of the runs."""
    plan: bool = False
    """Only say what would be measured, and what it would cost."""


def run(arguments: list[str]) -> int:
    """Measure what is missing, with progress, and print the table."""
    options: ReproduceOptions = parse(ReproduceOptions, arguments, program="manigraph reproduce")
    _check(options)
    # What torch's C++ code warns of is not for the person at the keyboard.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if options.data_dir is not None:
        os.environ[DATA_VARIABLE] = str(options.data_dir.absolute())  # for every process

    from manigraph.experiments.grid import ResultsFile, left_to_measure

    table = chosen_table(options)
    results = ResultsFile(_results_path(options))
    cells = table.cells()
    console = Console(soft_wrap=True, highlight=False)
    missing, failures = left_to_measure(cells, results)
    console.print(
        f"{_number(len(cells), 'cell')}, {len(cells) - len(missing) - len(failures)} done before, "
        f"{len(missing)} to measure; results in {results.path}"
    )
    for failure in failures:
        console.print(_failure_in_words(failure, cells))
    failures += _impossible(missing, console)
    if not options.plan:
        missing = [cell for cell in missing if cell not in {failure.cell for failure in failures}]
    engine = engine_named(
        options.engine,
        folder=_runs(options),
        jobs=options.jobs,
        threads=options.threads,
        gpus=options.gpus,
        hours=options.hours,
        partition=options.partition,
    )
    if missing:
        console.print(_cost_in_words(missing, results, engine))
    if options.plan:
        print_plan(table, missing)
        return 0
    if missing:
        results.check_writable()
        _check_runs(_runs(options))
        failures += _measure(missing, cells, table, results, _runs(options), engine, console)
    if not options.first_steps:
        print_results(results, table)
        _write_comparison(cells, _runs(options) / f"{options.table}.html")
    elif not failures:
        console.print(f"the first {options.first_steps} steps of {_number(len(cells), 'cell')} work")
    if failures:
        console.print(
            f"{len(failures)} of {_number(len(cells), 'cell')} could not be measured: the same command tries "
            f"again"
        )
    return 1 if failures else 0


def _write_comparison(cells: "Mapping[Cell, Row]", output: Path) -> None:
    """The report of all runs of the table that are on this machine."""
    from manigraph.experiments.grid import run_of
    from manigraph.reports.comparison import comparison_page
    from manigraph.reports.facts import RunFacts
    from manigraph.reports.html import render
    from manigraph.runs import write_bytes

    try:
        runs = (run_of(cell, output.parent) for cell in cells)
        found = dict.fromkeys(run.path for run in runs if run is not None)  # cells may share a run
        if not found:
            return
        write_bytes(output, render(comparison_page([RunFacts.read(path) for path in found])).encode())
    except Exception as error:  # the table is measured, whatever becomes of its page
        print(f"manigraph: there is no report of the runs: {' '.join(str(error).split())}", file=sys.stderr)
    else:
        print(f"report of {_number(len(found), 'run')}: {output}")


def _check(options: ReproduceOptions) -> None:
    for name, value, smallest in (
        ("jobs", options.jobs, 1),
        ("seeds", options.seeds, 1),
        *(("labels", labels, 1) for labels in options.labels),
        ("threads", options.threads, 0),
        ("gpus", options.gpus, 0),
        ("first_steps", options.first_steps, 0),
    ):
        if value is not None and value < smallest:
            raise UserError(f"--{name} must be at least {smallest}, got {value}")
    if not options.hours > 0:
        raise UserError(f"--hours must be above 0, got {options.hours:g}")


def _measure(
    missing: "list[Cell]",
    cells: "dict[Cell, Row]",
    table: "Table",
    results: "ResultsFile",
    runs: Path,
    engine: Engine,
    console: Console,
) -> "list[Failure]":
    """Measure and show how far it is; what could not be measured."""
    from manigraph.experiments.grid import run_grid

    done = 0
    with Progress(
        TextColumn("measuring"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task("", total=len(missing))

        def report(result: "Result") -> None:
            nonlocal done
            done += 1
            progress.advance(task)
            console.print(_in_words(result, cells[result.cell], table))

        def report_failure(failure: "Failure") -> None:
            if not failure.stopped:
                progress.advance(task)
                console.print(_failure_in_words(failure, cells))

        try:
            return run_grid(missing, results, runs, engine, on_result=report, on_failure=report_failure)
        except Interrupted as stop:
            how_far = f"stopped after {done} of {_number(len(missing), 'cell')}"
            raise Interrupted(f"{how_far}; the same command goes on from there", stop.exit_code) from None


def _check_runs(folder: Path) -> None:
    if not can_be_written(folder):
        raise UserError(f"cannot write runs in '{folder}': name another folder with --runs")


def _runs(options: ReproduceOptions) -> Path:
    return options.runs / "first-steps" if options.first_steps else options.runs


def chosen_table(options: ReproduceOptions) -> "Table":
    """The table, with the columns, rows and seeds that are asked for."""
    from dataclasses import replace

    from manigraph.experiments.features import FEATURE_TABLES
    from manigraph.experiments.half_hour import HALF_HOUR_TABLES
    from manigraph.experiments.paper import PAPER_TABLES, paper_table
    from manigraph.experiments.small import SMALL_TABLES
    from manigraph.experiments.tables import DIGITS_TABLES

    if options.table in PAPER_TABLES:
        table = paper_table(options.table, options.scale)
    else:
        if options.scale == "paper":
            tables = ", ".join(PAPER_TABLES)
            raise UserError(f"--scale paper is for the paper's tables ({tables}), not for {options.table}")
        table = {**DIGITS_TABLES, **SMALL_TABLES, **HALF_HOUR_TABLES, **FEATURE_TABLES}[options.table]
    names = {name for row in table.rows for name in (row.algorithm, row.title)}
    for name in options.rows:
        if name not in names:
            raise UnknownNameError("row", name, names)
    seeds = table.seeds
    if options.seeds is not None:
        seeds = (*seeds, *range(max(seeds) + 1, max(seeds) + 1 + options.seeds))[: options.seeds]
    rows = tuple(
        row for row in table.rows if not options.rows or {row.algorithm, row.title} & set(options.rows)
    )
    table = replace(table, columns=_columns(table, options.labels), seeds=seeds, rows=rows)
    if options.first_steps:
        few = ("--data.test", str(FEW_TEST_IMAGES), "--training.steps", str(options.first_steps))
        rows = tuple(replace(row, options=(*row.options, *few)) for row in rows)
        table = replace(table, seeds=seeds[:1], rows=rows, budget="")
    return table


def _columns(table: "Table", labels: tuple[int, ...]) -> "tuple[Column, ...]":
    """Those with these numbers of labels; of a table of one data set with any number, else with its own."""
    from dataclasses import replace

    if not labels:
        return table.columns
    labels = tuple(dict.fromkeys(labels))
    data = {column.title.partition(f"{column.labels} labels")[0] for column in table.columns}
    if len(data) == 1:
        (title,) = data
        return tuple(
            replace(table.columns[0], title=f"{title}{number} labels", labels=number) for number in labels
        )
    known = {column.labels for column in table.columns}
    if not set(labels) <= known:
        raise UserError(
            f"--labels of this table can be {', '.join(map(str, sorted(known)))}, got "
            f"{', '.join(map(str, labels))}"
        )
    return tuple(column for column in table.columns if column.labels in labels)


def _results_path(options: ReproduceOptions) -> Path:
    from manigraph.experiments.paper import PAPER_TABLES

    name = f"{options.scale if options.table in PAPER_TABLES else options.table}.json"
    path = options.results or Path("results") / name
    return _runs(options) / path.name if options.first_steps else path


def _impossible(cells: "list[Cell]", console: Console) -> "list[Failure]":
    """Cells whose images are not here, or too few for the split; those that are here are read.

    They are read once, so that not every run decodes them.
    """
    from manigraph.build import load_dataset, split_dataset
    from manigraph.cli.display import data_progress
    from manigraph.experiments.grid import Failure

    by_images: dict[object, dict[DataConfig, list[Cell]]] = {}
    for cell in cells:
        data = cell.config().data
        images = (data.name, data.path, data.image_size, data.features)
        by_images.setdefault(images, {}).setdefault(data, []).append(cell)
    by_reason: dict[str, list[Cell]] = {}
    for splits in by_images.values():
        dataset = None
        for data, of_data in splits.items():
            try:
                if dataset is None:
                    with data_progress() as progress:
                        dataset = load_dataset(data, progress=progress)
                split_dataset(data, dataset, of_data[0].seed)
            except UserError as error:
                by_reason.setdefault(str(error), []).extend(of_data)
    for reason, left_out in by_reason.items():
        console.print(f"{_number(len(left_out), 'cell')} cannot be measured: {reason}")
    return [Failure(cell, reason) for reason, left_out in by_reason.items() for cell in left_out]


def _cost_in_words(missing: "list[Cell]", results: "ResultsFile", engine: Engine) -> str:
    from manigraph.cli.list import about
    from manigraph.experiments.cost import Room, expected_cost
    from manigraph.recipes.measured import calibration_seconds, read_measured
    from manigraph.training.execution import choose_device

    here = isinstance(engine, LocalEngine)
    if engine.gpus and not here and choose_device("auto").type == "cpu":
        return "How long it will take on GPUs cannot be said where there are none."
    room = Room(
        jobs=engine.jobs or 1,
        threads=engine.threads,
        cores=available_cores(),
        gpus=engine.gpus,
        shared=here,
    )
    cost = expected_cost(missing, results, read_measured(), calibration_seconds(), room)
    if cost.unknown and not cost.seconds:
        return "How long it will take is not known before the first of them is measured."
    where = "on this machine" if here else "on machines like this one"
    each = f"with {_number(engine.threads, 'thread')} each"
    at_a_time = f"{room.jobs} at a time" if room.jobs > 1 else "one after the other"
    text = f"It will take {about(cost.seconds)} {where}, {at_a_time} {each}"
    if cost.guessed:
        count = _number(cost.guessed, "cell")
        text += f"; {count} without a figure counted as long as the longest known of the recipe"
    if cost.unknown:
        text += f"; without {_number(cost.unknown, 'cell')} of which nothing is known"
    return f"{text}."


def _in_words(result: "Result", row: "Row", table: "Table") -> str:
    cell = result.cell
    took = "from an earlier run" if result.seconds is None else f"{result.seconds:.1f} s"
    error = result.error(table.part)
    where = f"{cell.recipe}, {cell.labels} labels, seed {cell.seed}"
    return f"{row.title:<34} {where:<38} error {error:5.2f} %  {took}"


def _failure_in_words(failure: "Failure", cells: "dict[Cell, Row]") -> str:
    cell, title = failure.cell, cells[failure.cell].title
    return f"failed: {title}, {cell.recipe}, {cell.labels} labels, seed {cell.seed}: {failure.reason}"


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def print_plan(table: "Table", missing: "list[Cell]") -> None:
    """How many seeds of every entry are to be measured."""
    left = set(missing)

    def entry(row: "Row", column: "Column") -> str:
        count = sum(table.cell(row, column, seed) in left for seed in table.seeds)
        return str(count) if count else "–"

    print_table(
        f"{table.heading}: seeds to measure, of {', '.join(map(str, table.seeds))}",
        [column.title for column in table.columns],
        [(row.title, [entry(row, column) for column in table.columns]) for row in table.rows],
    )


def print_results(results: "ResultsFile", table: "Table") -> None:
    """Mean and spread over seeds, the paper's figures beside them."""
    from manigraph.experiments.grid import mean_and_spread
    from manigraph.training.selection import CHOSEN_ON_TEST

    dishonest = False

    def measured(row: "Row", column: "Column") -> str:
        nonlocal dishonest
        cells = [results.find(table.cell(row, column, seed)) for seed in table.seeds]
        found = [result for result in cells if result]
        if not found:
            return "–"
        mean, spread = mean_and_spread([result.error(table.part) for result in found])
        marked = any(result.selected_on == "test" for result in found)
        dishonest |= marked
        few = f" ({len(found)})" if len(found) < len(cells) else ""
        error = f"{mean:.2f} ± {spread:.2f}" if len(found) > 1 else f"{mean:.2f}"
        return error + few + (" ‡" if marked else "")

    def published(row: "Row", column: "Column") -> str:
        if (row.title, column.title) not in table.published:
            return ""
        mean, spread = table.published[row.title, column.title]
        return f"{mean:.2f} ± {spread:.2f}"

    heading = f"{table.heading}: {table.part} error %, "
    if len(table.seeds) == 1:
        heading += f"seed {table.seeds[0]}"
    else:
        heading += f"mean ± standard deviation over seeds {', '.join(map(str, table.seeds))}"
    rows = {
        row.title: [(measured(row, column), published(row, column)) for column in table.columns]
        for row in table.rows
    }
    titles = [column.title for column in table.columns]
    wide = _wide_table(heading, titles, rows)
    console = Console()
    fits = Console(width=10_000).measure(wide).maximum <= console.width
    console.print(wide if fits else _long_table(heading, titles, rows))
    if any("(" in entry for entries in rows.values() for entry, _ in entries):
        console.print("(n): only n seeds are measured", highlight=False)
    if dishonest:
        console.print(f"‡ {CHOSEN_ON_TEST}", highlight=False)


Entries = list[tuple[str, str]]
"""What was measured and what the paper has, for each column."""


def _wide_table(heading: str, titles: list[str], rows: dict[str, Entries]) -> RichTable:
    """A column for each number of labels, beside it the paper's if it has any figure there."""
    in_paper = [any(entries[number][1] for entries in rows.values()) for number in range(len(titles))]
    table = _empty_table(heading)
    for title, has_paper in zip(titles, in_paper, strict=True):
        for name in (title, "the paper") if has_paper else (title,):
            table.add_column(name, justify="right", no_wrap=True)
    for method, entries in rows.items():
        texts: list[str] = []
        for entry, has_paper in zip(entries, in_paper, strict=True):
            texts += entry if has_paper else entry[:1]
        table.add_row(method, *texts)
    return table


def _long_table(heading: str, titles: list[str], rows: dict[str, Entries]) -> RichTable:
    """A part for each number of labels, one below the other."""
    with_paper = any(entry[1] for entries in rows.values() for entry in entries)
    table = _empty_table(heading)
    for name in ("measured", "the paper") if with_paper else ("measured",):
        table.add_column(name, justify="right", no_wrap=True)
    for number, title in enumerate(titles):
        table.add_section()
        table.add_row(f"[bold]{title}[/bold]")
        for method, entries in rows.items():
            table.add_row(method, *(entries[number] if with_paper else entries[number][:1]))
    return table


def _empty_table(heading: str) -> RichTable:
    table = RichTable(title=heading, title_justify="left", title_style="bold")
    table.add_column("method", style="cyan")
    return table
