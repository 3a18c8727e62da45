"""What a person sees while a run trains: a live panel in a terminal, plain lines elsewhere."""

import io
import math
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from manigraph.build import Job
    from manigraph.runs import RunDirectory
    from manigraph.training.estimate import Estimate
    from manigraph.training.evaluation import Evaluation
    from manigraph.training.loop import StepRecord

LINES_PER_RUN = 10

WORTH_A_LINE = 1000
"""Pieces of work from which on progress is worth a line where there is no terminal."""

REFRESHES_PER_SECOND = 2
"""Drawing takes a few milliseconds and does not depend on how many steps are made meanwhile."""

WIDEST_PANEL = 104

PROTOTYPE_HEALTH = {
    "own_class_attention": "own-class attention",
    "attention_entropy": "attention entropy",
    "prototype_similarity": "prototypes alike",
    "pseudo_label_agreement": "pseudo-labels agree",
}
"""Names and words of the signs that only Manifold Graph gives, in the order in which they are shown."""


class DataProgress:
    """Progress of reading and preparing data: a bar in a terminal, now and then a line elsewhere."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self._console = console
        self._live = can_be_drawn_over(console)
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}
        self._said: dict[str, int] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show how far the work has come."""
        if self._live:
            if what not in self._tasks:
                self._tasks[what] = self._progress.add_task(escape(what), total=total)
            self._progress.update(self._tasks[what], completed=done, total=total, visible=done < total)
        elif total >= WORTH_A_LINE:
            quarter = done * 4 // total
            if quarter > self._said.get(what, 0):
                self._said[what] = quarter
                self._console.print(Text(f"{what}: {done}/{total}"), soft_wrap=True)

    def clear(self) -> None:
        """Whatever was read is there now, also if the last of it was not told."""
        for task in self._tasks.values():
            self._progress.remove_task(task)
        self._tasks.clear()


@contextmanager
def data_progress() -> Iterator[DataProgress]:
    """For commands that read data but do not train; on stderr, so that JSON can be piped."""
    console = Console(stderr=True)
    with _data_bars(console) as progress:
        yield DataProgress(console, progress)


def _data_bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not can_be_drawn_over(console),
    )


def can_be_drawn_over(console: Console) -> bool:
    """True for a terminal; FORCE_COLOR makes rich take any file for one."""
    forced = bool(os.environ.get("FORCE_COLOR")) and not console.file.isatty()
    return console.is_interactive and console.is_terminal and not console.is_dumb_terminal and not forced


