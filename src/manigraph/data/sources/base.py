"""What every source is given and what it returns."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from manigraph.data.cache import Progress, silent
from manigraph.data.locations import Locations

UNLABELLED = -1

MAX_NATURAL_SIDE = 64
"""Own images up to this size keep it if they all have the same; larger ones are made this size."""


@dataclass(frozen=True)
class SourceRequest:
    """What a source may need to know; most need only the locations."""

    locations: Locations = field(default_factory=Locations.default)
    path: Path | None = None
    """Own images: their folder, or a CSV file that lists them."""
    image_size: int | None = None
    """Side in pixels. Own images are resized and cropped, those of a benchmark reduced to a whole fraction of
    theirs; None lets the source choose."""
    largest_side: int = MAX_NATURAL_SIDE
    """Own images: what the source chooses at most."""
    progress: Progress = silent


class Doubt(str):
    """A remark on something that may well be meant otherwise."""


@dataclass(frozen=True)
class Problem:
    """A file that could not be used, and why."""

    path: str
    reason: str


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images with their classes; the split says which of the classes a method may see."""

    name: str
    images: Tensor
    """(N, channels, height, width) uint8, perhaps mapped from a file, or (N, size) float vectors."""
    classes: Tensor
    """(N,) int64; -1 where the class is not known."""
    class_names: Sequence[str]
    test: Tensor
    """Indices of the images that are only for testing."""
    train: Tensor
    """Indices of all others, in the order in which splits draw from them."""
    validation: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    """Indices of images given for validation; without any, splits hold some out of `train`."""
    paths: Sequence[str] | None = None
    """Own images: the file of each, relative to their folder."""
    problems: Sequence[Problem] = ()
    """Own images: files that were left out."""
    remarks: Sequence[str] = ()
    """What was taken how, where it is not obvious; one sentence each."""
    lost_classes: Sequence[str] = ()
    """Own images: classes that have a name but not one readable image."""
    original_formats: Mapping[str, int] = field(default_factory=dict)
    """Own images: how many had which size and mode before decoding, as in {"640x480 RGB": 12}."""

    white: float = 255.0
    """The stored value of full brightness."""

    image_shape: tuple[int, ...] | None = None
    """Vectors that were computed from images: the shape of one of these."""
    made_from: str = ""
    """Vectors that were computed: digest of what they were computed from, and how. It stands for them in
    `digest`, since computed numbers may differ in the last bits from one machine to another."""

    @property
    def num_classes(self) -> int:
        """C."""
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one image."""
        return tuple(self.images.shape[1:])

    @cached_property
    def digest(self) -> str:
        """SHA-256 that changes when an image, a class or their order does."""
        parts = (self.images, self.classes, self.train, self.validation, self.test)
        lengths = [len(part) for part in parts]
        shapes = [list(self.class_names), tuple(self.images.shape), str(self.images.dtype), lengths]
        digest = hashlib.sha256(repr(shapes).encode())
        for part in parts:
            if part is self.images and self.made_from:
                digest.update(self.made_from.encode())
            else:
                digest.update(part.contiguous().numpy().data)
        return digest.hexdigest()

    @cached_property
    def content_ids(self) -> Tensor:
        """(N,) numbers that are equal exactly where images are equal."""
        ids: dict[bytes, int] = {}
        numbers = [
            ids.setdefault(hashlib.blake2b(row.tobytes(), digest_size=16).digest(), len(ids))
            for row in self.images.flatten(1).numpy()
        ]
        return torch.tensor(numbers, dtype=torch.long)

    @cached_property
    def has_copy(self) -> Tensor:
        """(N,) whether another image of the data set is the same, pixel by pixel."""
        if len(self.images) == 0:
            return torch.zeros(0, dtype=torch.bool)
        return self.content_ids.bincount()[self.content_ids] > 1


Source = Callable[[SourceRequest], Dataset]
