"""`manigraph bench`: how fast the methods train on this machine."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import Progress, TaskID

from manigraph.errors import UserError
from manigraph.options import parse

Section = Literal["steps", "data", "memory"]
SECTIONS: tuple[Section, ...] = ("steps", "data", "memory")


@dataclass(frozen=True)
class BenchOptions:
    """Measure the time of training steps, of the data and its memory, interleaved, and print the ratios."""

    sections: tuple[Section, ...] = SECTIONS
    """`steps`: one training step of every method; `data`: batches against a DataLoader of PIL images, and
    their share of a step at the paper's size; `memory`: training on 100,000 files."""
    scale: float = 1.0
    """Multiplier on the number of rounds and files; 0.1 is a quick look."""
    output: Path | None = None
    """JSON file to write the figures to, with commit and machine."""


def run(arguments: list[str]) -> int:
    """Measure and print one table for each setting."""
    options: BenchOptions = parse(BenchOptions, arguments, program="manigraph bench")
    if options.output is not None and not options.output.absolute().parent.is_dir():
        raise UserError(f"the folder of '{options.output}' does not exist")
    if options.scale <= 0:
        raise UserError(f"--scale must be positive, got {options.scale}")

    from manigraph.runs import provenance, write_json

    console = Console()
    measure = {"steps": _steps, "data": _data, "memory": _memory}
    results: dict[str, Any] = {}
    for section in options.sections:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task(section, total=None)
            figures, show = measure[section](options.scale, partial(_describe, progress, task))
        results[_KEYS[section]] = [asdict(figure) for figure in figures]
        show()
    if options.output is not None:
        write_json(options.output, {**provenance(), **results})
        console.print(f"written to {options.output}", highlight=False)
    return 0


def _describe(progress: Progress, task: TaskID, what: str) -> None:
    progress.update(task, description=what)


_KEYS = {"steps": "timings", "data": "data", "memory": "memory"}

Told = Callable[[str], None]
Answer = tuple[list[Any], Callable[[], None]]


def _steps(scale: float, tell: Told) -> Answer:
    from manigraph.cli.results import print_table
    from manigraph.experiments.bench import SETTINGS, run_benchmark
    from manigraph.experiments.tables import METHODS

    titles = {row.algorithm: row.title for row in METHODS}
    timings = run_benchmark(scale, lambda: tell("timing steps"))

    def show() -> None:
        for setting in SETTINGS:
            rows = [timing for timing in timings if timing.setting == setting.name]
            print_table(
                f"One training step, {setting.name}",
                ["ms", "relative to Π-VAT"],
                [(titles[t.algorithm], [f"{t.milliseconds:.1f}", f"{t.ratio:.2f}"]) for t in rows],
            )

    return timings, show


def _data(scale: float, tell: Told) -> Answer:
    import torch

    from manigraph.cli.results import print_table
    from manigraph.experiments.bench_data import time_augmentation, time_data_share

    rounds = max(1, round(10 * scale))
    augmentation = time_augmentation(rounds, 60, lambda: tell("timing augmentation"))
    with torch.random.fork_rng():
        share = time_data_share(max(1, round(5 * scale)), 1.0, lambda: tell("timing data in a step"))

    def show() -> None:
        print_table(
            "A batch of 160 images of 32x32, shifted, mirrored and standardised",
            ["ms", "times as fast"],
            [(t.what, [f"{t.milliseconds:.2f}", f"{t.ratio:.1f}"]) for t in augmentation],
        )
        print_table(
            "Data in a training step",
            ["ms", "share of the step"],
            [(t.what, [f"{t.milliseconds:.2f}", f"{100 * t.ratio:.3f} %"]) for t in share],
        )

    return [*augmentation, *share], show


def _memory(scale: float, tell: Told) -> Answer:
    from manigraph.cli.results import print_table
    from manigraph.experiments.bench_memory import measure_memory

    uses = measure_memory(max(1000, round(100_000 * scale)), tell)

    def show() -> None:
        print_table(
            f"Training on {uses[0].images} files of 32x32, {uses[0].pixels_mib:.0f} MiB of pixels",
            ["own MiB", "before MiB", "peak MiB", "load s", "images/s"],
            [
                (
                    use.how,
                    [
                        f"{use.own_mib:.0f}",
                        f"{use.before_mib:.0f}",
                        f"{use.peak_mib:.0f}",
                        f"{use.load_seconds:.1f}",
                        f"{use.images_per_second:.0f}",
                    ],
                )
                for use in uses
            ],
        )

    return uses, show
