"""Which images a folder holds, and what its names or its CSV say about their classes.

One folder per class, or all images in one tree with a CSV `path,label`:

    photos/                      photos/
      cat/…                        labels.csv      path,label
      dog/…                        a/001.jpg       a/001.jpg,cat
      unlabelled/…                 a/002.jpg       a/002.jpg,
      test/cat/…  test/dog/…       test/9.jpg      test/9.jpg,dog

Folders `train` and `validation` (or `val`, `valid`) around the classes are understood too. Names are sorted,
so nothing depends on the order in which a disk gives them.
"""

import csv
import os
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from manigraph.data.decode import EXTENSIONS
from manigraph.data.sources.base import Problem
from manigraph.errors import UserError

Part = Literal["train", "validation", "test"]

UNLABELLED_FOLDERS = frozenset({"unlabelled", "unlabeled"})
PART_FOLDERS: Mapping[str, Part] = {
    "train": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
}
MAGIC = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM", b"II*\0", b"MM\0*")
"""First bytes of images (and `RIFF….WEBP`), for files whose name says nothing."""


@dataclass(frozen=True)
class Item:
    """One image file."""

    name: str
    """Path relative to the folder, with forward slashes."""
    label: str | None
    """Name of its class; None if it is unlabelled."""
    part: Part


@dataclass(frozen=True)
class Listing:
    """What was found in a folder."""

    root: Path
    items: tuple[Item, ...]
    problems: tuple[Problem, ...]
    remarks: tuple[str, ...]
    empty_folders: tuple[str, ...]
    """Folders directly below the root that hold no image, where folders are classes."""


def list_images(path: Path) -> Listing:
    """All images below a folder, or below the folder of a CSV file, with their classes."""
    if not path.exists():
        raise UserError(f"there is no folder '{path}': give the folder of your images or a CSV file")
    if path.is_file() and path.suffix.lower() != ".csv":
        raise UserError(f"'{path}' is a file: give the folder of your images, or a CSV with path,label")
    root = path if path.is_dir() else path.parent
    problems: list[Problem] = []
    names, ignored = _find(root, problems)
    table = path if path.is_file() else _find_table(root)
    empty: list[str] = []
    if table is not None:
        items, remarks = _by_table(table, names, problems)
    else:
        items, remarks = _by_folder(names)
        full = {name.split("/")[0] for name in names}
        empty = [
            entry.name
            for entry in sorted(root.iterdir())
            if _could_be_class(entry) and entry.name not in full
        ]
    if ignored:
        examples = ", ".join(printable(name) for name in ignored[:5]) + (", …" if len(ignored) > 5 else "")
        remarks.append(f"{len(ignored)} other files are no images and were passed over: {examples}")
    return Listing(root, tuple(items), tuple(problems), tuple(remarks), tuple(empty))


def _suffix(name: str) -> str:
    return PurePosixPath(name).suffix.lower()


def _could_be_class(path: Path) -> bool:
    special = PART_FOLDERS.keys() | UNLABELLED_FOLDERS | {"__macosx"}
    return path.is_dir() and not path.name.startswith(".") and path.name.lower() not in special


