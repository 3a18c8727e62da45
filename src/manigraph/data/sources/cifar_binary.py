"""CIFAR in its binary version: records of one or two class bytes and three planes of 32×32 bytes.

Read from the unpacked folder or straight from the archive, of which nothing is ever unpacked. The other
version of CIFAR is pickled, and reading a pickle can run any program, so that one is not read.
"""

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from manigraph.data.sources.files import BATCH_IMAGES, Batch, Part, checked_count, damaged
from manigraph.errors import UserError

CHANNELS = 3
SIZE = 32
PIXEL_BYTES = CHANNELS * SIZE * SIZE
MAX_NAMES_BYTES = 2**16
MAX_ARCHIVE_BYTES = 2**30
"""Of the archive's contents; the originals have about 185 million."""

_READING_ERRORS = (tarfile.TarError, zlib.error, OSError, EOFError, ValueError)


@dataclass(frozen=True)
class CifarLayout:
    """What tells CIFAR-10 and CIFAR-100 apart on disk."""

    archive: str
    folder: str
    """Name of the folder inside the archive, and of the one that unpacking makes."""
    train: tuple[str, ...]
    test: tuple[str, ...]
    names: str
    class_bytes: int
    """The last of these bytes is the class; CIFAR-100 has the superclass before it."""

    @property
    def record_bytes(self) -> int:
        """Length of a record."""
        return self.class_bytes + PIXEL_BYTES


CIFAR10_LAYOUT = CifarLayout(
    archive="cifar-10-binary.tar.gz",
    folder="cifar-10-batches-bin",
    train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test=("test_batch.bin",),
    names="batches.meta.txt",
    class_bytes=1,
)
CIFAR100_LAYOUT = CifarLayout(
    archive="cifar-100-binary.tar.gz",
    folder="cifar-100-binary",
    train=("train.bin",),
    test=("test.bin",),
    names="fine_label_names.txt",
    class_bytes=2,
)


class Store(Protocol):
    """Where the files with records are."""

    def paths(self, names: tuple[str, ...]) -> tuple[Path, ...]:
        """The files on disk that the named files are in."""
        ...

    def origin(self, name: str) -> str:
        """A file's name for messages."""
        ...

    def size(self, name: str) -> int:
        """Length of a file in bytes."""
        ...

    def reading(self, name: str) -> AbstractContextManager[io.BufferedIOBase]:
        """A file opened at its beginning; it may go on after its `size`."""
        ...


@dataclass(frozen=True)
class FolderStore:
    """The unpacked folder."""

    folder: Path

    def paths(self, names: tuple[str, ...]) -> tuple[Path, ...]:
        return tuple(self.folder / name for name in names)

    def origin(self, name: str) -> str:
        return str(self.folder / name)

    def size(self, name: str) -> int:
        return (self.folder / name).stat().st_size

    def reading(self, name: str) -> AbstractContextManager[io.BufferedIOBase]:
        return (self.folder / name).open("rb")


@dataclass(frozen=True)
class ArchiveStore:
    """The archive, whose members are found by their exact names and must be regular files."""

    archive: Path
    folder: str

    def paths(self, names: tuple[str, ...]) -> tuple[Path, ...]:
        return (self.archive,)

    def origin(self, name: str) -> str:
        return f"{self.folder}/{name} in {self.archive}"

    def size(self, name: str) -> int:
        return self._member(name).size

    @contextmanager
    def reading(self, name: str) -> Iterator[io.BufferedIOBase]:
        with gzip.open(self.archive) as stream:
            stream.seek(self._member(name).offset_data)
            yield stream

    def _member(self, name: str) -> tarfile.TarInfo:
        member = self._members.get(f"{self.folder}/{name}")
        if member is None:
            raise damaged(self.archive, f"it has no member {self.folder}/{name}")
        if not member.isreg() or member.issparse():
            raise damaged(self.archive, f"{member.name} is not a regular file")
        return member

    @cached_property
    def _members(self) -> dict[str, tarfile.TarInfo]:
        """All members by name; the archive is read to its end, so its checksum is right."""
        members = {}
        with gzip.open(self.archive) as stream:
            with tarfile.open(fileobj=stream, mode="r:") as tar:
                for member in tar:
                    if member.offset_data + member.size > MAX_ARCHIVE_BYTES:
                        raise damaged(self.archive, f"it unpacks to more than {MAX_ARCHIVE_BYTES:,} bytes")
                    members[member.name] = member
            while stream.tell() <= MAX_ARCHIVE_BYTES and stream.read(2**20):
                pass
        return members


@dataclass(frozen=True)
class CifarRecords:
    """The files of one part in their order."""

    layout: CifarLayout
    store: Store
    names: tuple[str, ...]

    @property
    def files(self) -> tuple[Path, ...]:
        return self.store.paths((*self.names, self.layout.names))

    def class_names(self) -> list[str]:
        name = self.layout.names
        with self._reported(name):
            size = self.store.size(name)
            if size > MAX_NAMES_BYTES:
                raise damaged(self.store.origin(name), f"{size:,} bytes are too many for names")
            with self.store.reading(name) as file:
                text = file.read(size).decode()
        return [line.strip() for line in text.splitlines() if line.strip()]

    def count(self) -> int:
        return sum(self._count_in(name) for name in self.names)

    def batches(self) -> Iterator[Batch]:
        for name in self.names:
            with self._reported(name), self.store.reading(name) as file:
                remaining = self._count_in(name)
                while remaining:
                    batch = self._batch(file, min(BATCH_IMAGES, remaining), name)
                    yield batch
                    remaining -= len(batch.classes)

    def _batch(self, file: io.BufferedIOBase, num: int, name: str) -> Batch:
        data = file.read(num * self.layout.record_bytes)
        if len(data) != num * self.layout.record_bytes:
            raise damaged(self.store.origin(name), "it ends too early")
        records = np.frombuffer(data, np.uint8).reshape(num, self.layout.record_bytes)
        classes, pixels = np.split(records, [self.layout.class_bytes], axis=1)
        images = pixels.reshape(num, CHANNELS, SIZE, SIZE)
        return Batch(images, classes[:, -1].astype(np.int64), self.store.origin(name))

    def _count_in(self, name: str) -> int:
        with self._reported(name):
            size = self.store.size(name)
            count, rest = divmod(size, self.layout.record_bytes)
            if rest:
                reason = f"{size:,} bytes are no whole number of records of {self.layout.record_bytes:,}"
                raise damaged(self.store.origin(name), reason)
            return checked_count(self.store.origin(name), count)

    @contextmanager
    def _reported(self, name: str) -> Iterator[None]:
        """What goes wrong while a file is read is reported with its name."""
        try:
            yield
        except UserError:
            raise
        except _READING_ERRORS as error:
            raise damaged(self.store.origin(name), str(error) or type(error).__name__) from error


def find_cifar(folder: Path, layout: CifarLayout) -> tuple[Part, Part] | None:
    """The training and test part in an unpacked folder or an archive in `folder`, None if there is neither.

    Raises:
        UserError: some of the unpacked files are missing.
    """
    store: Store
    needed = (*layout.train, *layout.test, layout.names)
    missing = [name for name in needed if not (folder / name).is_file()]
    if not missing:
        store = FolderStore(folder)
    elif (folder / layout.archive).is_file():
        store = ArchiveStore(folder / layout.archive, layout.folder)
    elif any((folder / name).is_file() for name in layout.train):
        raise UserError(f"{folder} lacks {missing[0]}: unpack {layout.archive} again")
    else:
        return None
    return CifarRecords(layout, store, layout.train), CifarRecords(layout, store, layout.test)
