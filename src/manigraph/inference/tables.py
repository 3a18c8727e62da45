r"""Answers as CSV or parquet, written while they come.

One row for each image: path, class, probability, `p_CLASS` for every class, and for runs with a graph the
prototypes that the image hears most of, as `nearest_1` (`cat #3` is prototype 3 of the cats, from 1) and
`nearest_1_weight`.

Class names and paths may hold anything. In parquet they are what they are. In CSV what terminals would obey
is written as `\x1b`, and no cell begins like a formula, which spreadsheets would compute: such a path gets
`./` before it, such a class name an apostrophe.
"""

import csv
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Protocol

from manigraph.errors import UserError, shown
from manigraph.inference.predictions import FilePrediction

FORMULA = ("=", "+", "-", "@")
"""How cells begin that spreadsheets compute; tabs and line ends, which they skip, are written as `\\x09`."""
ENDINGS = (".csv", ".parquet")
ROWS_AT_ONCE = 8192
"""Rows of a group in parquet; so many are in memory."""


class Table(Protocol):
    """Where rows go."""

    def add(self, answer: FilePrediction) -> None:
        """One row more."""
        ...

    def flush(self) -> None:
        """Let others see what there is, where that is possible."""
        ...

    def close(self) -> None:
        """There are no more rows."""
        ...


def columns_of(class_names: Sequence[str], nearest: int) -> list[str]:
    """Names of the columns, each of them once."""
    names = ["path", "class", "probability"]
    taken = set(names)
    for name in class_names:
        column, number = f"p_{shown(name)}", 1
        while column in taken:
            number += 1
            column = f"p_{shown(name)}_{number}"
        taken.add(column)
        names.append(column)
    for place in range(1, nearest + 1):
        names += [f"nearest_{place}", f"nearest_{place}_weight"]
    return names


class CsvTable:
    """Rows of text.

    Args:
        file: Open for writing text.
        class_names: Of the run.
        nearest: Prototypes that are named for each image; 0 if there are none.
    """

    def __init__(self, file: IO[str], class_names: Sequence[str], nearest: int) -> None:
        self._file = file
        self._writer = csv.writer(file, lineterminator="\n")
        self._header: list[str] | None = columns_of(class_names, nearest)

    def add(self, answer: FilePrediction) -> None:
        if self._header is not None:  # not before there is a row: a failure leaves no empty table
            self._writer.writerow(self._header)
            self._header = None
        row = [_path_cell(answer.path), name_cell(answer.class_name), f"{answer.probability:.6g}"]
        row += [f"{value:.6g}" for value in answer.probabilities]
        for node in answer.nearest:
            row += [name_cell(f"{node.class_name} #{node.number}"), f"{node.weight:.6g}"]
        self._writer.writerow(row)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self.flush()


def _path_cell(path: Path) -> str:
    return no_formula(shown(str(path)))


def no_formula(path: str) -> str:
    """The path as a cell that no spreadsheet computes; it leads to the same file."""
    return f"./{path}" if path.lstrip().startswith(FORMULA) else path


def name_cell(name: str) -> str:
    """The name of a class as a cell that terminals can show and no spreadsheet computes."""
    text = shown(name)
    return f"'{text}" if text.startswith(FORMULA) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    with suppress(ValueError):
        float(text)
        return True
    return False


class ParquetTable:
    """Columns with their types, in groups of rows.

    Args:
        path: The file.
        class_names: Of the run.
        nearest: Prototypes that are named for each image; 0 if there are none.
    """

    def __init__(self, path: Path, class_names: Sequence[str], nearest: int) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        text, number = pa.string(), pa.float32()
        kinds = [text, text, number, *[number] * len(class_names), *[text, number] * nearest]
        self._schema = pa.schema(list(zip(columns_of(class_names, nearest), kinds, strict=True)))
        self._writer: Any = pq.ParquetWriter(path, self._schema)
        self._rows: list[list[str | float]] = []

    def add(self, answer: FilePrediction) -> None:
        row: list[str | float] = [_utf8(str(answer.path)), _utf8(answer.class_name), answer.probability]
        row += answer.probabilities
        for node in answer.nearest:
            row += [_utf8(f"{node.class_name} #{node.number}"), node.weight]
        self._rows.append(row)
        if len(self._rows) == ROWS_AT_ONCE:
            self._write()

    def flush(self) -> None:
        """Nobody can read it before it is closed."""

    def close(self) -> None:
        if self._rows:
            self._write()
        self._writer.close()

    def _write(self) -> None:
        import pyarrow as pa

        columns = [
            pa.array(values, kind)
            for values, kind in zip(zip(*self._rows, strict=True), self._schema.types, strict=True)
        ]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))
        self._rows = []


def _utf8(text: str) -> str:
    """As it is, but for bytes that are no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join(shown(sign) if 0xD800 <= ord(sign) <= 0xDFFF else sign for sign in text)
    return text


def check_table_path(path: Path, *, overwrite: bool) -> None:
    """Refuse a file that cannot be written, before any work is done."""
    if path.suffix.lower() not in ENDINGS:
        raise UserError(f"--output '{path}' must end with .csv or .parquet")
    if path.is_dir():
        raise UserError(f"--output '{path}' is a folder: name a file in it")
    if os.path.lexists(path) and not overwrite:
        raise UserError(f"--output '{path}' exists: name another file, or add --overwrite")
    if not path.parent.is_dir():
        raise UserError(f"there is no folder '{path.parent}' for --output: make it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UserError(f"the folder '{path.parent}' cannot be written to: give --output another one")


@contextmanager
def table_file(path: Path, class_names: Sequence[str], nearest: int, *, overwrite: bool) -> Iterator[Table]:
    """A file that gets its name when it is whole; whatever goes wrong leaves none.

    Args:
        path: It ends with .csv or .parquet.
        class_names: Of the run.
        nearest: Prototypes that are named for each image; 0 if there are none.
        overwrite: Whether a file of that name may be replaced.
    """
    check_table_path(path, overwrite=overwrite)
    descriptor, name = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
    os.close(descriptor)
    temporary = Path(name)
    try:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            table: Table
            if path.suffix.lower() == ".parquet":
                table = ParquetTable(temporary, class_names, nearest)
            else:
                table = CsvTable(file, class_names, nearest)
            yield table
            table.close()
        _publish(temporary, path, overwrite=overwrite)
    finally:
        temporary.unlink(missing_ok=True)


def _publish(temporary: Path, path: Path, *, overwrite: bool) -> None:
    """Give a file its name, with the permissions that any new file has."""
    mask = os.umask(0)
    os.umask(mask)
    temporary.chmod(0o666 & ~mask)
    if not overwrite and os.path.lexists(path):
        raise UserError(f"--output '{path}' exists by now: name another file, or add --overwrite")
    temporary.replace(path)
