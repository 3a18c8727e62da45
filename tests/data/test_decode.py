"""Every kind of image file comes out as the pixels a person sees."""

import hashlib
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from manigraph.data.decode import (
    DecodeError,
    Header,
    PassingTrouble,
    headers_of,
    pixels_of,
    read_header,
    read_pixels,
)

Pixels = npt.NDArray[np.uint8]


def colours(height: int = 12, width: int = 16) -> Pixels:
    """Four areas of strong colours: red, green, blue and grey, different in every corner."""
    picture = np.zeros((height, width, 3), np.uint8)
    picture[: height // 2, : width // 2] = (200, 30, 40)
    picture[: height // 2, width // 2 :] = (30, 180, 50)
    picture[height // 2 :, : width // 2] = (20, 40, 220)
    picture[height // 2 :, width // 2 :] = (128, 128, 128)
    return picture


def decoded(path: Path, size: tuple[int, int] = (12, 16), *, grey: bool = False) -> npt.NDArray[np.int64]:
    return read_pixels(path, size, grey=grey).astype(np.int64)


def as_planes(picture: Pixels) -> npt.NDArray[np.int64]:
    return picture.transpose(2, 0, 1).astype(np.int64)


@pytest.mark.parametrize("suffix", ["png", "bmp", "tiff", "gif", "webp"])
def test_lossless_formats_come_out_exactly(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    Image.fromarray(colours()).save(path, lossless=True)
    assert (decoded(path) == as_planes(colours())).all()


def test_jpeg_comes_out_nearly(tmp_path: Path) -> None:
    path = tmp_path / "x.jpg"
    Image.fromarray(colours(48, 64)).save(path, quality=95, subsampling=0)
    assert abs(decoded(path, (48, 64)) - as_planes(colours(48, 64))).mean() < 3


def test_the_first_frame_of_an_animation_is_taken(tmp_path: Path) -> None:
    frames = [Image.fromarray(colours()), Image.fromarray(255 - colours())]
    frames[0].save(tmp_path / "x.gif", save_all=True, append_images=frames[1:], duration=100)
    assert (decoded(tmp_path / "x.gif") == as_planes(colours())).all()


def test_a_palette_becomes_its_colours(tmp_path: Path) -> None:
    Image.fromarray(colours()).quantize(8).save(tmp_path / "x.png")
    assert read_header(tmp_path / "x.png").mode == "P"
    assert abs(decoded(tmp_path / "x.png") - as_planes(colours())).max() <= 2


@pytest.mark.parametrize("mode", ["RGBA", "LA", "palette", "RGB with a transparent colour"])
def test_what_is_transparent_shows_white(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "x.png"
    picture = Image.fromarray(colours())
    expected = as_planes(colours())
    if mode == "palette":
        picture.quantize(4).save(path, transparency=0)
    elif mode.startswith("RGB with"):
        picture.save(path, transparency=(200, 30, 40))
    else:
        alpha = np.full((12, 16), 255, np.uint8)
        alpha[:6, :8] = 0
        alpha[:6, 8:] = 127
        picture = picture.convert(mode[:-1])
        expected = as_planes(np.asarray(picture.convert("RGB")))
        expected[:, :6, 8:] = np.round(expected[:, :6, 8:] * 127 / 255 + 255 * 128 / 255)
        picture.putalpha(Image.fromarray(alpha))
        picture.save(path)
    result = decoded(path)
    if mode == "palette":
        assert (result == 255).all(axis=0).sum() >= 40  # one of four areas, about 48 pixels
    else:
        expected[:, :6, :8] = 255
        assert abs(result - expected).max() <= 1


def test_grey_images_have_one_channel(tmp_path: Path) -> None:
    ramp = np.arange(192, dtype=np.uint8).reshape(12, 16)
    Image.fromarray(ramp).save(tmp_path / "x.png")
    assert read_header(tmp_path / "x.png").is_grey
    assert (decoded(tmp_path / "x.png", grey=True) == ramp[None]).all()
    assert (decoded(tmp_path / "x.png") == ramp[None].repeat(3, 0)).all()


def test_one_bit_images_are_black_and_white(tmp_path: Path) -> None:
    picture = np.zeros((12, 16), bool)
    picture[:, 5:] = True
    Image.fromarray(picture).save(tmp_path / "x.png")
    assert read_header(tmp_path / "x.png").is_grey
    assert (decoded(tmp_path / "x.png", grey=True) == 255 * picture[None]).all()


@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_16_bits_are_scaled_to_8_and_not_cut_off(tmp_path: Path, suffix: str) -> None:
    deep = np.linspace(0, 65535, 192).astype(np.uint16).reshape(12, 16)
    Image.fromarray(deep).save(tmp_path / f"x.{suffix}")
    header = read_header(tmp_path / f"x.{suffix}")
    assert header.is_grey
    assert header.mode.startswith("I;16")
    expected = np.round(deep / 65535 * 255)
    assert (decoded(tmp_path / f"x.{suffix}", grey=True)[0] == expected).all()


def png(width: int, height: int, depth: int, colour: int, rows: bytes) -> bytes:
    """A PNG file put together from its specification."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def test_16_bit_colour_is_scaled_to_8(tmp_path: Path) -> None:
    deep = np.linspace(0, 65535, 12 * 16 * 3).astype(">u2").reshape(12, 16 * 3)
    rows = b"".join(b"\0" + row.tobytes() for row in deep)
    (tmp_path / "x.png").write_bytes(png(16, 12, 16, 2, rows))
    expected = deep.reshape(12, 16, 3).transpose(2, 0, 1) / 65535 * 255
    assert abs(decoded(tmp_path / "x.png") - expected).max() <= 1


@pytest.mark.parametrize("suffix", ["jpg", "tiff"])
def test_cmyk_becomes_the_colours_that_are_seen(tmp_path: Path, suffix: str) -> None:
    picture = Image.fromarray(colours(48, 64)).convert("CMYK")
    picture.save(tmp_path / f"x.{suffix}")
    assert read_header(tmp_path / f"x.{suffix}").mode == "CMYK"
    assert abs(decoded(tmp_path / f"x.{suffix}", (48, 64)) - as_planes(colours(48, 64))).mean() < 4


ORIENTATIONS: dict[int, Callable[[Pixels], Pixels]] = {
    # What a camera stores so that, turned as the tag says, the picture is upright.
    1: lambda x: x,
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.transpose(1, 0, 2),
    6: lambda x: np.rot90(x, 1),
    7: lambda x: x[::-1, ::-1].transpose(1, 0, 2),
    8: lambda x: np.rot90(x, -1),
}


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("suffix", ["png", "webp", "tiff"])
def test_rotation_by_exif_is_undone(tmp_path: Path, orientation: int, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    stored = Image.fromarray(np.ascontiguousarray(ORIENTATIONS[orientation](colours())))
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(path, exif=exif, lossless=True)
    assert read_header(path) == Header(16, 12, "RGB")
    assert (decoded(path) == as_planes(colours())).all()


def test_images_are_resized_to_cover_and_cropped_in_the_middle(tmp_path: Path) -> None:
    wide = np.zeros((20, 60, 3), np.uint8)
    wide[:, 20:40] = 255  # the middle third
    Image.fromarray(wide).save(tmp_path / "wide.png")
    Image.fromarray(wide.transpose(1, 0, 2)).save(tmp_path / "tall.png")
    for name in ("wide", "tall"):
        result = decoded(tmp_path / f"{name}.png", (10, 10))
        assert result.shape == (3, 10, 10)
        assert result[:, 2:8, 2:8].min() > 250


def test_large_photographs_are_reduced_without_aliasing(tmp_path: Path) -> None:
    """A fine chessboard becomes grey, not a coarse pattern; JPEG takes a short cut through its blocks."""
    board = (np.indices((1200, 1600)).sum(axis=0) % 2 * 255).astype(np.uint8)
    Image.fromarray(board).convert("RGB").save(tmp_path / "x.jpg", quality=95)
    Image.fromarray(board).convert("RGB").save(tmp_path / "x.png")
    for name in ("x.jpg", "x.png"):
        result = decoded(tmp_path / name, (32, 32))
        assert abs(result - 127.5).max() < 12


def test_the_name_does_not_matter_only_the_bytes(tmp_path: Path) -> None:
    Image.fromarray(colours()).save(tmp_path / "x.png")
    (tmp_path / "x.png").rename(tmp_path / "x.jpg")
    assert (decoded(tmp_path / "x.jpg") == as_planes(colours())).all()


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def truncated(path: Path, suffix: str) -> Path:
    whole = path.with_name(f"whole.{suffix}")
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(whole)
    data = whole.read_bytes()
    whole.unlink()
    return write(path, data[: len(data) // 2])


def broken_link(path: Path) -> Path:
    path.symlink_to("nowhere")
    return path


def folder(path: Path) -> Path:
    path.mkdir()
    return path


def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def deep(path: Path) -> Path:
    Image.fromarray(np.ones((9, 9), np.float32)).save(path, "TIFF")
    return path


DAMAGED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "empty": (lambda path: write(path, b""), "empty file"),
    "text": (lambda path: write(path, b"hello " * 100), "not an image that can be read"),
    "random bytes": (
        lambda path: write(path, np.random.default_rng(1).bytes(5000)),
        "not an image that can be read",
    ),
    "broken link": (broken_link, "broken link"),
    "folder": (folder, "a folder, not an image"),
    "pipe": (pipe, "not a regular file"),
    "truncated jpg": (lambda path: truncated(path, "jpg"), "damaged"),
    "truncated png": (lambda path: truncated(path, "png"), "damaged"),
    "truncated webp": (lambda path: truncated(path, "webp"), "damaged|not an image"),
    "truncated bmp": (lambda path: truncated(path, "bmp"), "damaged"),
    "truncated tiff": (lambda path: truncated(path, "tiff"), "damaged|not an image"),
    "truncated gif": (lambda path: truncated(path, "gif"), "damaged"),
    "giant": (lambda path: write(path, png(60_000, 60_000, 8, 2, b"\0")), "more than 89 million pixels"),
    "large": (lambda path: write(path, png(10_000, 10_000, 8, 2, b"\0")), "more than 89 million pixels"),
    "floating point": (
        deep,
        "32-bit pixels have no agreed range",
    ),
    "a document": (lambda path: write(path, b"%PDF-1.4\n" + b"x" * 500), "not an image that can be read"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_file_that_is_no_image_is_named_with_the_reason(tmp_path: Path, kind: str) -> None:
    make, reason = DAMAGED[kind]
    path = make(tmp_path / "x.jpg")
    with pytest.raises(DecodeError, match=reason):
        read_pixels(path, (8, 8), grey=False)
    with pytest.raises(DecodeError) as found:
        read_pixels(path, (8, 8), grey=False)
    answer = str(found.value)
    assert "\n" not in answer
    assert str(tmp_path) not in answer


def test_headers_are_read_where_they_can_be(tmp_path: Path) -> None:
    Image.fromarray(colours()).save(tmp_path / "good.png")
    write(tmp_path / "bad.png", b"no")
    result = headers_of([("a", tmp_path / "good.png"), ("b", tmp_path / "bad.png")])
    assert result == [("a", Header(16, 12, "RGB")), ("b", "not an image that can be read")]


def test_pixels_of_other_bytes_than_were_listed_are_not_given(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    Image.fromarray(colours()).save(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    ((_, pixels),) = pixels_of([(0, path, digest)], (3, 12, 16))
    assert not isinstance(pixels, str)
    assert (pixels == as_planes(colours())).all()
    Image.fromarray(255 - colours()).save(path)
    ((_, answer),) = pixels_of([(0, path, digest)], (3, 12, 16))
    assert isinstance(answer, PassingTrouble)
    assert answer == "changed while it was read: try again"


def test_trouble_of_the_bytes_stays_and_trouble_of_the_system_passes(tmp_path: Path) -> None:
    bad = write(tmp_path / "bad.png", b"no")
    digest = hashlib.sha256(b"no").hexdigest()
    (_, stays), (_, passes) = pixels_of([(0, bad, digest), (1, tmp_path / "gone.png", digest)], (3, 8, 8))
    assert isinstance(stays, str)
    assert stays == "not an image that can be read"
    assert not isinstance(stays, PassingTrouble)
    assert isinstance(passes, PassingTrouble)
