"""What a person sees while a run trains: a live bar in a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from manigraph.build import Job
    from manigraph.runs import RunDirectory
    from manigraph.training.evaluation import Evaluation
    from manigraph.training.loop import StepRecord

LINES_PER_RUN = 10

WORTH_A_LINE = 1000
"""Pieces of work from which on progress is worth a line where there is no terminal."""


class DataProgress:
    """Progress of reading and preparing data: a bar in a terminal, now and then a line elsewhere."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self._console = console
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}
        self._said: dict[str, int] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show how far the work has come."""
        if self._console.is_terminal:
            if what not in self._tasks:
                self._tasks[what] = self._progress.add_task(what, total=total, note="")
            self._progress.update(self._tasks[what], completed=done, total=total, visible=done < total)
        elif total >= WORTH_A_LINE:
            quarter = done * 4 // total
            if quarter > self._said.get(what, 0):
                self._said[what] = quarter
                self._console.print(f"{what}: {done}/{total}", highlight=False)


@contextmanager
def data_progress() -> Iterator[DataProgress]:
    """For commands that read data but do not train; on stderr, so that JSON can be piped."""
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        yield DataProgress(console, progress)


class TrainingDisplay:
    """A progress bar for one run after the other; use as a context manager."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self._live = self.console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self._live,
        )
        self.data = DataProgress(self.console, self._progress)
        self._steps, self._tenth, self._began = 1, -1, 0.0

    def __enter__(self) -> "TrainingDisplay":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def start(self, run: "RunDirectory", job: "Job") -> None:
        """A run begins."""
        self._steps, self._tenth, self._began = job.trainer.config.steps, -1, time.monotonic()
        parameters = sum(p.numel() for p in job.trainer.algorithm.parameters())
        self.console.print(
            f"{run.path.name}: {len(job.split.labelled)} labelled, {len(job.split.unlabelled)} unlabelled, "
            f"{len(job.split.validation)} validation, {len(job.split.test)} test images; "
            f"{parameters:,} parameters",
            highlight=False,
            markup=False,
        )
        for finding in job.check.findings:
            if finding.severity == "warning":
                self.console.print(
                    f"warning: {finding.message} ({finding.suggestion})", highlight=False, markup=False
                )
        self._task = self._progress.add_task(escape(run.path.name), total=self._steps, note="")

    def step(self, record: "StepRecord") -> None:
        """Some steps are done."""
        self._progress.update(self._task, completed=record.step, note=f"loss {record.loss:.3f}")
        if not self._live and self._passes_milestone(record.step):
            terms = "  ".join(f"{name} {value:.3f}" for name, value in record.terms.items())
            where = f"step {record.step}/{self._steps}  {self._time_left(record.step)}"
            self.console.print(f"{where}  loss {record.loss:.3f}  {terms}", highlight=False)

    def evaluation(self, part: str, step: int, evaluation: "Evaluation") -> None:
        """The error was measured on the way."""
        measured = f"{part} error {evaluation.error:.2f} % of {evaluation.num_images} images"
        self._progress.console.print(f"step {step}/{self._steps}  {measured}", highlight=False)

    def _time_left(self, step: int) -> str:
        seconds = (time.monotonic() - self._began) / step * (self._steps - step)
        return f"{timedelta(seconds=round(seconds))} left"

    def _passes_milestone(self, step: int) -> bool:
        """True at the first record, and about ten times in a run, whatever its length."""
        tenth = step * LINES_PER_RUN // self._steps
        passes = tenth > self._tenth
        self._tenth = tenth
        return passes


def print_evaluation(part: str, evaluation: "Evaluation", class_names: tuple[str, ...] = ()) -> None:
    """Error, calibration error and, with class names, the error of each class."""
    console = Console()
    console.print(
        f"{part} error {evaluation.error:.2f} % of {evaluation.num_images} images, "
        f"calibration error {evaluation.calibration_error:.2f} %",
        highlight=False,
    )
    if class_names:
        table = Table(box=None, pad_edge=False)
        table.add_column("class", style="cyan")
        table.add_column("error %", justify="right")
        for name, error in zip(class_names, evaluation.class_errors, strict=True):
            table.add_row(escape(name), "-" if error is None else f"{error:.1f}")
        console.print(table)
