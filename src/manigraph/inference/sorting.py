"""Image files sorted into a folder for each class, as copies or links."""

import filecmp
import os
import re
import shutil
import unicodedata
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from manigraph.errors import UserError, shown
from manigraph.inference.predictions import FilePrediction

How = Literal["copy", "link"]

UNSURE = "unsure"
"""Folder of images whose class is too improbable."""
LONGEST = 100
"""Bytes of a folder's name; file systems bear 255."""
LONGEST_STEM = 200
"""Bytes of a file's name before its ending, where a number is added to it."""

FORBIDDEN = frozenset('/\\<>:"|?*')
"""What one system or another does not allow in names."""
RESERVED = frozenset(
    {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10))}
)
"""Names that are no files on Windows."""


def folder_names(class_names: Sequence[str]) -> list[str]:
    """A folder for each class, whose names any file system takes and tells apart; none leads elsewhere."""
    taken = {UNSURE}
    folders = []
    for name in class_names:
        plain, number = _plain(name), 1
        folder = plain
        while folder.casefold() in taken:
            number += 1
            folder = f"{plain}-{number}"
        taken.add(folder.casefold())
        folders.append(folder)
    return folders


def _plain(name: str) -> str:
    signs = unicodedata.normalize("NFC", name)
    signs = "".join("_" if sign in FORBIDDEN or shown(sign) != sign else sign for sign in signs)
    # A dot in front hides a folder or leads out of it, one at the end vanishes on Windows.
    signs = _cut(signs.strip(), LONGEST).rstrip(". ")
    if signs.startswith("."):
        signs = "_" + signs[1:]
    if signs.partition(".")[0].casefold() in RESERVED:
        signs = f"_{signs}"
    return signs or "_"


def _cut(text: str, most: int) -> str:
    """As many whole letters as have so many bytes."""
    return text.encode("utf-8", "surrogateescape")[:most].decode("utf-8", "ignore")


class Sorter:
    """Puts files into `root/CLASS`; a name that is taken gets a number: `name-2.jpg`.

    A file that lies there from an earlier sorting, the same to the last byte, is left in its place.

    Args:
        root: The folder, made when the first file comes.
        class_names: Of the run.
        how: Copies, or symbolic links to where the files are now.
        sure: Probability from which on an image belongs to its class; others go to `unsure`.
    """

    def __init__(self, root: Path, class_names: Sequence[str], *, how: How, sure: float) -> None:
        if root.exists() and not root.is_dir():
            raise UserError(f"--label_folder '{root}' is a file: give a folder")
        self.root = root
        self.how = how
        self.sure = sure
        self.folders = dict(zip(class_names, folder_names(class_names), strict=True))
        self._sorted: set[Path] = set()
        self._earlier: dict[Path, Mapping[str, list[Path]]] = {}

    def put(self, answer: FilePrediction) -> Path:
        """Sort one file; the path of its copy or link."""
        check_not_sorted(self.root, answer.path)  # lists and patterns are not known before
        folder = self.root / (self.folders[answer.class_name] if answer.probability >= self.sure else UNSURE)
        name, number = answer.path.name, 1
        stem = _cut(answer.path.stem, LONGEST_STEM)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if folder not in self._earlier:
                self._earlier[folder] = _by_name(folder)
            for key in {_without_number(name), _without_number(f"{stem}{answer.path.suffix}")}:
                for target in self._earlier[folder].get(key, ()):
                    if self._was_placed(answer.path, target):
                        return target
            while True:
                target = folder / name
                try:
                    self._place(answer.path, target)
                except FileExistsError:
                    number += 1
                    name = f"{stem}-{number}{answer.path.suffix}"
                else:
                    self._sorted.add(target)
                    return target
        except OSError as error:
            raise UserError(
                f"'{answer.path}' cannot be put into '{folder}': {error.strerror or error}; give "
                f"--label_folder another folder"
            ) from None

    def _was_placed(self, source: Path, target: Path) -> bool:
        """Whether an earlier sorting put the same file there; in one sorting, equal files are two files."""
        if target in self._sorted or target.is_symlink() != (self.how == "link"):
            return False
        if self.how == "link":
            same = os.path.normpath(target.readlink()) == os.path.normpath(source.absolute())
        else:
            filecmp.clear_cache()  # it would believe that a file of the same size and time is unchanged
            same = filecmp.cmp(source, target, shallow=False)
        if same:
            self._sorted.add(target)
        return same

    def _place(self, source: Path, target: Path) -> None:
        if self.how == "link":
            target.symlink_to(source.absolute())
            return
        with source.open("rb") as original, target.open("xb") as copy:
            try:
                shutil.copyfileobj(original, copy)
            except BaseException:
                target.unlink()  # half a file would be taken for a whole one
                raise
        shutil.copystat(source, target)


def _by_name(folder: Path) -> Mapping[str, list[Path]]:
    """What lies in a folder already, by names without their numbers."""
    files = defaultdict(list)
    for path in sorted(folder.iterdir(), key=lambda path: (len(path.name), path.name)):
        files[_without_number(path.name)].append(path)
    return files


def _without_number(name: str) -> str:
    path = Path(name)
    return re.sub(r"-\d+$", "", path.stem) + path.suffix


def check_not_sorted(root: Path, place: Path) -> None:
    """Refuse to sort what lies in a folder of `root`, where it may have been sorted to before."""
    folder = place if place.is_dir() else place.parent  # a file may be a link that leads elsewhere
    if root.resolve() in folder.resolve().parents:
        raise UserError(
            f"'{shown(str(place))}' lies in a folder of --label_folder '{root}', as if it were sorted: give "
            f"a folder elsewhere"
        )


def check_not_inside(root: Path, places: Sequence[str]) -> None:
    """Refuse to sort images of a folder into that folder, or into one above it."""
    for place in places:
        folder = Path(place)
        if os.path.lexists(folder):
            check_not_sorted(root, folder)
        # What was sorted would be found again.
        if folder.is_dir() and root.resolve().is_relative_to(folder.resolve()):
            raise UserError(
                f"--label_folder '{root}' lies in '{place}', whose images are to be sorted: give a folder "
                f"elsewhere"
            )
