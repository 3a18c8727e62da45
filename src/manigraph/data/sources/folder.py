"""Your own images: a folder, decoded once into a file of pixels that is mapped into memory."""

import contextlib
import json
import shutil
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from manigraph.data.cache import NOT_TO_KEEP, Fingerprints, Progress, combined_digest, remember
from manigraph.data.decode import DecodeError, Header, PassingTrouble, headers_of, pixels_of, read_header
from manigraph.data.listing import Item, Listing, list_images, printable
from manigraph.data.pixels import IMAGES_FILE, create_pixels, map_pixels
from manigraph.data.sources.base import MAX_NATURAL_SIDE, UNLABELLED, Dataset, Problem, SourceRequest
from manigraph.errors import UserError

VERSION = 1
"""Part of the key of decoded pixels: raise it when decoding changes."""

MIN_SIDE = 8
"""What the networks need."""

CHUNK = 64
"""Files in one piece of work for a decoding process."""

MIN_PARALLEL_CHUNKS = 8
"""With less to do, starting processes takes longer than the work."""

ABOUT_FILE = "about.json"

K = TypeVar("K")


def load_folder(request: SourceRequest) -> Dataset:
    """The images of a folder with their classes; see `manigraph.data.listing` for how to lay it out."""
    if request.path is None:
        raise UserError("name the folder of your images, as in `manigraph train PATH`")
    if request.image_size is not None and request.image_size < MIN_SIDE:
        raise UserError(f"data.image_size must be at least {MIN_SIDE} pixels, got {request.image_size}")
    listing = list_images(request.path)
    if not listing.items:
        raise UserError(
            f"there are no images in '{request.path}': it should hold one folder for each class and a folder "
            f"'unlabelled', or images and a CSV with path,label"
        )
    fingerprints = Fingerprints(request.locations.cache, listing.root)
    digests = fingerprints.digests([item.name for item in listing.items], request.progress)
    problems = list(listing.problems)
    files: list[_File] = []
    for item, digest in zip(listing.items, digests, strict=True):
        if isinstance(digest, str):
            files.append(_File(item, digest, listing.root / item.name))
        else:
            problems.append(Problem(item.name, _why_unreadable(listing.root / item.name, digest)))
    decoded = _decode(files, request, fingerprints)
    return _dataset(listing, files, decoded, problems)


class _Size(NamedTuple):
    """Which size images get."""

    given: int | None
    largest: int
    """If none is given."""

    @property
    def name(self) -> int | str | None:
        """Part of the key of decoded pixels."""
        if self.given is None and self.largest != MAX_NATURAL_SIDE:
            return f"natural-{self.largest}"
        return self.given


@dataclass(frozen=True)
class _File:
    """An image file whose bytes could be read."""

    item: Item
    digest: str
    path: Path


@dataclass(frozen=True)
class _Decoded:
    """A folder of decoded pixels: one row for each file that is a usable image, in their order."""

    pixels: Tensor
    digests: list[str]
    headers: list[Header]
    shape: tuple[int, int, int]
    problems: dict[str, str]
    """Digest of a file to what is wrong with it."""

    @classmethod
    def read(cls, folder: Path) -> "_Decoded":
        about = json.loads((folder / ABOUT_FILE).read_text(encoding="ascii"))
        channels, height, width = about["shape"]
        headers = [Header(*header) for header in about["headers"]]
        shape = (channels, height, width)
        return cls(map_pixels(folder), about["digests"], headers, shape, about["problems"])


def _why_unreadable(path: Path, error: OSError) -> str:
    try:
        read_header(path)
    except DecodeError as reason:
        return str(reason)
    return f"cannot be read: {error.strerror or error}"


