"""`manigraph bench`: how fast the methods train on this machine."""

from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from manigraph.errors import UserError
from manigraph.options import parse


@dataclass(frozen=True)
class BenchOptions:
    """Time one training step of every method, interleaved, and print the ratios."""

    scale: float = 1.0
    """Multiplier on the number of rounds; 0.1 is a quick look."""
    output: Path | None = None
    """JSON file to write the timings to, with commit and machine."""


def run(arguments: list[str]) -> int:
    """Measure and print one table for each setting."""
    options: BenchOptions = parse(BenchOptions, arguments, program="manigraph bench")
    if options.output is not None and not options.output.absolute().parent.is_dir():
        raise UserError(f"the folder of '{options.output}' does not exist")
    if options.scale <= 0:
        raise UserError(f"--scale must be positive, got {options.scale}")

    from manigraph.cli.results import print_table
    from manigraph.experiments.bench import SETTINGS, run_benchmark, scaled_rounds
    from manigraph.experiments.tables import METHODS
    from manigraph.runs import provenance, write_json

    titles = {row.algorithm: row.title for row in METHODS}
    console = Console()
    rounds = sum(scaled_rounds(setting, options.scale) + 2 for setting in SETTINGS)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("timing", total=rounds)
        timings = run_benchmark(options.scale, lambda: progress.advance(task))
    for setting in SETTINGS:
        print_table(
            f"One training step, {setting.name}",
            ["ms", "relative to Π-VAT"],
            [
                (titles[t.algorithm], [f"{t.milliseconds:.1f}", f"{t.ratio:.2f}"])
                for t in timings
                if t.setting == setting.name
            ],
        )
    if options.output is not None:
        write_json(options.output, {**provenance(), "timings": [asdict(t) for t in timings]})
        console.print(f"written to {options.output}", highlight=False)
    return 0
