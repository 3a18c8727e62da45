"""`manigraph bench`: how fast the methods train on this machine."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from manigraph.catalogue import ALGORITHMS, RECIPES
from manigraph.errors import UnknownNameError, UserError
from manigraph.options import parse

if TYPE_CHECKING:
    from manigraph.bench.turns import Ratio

Section = Literal[
    "steps",
    "graph",
    "growth",
    "power",
    "methods",
    "narrow",
    "native",
    "end_to_end",
    "inference",
    "startup",
    "peak",
    "profile",
    "attention",
    "toolkits",
    "data",
    "memory",
    "loop",
    "compile",
    "recipes",
]

ORIGINS = "origins"
"""In the file of results: of each section the command, commit, machine and time."""
SECONDS_BETWEEN_LINES = 5.0
"""Where there is no terminal, progress is a line now and then."""


@dataclass(frozen=True)
class BenchOptions:
    """Measure the time of training steps, of the data and its memory, interleaved, and print the ratios."""

    sections: tuple[Section, ...] = ("steps", "graph", "power", "narrow", "inference", "startup", "data")
    """`steps`: what the graph costs, a step of each method by one of Π-VAT; `graph`: ours by graphs written
    out; `growth`: with the number of classes; `power`: VAT's power step; `methods`: each method's step by a
    lean one; `narrow`: small networks; `native`: what the inner loops in C bring; `end_to_end`: data and
    step; `inference`: prediction; `startup`: until something happens; `peak`: how near to what the machine
    can multiply; `profile`: where the time of a step goes; `attention`: to prototypes of the nearest
    classes only, and what that loses; `toolkits`: public toolkits' steps; `data`: batches against a
    DataLoader of PIL images; `memory`: training on 100,000 files; `loop`: the whole loop against the bare
    passes of the network; `compile`: a compiled network against the same without; `recipes`: the first
    iterations of every recipe at its own width, a quarter of an hour on two cores."""
    scale: float = 1.0
    """Multiplier on the number of rounds and files; 0.1 is a quick look. Below 1, networks are tiny and the
    paper's width is left out: the figures say little then."""
    output: Path | None = None
    """JSON file to put the figures into, each section with its command, commit and machine; other sections
    that are in it stay."""
    recipes: tuple[str, ...] = ()
    """Recipes that the section `recipes` tries; by default all but `folder`."""
    algorithms: tuple[str, ...] = ()
    """Algorithms with which the section `recipes` tries them; by default pi_vat and manifold_graph."""
    toolkits: Path | None = None
    """Folder into which the public toolkits were installed, for the section `toolkits`."""
    history: Path | None = None
    """JSON Lines file to which a line with the time, commit, machine and ratios is added for each section."""
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
    from manigraph.training.memory import keep_freed_memory

    keep_freed_memory()  # as training does
    console = Console()
    origin = provenance()  # of the code as it starts, before any file in it is written
    results = _earlier(options.output)
    failed = False
    for section in options.sections:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            answer = _MEASURE[section](options, _teller(progress, section))
        results[section] = [asdict(figure) for figure in answer.figures]
        results[ORIGINS] = {**results.get(ORIGINS, {}), section: origin}
        failed |= answer.failed
        answer.show()
        # Now: the next section may fail.
        if options.output is not None:
            write_json(options.output, results)
        if options.history is not None:
            _remember(options.history, origin, section, results[section])
    if options.output is not None:
        console.print(f"written to {options.output}", highlight=False)
    if options.history is not None:
        console.print(f"added to {options.history}", highlight=False)
    return int(failed)


def _earlier(output: Path | None) -> dict[str, Any]:
    """What other commands have put into the file; sections that are measured again replace theirs."""
    if output is None or not output.exists():
        return {}
    try:
        earlier = json.loads(output.read_text(encoding="utf-8"))
        return {**earlier, ORIGINS: dict(earlier[ORIGINS])}
    except (ValueError, KeyError, TypeError):
        raise UserError(f"'{output}' holds other things: move it away or name another file") from None


def _remember(history: Path, origin: dict[str, Any], section: str, figures: list[dict[str, Any]]) -> None:
    """One line for a section, after those of earlier measurements; only ratios are worth comparing."""
    kept = ("setting", "what", "versus", "ratio", "low", "high", "target", "reached")
    ratios = [{name: figure[name] for name in kept} for figure in figures if set(kept) <= set(figure)]
    if not ratios:
        return
    line = {name: origin[name] for name in ("time", "commit", "machine")}
    line |= {"section": section, "ratios": ratios}
    with history.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _check(options: BenchOptions) -> None:
    """Refuse what would only show after a long measurement."""
    for path in (options.output, options.measured, options.history):
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
    _earlier(options.output)
    if "toolkits" in options.sections:
        from manigraph.bench.toolkits import toolkits_problem

        problem = toolkits_problem(options.toolkits)
        if problem:
            raise UserError(problem)
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


def _timed(title: str, location: str) -> Callable[[BenchOptions, Told], Answer]:
    """A section whose figures are ratios, by the function that measures them."""

    def measure(options: BenchOptions, tell: Told) -> Answer:
        module, _, function = location.partition(":")
        ratios = getattr(import_module(f"manigraph.bench.{module}"), function)(options.scale, tell)
        return Answer(ratios, lambda: show_ratios(title, ratios, options.scale))

    return measure


