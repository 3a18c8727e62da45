"""Image files of any common kind to uint8 pixels. No torch: worker processes start in a moment.

What comes out right: JPEG, PNG, WebP, BMP, TIFF and GIF (first frame); grey, palette, alpha (on white),
CMYK, 16 bits (scaled to 8) and rotation by EXIF. What cannot be read is a `DecodeError` with the reason.
"""

import hashlib
import io
import stat
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

EXTENSIONS = frozenset({".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif"})
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")
"""Pillow's readers that are used, whatever a file is called."""

MAX_PIXELS = 89_478_485
"""Where Pillow begins to warn of decompression bombs (256 MiB of RGB); here it is the limit."""

MAX_BYTES = 256 << 20
"""Larger files are not read."""

GREY_MODES = frozenset({"1", "L", "LA", "La", "I;16", "I;16B", "I;16L", "I;16N"})
SIXTEEN_BITS = frozenset({"I;16", "I;16B", "I;16L", "I;16N"})

K = TypeVar("K")
T = TypeVar("T")


class DecodeError(ValueError):
    """A file that is no usable image, with the reason in a few words."""

    may_pass = False
    """Whether the reason lies outside the bytes of the file, so that another try may succeed."""


class PassingTrouble(str):
    """A reason that is not to be remembered."""


@dataclass(frozen=True)
class Header:
    """What a file says about itself before its pixels are read."""

    width: int
    height: int
    mode: str

    @property
    def is_grey(self) -> bool:
        """Whether one channel holds all there is."""
        return self.mode in GREY_MODES


def read_header(path: Path) -> Header:
    """Size, as it will be seen after rotation by EXIF, and mode of an image."""
    with _opened(path) as image:
        width, height = image.size
        # Orientations that swap the sides; of a TIFF, Pillow has told the upright size already.
        if image.format != "TIFF" and image.getexif().get(0x0112, 1) in (5, 6, 7, 8):
            width, height = height, width
        return Header(width, height, image.mode)


def read_pixels(
    path: Path, size: tuple[int, int], *, grey: bool, digest: str | None = None
) -> npt.NDArray[np.uint8]:
    """An image as (channels, height, width), resized to cover `size` = (height, width) and cropped to it.

    The middle is kept; one channel if `grey`, else three. With a digest (SHA-256) the file must have it.
    """
    height, width = size
    with _opened(path, digest) as image:
        if image.format == "JPEG":
            # Decodes large photographs at 1/2, 1/4 or 1/8, never below twice what is needed.
            image.draft(None, (2 * max(size), 2 * max(size)))
        upright = ImageOps.exif_transpose(image)
        plain = _without_alpha(_eight_bits(upright), "L" if grey else "RGB")
        if plain.size != (width, height):
            plain = ImageOps.fit(plain, (width, height), Image.Resampling.BICUBIC)
        pixels = np.asarray(plain, dtype=np.uint8)
    return pixels[None] if grey else pixels.transpose(2, 0, 1)


def headers_of(files: Sequence[tuple[K, Path]]) -> list[tuple[K, Header | str]]:
    """For each file its header, or in a few words why it has none."""
    return [(key, _attempt(read_header, path)) for key, path in files]


def pixels_of(
    files: Sequence[tuple[K, Path, str]], shape: tuple[int, int, int]
) -> list[tuple[K, npt.NDArray[np.uint8] | str]]:
    """For each file its pixels in the given shape, or in a few words why it has none.

    A file comes with the digest of its bytes: pixels of other bytes would be kept under a wrong name.
    """
    channels, height, width = shape
    read = partial(read_pixels, size=(height, width), grey=channels == 1)
    return [(key, _attempt(partial(read, digest=digest), path)) for key, path, digest in files]


def _attempt(read: Callable[[Path], T], path: Path) -> T | str:
    try:
        return read(path)
    except DecodeError as error:
        return PassingTrouble(error) if error.may_pass else str(error)


class _Quiet:
    """No warnings while any thread reads an image.

    Filters of warnings belong to all threads: each putting back what it found would leave them off for good.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._before = warnings.catch_warnings()
                self._before.__enter__()
                warnings.simplefilter("ignore")  # damaged metadata, say: the pixels are what counts
            self._inside += 1

    def __exit__(self, *details: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._before.__exit__(None, None, None)


_quiet = _Quiet()


@contextmanager
def _opened(path: Path, digest: str | None = None) -> Iterator[Image.Image]:
    """Opens an image and turns whatever goes wrong with it inside the block into a `DecodeError`."""
    with _quiet:
        try:
            with _open(path, digest) as image:
                yield image
        except DecodeError:
            raise
        except Exception as error:  # Pillow's readers raise many kinds
            trouble = DecodeError(_reason(error))
            # Errors of the system have a number, those of Pillow about the bytes have none.
            trouble.may_pass = isinstance(error, MemoryError) or getattr(error, "errno", None) is not None
            raise trouble from error


def _open(path: Path, digest: str | None) -> Image.Image:
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise DecodeError("a folder, not an image")
    if not stat.S_ISREG(status.st_mode):
        raise DecodeError("not a regular file")
    if status.st_size == 0:
        raise DecodeError("empty file")
    if status.st_size > MAX_BYTES:
        raise DecodeError(f"more than {MAX_BYTES >> 20} MB")
    image = Image.open(path if digest is None else _bytes(path, digest), formats=FORMATS)
    if image.width * image.height > MAX_PIXELS:
        image.close()
        raise DecodeError(f"more than {MAX_PIXELS // 10**6} million pixels")
    return image


def _bytes(path: Path, digest: str) -> io.BytesIO:
    """The file's bytes, if they are still those that were listed."""
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != digest:
        trouble = DecodeError("changed while it was read: try again")
        trouble.may_pass = True
        raise trouble
    return io.BytesIO(data)


def _reason(error: Exception) -> str:
    """In a few words, without the path, which stands beside it."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image that can be read"
    if isinstance(error, Image.DecompressionBombError):
        return f"more than {MAX_PIXELS // 10**6} million pixels"
    if isinstance(error, FileNotFoundError):
        return "broken link"
    if isinstance(error, PermissionError):
        return "no permission to read it"
    if isinstance(error, MemoryError):
        return "too large for the memory"
    text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return "damaged: " + " ".join(text.split())[:120]


def _eight_bits(image: Image.Image) -> Image.Image:
    """16-bit grey scaled to 8 bits; other deep pixels have no agreed range and are refused."""
    if image.mode in SIXTEEN_BITS:
        values = np.asarray(image).astype(np.uint32)
        return Image.fromarray(((values * 255 + 32767) // 65535).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise DecodeError("32-bit pixels have no agreed range: save it with 8 or 16 bits")
    return image


def _without_alpha(image: Image.Image, mode: str) -> Image.Image:
    """In mode L or RGB; what is transparent shows white."""
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert(mode)
