"""Work that is done once: results kept in folders named by what they were made from."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

NOT_TO_KEEP = "not-to-keep"
"""A file of this name in a folder that is built means: of use now, but not to be remembered."""

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


def silent(what: str, done: int, total: int) -> None:
    """Progress that nobody sees."""


def remember(cache: Path, key: str, build: Callable[[Path], None], read: Callable[[Path], T]) -> T:
    """What `read` finds in the folder `cache/key`, which `build` fills if it is not there yet.

    `build` fills a temporary folder that gets its name when it is whole, so a killed process leaves
    nothing that could be taken for a result, and two processes may build the same thing at once. A folder
    that cannot be read, after a power failure for instance, is built again.
    """
    folder = cache / key
    if folder.is_dir():
        with contextlib.suppress(OSError, EOFError, ValueError, KeyError):
            return read(folder)
        shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder.parent)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name[:16]}-", dir=folder.parent))
    try:
        build(temporary)
        result = read(temporary)  # mapped files stay mapped when the folder gets its name or is removed
        if not (temporary / NOT_TO_KEEP).exists():
            try:
                temporary.rename(folder)
            except OSError:
                if not folder.is_dir():  # unless another process was faster
                    raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return result


def _remove_abandoned(folder: Path) -> None:
    """What processes left that were killed while they built, more than a day ago."""
    for entry in folder.glob(".*"):
        with contextlib.suppress(OSError):
            if entry.stat().st_mtime < time.time() - 86_400:
                shutil.rmtree(entry, ignore_errors=True)


def combined_digest(*parts: Any) -> str:
    """SHA-256 of values that JSON can hold."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes; only regular files are opened."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError("not a regular file")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Fingerprints:
    """Digests of the files of one folder, read again only if a file's status has changed.

    The status holds the change time, which every write moves and no program can set back, so a file
    that was changed is noticed even if its size and modification time are as before.
    """

    def __init__(self, cache: Path, folder: Path) -> None:
        self.folder = folder
        name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:32]
        self._file = cache / "fingerprints" / f"{name}.json"

    def digests(self, names: Sequence[str], progress: Progress = silent) -> list[str | OSError]:
        """The digest of each file, or the error that kept it from being read."""
        known = self._read()
        found: dict[str, list[Any]] = {}
        results: list[str | OSError] = []
        for count, name in enumerate(names):
            path = self.folder / name
            try:
                status = _status(path)
                entry = known.get(name)
                digest = entry[-1] if entry and entry[:-1] == status else file_digest(path)
            except OSError as error:
                results.append(error)
                continue
            found[name] = [*status, digest]
            results.append(digest)
            if count % 256 == 255:
                progress("checking files", count + 1, len(names))
        together = known | found  # another data set may have files in the same folder
        if together != known:
            self._write(together)
        return results

    def last_key(self, image_size: int | str | None) -> str | None:
        """The key under which this folder's pixels were kept last, at this size."""
        try:
            key = self._pointer(image_size).read_text(encoding="ascii")
        except (OSError, ValueError):
            return None
        return key if re.fullmatch("[0-9a-f]{64}", key) else None  # it becomes the name of a folder

    def set_last_key(self, image_size: int | str | None, key: str) -> None:
        """Remember the key under which this folder's pixels are kept."""
        _replace(self._pointer(image_size), key)

    def _pointer(self, image_size: int | str | None) -> Path:
        return self._file.with_suffix(f".{image_size or 'natural'}.last")

    def _read(self) -> dict[str, list[Any]]:
        try:
            value = json.loads(self._file.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    def _write(self, found: dict[str, list[Any]]) -> None:
        # File names may hold bytes that are not UTF-8; JSON in ASCII carries them.
        _replace(self._file, json.dumps(found))


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _status(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def require_digests(digests: Iterable[str | OSError]) -> list[str]:
    """The digests, or the first error."""
    certain = []
    for digest in digests:
        if isinstance(digest, OSError):
            raise digest
        certain.append(digest)
    return certain
