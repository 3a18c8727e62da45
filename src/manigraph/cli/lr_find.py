"""`manigraph lr-find RECIPE|PATH [OPTIONS]`: the learning-rate range test, drawn and read."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import ceil, floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from manigraph.catalogue import ALGORITHMS, RECIPES
from manigraph.cli.targets import recipe_and_options
from manigraph.cli.train import resolve
from manigraph.errors import UserError
from manigraph.options import parse

if TYPE_CHECKING:
    from collections.abc import Callable

    from manigraph.training.lr_range import RangeTest, RangeTestResult

HELP = """\
usage: manigraph lr-find RECIPE|PATH [--algorithm NAME] [OPTIONS]

Find how high the learning rate may go: train from the start of a run while the rate grows from step to
step, draw the loss over it, and propose the schedule's maximal learning rate. No run is made or changed;
a PNG and a JSON file are written.

  manigraph lr-find photos/
  manigraph lr-find digits --algorithm pi_vat --data.labels 50 --seed 3
  manigraph lr-find digits --steps 400 --highest 100

Then train with what it proposes:

  manigraph train photos/ --schedule.max_learning_rate 0.05

recipes: {recipes}
algorithms: {algorithms}

`manigraph lr-find RECIPE --help` shows every option with the recipe's settings.
"""

PLOT_WIDTH, PLOT_HEIGHT = 100, 18
"""The plot in the terminal: at most so wide, and so high."""

ConfigT = TypeVar("ConfigT")


@dataclass(frozen=True)
class LrFindOptions(Generic[ConfigT]):
    """Find how high the learning rate may go, and draw the loss over it."""

    config: Annotated[ConfigT, tyro.conf.arg(name="")]
    """The configuration of the run for which a learning rate is sought."""
    steps: int = 200
    """Steps of the test, one learning rate each."""
    lowest: float = 1e-4
    """Learning rate of the first step."""
    highest: float = 10.0
    """Learning rate of the last step; the test ends before if the loss gets far above its start."""
    output: Path = Path("runs")
    """Folder in which the PNG and the JSON file are written; they never replace others."""
    data_dir: Path | None = None
    """Folder of the data sets; by default MANIGRAPH_DATA, else the user's cache folder."""
    file: Path | None = None
    """JSON file with settings, in the form of a run's config.json."""


def run(arguments: list[str]) -> int:
    """Run the test, draw it twice, and say what to do with it."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP.format(recipes=", ".join(RECIPES), algorithms=", ".join(ALGORITHMS)), end="")
        return 0 if arguments else 2
    target, *rest = arguments
    recipe, extra = recipe_and_options(target)
    options = _resolve(recipe, extra + rest, target)

    import torch

    from manigraph.build import build
    from manigraph.cli.display import data_progress
    from manigraph.data.locations import Locations
    from manigraph.training.lr_range import RangeTest, range_test

    test = RangeTest(options.steps, options.lowest, options.highest)
    if options.output.exists() and not options.output.is_dir():
        raise UserError(f"'{options.output}' is a file: --output needs a folder")
    config = options.config
    console = Console(highlight=False, markup=False)
    with torch.random.fork_rng():
        with data_progress() as progress:
            job = build(config, locations=Locations.default(options.data_dir), progress=progress)
        console.print(
            f"{config.run_name}: up to {test.steps} steps, learning rate from {test.lowest:g} to "
            f"{test.highest:g}",
            soft_wrap=True,
        )
        with _bar(console, test.steps) as on_step:
            result = range_test(job.trainer, job.batches, test, on_step)
    if len(result.rates) < 2:
        raise UserError(
            f"the loss is not finite from the first steps on, at learning rate {result.ended_at:.2g}: try a "
            f"lower --lowest"
        )
    present = config.schedule.max_learning_rate
    png = _write(options, test, result)
    _print_plot(console, result, present)
    console.print(_advice(result, present), soft_wrap=True)
    console.print(f"drawn in {png}, every step in {png.with_suffix('.json')}", soft_wrap=True)
    return 0


def _resolve(recipe: str, arguments: list[str], target: str) -> "LrFindOptions[Any]":
    """Recipe, file and command line, in this order of precedence, as `manigraph train` has them."""
    # These two decide which other options there are and what they are by default.
    deciding: list[str] = []
    for position, argument in enumerate(arguments):
        name, equals, _ = argument.partition("=")
        if name in ("--algorithm", "--file"):
            pieces = [argument] if equals else arguments[position : position + 2]
            deciding += pieces if equals or len(pieces) == 2 else []
    config = resolve(recipe, deciding, target=target).config

    from manigraph.config import Config

    kind: Any = LrFindOptions[Config[type(config.method)]]  # type: ignore[misc]
    options: LrFindOptions[Any] = parse(
        kind, arguments, program=f"manigraph lr-find {target}", default=LrFindOptions(config)
    )
    return options


@contextmanager
def _bar(console: Console, steps: int) -> "Iterator[Callable[[int, float, float], None]]":
    """A progress bar in a terminal, nothing elsewhere."""
    with Progress(
        TextColumn("learning rate {task.description:<7}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task("", total=steps, note="")

        def on_step(step: int, rate: float, loss: float) -> None:
            progress.update(task, completed=step, description=f"{rate:.2g}", note=f"loss {loss:.3f}")

        yield on_step


def _advice(result: "RangeTestResult", present: float) -> str:
    """The proposal and how to use it, or why there is none and what to try."""
    rate, _, reason = result.proposal
    now = f"the recipe has {present:g}"
    if rate is not None:
        return f"{reason}\nuse --schedule.max_learning_rate {rate:g} ({now})"
    if result.ending == "highest":
        way_out = "try a higher --highest, or more --steps"
    else:
        way_out = "try a lower --lowest, or more --steps"
    return f"no proposal: {reason}; {way_out} ({now})"


def _write(options: "LrFindOptions[Any]", test: "RangeTest", result: "RangeTestResult") -> Path:
    """Write PNG and JSON under names that nobody has; the PNG's path."""
    from manigraph.config import as_dict
    from manigraph.runs import provenance, write_atomically, write_json

    options.output.mkdir(parents=True, exist_ok=True)
    present = options.config.schedule.max_learning_rate
    png = _free_path(options.output, f"lr-find-{options.config.run_name}")
    title = f"Learning-rate range test: {options.config.run_name}"
    try:
        write_atomically(png, lambda path: _save_figure(path, title, result, present))
    except BaseException:
        png.unlink(missing_ok=True)
        raise
    write_json(
        png.with_suffix(".json"),
        {
            **provenance(),
            "test": asdict(test),
            "proposal": result.proposal._asdict(),
            "present": present,
            "ending": result.ending,
            "ended_at": result.ended_at,
            "rates": result.rates,
            "losses": result.losses,
            "smoothed": result.smoothed,
            "config": as_dict(options.config),
        },
    )
    return png