class RunProgress:
    """What is known of a run in progress, and how it is put in words; draws itself as a panel.

    The panel is drawn by another thread than the one that trains, hence the lock. Nothing is printed
    under it: who prints holds the lock of the console, and the panel is drawn under that one too.
    """

    def __init__(
        self,
        name: str,
        total: int,
        first_step: int = 0,
        estimate: "Estimate | None" = None,
        *,
        later: float = 0.0,
    ) -> None:
        self.name, self.total, self.first_step = name, total, first_step
        self.later = later
        """Seconds of what comes after this run."""
        self.step = first_step
        self.estimate = estimate
        self._lock = threading.Lock()
        self._began = self._last_seen = time.monotonic()
        # The speed of late: a run may become slower, as after the warm-up of Manifold Graph.
        self._times = deque([(first_step, self._began)], maxlen=200)
        self._record: StepRecord | None = None
        self._terms: dict[str, float | None] = {}
        self._seconds_per_image = 0.0
        self._steps_timed = 0
        self._errors: dict[str, tuple[int, float]] = {}
        self._best: dict[str, tuple[int, float]] = {}

    def add_record(self, record: "StepRecord") -> None:
        """Some steps are done."""
        now = time.monotonic()
        with self._lock:
            if record.images_per_second > 0:
                # All steps have as many images, so each counts alike.
                steps = record.step - self.step
                self._seconds_per_image += steps / record.images_per_second
                self._steps_timed += steps
            self._record, self.step, self._last_seen = record, record.step, now
            self._times.append((record.step, now))
            # A term keeps its place; one that is gone is shown as a dash.
            self._terms = dict.fromkeys(self._terms) | record.terms

    def add_evaluation(self, part: str, step: int, error: float) -> None:
        """The error was measured on the way."""
        with self._lock:
            self._last_seen = time.monotonic()
            self._errors[part] = step, error
            best = self._best.get(part, (0, math.nan))[1]
            if math.isnan(best) or error < best:
                self._best[part] = step, error

    def time_left(self) -> str:
        """From the speed of late, or from the estimate as long as no step is done; may be empty."""
        (first, began), (last, seen) = self._times[0], self._times[-1]
        expected = float if self.estimate is None else self.estimate.seconds_of
        if last > first:
            slower = (seen - began) / (expected(last) - expected(first))  # than expected; 1 means as expected
        elif self.estimate is not None:
            slower = 1.0
        else:
            return ""
        if last >= self.total:
            return f"0 s left, {duration(self.later)} with the control" if self.later else "0 s left"
        seconds = max(slower * (expected(self.total) - expected(last)) - (time.monotonic() - seen), 1.0)
        both = f", {duration(seconds + self.later)} with the control" if self.later else ""
        return f"{duration(seconds)} left{both}"

    def record_line(self) -> str:
        """The last record as one line."""
        record = self._record
        assert record is not None, "a step was made"
        terms = [f"{name} {_number(value)}" for name, value in record.terms.items()]
        parts = [
            f"step {record.step}/{self.total}",
            self.time_left(),
            f"lr {record.learning_rate:#.3g}",
            f"momentum {record.momentum:.3f}",
            _speed(record.images_per_second),
            f"loss {_number(record.loss)}",
            *terms,
        ]
        return "  ".join(part for part in parts if part)

    def health_line(self) -> str:
        """Signs of whether the method works; empty if it gives none."""
        return health_line(self._record.health) if self._record else ""

    def error_pieces(self, part: str) -> list[str]:
        """The last error on some images, and the best so far."""
        (step, error), (best_step, best) = self._errors[part], self._best[part]
        record = "the best so far" if step == best_step else f"best {best:.2f} % at step {best_step}"
        return [f"{part} error {error:.2f} % at step {step}", record]

    def summary(self) -> list[str]:
        """What stays when the run is over."""
        steps = self.step - self.first_step
        took = duration(self._last_seen - self._began)
        if self.step < self.total:
            line = f"{self.name}: stopped; last record at step {self.step} of {self.total}, after {took}"
        else:
            line = f"{self.name}: {steps} step{'s' * (steps != 1)} in {took}"
        if self._steps_timed:
            line += f", {_speed(self._steps_timed / self._seconds_per_image)}"
        errors = []
        for part, (step, error) in self._errors.items():
            best_step, best = self._best[part]
            aside = "" if best_step == step else f", best {best:.2f} % at step {best_step}"
            errors.append(f"last {part} error {error:.2f} %{aside}")
        return [line, "; ".join(errors)] if errors else [line]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, WIDEST_PANEL)
        # The line below a panel that fills the terminal would scroll it.
        room = options.size.height - 1
        framed = room >= 6 and width >= 20
        if framed:
            room -= 2
        inner = width - 4 if framed else width
        with self._lock:
            sections = self._sections(inner)
        kept: set[int] = set()
        for _, place in sorted((importance, place) for place, (importance, _) in enumerate(sections)):
            if len(sections[place][1]) <= room:
                room -= len(sections[place][1])
                kept.add(place)
        lines = Group(*(line for place in sorted(kept) for line in sections[place][1]))
        title = Text(self.name, "bold not dim")
        title.truncate(width - 6, overflow="ellipsis")
        yield (
            Panel(lines, title=title, title_align="left", border_style="dim", width=width)
            if framed
            else lines
        )

    def _sections(self, width: int) -> list[tuple[int, list[RenderableType]]]:
        """Lines that are shown together or not at all, with a number: where room is short, high ones go."""
        sections: list[tuple[int, list[RenderableType]]] = [(0, [self._bar(width)])]
        record = self._record
        if record is not None:
            rates = [
                f"learning rate {record.learning_rate:#.3g}",
                f"momentum {record.momentum:.3f}",
                _speed(record.images_per_second),
            ]
            sections.append((4, _flowing(rates, "   ", width)))
            losses: dict[str, float | None] = {"loss": record.loss, **self._terms}
            for place, row in enumerate(_aligned(losses, width)):
                sections.append((1 if place == 0 else 3, [row]))
        for part in self._errors:
            sections.append((2, _flowing(self.error_pieces(part), ", ", width, style="cyan")))
        if health := self.health_line():
            sections.append((5, _flowing(health.split(", "), ", ", width)))
        return sections

    def _bar(self, width: int) -> Table:
        words = f"{self.step}/{self.total}", self.time_left()
        room = width - sum(len(word) + 2 for word in words)
        line = Table.grid(padding=(0, 2, 0, 0))
        bar = ProgressBar(
            self.total, self.step, width=max(room, 4), complete_style="cyan", finished_style="green"
        )
        cells = [Text(word, no_wrap=True, overflow="ellipsis") for word in words if word]
        line.add_row(*([bar] if room >= 4 else []), *cells)
        return line


