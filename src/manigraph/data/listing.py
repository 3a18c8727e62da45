"""Which images a folder holds, and what its names or its CSV say about their classes.

One folder per class, or all images in one tree with a CSV `path,label`:

    photos/                      photos/
      cat/…                        labels.csv      path,label
      dog/…                        a/001.jpg       a/001.jpg,cat
      unlabelled/…                 a/002.jpg       a/002.jpg,
      test/cat/…  test/dog/…       test/9.jpg      test/9.jpg,dog

Folders `train` and `validation` (or `val`, `valid`) around the classes are understood too. Names are sorted,
so nothing depends on the order in which a disk gives them. What could be read in two ways is remarked, and a
table that cannot be read is refused: nothing is guessed in silence.
"""

import codecs
import csv
import difflib
import os
import stat
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from manigraph.data.decode import EXTENSIONS
from manigraph.data.sources.base import Doubt, Problem
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
UNREADABLE_PHOTOS = frozenset(
    {
        ".heic",
        ".heif",
        ".avif",
        ".jxl",
        ".svg",
        ".psd",
        ".dng",
        ".cr2",
        ".cr3",
        ".nef",
        ".arw",
        ".orf",
        ".rw2",
    }
)
"""Pictures that are not decoded here; they are named, since whoever has them counts on them."""

MAGIC = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"II*\0", b"MM\0*")
"""First bytes of images (and `RIFF….WEBP`), for files whose name says nothing."""

HEADER_BYTES = 65536
"""The line with the names of a table's columns is looked for in so many bytes."""


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
    """Names of class folders that hold no image, where folders are classes."""


def list_images(path: Path) -> Listing:
    """All images below a folder, or below the folder of a CSV file, with their classes."""
    root, table = _root_and_table(path)
    problems: list[Problem] = []
    names, ignored = _find(root, problems)
    unused: list[str] = []
    if table is None:
        table, unused = _find_table(root)
    empty: list[str] = []
    if table is not None:
        items, remarks = _by_table(table, names, problems)
        ignored = [name for name in ignored if root / name != table]
    else:
        parts = _part_folders(names)
        items, remarks = _by_folder(names, parts)
        empty = _empty_class_folders(root, names, parts)
    if unused:
        remarks.append(
            Doubt(
                f"{_some(unused)} does not begin with a line that names the columns path and label, so no "
                f"label was read from it"
            )
        )
        ignored = [name for name in ignored if name not in unused]
    if ignored:
        remarks.append(f"{len(ignored)} other files are no images and were passed over: {_some(ignored)}")
    return Listing(root, tuple(items), tuple(problems), tuple(remarks), tuple(empty))


def _root_and_table(path: Path) -> tuple[Path, Path | None]:
    """The folder of the images, and the CSV file if the path is one."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            os.scandir(path).close()
            return path, None
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(
            f"there is no folder '{path}': give the folder of your images or a CSV file"
        ) from None
    except OSError as error:
        raise UserError(f"'{path}' cannot be opened: {error.strerror}") from None
    if not stat.S_ISREG(mode) or path.suffix.lower() != ".csv":
        raise UserError(f"'{path}' is a file: give the folder of your images, or a CSV with path,label")
    return path.parent, path


def _suffix(name: str) -> str:
    return PurePosixPath(name).suffix.lower()


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def _some(names: Sequence[str]) -> str:
    return ", ".join(printable(name) for name in names[:5]) + (", …" if len(names) > 5 else "")


def printable(name: str) -> str:
    """A file name that any terminal can show, whatever its bytes are."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def images_below(folder: Path) -> Iterator[Path | Problem]:
    """All images in a folder and the folders in it, one by one in order, and files that should be some."""
    problems: list[Problem] = []
    for entry, name in _walk(folder, "", frozenset(), problems):
        is_image = _is_image(entry, name, problems)
        yield from _below(folder, problems)
        if is_image:
            yield entry
    yield from _below(folder, problems)