def _decode(files: Sequence[_File], request: SourceRequest, fingerprints: Fingerprints) -> _Decoded:
    """The pixels of all files, decoded now if the folder holds anything that is new."""
    size, progress = _Size(request.image_size, request.largest_side), request.progress
    key = combined_digest("images", VERSION, size.name, [file.digest for file in files])
    cache = request.locations.cache / "decoded"
    last = fingerprints.last_key(size.name)
    previous = None
    if last is not None and last != key:
        with contextlib.suppress(OSError, EOFError, ValueError, KeyError):
            previous = _Decoded.read(cache / last)
    decoded = remember(
        cache, key, lambda folder: _build(folder, files, size, previous, progress), _Decoded.read
    )
    if last != key:
        fingerprints.set_last_key(size.name, key)
        if last is not None:
            # What was still of use has been copied; processes that map the old file keep it.
            shutil.rmtree(cache / last, ignore_errors=True)
    return decoded


def _build(
    folder: Path,
    files: Sequence[_File],
    size: _Size,
    previous: _Decoded | None,
    progress: Progress,
) -> None:
    """Decode into `folder`; what `previous` holds of the same files is copied."""
    headers = _headers(files, previous, progress)
    problems = {digest: found for digest, found in headers.items() if isinstance(found, str)}
    images = [(file, header) for file in files if isinstance(header := headers[file.digest], Header)]
    while True:
        shape = common_shape([header for _, header in images], *size)
        failed = _write_pixels(folder, [file for file, _ in images], shape, previous, progress)
        problems |= {images[row][0].digest: reason for row, reason in failed.items()}
        # A file that failed goes with all files of the same content, wherever they lie.
        lost = [row for row, (file, _) in enumerate(images) if file.digest in problems]
        images = [image for image in images if image[0].digest not in problems]
        if common_shape([header for _, header in images], *size) == shape:
            break
        # The damaged files alone were of another kind: without them all images get another shape.
    if lost:
        _remove_rows(folder, set(lost))
    if any(isinstance(reason, PassingTrouble) for reason in problems.values()):
        (folder / NOT_TO_KEEP).touch()
    about = {
        "shape": shape,
        "digests": [file.digest for file, _ in images],
        "headers": [[header.width, header.height, header.mode] for _, header in images],
        "problems": problems,
    }
    (folder / ABOUT_FILE).write_text(json.dumps(about), encoding="ascii")


def _write_pixels(
    folder: Path,
    files: Sequence[_File],
    shape: tuple[int, int, int],
    previous: _Decoded | None,
    progress: Progress,
) -> dict[int, str]:
    """One row of pixels for each file; returns the rows that failed, with the reasons."""
    pixels = create_pixels(folder, (len(files), *shape))
    copied: set[int] = set()
    if previous is not None and previous.shape == shape:
        old, row_of = previous.pixels.numpy(), {d: row for row, d in enumerate(previous.digests)}
        for row, file in enumerate(files):
            if file.digest in row_of:
                pixels[row] = old[row_of[file.digest]]
                copied.add(row)
    wanted = [(row, file.path, file.digest) for row, file in enumerate(files) if row not in copied]
    failed: dict[int, str] = {}
    for row, result in _in_parallel(pixels_of, wanted, "decoding images", progress, shape):
        if isinstance(result, str):
            failed[row] = result
        else:
            pixels[row] = result
    pixels.flush()
    return failed


def _headers(
    files: Sequence[_File], previous: _Decoded | None, progress: Progress
) -> dict[str, Header | str]:
    """By digest: size and mode of an image, or what is wrong with the file."""
    found: dict[str, Header | str] = {}
    if previous is not None:
        found.update(zip(previous.digests, previous.headers, strict=True))
    wanted = [(file.digest, file.path) for file in files if file.digest not in found]
    found.update(_in_parallel(headers_of, wanted, "looking at images", progress))
    return found


