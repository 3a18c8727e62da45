"""`manigraph list [KIND]`."""

from typing import Any

from rich.console import Console
from rich.table import Table

from manigraph.catalogue import ALGORITHMS, BACKBONES, DATASETS, RECIPES
from manigraph.errors import UnknownNameError
from manigraph.registry import Registry

KINDS: dict[str, Registry[Any]] = {
    "algorithms": ALGORITHMS,
    "recipes": RECIPES,
    "datasets": DATASETS,
    "backbones": BACKBONES,
}

HELP = f"""\
usage: manigraph list [{"|".join(KINDS)}]

Name everything of one kind, or of all kinds, with one line each.
"""


def run(arguments: list[str]) -> int:
    """Print one table for each kind asked for."""
    if any(argument in ("-h", "--help") for argument in arguments):
        print(HELP, end="")
        return 0
    for name in arguments:
        if name not in KINDS:
            raise UnknownNameError("kind", name, KINDS)
    console = Console()
    for name in arguments or KINDS:
        table = Table(title=name, title_justify="left", title_style="bold", box=None, pad_edge=False)
        table.add_column("name", style="cyan", no_wrap=True)
        table.add_column("what it is")
        for entry_name, entry in KINDS[name].entries.items():
            table.add_row(entry_name, entry.summary)
        console.print(table)
        console.print()
    return 0
