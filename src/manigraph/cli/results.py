"""Tables of results in the terminal."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table


def print_table(heading: str, columns: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> None:
    """A table with one titled row per method."""
    table = Table(title=heading, title_justify="left", title_style="bold")
    table.add_column("method", style="cyan")
    for column in columns:
        table.add_column(column, justify="right")
    for title, cells in rows:
        table.add_row(title, *cells)
    Console().print(table)