def common_shape(
    headers: Sequence[Header], given: int | None, largest: int = MAX_NATURAL_SIDE
) -> tuple[int, int, int]:
    """Channels, height and width that all images get.

    Args:
        headers: Of all images.
        given: Side in pixels; None means their own size if all have the same, else the median of their sides.
        largest: Side that is not exceeded if none is given.
    """
    channels = 1 if headers and all(header.is_grey for header in headers) else 3
    if given is not None or not headers:
        return channels, given or MIN_SIDE, given or MIN_SIDE
    height, width = headers[0].height, headers[0].width
    same = all((header.height, header.width) == (height, width) for header in headers)
    if same and min(height, width) >= MIN_SIDE and max(height, width) <= largest:
        return channels, height, width
    typical = statistics.median_low(min(header.height, header.width) for header in headers)
    side = max(MIN_SIDE, min(largest, typical // 4 * 4))
    return channels, side, side


def _remove_rows(folder: Path, rows: Collection[int]) -> None:
    """Write the file again without some rows."""
    aside = folder / "aside"
    aside.mkdir()
    (folder / IMAGES_FILE).rename(aside / IMAGES_FILE)
    pixels = map_pixels(aside).numpy()
    keep = [row for row in range(len(pixels)) if row not in rows]
    compact = create_pixels(folder, (len(keep), *pixels.shape[1:]))
    for new, row in enumerate(keep):
        compact[new] = pixels[row]
    compact.flush()
    shutil.rmtree(aside)


def _in_parallel(
    work: Callable[..., list[tuple[K, Any]]],
    files: Sequence[tuple[K, *tuple[Any, ...]]],
    what: str,
    progress: Progress,
    *settings: Any,
) -> Iterator[tuple[K, Any]]:
    """`work` on chunks of `files`, in other processes if there is enough to do."""
    chunks = [files[start : start + CHUNK] for start in range(0, len(files), CHUNK)]
    done = 0
    for results in _worked(work, chunks, settings):
        yield from results
        done += len(results)
        progress(what, done, len(files))


def _worked(
    work: Callable[..., list[Any]], chunks: Sequence[Any], settings: tuple[Any, ...]
) -> Iterator[list[Any]]:
    if len(chunks) < MIN_PARALLEL_CHUNKS:
        yield from (work(chunk, *settings) for chunk in chunks)
        return
    # joblib's workers do not run the caller's script again, as those of multiprocessing do.
    from joblib import Parallel, delayed
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    parallel = Parallel(n_jobs=-1, return_as="generator", max_nbytes=None, batch_size=1)
    try:
        yield from parallel(delayed(work)(chunk, *settings) for chunk in chunks)
    except TerminatedWorkerError:
        raise UserError(
            "a process that decodes images was killed, perhaps for lack of memory: close other programs or "
            "remove the largest images, and try again"
        ) from None


def _dataset(listing: Listing, files: Sequence[_File], decoded: _Decoded, problems: list[Problem]) -> Dataset:
    items = [file.item for file in files if file.digest not in decoded.problems]
    assert len(items) == len(decoded.pixels), "one row of pixels for each image"
    problems += [
        Problem(file.item.name, decoded.problems[file.digest])
        for file in files
        if file.digest in decoded.problems
    ]
    names = _sorted_labels({item.label for item in items if item.label is not None})
    number: dict[str | None, int] = {None: UNLABELLED, **{name: c for c, name in enumerate(names)}}
    parts = {
        part: torch.tensor([i for i, item in enumerate(items) if item.part == part], dtype=torch.long)
        for part in ("train", "validation", "test")
    }
    listed = {item.label for item in listing.items if item.label is not None} | set(listing.empty_folders)
    return Dataset(
        name=printable(listing.root.resolve().name) or "images",
        images=decoded.pixels,
        classes=torch.tensor([number[item.label] for item in items], dtype=torch.long),
        class_names=[printable(name) for name in names],
        paths=[printable(item.name) for item in items],
        problems=sorted((Problem(printable(p.path), p.reason) for p in problems), key=lambda p: p.path),
        remarks=listing.remarks,
        lost_classes=sorted(printable(name) for name in listed - set(names)),
        original_formats=Counter(f"{h.width}x{h.height} {h.mode}" for h in decoded.headers),
        train=parts["train"],
        validation=parts["validation"],
        test=parts["test"],
    )


def _sorted_labels(labels: Collection[str]) -> list[str]:
    """Numbers by value, anything else by name."""
    if all(label.isdecimal() for label in labels):
        return sorted(labels, key=lambda label: (int(label), label))
    return sorted(labels)
