"""Writing files so that a reader sees the old one or the new one, never half of one."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT)


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file beside `path`, then put it in the place of `path`, for good."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content`, atomically."""

    def write(temporary: Path) -> None:
        temporary.write_bytes(content)

    write_atomically(path, write)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_bytes(path, as_json(value))


def as_json(value: Any) -> bytes:
    """`value` as indented JSON."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    # Paths may hold bytes that are not UTF-8; JSON writes them as \\udc.. and reads them back.
    return text.encode("utf-8", "backslashreplace")


def can_be_written(folder: Path) -> bool:
    """Whether files could be written in `folder`, which may not be there yet."""
    try:
        there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
        return there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    except OSError:  # one may not even look, or the name is too long
        return False


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files of a process that was killed while it wrote."""
    for leftover in folder.glob(".*.tmp"):
        leftover.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Wait until the file or the folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
