"""Lines that are added to a file for as long as a run lasts."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from manigraph.runs.files import DISK_IS_FULL, write_bytes


class Journal:
    """A `.jsonl` file. Lines for which there is no room on the disk wait until there is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: list[bytes] = []

    def append(self, value: dict[str, Any]) -> None:
        """Add a line, or keep it for later if the disk is full."""
        self._waiting.append(json.dumps(value).encode() + b"\n")
        try:
            self._write()
        except OSError as error:
            if error.errno not in DISK_IS_FULL:
                raise

    def sync(self) -> None:
        """Make sure that every line is on the disk; an OSError says that it is not."""
        self._write()
        if self.path.exists():
            with self.path.open("rb") as file:
                os.fsync(file.fileno())

    def keep(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Drop all other lines, and half a line that a killed process left behind."""
        if self.path.exists():
            lines = [line for line in _readable_lines(self.path) if wanted(line)]
            write_bytes(self.path, b"".join(json.dumps(line).encode() + b"\n" for line in lines))

    def _write(self) -> None:
        if not self._waiting:
            return
        with self.path.open("ab", buffering=0) as file:
            before = os.fstat(file.fileno()).st_size
            content = memoryview(b"".join(self._waiting))
            try:
                while content:
                    content = content[file.write(content) :]
            except OSError:
                file.truncate(before)
                raise
        self._waiting.clear()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a `.jsonl` file; none if there is no such file."""
    if not path.is_file():
        return []
    # A process that was killed may have left half a line at the end.
    *whole, _ = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in whole]


def _readable_lines(path: Path) -> list[dict[str, Any]]:
    """The lines up to the first that makes no sense; a power cut may leave anything after the last sync."""
    lines = []
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            lines.append(json.loads(line))
        except ValueError:
            break
    return lines