def printable(name: str) -> str:
    """A file name that any terminal can show, whatever its bytes are."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _find(root: Path, problems: list[Problem]) -> tuple[list[str], list[str]]:
    """Names of images and of other files, sorted; folders that cannot be opened become problems."""
    images: list[str] = []
    others: list[str] = []
    for entry, name in _walk(root, "", frozenset(), problems):
        suffix = _suffix(name)
        if suffix in EXTENSIONS or _starts_like_an_image(entry):
            images.append(name)
        elif suffix != ".csv":
            others.append(name)
    return sorted(images), sorted(others)


def _walk(
    folder: Path, prefix: str, above: frozenset[tuple[int, int]], problems: list[Problem]
) -> Iterator[tuple[Path, str]]:
    """All files below, following links to folders unless they lead back to where they come from."""
    try:
        status = folder.stat()
        identity = (status.st_dev, status.st_ino)
        if identity in above:
            problems.append(Problem(prefix.rstrip("/"), "a link that leads back to a folder around it"))
            return
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        problems.append(Problem(prefix.rstrip("/") or ".", f"cannot be opened: {error.strerror}"))
        return
    for entry in entries:
        if entry.name.startswith(".") or entry.name == "__MACOSX":
            continue
        name = prefix + entry.name
        if entry.is_dir():
            if _suffix(name) in EXTENSIONS:
                problems.append(Problem(name, "a folder, not an image"))
            yield from _walk(Path(entry.path), name + "/", above | {identity}, problems)
        else:
            yield Path(entry.path), name


def _starts_like_an_image(path: Path) -> bool:
    try:
        if not path.is_file():  # a pipe would never end
            return False
        with path.open("rb") as file:
            start = file.read(12)
    except OSError:
        return False
    return start.startswith(MAGIC) or (start[:4] == b"RIFF" and start[8:] == b"WEBP")


def _by_folder(names: list[str]) -> tuple[list[Item], list[str]]:
    """The first folder is the class, except for the names that mean something else."""
    tops = {name.split("/")[0].lower() for name in names if "/" in name}
    has_parts = tops <= PART_FOLDERS.keys() | UNLABELLED_FOLDERS
    items, remarks = [], []
    loose = nameless = 0
    for name in names:
        *folders, _ = name.split("/")
        part: Part = "train"
        if folders and (folders[0].lower() == "test" or has_parts):
            part = PART_FOLDERS.get(folders[0].lower(), "train")
            if folders[0].lower() in PART_FOLDERS:
                folders = folders[1:]
        label: str | None = None
        if any(folder.lower() in UNLABELLED_FOLDERS for folder in folders):
            pass
        elif folders:
            label = unicodedata.normalize("NFC", folders[0])
        elif part == "train":
            loose += 1
        if label is None and part != "train":
            nameless += 1
        else:
            items.append(Item(name, label, part))
    if loose:
        remarks.append(f"{loose} images lie in no class folder and were taken as unlabelled")
    if nameless:
        remarks.append(f"{nameless} images for validation or test lie in no class folder and were left out")
    return items, remarks


def _find_table(root: Path) -> Path | None:
    """The CSV file directly in the folder that has the columns path and label, if there is one."""
    tables = [
        path
        for path in sorted(root.iterdir())
        if path.suffix.lower() == ".csv" and path.is_file() and _columns(path) is not None
    ]
    if len(tables) > 1:
        names = ", ".join(table.name for table in tables)
        raise UserError(
            f"'{root}' holds several CSV files with path and label ({names}): name the one to use"
        )
    return tables[0] if tables else None


def _columns(table: Path) -> tuple[str, int, int] | None:
    """Delimiter, and positions of the columns path and label."""
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
    except (OSError, UnicodeDecodeError):
        return None
    for delimiter in ",;\t":
        header = [cell.strip().lower() for cell in next(csv.reader([first], delimiter=delimiter), [])]
        if "path" in header and "label" in header:
            return delimiter, header.index("path"), header.index("label")
    return None


def _by_table(table: Path, names: list[str], problems: list[Problem]) -> tuple[list[Item], list[str]]:
    """Classes from a CSV; an image that it does not list is unlabelled."""
    columns = _columns(table)
    if columns is None:
        raise UserError(f"'{table}' does not begin with a line that names the columns path and label")
    listed: dict[str, str | None] = {}
    existing = {unicodedata.normalize("NFC", name): name for name in names}
    for line, path, label in _rows(table, *columns):
        name = existing.get(_normal_path(path))
        if name is None:
            problems.append(Problem(path, f"listed in {table.name}, line {line}, but there is no such image"))
        elif listed.get(name, label) != label:
            raise UserError(
                f"'{table}' gives '{printable(name)}' two labels, '{listed[name] or ''}' and '{label or ''}' "
                f"(line {line}): keep one"
            )
        else:
            listed[name] = label
    items, nameless, unlisted = [], 0, 0
    for name in names:
        part: Part = "test" if name.split("/")[0].lower() == "test" and "/" in name else "train"
        label = listed.get(name)
        if label is None and part == "test":
            nameless += 1
            continue
        unlisted += name not in listed
        items.append(Item(name, label, part))
    remarks = []
    if unlisted:
        remarks.append(f"{unlisted} images are not listed in {table.name} and were taken as unlabelled")
    if nameless:
        remarks.append(f"{nameless} test images have no label in {table.name} and were left out")
    return items, remarks


def _rows(table: Path, delimiter: str, path_at: int, label_at: int) -> Iterator[tuple[int, str, str | None]]:
    """Line number, path and label (None if empty) of each row."""
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=delimiter)
            next(reader)
            for row in reader:
                if not any(cell.strip() for cell in row):
                    continue
                if len(row) <= path_at:
                    raise UserError(f"'{table}', line {reader.line_num}, has no path")
                label = row[label_at].strip() if label_at < len(row) else ""
                yield reader.line_num, row[path_at].strip(), unicodedata.normalize("NFC", label) or None
    except UnicodeDecodeError:
        raise UserError(f"'{table}' is not text in UTF-8: save it as CSV UTF-8") from None
    except csv.Error as error:
        raise UserError(f"'{table}' is not a CSV file: {error}") from None


def _normal_path(path: str) -> str:
    """As the listing writes it: forward slashes, no `./` in front."""
    parts = [part for part in path.replace("\\", "/").split("/") if part not in ("", ".")]
    return unicodedata.normalize("NFC", "/".join(parts))
