"""`manigraph check PATH|NAME`: a look at the data before anything is trained."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from manigraph.catalogue import RECIPES
from manigraph.cli.targets import recipe_and_options
from manigraph.errors import UserError
from manigraph.options import parse

if TYPE_CHECKING:
    from manigraph.data.check import Check

HELP = """\
usage: manigraph check PATH|NAME [OPTIONS]

Look at a data set and its split before training: images and labels of each class, sizes and modes, files
that cannot be read, exact copies between labelled, unlabelled, validation and test images, classes with
too few labels, imbalance, and what to do about each. Exit code 1 if training would be wrong.

  manigraph check photos/ --montage montage.png
  manigraph check photos/labels.csv --data.labels 100 --json
  manigraph check svhn

recipes: {recipes}

`manigraph check NAME --help` shows every option.
"""

EXAMPLES = 8
"""Files or classes that are named for each finding; --json names all."""

STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}


def run(arguments: list[str]) -> int:
    """Print what was found as tables or JSON."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP.format(recipes=", ".join(RECIPES)), end="")
        return 0 if arguments else 2
    target, *rest = arguments
    recipe, extra = recipe_and_options(target)

    from manigraph.build import check_dataset, load_dataset
    from manigraph.cli.display import data_progress
    from manigraph.config import DataConfig
    from manigraph.data.check import no_data
    from manigraph.data.locations import Locations
    from manigraph.data.montage import save_montage

    @dataclass(frozen=True)
    class CheckOptions:
        """Look at a data set and its split before training."""

        data: DataConfig = field(default_factory=DataConfig)
        seed: int = 0
        """Seed of the split."""
        data_dir: Path | None = None
        """Folder of the data sets; by default MANIGRAPH_DATA, else the user's cache folder."""
        montage: Path | None = None
        """PNG file to write, with ten images of each class, to see whether they were read right."""
        json: bool = False
        """Print JSON, with the names of all files concerned."""

    default = CheckOptions(RECIPES.get(recipe)("supervised").data)
    options: Any = parse(CheckOptions, extra + rest, program=f"manigraph check {target}", default=default)
    try:
        with data_progress() as progress:
            dataset = load_dataset(options.data, Locations.default(options.data_dir), progress)
    except UserError as error:
        check = no_data(target, str(error))
    else:
        _, check = check_dataset(options.data, dataset, options.seed)
        if options.montage is not None and dataset.num_classes:
            save_montage(dataset, options.montage)
    if options.json:
        print(json.dumps(check.as_dict(), indent=2))
    else:
        print_check(check)
    return 1 if check.errors else 0


def print_check(check: "Check") -> None:
    """Tables for people."""
    console = Console()
    shape = "x".join(str(size) for size in reversed(check.input_shape))
    if check.num_images:
        title = f"{check.dataset}: {check.num_images} images of {shape}"
        console.print(title, highlight=False, markup=False)
    if check.parts:
        parts = ", ".join(f"{count} {name}" for name, count in check.parts.items())
        console.print(f"split: {parts}", highlight=False)
    if check.original_formats:
        formats = [f"{count} of {what}" for what, count in check.original_formats.items()]
        more = f" and {len(formats) - 6} other kinds" if len(formats) > 6 else ""
        console.print(f"files: {', '.join(formats[:6])}{more}", highlight=False)
    if check.classes:
        table = Table(box=None, pad_edge=False)
        table.add_column("class", style="cyan")
        for column in ("images", "labelled", "unlabelled", "validation", "test"):
            table.add_column(column, justify="right")
        for row in check.classes:
            counts = (row.images, row.labelled, row.unlabelled, row.validation, row.test)
            table.add_row(escape(row.name), *(str(count) for count in counts))
        console.print(table)
    for finding in check.findings:
        style = STYLES[finding.severity]
        console.print(f"[{style}]{finding.severity}[/]: ", end="")
        console.print(finding.message, highlight=False, markup=False, soft_wrap=True)
        for example in finding.examples[:EXAMPLES]:
            console.print(f"    {example}", highlight=False, markup=False, soft_wrap=True)
        if len(finding.examples) > EXAMPLES:
            hidden = len(finding.examples) - EXAMPLES
            console.print(f"    … and {hidden} more (--json names all)", highlight=False)
        console.print(f"  → {finding.suggestion}", highlight=False, markup=False, soft_wrap=True)
    if check.errors:
        console.print("training would be wrong with this data", style="bold red")
    else:
        console.print("ready to train", highlight=False)
