"""A contact sheet shows each picture in its place."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from manigraph.reports.contact_sheet import GAP, LINE, MARGIN, SIDE, Entry, save_contact_sheet


def picture(value: int, shape: tuple[int, ...] = (12, 12, 3)) -> "np.typing.NDArray[np.uint8]":
    return np.full(shape, value, dtype=np.uint8)


@pytest.mark.parametrize("count", [1, 7, 23])
def test_pictures_are_in_order(count: int, tmp_path: Path) -> None:
    entries = [Entry(picture(10 * n), f"{n}", ("one", "two")) for n in range(count)]
    save_contact_sheet(entries, tmp_path / "sheet.png", columns=5)
    assert [path.name for path in tmp_path.iterdir()] == ["sheet.png"]
    with Image.open(tmp_path / "sheet.png") as sheet:
        pixels = np.asarray(sheet)
    height = SIDE + 6 + 3 * LINE + GAP
    for n in range(count):
        left, top = MARGIN + n % 5 * (SIDE + GAP), MARGIN + n // 5 * height
        assert (pixels[top : top + SIDE, left : left + SIDE] == 10 * n).all()
        caption = pixels[top + SIDE + 4 : top + SIDE + 4 + 3 * LINE, left : left + SIDE]
        assert caption.min() < 128  # there are words
    assert (pixels[: MARGIN - 1, : MARGIN - 1] == 255).all()


def test_strange_names_and_shapes(tmp_path: Path) -> None:
    names = ("猫\n$x$ 😀", "a_very_long_name_" * 20, "", "\x00")
    shapes: tuple[tuple[int, ...], ...] = ((8, 8), (40, 20, 3), (300, 500, 3), (1, 900))
    entries = [Entry(picture(99, s), n, (n, n)) for n, s in zip(names, shapes, strict=True)]
    save_contact_sheet([*entries, Entry(None, "a vector", ())], tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width == 2 * MARGIN + 5 * (SIDE + GAP) - GAP
        strip = np.asarray(sheet)[:, -MARGIN + 2 :]
    assert (strip == 255).all()  # nothing runs over the edge


def test_long_names_stay_below_their_picture(tmp_path: Path) -> None:
    long = Entry(picture(255), "W" * 200, ("W" * 200,))
    short = Entry(picture(255), "", ("",))
    save_contact_sheet([long, short], tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        words = np.asarray(sheet)[MARGIN + SIDE + 4 :, MARGIN + SIDE + 2 : -MARGIN]
    assert (words == 255).all()