class TrainingDisplay:
    """Shows one run after the other; use as a context manager.

    Args:
        console: Where to write.
        silent: Show nothing, as for processes other than the first.
    """

    def __init__(self, console: Console | None = None, *, silent: bool = False) -> None:
        self.console = Console(file=io.StringIO(), quiet=True) if silent else console or Console()
        self._is_live = can_be_drawn_over(self.console)
        self._bars = _data_bars(self.console)
        self._run: RunProgress | None = None
        self._tenth = -1
        self._stage, self._later = "", 0.0
        self.data = DataProgress(self.console, self._bars)
        self._live = Live(
            console=self.console,
            refresh_per_second=REFRESHES_PER_SECOND,
            transient=True,
            get_renderable=self._drawing,
        )

    def __enter__(self) -> "TrainingDisplay":
        if self._is_live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish()
        self._live.stop()

    def stage(self, what: str, later: float) -> None:
        """The next run is one of several; the others after it will take `later` seconds."""
        self.finish()
        self._stage, self._later = what, later
        self._say("")
        self._say(what, style="bold")

    def show(self, table: RenderableType) -> None:
        """Something that stays to be read."""
        self.console.print(table)

    def start(
        self, run: "RunDirectory", job: "Job", estimate: "Estimate | None" = None, first_step: int = 0
    ) -> None:
        """A run begins, or goes on after `first_step`."""
        self.finish()
        self.data.clear()
        steps = job.trainer.config.steps
        split = job.split
        images = (
            f"{run.path.name}: {len(split.labelled)} labelled, {len(split.unlabelled)} unlabelled, "
            f"{len(split.validation)} validation, {len(split.test)} test images"
        )
        if estimate is None:
            parameters = sum(p.numel() for p in job.trainer.algorithm.parameters())
            self._say(f"{images}; {parameters:,} parameters")
        else:
            self._say(images)
            self._say(_in_words(estimate, more=first_step > 0))
        for finding in job.check.findings:
            if finding.severity == "warning":
                self.warning(f"{finding.message} ({finding.suggestion})")
        if first_step > 0:
            self._say(f"resumed at step {first_step}")
        name = f"{self._stage}: {run.path.name}" if self._stage else run.path.name
        self._run = RunProgress(name, steps, first_step, estimate, later=self._later)
        self._tenth = -1
        self._draw()

    def step(self, record: "StepRecord") -> None:
        """Some steps are done."""
        run = self._run
        assert run is not None, "a run was started"
        run.add_record(record)
        if not self._is_live and self._passes_milestone(record.step, run.total):
            self._say(run.record_line())
            if health := run.health_line():
                self._say(f"  {health}")

    def evaluation(self, part: str, step: int, evaluation: "Evaluation") -> None:
        """The error was measured on the way."""
        run = self._run
        assert run is not None, "a run was started"
        run.add_evaluation(part, step, evaluation.error)
        if not self._is_live:
            measured = f"{part} error {evaluation.error:.2f} % of {evaluation.num_images} images"
            self._say(f"step {step}/{run.total}  {measured}")

    def warning(self, text: str) -> None:
        """Something to know, which stays to be read."""
        self._say(f"warning: {text}", style="yellow")

    def finish(self) -> None:
        """The run is over: a summary takes the place of the panel."""
        self._draw()
        run, self._run = self._run, None
        if run is not None:
            self._draw()
            for line in run.summary():
                self._say(line)

    def _say(self, text: str, style: str = "") -> None:
        """A line that stays; wrapped in a terminal only."""
        self.console.print(Text(text, style if self._is_live else ""), soft_wrap=not self._is_live)

    def _draw(self) -> None:
        """At once, where a panel appears or disappears; otherwise it is drawn twice a second."""
        if self._live.is_started:
            self._live.refresh()

    def _drawing(self) -> Group:
        """What is drawn over and over."""
        busy = any(task.visible and not task.finished for task in self._bars.tasks)
        parts: list[RenderableType] = [self._bars.get_renderable()] if busy else []
        return Group(*parts, *([self._run] if self._run else []))

    def _passes_milestone(self, step: int, total: int) -> bool:
        """True at the first record, and about ten times in a run, whatever its length."""
        tenth = step * LINES_PER_RUN // total
        passes = tenth > self._tenth
        self._tenth = tenth
        return passes


