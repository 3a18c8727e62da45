"""`manigraph predict RUN IMAGES…`."""

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from manigraph.errors import UserError, shown
from manigraph.options import parse
from manigraph.runs import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Callable

    from manigraph.data.sources.base import Problem
    from manigraph.inference.predictor import Predictor
    from manigraph.inference.tables import Table

BAD_FILES = 3
"""Exit code: all is done, but for files that could not be read, some or all."""
BROKEN_PIPE = 141
"""Exit code: whoever read the answers had enough of them."""
ROWS_UNSEEN = 64
"""Rows after which whoever reads the answers sees them."""
CLASSES_NAMED = 8
"""In the last line."""


class _NothingReadError(Exception):
    """There are files, and not one of them could be read; no table is written."""


@dataclass(frozen=True)
class PredictOptions:
    """Say what a trained run sees in image files: class, probabilities, nearest prototypes.

    A table goes to standard output as CSV, or to a file. Exit code 3 if files could not be read, some or all.

      manigraph predict RUN photos/ more/*.jpg --output answers.csv
      find . -name '*.png' | manigraph predict RUN - > answers.csv
      manigraph predict RUN photos/ --label_folder sorted --sure 0.9
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run directory."""
    images: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES")]
    """Files, folders, patterns in quotes ('photos/**/*.jpg'), or - for a list on standard input: a path on
    each line, or each with a zero byte after it."""
    output: Path | None = None
    """File to write the table to, .csv or .parquet; by default it is printed."""
    overwrite: bool = False
    """Replace the file of --output if there is one."""
    nearest: int = 3
    """Prototypes to name for each image, for runs with a graph."""
    views: bool = False
    """Average the answers over the image, the image shifted by a pixel to each side, and all these mirrored,
    as far as the run was trained on such views: two to ten times the time, mostly a little better."""
    label_folder: Path | None = None
    """Sort the images into this folder, in a folder for each class; nothing in it is overwritten."""
    how: Literal["copy", "link"] = "copy"
    """With --label_folder: as copies, or as symbolic links."""
    sure: float = 0.0
    """With --label_folder: images whose class is less probable go to the folder `unsure`."""


def run(arguments: list[str]) -> int:
    """Predict, print or write, and say how many of each class there were."""
    options: PredictOptions = parse(PredictOptions, arguments, program="manigraph predict")
    if not options.images:
        raise UserError("name images to predict: files, folders, or - for a list on standard input")
    if options.nearest < 0:
        raise UserError(f"--nearest must be at least 0, got {options.nearest}")
    if not 0 <= options.sure <= 1:
        raise UserError(f"--sure is a probability from 0 to 1, got {options.sure}")
    if options.label_folder is None and (options.sure > 0 or options.how != "copy"):
        option = "sure" if options.sure > 0 else "how"
        raise UserError(f"--{option} is about sorting images: add --label_folder DIR")

    from manigraph.inference.files import STANDARD_INPUT
    from manigraph.inference.predictor import Predictor

    if STANDARD_INPUT in options.images and sys.stdin is None:
        raise UserError("standard input is closed, so that there is no list to read: give files or folders")
    predictor = Predictor.load(options.run, views=options.views)
    if (state := RunDirectory.open(options.run).status().state) != "finished":
        print(
            f"manigraph: the run is not finished ({state}), so its answers will get better: "
            f"`manigraph train --resume {options.run}` goes on with it",
            file=sys.stderr,
        )
    try:
        return _predict(predictor, options)
    except _NothingReadError as error:
        print(f"manigraph: {error}", file=sys.stderr)
        return BAD_FILES
    except BrokenPipeError:
        # Python would complain again when it closes standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def _predict(predictor: "Predictor", options: PredictOptions) -> int:
    from manigraph.inference.predictions import predict_files
    from manigraph.inference.sorting import Sorter, check_not_inside

    sorter = None
    if options.label_folder is not None:
        check_not_inside(options.label_folder, options.images)
        sorter = Sorter(options.label_folder, predictor.class_names, how=options.how, sure=options.sure)
    nearest = min(options.nearest, len(predictor.node_classes))
    counts: Counter[str] = Counter()
    bad, began = 0, time.monotonic()
    with ExitStack() as stack:
        table = stack.enter_context(_table(predictor, options, nearest))
        say, show = stack.enter_context(_progress(quiet=options.output is None and sys.stdout.isatty()))

        def note(problem: "Problem") -> None:
            nonlocal bad
            bad += 1
            say(f"manigraph: cannot read '{shown(problem.path)}': {shown(problem.reason)}")

        listed = None if sys.stdin is None else sys.stdin.buffer
        answers = predict_files(predictor, options.images, nearest=nearest, on_problem=note, listed=listed)
        for answer in answers:
            if sorter is not None:
                sorter.put(answer)
            table.add(answer)
            counts[answer.class_name] += 1
            show(counts.total())
            if counts.total() % ROWS_UNSEEN == 0:
                table.flush()
        if not counts:
            raise _nothing(options.images, bad)
    print(f"manigraph: {_summary(counts, bad, time.monotonic() - began)}", file=sys.stderr)
    return BAD_FILES if bad else 0


@contextmanager
def _table(predictor: "Predictor", options: PredictOptions, nearest: int) -> "Iterator[Table]":
    """Where answers go."""
    from manigraph.inference.tables import CsvTable, table_file

    if options.output is not None:
        with table_file(options.output, predictor.class_names, nearest, overwrite=options.overwrite) as table:
            yield table
        return
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="")
    printed = CsvTable(sys.stdout, predictor.class_names, nearest)
    yield printed
    printed.close()


@contextmanager
def _progress(*, quiet: bool) -> "Iterator[tuple[Callable[[str], None], Callable[[int], None]]]":
    """Functions that print a line and that show how many images are done, on stderr."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    from manigraph.cli.display import can_be_drawn_over

    console = Console(stderr=True, soft_wrap=True)
    text = TextColumn("{task.description}")
    hidden = quiet or not can_be_drawn_over(console)
    with Progress(SpinnerColumn(), text, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task("reading images", total=None)

        def say(line: str) -> None:
            console.print(line, highlight=False, markup=False)

        def show(count: int) -> None:
            if not hidden:
                progress.update(task, description=f"{count:,} images")

        yield say, show


def _nothing(places: tuple[str, ...], bad: int) -> Exception:
    where = ", ".join(f"'{shown(place)}'" for place in places[:3]) + (", …" if len(places) > 3 else "")
    if bad:
        return _NothingReadError(f"no image could be read of {where}: see above")
    return UserError(f"there are no images in {where}: give files, or folders that hold some")


def _summary(counts: "Counter[str]", bad: int, seconds: float) -> str:
    named = [f"{shown(name)}: {count:,}" for name, count in counts.most_common(CLASSES_NAMED)]
    if len(counts) > CLASSES_NAMED:
        others = sum(count for _, count in counts.most_common()[CLASSES_NAMED:])
        named.append(f"{len(counts) - CLASSES_NAMED} other classes: {others:,}")
    total = counts.total()
    text = f"{total:,} image{'s' if total != 1 else ''} in {seconds:.1f} s ({', '.join(named)})"
    return f"{text}; {bad:,} could not be read" if bad else text
