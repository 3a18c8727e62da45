"""Image files, any number of them, as batches of what a trained run takes.

Files are found one by one, decoded by a few threads while the network is busy, and forgotten when they are
answered: memory holds two batches, whether there are ten files or ten million.
"""

import glob
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manigraph.data.decode import DecodeError, read_pixels
from manigraph.data.features import Encoder, encoder
from manigraph.data.listing import images_below
from manigraph.data.sources.base import Problem
from manigraph.errors import UserError
from manigraph.trained import TrainedRun

STANDARD_INPUT = "-"
"""In the place of a file: a list of files."""
LONGEST_PATH = 1 << 16
"""Bytes of one entry of a list."""

VALUES_AT_ONCE = 1 << 22
MOST_AT_ONCE = 256
"""A batch has at most so many values, and so many images."""

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Intake:
    """What becomes of an image file before a run can say something about it."""

    shape: tuple[int, int, int]
    """Channels, height and width to which files are decoded."""
    stored: Callable[[Tensor], Tensor]
    """(B, channels, height, width) bytes from black 0 to white 255, to images as the run's data set stores
    them, or to features."""


def intake_of(trained: TrainedRun) -> Intake:
    """How image files are read for a run; refused if it was trained on something else."""
    features, shape = trained.config.data.features, trained.image_shape
    if features and shape is not None:
        stored: Callable[[Tensor], Tensor] = encoder_of(trained)
    else:
        shape, white = trained.input_shape, trained.white
        stored = lambda images: as_stored(images, white)  # noqa: E731
    if len(shape) != 3:
        raise UserError(
            f"the run was trained on vectors of {shape[0]} values, not on images: predict vectors from "
            f"Python, with `Predictor.load(run)(vectors)`"
        )
    channels, height, width = shape
    if channels not in (1, 3):
        raise UserError(
            f"the run was trained on images of {channels} channels, files are grey or coloured: predict "
            f"arrays from Python, with `Predictor.load(run)(images)`"
        )
    return Intake((channels, height, width), stored)


def encoder_of(trained: TrainedRun) -> Encoder:
    """The network that computes features for a run; refused if it is not the one it was trained with."""
    features = trained.config.data.features
    network = encoder(features)
    way_out = "use the version of the network that it was trained with"
    if (network.feature_size,) != trained.input_shape:
        raise UserError(
            f"the run takes {trained.input_shape[0]} features, '{features}' has {network.feature_size}: "
            f"{way_out}"
        )
    if trained.encoder is not None and trained.encoder != (network.name, network.digest):
        raise UserError(f"'{features}' has other weights here than when the run was trained: {way_out}")
    return network


def as_stored(images: Tensor, white: float) -> Tensor:
    """Bytes up to 255 as a data set stores them whose white is another value, like the 16 of digits."""
    if white == 255:
        return images
    return (images.float() * (white / 255)).round()


def find_images(places: Iterable[Path | str], *, listed: BinaryIO | None = None) -> Iterator[Path | Problem]:
    """Image files one by one, and what should be one but cannot be found or opened.

    Args:
        places: Files of any name, folders (with all folders in them, in which files are taken that are called
            an image or start like one), patterns like `photos/**/*.jpg`, or `-` for a list.
        listed: Where the list is read: a path on each line, or each with a zero byte after it.
    """
    for place in places:
        text = os.fspath(place)
        if text == STANDARD_INPUT and listed is not None:
            for entry in _entries(listed):
                yield from _at(entry)
        elif glob.has_magic(text) and not os.path.lexists(text):
            found = sorted(glob.iglob(text, recursive=True))  # noqa: PTH207  (Path.glob has a root)
            if not found:
                yield Problem(text, "no file is called like this")
            names_all = text.rstrip("/").endswith(("**", "**/*"))  # the files in folders as well
            for entry in found:
                if not (names_all and Path(entry).is_dir()):
                    yield from _at(entry)
        else:
            yield from _at(text)