def duration(seconds: float) -> str:
    """A time as people say it, in at most two units: 40 s, 12 min, 3 h 20 min, 4 days 3 h."""
    if not math.isfinite(seconds):
        return "unknown time"
    if 0 < seconds < 0.5:
        return "under 1 s"
    if round(seconds) < 60:
        return f"{round(seconds)} s"
    if round(seconds) < 600:
        return _two_units(round(seconds), 60, "min", "s")
    if round(seconds / 60) < 24 * 60:
        return _two_units(round(seconds / 60), 60, "h", "min")
    hours = round(seconds / 3600)
    return _two_units(hours, 24, "day" if hours < 48 else "days", "h")


def _two_units(amount: int, size: int, large: str, small: str) -> str:
    whole, rest = divmod(amount, size)
    return " ".join(f"{n} {unit}" for n, unit in ((whole, large), (rest, small)) if n)


def _bytes(amount: float) -> str:
    """Memory: 340 MiB, 1.4 GiB."""
    mebibytes = amount / 2**20
    return f"{mebibytes:.0f} MiB" if mebibytes < 1000 else f"{mebibytes / 1024:.1f} GiB"


def _in_words(estimate: "Estimate", *, more: bool) -> str:
    """The estimate of a run, or of what is left of it."""
    from manigraph.training.estimate import MEASURED_STEPS

    return (
        f"{estimate.parameters:,} parameters; about {duration(estimate.seconds)}{' more' if more else ''} "
        f"and {_bytes(estimate.peak_bytes)} of memory, from {MEASURED_STEPS} measured steps"
    )


def health_line(health: Mapping[str, float]) -> str:
    """Signs of whether a method works, in words; empty if there are none."""
    if not health:
        return ""
    known = [key for key in PROTOTYPE_HEALTH if key in health]
    others = [key for key in health if key not in PROTOTYPE_HEALTH]
    words = [
        f"{PROTOTYPE_HEALTH.get(key, key.replace('_', ' '))} {health[key]:.2f}" for key in known + others
    ]
    return f"{'prototype health' if known else 'health'}: {', '.join(words)}"


def _number(value: float | None) -> str:
    """Three decimals, unless that would hide the number."""
    if value is None:
        return "-"
    if value == 0 or not math.isfinite(value) or 0.0005 <= abs(value) < 10_000:
        return f"{value:.3f}"
    return f"{value:.1e}"


def _speed(images_per_second: float) -> str:
    """Empty if nothing is known."""
    if not images_per_second > 0:
        return ""
    return f"{images_per_second:,.{0 if images_per_second >= 10 else 1}f} images/s"


def _aligned(values: Mapping[str, float | None], width: int) -> list[Text]:
    """Names and numbers in as many columns as there is room for."""
    numbers = {name: _number(value) for name, value in values.items()}
    name_width = max(map(len, numbers))
    number_width = max(7, *map(len, numbers.values()))
    columns = max(1, (width + 3) // (name_width + 1 + number_width + 3))
    cells = [
        Text.assemble(
            (f"{name:<{name_width}} ", "bold" if place == 0 else "dim"),
            (f"{number:>{number_width}}", "bold red" if number.lstrip("-") in ("nan", "inf") else ""),
        )
        for place, (name, number) in enumerate(numbers.items())
    ]
    rows = [Text("   ").join(cells[start : start + columns]) for start in range(0, len(cells), columns)]
    for row in rows:
        row.no_wrap, row.overflow = True, "ellipsis"
    return rows


def _flowing(pieces: list[str], gap: str, width: int, *, style: str = "") -> list[RenderableType]:
    """Pieces side by side in as many lines as they need; no line breaks within a piece."""
    lines: list[str] = []
    for piece in filter(None, pieces):
        if lines and len(lines[-1]) + len(gap) + len(piece) + 1 <= width:
            lines[-1] += gap + piece
        else:
            lines = [*lines[:-1], (lines[-1] + gap).rstrip(), piece] if lines else [piece]
    return [Text(line, style, no_wrap=True, overflow="ellipsis") for line in lines]


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
