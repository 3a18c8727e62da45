"""Tables of results in the terminal."""

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

TITLES: Mapping[str, str] = {
    "supervised": "supervised only",
    "pi_model": "Π-model",
    "vat": "VAT",
    "pi_vat": "Π-VAT",
    "manifold_graph": "Manifold Graph",
    "label_spreading": "LabelSpreading (scikit-learn)",
}


def title(algorithm: str) -> str:
    """A method's name as people write it."""
    return TITLES.get(algorithm, algorithm)


def print_table(heading: str, columns: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> None:
    """A table with one row per method."""
    table = Table(title=heading, title_justify="left", title_style="bold")
    table.add_column("method", style="cyan")
    for column in columns:
        table.add_column(column, justify="right")
    for algorithm, cells in rows:
        table.add_row(title(algorithm), *cells)
    Console().print(table)
