"""IDX, the format of MNIST and Fashion-MNIST: two zero bytes, the type, the number of axes, then the axes.

All numbers are big-endian; the values follow without gaps, first axis outermost. The files are often
gzipped, and read as they are.
"""

import gzip
import io
import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from manigraph.data.sources.files import BATCH_IMAGES, Batch, Part, checked_count, damaged
from manigraph.errors import UserError

UNSIGNED_BYTE = 8
_PREFIXES = ("train", "t10k")


@dataclass(frozen=True)
class IdxFiles:
    """One part: a file of images and a file of their classes."""

    images: Path
    labels: Path
    size: int

    @property
    def files(self) -> tuple[Path, ...]:
        return self.images, self.labels

    def class_names(self) -> None:
        return None

    def count(self) -> int:
        """N, from both headers."""
        with _opened(self.images) as file:
            num, *sides = _shape(file, self.images, axes=3)
        if sides != [self.size, self.size]:
            raise damaged(
                self.images, f"images of {sides[0]}×{sides[1]} instead of {self.size}×{self.size} pixels"
            )
        with _opened(self.labels) as file:
            (num_labels,) = _shape(file, self.labels, axes=1)
        if num_labels != num:
            raise damaged(self.labels, f"{num_labels:,} classes for {num:,} images")
        return checked_count(self.images, num)

    def batches(self) -> Iterator[Batch]:
        num = self.count()
        with _opened(self.images) as images, _opened(self.labels) as labels:
            _shape(images, self.images, axes=3)
            _shape(labels, self.labels, axes=1)
            for start in range(0, num, BATCH_IMAGES):
                n = min(BATCH_IMAGES, num - start)
                pixels = _values(images, self.images, (n, 1, self.size, self.size))
                classes = _values(labels, self.labels, (n,))
                yield Batch(pixels, classes.astype(np.int64), str(self.labels))
            _expect_end(images, self.images)
            _expect_end(labels, self.labels)


def find_idx(folder: Path, *, size: int) -> tuple[Part, Part] | None:
    """The training and test part in a folder, None if it has none of the files.

    Raises:
        UserError: some of the four files are missing.
    """
    names = [f"{prefix}-{kind}-ubyte" for prefix in _PREFIXES for kind in ("images-idx3", "labels-idx1")]
    paths = [_existing(folder, name) for name in names]
    if not any(paths):
        return None
    present = [path for path in paths if path]
    if len(present) < len(names):
        raise UserError(f"{folder} lacks {names[paths.index(None)]}.gz: put it next to the other files")
    train_images, train_labels, test_images, test_labels = present
    return IdxFiles(train_images, train_labels, size), IdxFiles(test_images, test_labels, size)


def _existing(folder: Path, name: str) -> Path | None:
    candidates = (folder / f"{name}.gz", folder / name)
    return next((path for path in candidates if path.is_file()), None)


def _opened(path: Path) -> io.BufferedIOBase:
    """The bytes of a file that may be gzipped."""
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def _shape(file: io.BufferedIOBase, path: Path, *, axes: int) -> tuple[int, ...]:
    """The lengths of the axes."""
    magic = _bytes(file, path, 4)
    if magic != bytes([0, 0, UNSIGNED_BYTE, axes]):
        raise damaged(path, f"it begins with {magic.hex()} instead of {UNSIGNED_BYTE << 8 | axes:08x}")
    return struct.unpack(f">{axes}I", _bytes(file, path, 4 * axes))


def _values(file: io.BufferedIOBase, path: Path, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    return np.frombuffer(_bytes(file, path, math.prod(shape)), np.uint8).reshape(shape)


def _bytes(file: io.BufferedIOBase, path: Path, num: int) -> bytes:
    data = _read(file, path, num)
    if len(data) != num:
        raise damaged(path, "it ends too early")
    return data


def _expect_end(file: io.BufferedIOBase, path: Path) -> None:
    """One byte more is asked for, so that a file which unpacks to much more is not unpacked."""
    if _read(file, path, 1):
        raise damaged(path, "it goes on after the last value")


def _read(file: io.BufferedIOBase, path: Path, num: int) -> bytes:
    """Up to `num` bytes."""
    try:
        return file.read(num)
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, str(error)) from error
