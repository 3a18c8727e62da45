"""Tables in pages of Markdown: prose by hand, tables by a command."""

import re
from collections.abc import Iterable, Mapping, Sequence


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """One line for each row."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def fill(document: str, found: Mapping[str, str]) -> str:
    """The document with the tables between their marks, `<!-- table NAME -->` and `<!-- end -->`."""

    def filled(mark: re.Match[str]) -> str:
        table = found.get(mark["name"])
        return mark[0] if table is None else f"{mark['begin']}\n{table}\n{mark['end']}"

    pattern = r"(?P<begin><!-- table (?P<name>\w+) -->)\n.*?(?P<end><!-- end -->)"
    return re.sub(pattern, filled, document, flags=re.DOTALL)


def names_of_tables(document: str) -> list[str]:
    """Of all marks, in their order."""
    return re.findall(r"<!-- table (\w+) -->", document)