def _toolkits(options: BenchOptions, tell: Told) -> Answer:
    from manigraph.bench.toolkits import run_toolkits_benchmark

    ratios = run_toolkits_benchmark(options.toolkits, options.scale, tell)
    return Answer(ratios, lambda: show_ratios("Public toolkits", ratios, options.scale))


def show_ratios(title: str, ratios: "list[Ratio]", scale: float) -> None:
    """A table for each setting. Targets are for whole networks: below scale 1 none is judged."""
    from manigraph.bench.turns import LEAST_FOR_AN_INTERVAL
    from manigraph.cli.results import print_table

    targets = {True: "reached", False: "missed"}
    for setting in dict.fromkeys(r.setting for r in ratios):
        rows = [
            (
                f"{_title(r.what)} / {_title(r.versus)}",
                [
                    f"{r.ratio:.3f}",
                    f"{r.low:.3f} - {r.high:.3f}" if r.rounds >= LEAST_FOR_AN_INTERVAL else "-",
                    "" if r.reached is None or scale < 1 else f"{r.target}, {targets[r.reached]}",
                    f"{r.milliseconds:.1f}",
                    f"{r.rounds}",
                ],
            )
            for r in ratios
            if r.setting == setting
        ]
        print_table(f"{title}: {setting}", ["ratio", "95 %", "target", "ms", "rounds"], rows)


def _growth(options: BenchOptions, tell: Told) -> Answer:
    from manigraph.bench.graph import run_growth_benchmark
    from manigraph.cli.results import print_table

    growths = run_growth_benchmark(options.scale, tell)

    def show() -> None:
        print_table(
            "Graph and prototype losses alone, 32 + 128 images",
            ["prototypes", "ms", "extra MiB"],
            [
                (f"{g.classes} classes", [f"{g.prototypes:,}", f"{g.milliseconds:.1f}", f"{g.extra_mib:.0f}"])
                for g in growths
            ],
        )

    return Answer(growths, show)


def _attention(options: BenchOptions, tell: Told) -> Answer:
    from manigraph.bench.attention import run_attention_benchmark
    from manigraph.cli.results import print_table

    results = run_attention_benchmark(options.scale, tell)

    def show() -> None:
        print_table(
            f"Attention to the prototypes of the nearest classes, of {results[0].prototypes:,} prototypes",
            ["to its own class", "left out", "error", "time"],
            [
                (
                    f"{r.classes_considered} classes, sharpness {r.sharpness:g}",
                    [
                        f"{100 * r.own_class_weight:.1f} %",
                        f"{100 * r.lost_weight:.2f} %",
                        f"{100 * r.error:.2f} %",
                        f"{r.time_ratio:.2f}",
                    ],
                )
                for r in results
            ],
        )

    return Answer(results, show)


def _profile(options: BenchOptions, tell: Told) -> Answer:
    from manigraph.bench.profile import run_profile_benchmark
    from manigraph.cli.results import print_table

    shares = run_profile_benchmark(options.scale, tell)

    def show() -> None:
        for setting, algorithm in dict.fromkeys((s.setting, s.algorithm) for s in shares):
            print_table(
                f"Where the time of a step of {_title(algorithm)} goes, {setting}",
                ["share"],
                [
                    (s.kind, [f"{100 * s.share:.1f} %"])
                    for s in shares
                    if (s.setting, s.algorithm) == (setting, algorithm)
                ],
            )

    return Answer(shares, show)


def _peak(options: BenchOptions, tell: Told) -> Answer:
    from manigraph.bench.peak import run_peak_benchmark
    from manigraph.cli.results import print_table

    shares = run_peak_benchmark(options.scale, tell)

    def show() -> None:
        print_table(
            "Operations per second of a step of Π-VAT against products of matrices",
            ["10⁹ a second", "of at most", "share"],
            [
                (s.setting, [f"{s.step_gigaflops:.0f}", f"{s.peak_gigaflops:.0f}", f"{100 * s.share:.0f} %"])
                for s in shares
            ],
        )

    return Answer(shares, show)


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
                ["ms", "passes ms", "ratio", "95 %", "data ms"],
                [
                    (
                        _title(t.algorithm),
                        [
                            f"{t.milliseconds:.1f}",
                            f"{t.bare_milliseconds:.1f}",
                            f"{t.ratio:.3f}",
                            f"{t.low:.3f} to {t.high:.3f}",
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


_MEASURE: dict[Section, Callable[[BenchOptions, Told], Answer]] = {
    "steps": _timed("A training step", "steps:run_steps_benchmark"),
    "graph": _timed("The graph alone", "graph:run_graph_benchmark"),
    "growth": _growth,
    "power": _timed("VAT's power step", "power:run_power_benchmark"),
    "methods": _timed("A step of each method", "methods:run_methods_benchmark"),
    "narrow": _timed("Narrow networks", "narrow:run_narrow_benchmark"),
    "native": _timed("Inner loops in C", "native:run_native_benchmark"),
    "end_to_end": _timed("Data and step", "end_to_end:run_end_to_end_benchmark"),
    "inference": _timed("Prediction, images per second", "inference:run_inference_benchmark"),
    "startup": _timed("Start", "startup:run_startup_benchmark"),
    "peak": _peak,
    "profile": _profile,
    "attention": _attention,
    "toolkits": _toolkits,
    "data": _data,
    "memory": _memory,
    "loop": _loop,
    "compile": _compile,
    "recipes": _recipes,
}