def _at(text: str) -> Iterator[Path | Problem]:
    path = Path(text)
    try:
        if path.is_dir():
            yield from images_below(path)
        elif os.path.lexists(path):
            yield path
        else:
            yield Problem(text, "there is no such file or folder")
    except ValueError:  # a zero byte
        yield Problem(text, "this cannot be the name of a file")


def _entries(file: BinaryIO) -> Iterator[str]:
    """Paths of a list, as they come; the first bytes say whether zeros or lines separate them."""
    rest = file.read1(LONGEST_PATH) if hasattr(file, "read1") else file.read(LONGEST_PATH)
    separator = b"\0" if b"\0" in rest else b"\n"
    while rest:
        *entries, rest = rest.split(separator)
        for entry in entries:
            yield from _entry(entry, separator)
        if len(rest) > LONGEST_PATH:
            raise UserError(
                f"standard input is no list of files but {len(rest)} bytes without an end of line: give a "
                f"path on each line"
            )
        more = file.read1(LONGEST_PATH) if hasattr(file, "read1") else file.read(LONGEST_PATH)
        if not more:
            yield from _entry(rest, separator)
            return
        rest += more


def _entry(entry: bytes, separator: bytes) -> Iterator[str]:
    if separator == b"\n":
        entry = entry.removesuffix(b"\r")
    if entry:
        yield os.fsdecode(entry)


@dataclass(frozen=True, eq=False)
class FileBatch:
    """Some files that could be read, and those among them that could not."""

    paths: tuple[Path, ...]
    images: Tensor
    """(B, channels, height, width) bytes; B may be 0."""
    problems: tuple[Problem, ...]


def read_batches(
    files: Iterable[Path | Problem],
    shape: tuple[int, int, int],
    *,
    batch_size: int | None = None,
    threads: int | None = None,
) -> Iterator[FileBatch]:
    """Decoded files in the order in which they come.

    Args:
        files: From `find_images`.
        shape: Channels (1 or 3), height and width.
        batch_size: Images at once; by default as many as take some megabytes.
        threads: That decode while the caller works with the batch before; by default one for each core.
    """
    size = batch_size or max(1, min(MOST_AT_ONCE, VALUES_AT_ONCE // int(np.prod(shape))))
    pool = ThreadPoolExecutor(threads or min(8, os.cpu_count() or 1))
    waiting: deque[tuple[Path, Future[Pixels]]] = deque()
    batch = _Batch(shape)
    try:
        for file in files:
            if isinstance(file, Problem):
                batch.problems.append(file)
            else:
                waiting.append((file, pool.submit(_decoded, file, shape)))
            if len(waiting) > size:
                batch.take(*waiting.popleft())
            if max(len(batch.paths), len(batch.problems)) >= size:
                yield batch.closed()
        while waiting:
            batch.take(*waiting.popleft())
            if max(len(batch.paths), len(batch.problems)) >= size:
                yield batch.closed()
        if batch.paths or batch.problems:
            yield batch.closed()
    finally:
        pool.shutdown(cancel_futures=True)


class _Batch:
    """One that is being filled."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self.shape = shape
        self.paths: list[Path] = []
        self.pixels: list[Pixels] = []
        self.problems: list[Problem] = []

    def take(self, path: Path, future: "Future[Pixels]") -> None:
        """Wait for a file."""
        try:
            self.pixels.append(future.result())
            self.paths.append(path)
        except DecodeError as error:
            self.problems.append(Problem(str(path), str(error)))

    def closed(self) -> FileBatch:
        """What is in it; it is empty afterwards."""
        pixels = np.stack(self.pixels) if self.pixels else np.zeros((0, *self.shape), np.uint8)
        batch = FileBatch(tuple(self.paths), torch.from_numpy(pixels), tuple(self.problems))
        self.paths, self.pixels, self.problems = [], [], []
        return batch


def _decoded(path: Path, shape: tuple[int, int, int]) -> Pixels:
    channels, height, width = shape
    return read_pixels(path, (height, width), grey=channels == 1)
