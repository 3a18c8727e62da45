"""`manigraph demo`: what do unlabelled images bring?"""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from manigraph.cli.report import write_report
from manigraph.cli.train import wants_report
from manigraph.options import parse

ALGORITHMS = ("supervised", "pi_vat", "manifold_graph")


@dataclass(frozen=True)
class DemoOptions:
    """Train three methods on digits with 20 labels and compare their test errors."""

    runs: Path = Path("runs/demo")
    """Folder in which the run directories are made."""
    seed: int = 0
    """Seed of the split and of training."""
    labels: int = 20
    """Labelled images in all."""
    steps: int | None = None
    """Updates per method; by default those of the recipe."""


def run(arguments: list[str]) -> int:
    """Train, print one table, one sentence, and where the runs are."""
    options: DemoOptions = parse(DemoOptions, arguments, program="manigraph demo")
    console = Console()
    console.print(
        f"Digits of 8x8 pixels with {options.labels} labels; all other training images without a label.",
        highlight=False,
    )

    from dataclasses import replace

    from manigraph.cli.display import TrainingDisplay
    from manigraph.cli.results import print_table
    from manigraph.engine import train
    from manigraph.experiments.grid import Cell, measure
    from manigraph.experiments.tables import FIRST_METHODS

    errors: dict[str, float] = {}
    folders: dict[str, Path] = {}
    with TrainingDisplay(console) as display:
        for algorithm in ALGORITHMS:
            config = Cell("digits", algorithm, options.labels, options.seed).config()
            if options.steps is not None:
                config = replace(config, training=replace(config.training, steps=options.steps))
            trained, evaluations = train(config, options.runs, observer=display)
            errors[algorithm] = evaluations["test"].error
            folders[algorithm] = trained.path
    outsider = Cell("digits", "label_spreading", options.labels, options.seed)
    errors["label_spreading"] = measure(outsider, options.runs).test_error

    titles = {row.algorithm: row.title for row in FIRST_METHODS if row.algorithm in errors}
    heading = f"Test error on 500 images, {options.labels} labels, seed {options.seed}"
    print_table(heading, ["error %"], [(title, [f"{errors[name]:.1f}"]) for name, title in titles.items()])
    console.print(verdict(errors), highlight=False)
    console.print("Run directories:")
    for algorithm, path in folders.items():
        console.print(f"  {titles[algorithm]:<16} {path}", highlight=False, soft_wrap=True)
    if wants_report():
        report = write_report(folders["manifold_graph"], say=False)
        if report is not None:
            console.print(f"What Manifold Graph has learned: {report}", highlight=False, soft_wrap=True)
    return 0


def verdict(errors: dict[str, float]) -> str:
    """One sentence on what the unlabelled images brought."""
    before, after = errors["supervised"], errors["manifold_graph"]
    if after < before:
        return (
            f"The unlabelled images lowered the error from {before:.1f} % to {after:.1f} % "
            f"with Manifold Graph."
        )
    return (
        f"The unlabelled images did not help this time: {before:.1f} % without them, {after:.1f} % with them."
    )
