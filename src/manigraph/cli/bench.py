"""`manigraph bench`: how fast the methods train on this machine."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from manigraph.catalogue import ALGORITHMS, RECIPES
from manigraph.errors import UnknownNameError, UserError
from manigraph.options import parse

Section = Literal["steps", "data", "memory", "loop", "compile", "recipes"]

SECONDS_BETWEEN_LINES = 5.0
"""Where there is no terminal, progress is a line now and then."""


@dataclass(frozen=True)
class BenchOptions:
    """Measure the time of training steps, of the data and its memory, interleaved, and print the ratios."""

    sections: tuple[Section, ...] = ("steps", "data", "memory")
    """`steps`: one training step of every method; `data`: batches against a DataLoader of PIL images, and
    their share of a step at the paper's size; `memory`: training on 100,000 files; `loop`: the whole loop
    against the bare passes of the network; `compile`: a compiled network against the same without;
    `recipes`: the first iterations of every recipe at its own width, a quarter of an hour on two cores."""
    scale: float = 1.0
    """Multiplier on the number of rounds and files; 0.1 is a quick look. Below 1, `recipes` has narrower
    networks too, and `loop` leaves out the paper's width."""
    output: Path | None = None
    """JSON file to write the figures to, with commit and machine."""
    recipes: tuple[str, ...] = ()
    """Recipes that the section `recipes` tries; by default all but `folder`."""
    algorithms: tuple[str, ...] = ()
    """Algorithms with which the section `recipes` tries them; by default pi_vat and manifold_graph."""
    measured: Path | None = None
    """JSON file into which the section `recipes` puts what `manigraph list recipes` says of them; the one
    that comes with the package is src/manigraph/recipes/measured.json."""


class Answer(NamedTuple):
    """What a section found."""

    figures: list[Any]
    """Dataclasses, for the file."""
    show: Callable[[], None]
    """Prints them."""
    failed: bool = False
    """Whether something is not as it should be."""


Told = Callable[[str], None]


def run(arguments: list[str]) -> int:
    """Measure and print one table for each setting."""
    options: BenchOptions = parse(BenchOptions, arguments, program="manigraph bench")
    _check(options)

    from manigraph.runs import provenance, write_json

    console = Console()
    origin = provenance()  # of the code as it starts, before any file in it is written
    results: dict[str, Any] = {}
    failed = False
    for section in options.sections:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            answer = _MEASURE[section](options, _teller(progress, section))
        results[_KEYS.get(section, section)] = [asdict(figure) for figure in answer.figures]
        failed |= answer.failed
        answer.show()
    if options.output is not None:
        write_json(options.output, {**origin, **results})
        console.print(f"written to {options.output}", highlight=False)
    return int(failed)


def _check(options: BenchOptions) -> None:
    """Refuse what would only show after a long measurement."""
    for path in (options.output, options.measured):
        if path is not None and not path.absolute().parent.is_dir():
            raise UserError(f"the folder of '{path}' does not exist")
    if options.scale <= 0:
        raise UserError(f"--scale must be positive, got {options.scale}")
    for name in options.recipes:
        if name not in RECIPES:
            raise UnknownNameError("recipe", name, RECIPES)
    for name in options.algorithms:
        if name not in ALGORITHMS:
            raise UnknownNameError("algorithm", name, ALGORITHMS)
    if "folder" in options.recipes:
        raise UserError("--recipes cannot try 'folder': how long it takes depends on your own images")
    if options.measured is not None and options.scale < 1:
        raise UserError(f"--measured takes figures of whole networks: leave out --scale {options.scale}")


def _teller(progress: Progress, section: str) -> Told:
    """Shows what is being done: beside a spinner in a terminal, as a line now and then elsewhere."""
    if progress.console.is_terminal:
        task = progress.add_task(section, total=None)
        return lambda what: progress.update(task, description=escape(what))
    console, last = Console(stderr=True), ("", 0.0)

    def tell(what: str) -> None:
        nonlocal last
        if what != last[0] and time.monotonic() - last[1] >= SECONDS_BETWEEN_LINES:
            last = (what, time.monotonic())
            console.print(what, highlight=False, markup=False)

    return tell


def _steps(options: BenchOptions, tell: Told) -> Answer:
    from manigraph.bench.steps import SETTINGS, run_benchmark
    from manigraph.cli.results import print_table

    timings = run_benchmark(options.scale, lambda: tell("timing steps"))

    def show() -> None:
        for setting in SETTINGS:
            rows = [timing for timing in timings if timing.setting == setting.name]
            print_table(
                f"One training step, {setting.name}",
                ["ms", "relative to Π-VAT"],
                [(_title(t.algorithm), [f"{t.milliseconds:.1f}", f"{t.ratio:.2f}"]) for t in rows],
            )

    return Answer(timings, show)


