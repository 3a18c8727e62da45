"""What every reader of a benchmark's files offers, and how it reports damage."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from manigraph.errors import UserError

BATCH_IMAGES = 1000
MAX_IMAGES = 1_000_000
"""More than any benchmark has: a damaged header must not make the program fill the disk."""


class Batch(NamedTuple):
    """Some images that follow each other in a file."""

    images: npt.NDArray[np.uint8]
    """(n, channels, height, width)."""
    classes: npt.NDArray[np.int64]
    """(n,)."""
    origin: str
    """The file, for messages."""


class Part(Protocol):
    """The training or the test images of a data set, found on disk and not read yet."""

    @property
    def files(self) -> Sequence[Path]:
        """All files that the images, classes and names depend on; they lie in one folder."""
        ...

    def class_names(self) -> list[str] | None:
        """The names that the files give to the classes, None if the format has none."""
        ...

    def count(self) -> int:
        """How many images `batches` gives, known without decoding them."""
        ...

    def batches(self) -> Iterator[Batch]:
        """The images in the order of the files."""
        ...


def damaged(origin: Path | str, reason: str) -> UserError:
    """The error for a file that is not what its name says."""
    return UserError(f"{origin} is damaged or of another kind ({reason}): get the file again")


def checked_count(origin: Path | str, count: int) -> int:
    """`count`, if a file may hold so many images."""
    if not 0 < count <= MAX_IMAGES:
        raise damaged(origin, f"it claims to hold {count:,} images")
    return count