def _below(folder: Path, problems: list[Problem]) -> Iterator[Problem]:
    """Problems with their whole paths; they are removed from the list."""
    while problems:
        problem = problems.pop(0)
        yield Problem(str(folder / problem.path), problem.reason)


def _find(root: Path, problems: list[Problem]) -> tuple[list[str], list[str]]:
    """Names of images and of other files, sorted; what cannot be opened becomes a problem."""
    images: list[str] = []
    others: list[str] = []
    for entry, name in _walk(root, "", frozenset(), problems):
        before = len(problems)
        is_image = _is_image(entry, name, problems)
        if len(problems) == before:
            (images if is_image else others).append(name)
    return sorted(images), sorted(others)


def _is_image(entry: Path, name: str, problems: list[Problem]) -> bool:
    """Whether a file is called an image or starts like one; what looks like one otherwise is a problem.

    A file that is called an image is one here: whether it can be read is seen when it is.
    """
    try:
        is_image = _suffix(name) in EXTENSIONS or _starts_like_an_image(entry)
    except OSError as error:
        broken = isinstance(error, FileNotFoundError)
        problems.append(Problem(name, "broken link" if broken else f"cannot be opened: {error.strerror}"))
        return False
    if not is_image and (kind := _suffix(name)) in UNREADABLE_PHOTOS:
        problems.append(Problem(name, f"{kind[1:].upper()} is not read: save it as JPEG or PNG"))
    return is_image


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
        if _is_hidden(entry.name):
            continue
        name = prefix + entry.name
        if _is_folder(entry):
            if _suffix(name) in EXTENSIONS:
                problems.append(Problem(name, "a folder, not an image"))
            yield from _walk(Path(entry.path), name + "/", above | {identity}, problems)
        else:
            yield Path(entry.path), name


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, or to where nobody may look: opening it will say so
        return False


def _starts_like_an_image(path: Path) -> bool:
    if not stat.S_ISREG(path.stat().st_mode):  # a pipe would never end
        return False
    with path.open("rb") as file:
        start = file.read(12)
    if start.startswith(b"BM"):  # so do words; in an image four bytes after the size are 0
        return start[6:10] == bytes(4)
    return start.startswith(MAGIC) or (start[:4] == b"RIFF" and start[8:] == b"WEBP")


def _part_folders(names: list[str]) -> dict[str, Part]:
    """The folders directly below the root that hold a part of the data and are no class.

    `test` always is one. `train` and `validation` are if there are no class folders beside them, or if they
    hold nothing but folders of classes that are beside them or in `test`; otherwise they are classes.
    """
    inner: dict[str, set[str]] = {}
    """Folder to the folders in it; an empty name stands for images that lie in it directly."""
    for name in names:
        top, _, rest = name.rpartition("/")[0].partition("/")
        if top:
            inner.setdefault(top, set()).add(rest.split("/")[0])
    classes = {top for top in inner if top.lower() not in PART_FOLDERS.keys() | UNLABELLED_FOLDERS}
    known = set(classes).union(*(inner[top] for top in inner if top.lower() == "test")) - {""}

    def is_part(top: str) -> bool:
        folders = {folder for folder in inner[top] if folder.lower() not in UNLABELLED_FOLDERS}
        return top.lower() == "test" or not classes or folders <= known

    return {top: PART_FOLDERS[top.lower()] for top in inner if top.lower() in PART_FOLDERS and is_part(top)}


def _empty_class_folders(root: Path, names: list[str], parts: Mapping[str, Part]) -> list[str]:
    """Folders where classes are looked for that hold no image."""
    full = {"/".join(name.split("/")[:depth]) for name in names for depth in (1, 2)}
    special = PART_FOLDERS.keys() | UNLABELLED_FOLDERS
    return sorted(
        {
            unicodedata.normalize("NFC", folder)
            for prefix in ("", *(f"{top}/" for top in parts))
            for folder in _folders_in(root / prefix)
            if folder.lower() not in special and prefix + folder not in full
        }
    )