def _data(options: BenchOptions, tell: Told) -> Answer:
    import torch

    from manigraph.bench.data import time_augmentation, time_data_share
    from manigraph.cli.results import print_table

    rounds = max(1, round(10 * options.scale))
    augmentation = time_augmentation(rounds, 60, lambda: tell("timing augmentation"))
    with torch.random.fork_rng():
        share = time_data_share(max(1, round(5 * options.scale)), 1.0, lambda: tell("timing data in a step"))

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

    return Answer([*augmentation, *share], show)


def _memory(options: BenchOptions, tell: Told) -> Answer:
    from manigraph.bench.memory import measure_memory
    from manigraph.cli.results import print_table

    uses = measure_memory(max(1000, round(100_000 * options.scale)), tell)

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

    return Answer(uses, show)


def _loop(options: BenchOptions, tell: Told) -> Answer:
    from manigraph.bench.loop import run_loop_benchmark
    from manigraph.cli.results import print_table

    timings = run_loop_benchmark(options.scale, tell)

    def show() -> None:
        for setting in dict.fromkeys(t.setting for t in timings):
            print_table(
                f"The whole loop against bare passes, {setting}",
                ["ms", "passes ms", "ratio", "to backbone", "data ms"],
                [
                    (
                        _title(t.algorithm),
                        [
                            f"{t.milliseconds:.1f}",
                            f"{t.bare_milliseconds:.1f}",
                            f"{t.ratio:.3f}",
                            f"{t.backbone_ratio:.3f}",
                            f"{t.data_milliseconds:.2f}",
                        ],
                    )
                    for t in timings
                    if t.setting == setting
                ],
            )

    return Answer(timings, show)


def _compile(options: BenchOptions, tell: Told) -> Answer:
    from manigraph.bench.loop import CompileTiming, run_compile_benchmark
    from manigraph.cli.results import print_table

    figures = run_compile_benchmark(options.scale, tell)

    def show() -> None:
        rows = []
        for figure in figures:
            if not isinstance(figure, CompileTiming):
                Console().print(figure.reason, highlight=False, markup=False)
                continue
            pays = "never" if figure.pays_after_steps is None else f"after {figure.pays_after_steps:,} steps"
            cells = [
                f"{figure.eager_milliseconds:.1f}",
                f"{figure.compiled_milliseconds:.1f}",
                f"{figure.ratio:.2f}",
                f"{figure.compile_seconds:.0f}",
                pays,
            ]
            rows.append((figure.setting, cells))
        if rows:
            columns = ["ms", "compiled ms", "ratio", "compiling s", "pays"]
            print_table("One training step with the backbone compiled", columns, rows)

    return Answer(figures, show)


def _recipes(options: BenchOptions, tell: Told) -> Answer:
    from manigraph.bench.recipes import ALGORITHMS_TRIED, measurements, tried_recipes, try_recipes
    from manigraph.cli.results import print_table
    from manigraph.recipes.measured import add_measured
    from manigraph.runs import provenance

    trials = try_recipes(
        options.recipes or tried_recipes(), options.scale, tell, options.algorithms or ALGORITHMS_TRIED
    )
    if options.measured is not None:
        add_measured(options.measured, measurements(trials, provenance()))

    def show() -> None:
        print_table(
            "First iterations of the recipes",
            ["parameters", "s per step", "peak MiB", "found"],
            [
                (
                    f"{t.recipe}, {_title(t.algorithm)}",
                    [
                        f"{t.parameters:,}",
                        f"{t.seconds_per_step:.2f}",
                        "-" if t.peak_mib is None else f"{t.peak_mib:.0f}",
                        "a problem" if t.problems else "all well",
                    ],
                )
                for t in trials
            ],
        )
        console = Console()
        for t in trials:
            for problem in t.problems:
                console.print(f"{t.recipe}, {t.algorithm}: {problem}", highlight=False, markup=False)
        for recipe, images in {t.recipe: t.images for t in trials if t.stand_in}.items():
            console.print(f"{recipe} was tried on a {images}", highlight=False, markup=False)

    return Answer(trials, show, failed=any(t.problems for t in trials))


def _title(algorithm: str) -> str:
    """What a method is called in tables."""
    from manigraph.experiments.tables import METHODS

    return next((row.title for row in METHODS if row.algorithm == algorithm), algorithm)


_KEYS = {"steps": "timings"}
"""Sections whose figures have another name in the file."""

_MEASURE: dict[Section, Callable[[BenchOptions, Told], Answer]] = {
    "steps": _steps,
    "data": _data,
    "memory": _memory,
    "loop": _loop,
    "compile": _compile,
    "recipes": _recipes,
}
