"""Where commands put what they write: folders that may be there already, names that are not taken."""

import os
from collections.abc import Sequence
from pathlib import Path

from manigraph.errors import UserError

LONGEST = 100
"""Characters of a name; file systems bear 255 bytes, temporary names and endings included."""


def output_folder(chosen: Path | None, default: Path) -> Path:
    """The folder to write to, which is not made yet."""
    folder = default if chosen is None else chosen
    if folder.exists() and not folder.is_dir():
        raise UserError(f"'{folder}' is a file: --output needs a folder")
    return folder


def free_paths(folder: Path, name: str, suffixes: Sequence[str]) -> list[Path]:
    """Files `name` with these endings, or `name-2`, `name-3`, … if any of them is there.

    The folder is made, and the first of the files: whoever comes later finds the name taken.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name, number = name[:LONGEST] or "image", 1
    while True:
        stem = name if number == 1 else f"{name}-{number}"
        paths = [folder / f"{stem}{suffix}" for suffix in suffixes]
        number += 1
        if any(path.exists() or path.is_symlink() for path in paths):
            continue
        try:
            os.close(os.open(paths[0], os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except FileExistsError:
            continue
        return paths
