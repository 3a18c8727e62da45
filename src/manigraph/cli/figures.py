"""`manigraph figures RUN`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from manigraph.errors import UserError
from manigraph.options import parse
from manigraph.runs import RunDirectory


@dataclass(frozen=True)
class FiguresOptions:
    """Draw what a trained run has learned: where images and prototypes lie, and who listens to whom.

    Writes manifold.png and .svg, for methods with a graph connectivity.png and .svg, and figures.json with
    all that is behind them.
    """

    run: Annotated[Path, tyro.conf.Positional]
    """Run directory."""
    output: Path | None = None
    """Folder for the files, in the place of those of before; by default `figures` in the run directory."""
    part: Literal["validation", "test"] = "validation"
    """Which images of the split."""
    data_dir: Path | None = None
    """Folder of the data sets; by default MANIGRAPH_DATA, else the user's cache folder."""


def run(arguments: list[str]) -> int:
    """Compute, draw, and say in a sentence what is to be seen."""
    options: FiguresOptions = parse(FiguresOptions, arguments, program="manigraph figures")
    directory = RunDirectory.open(options.run)
    output = directory.path / "figures" if options.output is None else options.output
    if output.exists() and not output.is_dir():
        raise UserError(f"'{output}' is a file: --output needs a folder")

    from manigraph.cli.display import data_progress
    from manigraph.data.locations import Locations
    from manigraph.inference.manifold import figure_data, manifold_view
    from manigraph.reports.manifold import as_text, in_words, write_figures
    from manigraph.runs import write_bytes

    with data_progress() as progress:
        view = manifold_view(
            directory, options.part, locations=Locations.default(options.data_dir), progress=progress
        )
    data = figure_data(view)
    output.mkdir(parents=True, exist_ok=True)
    paths = write_figures(data, output)
    paths.append(output / "figures.json")
    write_bytes(paths[-1], as_text(data).encode())
    print(in_words(data))
    print(f"written: {', '.join(str(path) for path in paths)}")
    return 0