def _free_path(folder: Path, name: str) -> Path:
    """An empty `name.png`, or `name-2.png`, … of which neither PNG nor JSON was there before."""
    number = 1
    while True:
        png = folder / f"{name if number == 1 else f'{name}-{number}'}.png"
        if not png.with_suffix(".json").exists():
            try:
                png.touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                return png
        number += 1


def _highest_shown(result: "RangeTestResult") -> float:
    """Top of the loss axis: what explodes in the end would flatten everything before."""
    return min(max(result.smoothed), 2 * max(result.smoothed[: len(result.smoothed) // 2]))


def _save_figure(path: Path, title: str, result: "RangeTestResult", present: float) -> None:
    """Loss over learning rate, without touching matplotlib's global state."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.6), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.plot(result.rates, result.losses, color="0.75", linewidth=0.9, label="loss of each batch")
    axes.plot(result.rates, result.smoothed, color="tab:blue", linewidth=2, label="average")
    rate, valley_end, _ = result.proposal
    if valley_end is not None:
        axes.axvspan(valley_end, result.ended_at, color="tab:red", alpha=0.07, linewidth=0)
    if rate is not None:
        axes.axvline(rate, color="tab:green", linewidth=1.6, label=f"proposal {rate:g}")
    axes.axvline(present, color="0.25", linewidth=1.2, linestyle=":", label=f"recipe {present:g}")
    axes.set_xscale("log")
    low = min(0.0, *result.smoothed)
    axes.set_ylim(low, 1.05 * _highest_shown(result))
    axes.set_xlabel("learning rate")
    axes.set_ylabel("loss")
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(color="0.93", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="best", fontsize=9)
    figure.savefig(path, format="png")


def _print_plot(console: Console, result: "RangeTestResult", present: float) -> None:
    """The averaged loss over the learning rate in characters; nothing where these cannot be printed."""
    if console.encoding.lower().startswith("utf"):
        colour = console.is_terminal and not console.no_color
        print(_plot(result, present, min(console.width, PLOT_WIDTH), colour=colour))


def _plot(result: "RangeTestResult", present: float, width: int, *, colour: bool) -> str:
    """The plot as text, in the terminal's own colours but for the curve and the proposal."""
    import plotext

    # plotext places vertical lines as if its log axis were linear, so the logarithm is taken here.
    exponents = [log10(rate) for rate in result.rates]
    decades = range(ceil(exponents[0] - 1e-9), floor(exponents[-1] + 1e-9) + 1)
    legend = "loss (average) over learning rate"
    figure, terminal = plotext.figure, plotext.terminal
    figure.clear()
    terminal.limit(False, False)  # the size is given, whatever plotext finds out about the terminal
    try:
        figure.theme("colorless")
        figure.plot_size(width, PLOT_HEIGHT)
        top = _highest_shown(result)
        height = (min(result.smoothed), top)

        def mark(rate: float, symbol: str, colour: str | None) -> None:
            line = figure.segment((log10(rate),) * 2, height, marker=plotext.marker(symbol, pixel=colour))
            figure.draw(line)

        if result.rates[0] <= present <= result.rates[-1]:
            mark(present, "┊", None)
            legend += f"   ┊ recipe {present:g}"
        if result.proposal.rate is not None:
            mark(result.proposal.rate, "│", "green")
            legend += f"   │ proposal {result.proposal.rate:g}"
        losses = [min(loss, top) for loss in result.smoothed]
        curve = figure.signal(exponents, losses, marker=plotext.marker("hd", pixel="cyan"))
        figure.draw(curve.lines())
        figure.ruler("x").lim(exponents[0], exponents[-1]).ticks(decades, [f"{10.0**d:g}" for d in decades])
        text: str = figure.build().string(colorless=not colour)
    finally:
        terminal.limit(True, True)
        figure.clear()
    return "\n".join([legend, *(line.rstrip() for line in text.splitlines())])