def _folders_in(folder: Path) -> list[str]:
    try:
        return [
            entry.name for entry in os.scandir(folder) if not _is_hidden(entry.name) and _is_folder(entry)
        ]
    except OSError:
        return []


def _by_folder(names: list[str], parts: Mapping[str, Part]) -> tuple[list[Item], list[str]]:
    """The first folder is the class, except for the names that mean something else."""
    items = []
    loose = nameless = 0
    doubtful: set[str] = set()
    for name in names:
        *folders, _ = name.split("/")
        part: Part = "train"
        if folders and folders[0] in parts:
            part = parts[folders[0]]
            folders = folders[1:]
        elif folders and folders[0].lower() in PART_FOLDERS:
            doubtful.add(folders[0])
        label = _class_of(folders)
        if not folders and part == "train":
            loose += 1
        if label is None and part != "train":
            nameless += 1
        else:
            items.append(Item(name, label, part))
    remarks: list[str] = [
        Doubt(f"the folder '{folder}' was taken for a class, as other class folders lie beside it")
        for folder in sorted(doubtful)
    ]
    for label in sorted({item.label for item in items if item.label} - doubtful):
        meant = _nearly_special(label)
        if meant:
            remarks.append(Doubt(f"the folder '{label}' was taken for a class; '{meant}' would be special"))
    if loose:
        remarks.append(f"{loose} images lie in no class folder and were taken as unlabelled")
    if nameless:
        text = f"{nameless} images for validation or test lie in no class folder and were left out"
        remarks.append(Doubt(text))
    return items, remarks


def _nearly_special(label: str) -> str | None:
    """The special folder name that somebody may have meant by a class of this name."""
    name = label.casefold()
    for special in (*PART_FOLDERS, *UNLABELLED_FOLDERS):
        if name != special and len(special) > 3 and (name.startswith(special) or special in name.split()):
            return special
    near = difflib.get_close_matches(name, ("unlabelled", "unlabeled", "validation"), n=1, cutoff=0.8)
    return near[0] if near else None


def _find_table(root: Path) -> tuple[Path | None, list[str]]:
    """The CSV file directly in the folder that has the columns path and label, if any; names of others."""
    tables: list[Path] = []
    others: list[str] = []
    for entry in sorted(os.scandir(root), key=lambda entry: entry.name):
        if _suffix(entry.name) != ".csv" or _is_hidden(entry.name) or _is_folder(entry):
            continue
        if _columns(root / entry.name) is not None:
            tables.append(root / entry.name)
        else:
            others.append(entry.name)
    if len(tables) > 1:
        names = ", ".join(printable(table.name) for table in tables)
        raise UserError(
            f"'{root}' holds several CSV files with path and label ({names}): name the one to use"
        )
    return (tables[0], []) if tables else (None, others)


def _columns(table: Path) -> tuple[str, int, int] | None:
    """Delimiter, and positions of the columns path and label; None if the first line does not name them.

    In whatever encoding: a table that `_rows` will refuse must not pass for a file that is no table.
    """
    try:
        if not stat.S_ISREG(table.stat().st_mode):  # a pipe would never end
            return None
        with table.open("rb") as file:
            start = file.read(HEADER_BYTES)
    except OSError as error:
        raise UserError(
            f"'{table}' may hold the labels but cannot be read ({error.strerror}): repair or remove it"
        ) from None
    is_utf16 = start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    lines = start.decode("utf-16" if is_utf16 else "utf-8-sig", "replace").splitlines()
    for delimiter in ",;\t":
        cells = next(csv.reader(lines[:1], delimiter=delimiter, skipinitialspace=True), [])
        header = [cell.strip().lower() for cell in cells]
        if "path" in header and "label" in header:
            return delimiter, header.index("path"), header.index("label")
    return None


def _by_table(table: Path, names: list[str], problems: list[Problem]) -> tuple[list[Item], list[str]]:
    """Classes from a CSV; an image that it does not list is unlabelled.

    Folders are no classes here, so `train`, `validation` and `test` have no second meaning.
    """
    columns = _columns(table)
    if columns is None:
        raise UserError(f"'{table}' does not begin with a line that names the columns path and label")
    title = printable(table.name)
    listed: dict[str, str | None] = {}
    existing = {unicodedata.normalize("NFC", name): name for name in names} | {name: name for name in names}
    folded = Counter(name.casefold() for name in names)
    # In a table written on another system capitals may differ; only where that leaves one image.
    existing = {name.casefold(): name for name in names if folded[name.casefold()] == 1} | existing
    for line, path, label in _rows(table, *columns):
        name = next((existing[form] for form in _forms(path) if form in existing), None)
        if name is None:
            problems.append(Problem(path, f"listed in {title}, line {line}, but there is no such image"))
        elif listed.get(name, label) != label:
            raise UserError(
                f"'{table}' gives '{printable(name)}' two labels, '{listed[name] or ''}' and '{label or ''}' "
                f"(line {line}): keep one"
            )
        else:
            listed[name] = label
    items, nameless, unlisted = [], 0, list[str]()
    for name in names:
        part = PART_FOLDERS.get(name.rpartition("/")[0].partition("/")[0].lower(), "train")
        label = listed.get(name)
        if label is None and part != "train":
            nameless += 1
            continue
        if name not in listed:
            unlisted.append(name)
        items.append(Item(name, label, part))
    remarks: list[str] = []
    if unlisted:
        remarks.append(f"{len(unlisted)} images are not listed in {title} and were taken as unlabelled")
    folders = sorted({folder for name in unlisted if (folder := _class_without_table(name))})
    if len(folders) > 1:
        text = f"labels are those of {title}: folders ({_some(folders)}) were not taken for classes"
        remarks.append(Doubt(text))
    if nameless:
        text = f"{nameless} images for validation or test have no label in {title} and were left out"
        remarks.append(Doubt(text))
    return items, remarks


def _class_without_table(name: str) -> str | None:
    """What would be the class of an image if there were no table."""
    *folders, _ = name.split("/")
    is_part = bool(folders) and folders[0].lower() in PART_FOLDERS
    return _class_of(folders[1:] if is_part else folders)


def _class_of(folders: Sequence[str]) -> str | None:
    """The first folder, unless there is none or one is for unlabelled images."""
    if not folders or any(folder.lower() in UNLABELLED_FOLDERS for folder in folders):
        return None
    return unicodedata.normalize("NFC", folders[0])


def _rows(table: Path, delimiter: str, path_at: int, label_at: int) -> Iterator[tuple[int, str, str | None]]:
    """Line number, path and label (None if empty or `unlabelled`) of each row."""
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            # Strict, or a quote that is never closed would swallow all lines after it.
            reader = csv.reader(file, delimiter=delimiter, skipinitialspace=True, strict=True)
            width = len(next(reader))
            for row in reader:
                if not any(cell.strip() for cell in row):
                    continue
                if len(row) <= path_at or not row[path_at].strip():
                    raise UserError(f"'{table}', line {reader.line_num}, has no path")
                if any(cell.strip() for cell in row[width:]):
                    raise UserError(
                        f"'{table}', line {reader.line_num}, has more cells than the first line: put quotes "
                        f"around text that holds '{delimiter}'"
                    )
                label = unicodedata.normalize("NFC", row[label_at].strip()) if label_at < len(row) else ""
                known = label and label.lower() not in UNLABELLED_FOLDERS
                yield reader.line_num, row[path_at].strip(), label if known else None
    except UnicodeDecodeError:
        raise UserError(f"'{table}' is not text in UTF-8: save it as CSV UTF-8") from None
    except csv.Error as error:
        raise UserError(f"'{table}' is not a CSV file: {error} (line {reader.line_num})") from None


def _forms(path: str) -> Iterator[str]:
    """What a path in a table may be called here: as it stands, or with forward slashes and no `./`."""
    yield path
    plain = "/".join(part for part in path.replace("\\", "/").split("/") if part not in ("", "."))
    yield plain
    yield unicodedata.normalize("NFC", plain)
    yield unicodedata.normalize("NFC", plain).casefold()
