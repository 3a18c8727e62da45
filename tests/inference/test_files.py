"""Which files are found, and how they become batches."""

import io
import os
import time
import tracemalloc
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from manigraph.data.features import encoder
from manigraph.data.sources.base import Problem
from manigraph.errors import UserError
from manigraph.inference.files import as_stored, find_images, intake_of, read_batches
from manigraph.inference.predictor import Predictor
from tests.inference.pictures import digits, save_digits
from tests.runs.test_passed_on import FORMAT_2

GREY = (1, 8, 8)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Some images in folders, seen from the folder around them."""
    save_digits(tmp_path / "a", range(3))
    save_digits(tmp_path / "b" / "c", range(3, 5))
    (tmp_path / "b" / "notes.txt").write_text("no image")
    (tmp_path / "b" / "c" / ".hidden.png").write_bytes(b"")
    (tmp_path / "a" / "0001.png").rename(tmp_path / "a" / "without_ending")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(*places: str, listed: bytes | None = None) -> list[str]:
    """Paths, and problems as path: reason."""
    source = None if listed is None else io.BytesIO(listed)
    return [
        f"{file.path}: {file.reason}" if isinstance(file, Problem) else str(file)
        for file in find_images(places, listed=source)
    ]


# Finding

ALL_A = ["a/0000.png", "a/0002.png", "a/without_ending"]
ALL_B = ["b/c/0003.png", "b/c/0004.png"]


@pytest.mark.usefixtures("tree")
def test_folders_are_gone_through_in_order() -> None:
    assert found("a", "b") == ALL_A + ALL_B
    assert found(".") == ALL_A + ALL_B
    assert found("b/c/", "a") == ALL_B + ALL_A


@pytest.mark.usefixtures("tree")
def test_files_are_taken_whatever_they_are_called() -> None:
    assert found("b/notes.txt", "a/0000.png", "a/0000.png") == ["b/notes.txt", "a/0000.png", "a/0000.png"]


@pytest.mark.usefixtures("tree")
def test_patterns() -> None:
    assert found("a/*.png") == ALL_A[:2]
    assert found("**/*.png") == ALL_A[:2] + ALL_B
    assert found("b/**") == [*ALL_B, "b/notes.txt"]
    assert found("b/*") == [*ALL_B, "b/notes.txt"]  # a folder is gone through
    assert found("*/*.gif") == ["*/*.gif: no file is called like this"]


def test_a_file_that_looks_like_a_pattern_is_a_file(tree: Path) -> None:
    (tree / "a" / "0000.png").rename(tree / "[1].png")
    assert found("[1].png") == ["[1].png"]


@pytest.mark.usefixtures("tree")
def test_what_is_not_there_is_a_problem() -> None:
    assert found("nowhere", "a/0000.png") == ["nowhere: there is no such file or folder", "a/0000.png"]


def test_a_photograph_of_another_kind_and_a_broken_link_are_problems(tree: Path) -> None:
    (tree / "b" / "x.heic").write_bytes(b"\0\0\0")
    (tree / "b" / "lost").symlink_to("nothing")
    (tree / "b" / "c" / "round").symlink_to(tree / "b")
    assert found("b") == [
        *ALL_B,
        "b/c/round: a link that leads back to a folder around it",
        "b/lost: broken link",
        "b/x.heic: HEIC is not read: save it as JPEG or PNG",
    ]


@pytest.mark.usefixtures("tree")
@pytest.mark.parametrize(
    "listed",
    [
        b"a/0000.png\nb/c\n",
        b"a/0000.png\nb/c",
        b"a/0000.png\r\n\r\nb/c\r\n",
        b"a/0000.png\0b/c\0",
        b"a/0000.png\0b/c",
    ],
)
def test_lists(listed: bytes) -> None:
    assert found("-", listed=listed) == ["a/0000.png", *ALL_B]


@pytest.mark.usefixtures("tree")
def test_names_in_a_list_are_no_patterns_and_may_hold_line_ends() -> None:
    assert found("-", listed=b"a/*.png\n") == ["a/*.png: there is no such file or folder"]
    Path("a/two\nlines.png").write_bytes(b"")
    assert found("-", listed=b"a/two\nlines.png\0b/c/0003.png\0") == ["a/two\nlines.png", "b/c/0003.png"]


@pytest.mark.usefixtures("tree")
def test_names_that_are_no_text() -> None:
    name = os.fsdecode(b"a/\xff.png")
    Path("a/0000.png").rename(name)
    assert found("-", listed=b"a/\xff.png\n") == [name]
    assert found("a")[-1] == name


class Slow(io.RawIOBase):
    """Gives a few bytes at a time, as a pipe may, and counts what was asked for."""

    def __init__(self, content: Iterator[bytes]) -> None:
        self.content = content
        self.given = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview[int]") -> int:  # type: ignore[override]
        piece = next(self.content, b"")
        buffer[: len(piece)] = piece
        self.given += 1
        return len(piece)


@pytest.mark.usefixtures("tree")
def test_a_list_is_read_while_it_is_written() -> None:
    source = Slow(iter([b"a/00", b"00.png\nb/c/0", b"003.png\n", b"a/0002.png\n"]))
    files = find_images(["-"], listed=io.BufferedReader(source))
    assert str(next(files)) == "a/0000.png"
    assert source.given == 2
    assert [str(file) for file in files] == ["b/c/0003.png", "a/0002.png"]


def test_a_list_that_is_none_is_refused() -> None:
    endless = io.BufferedReader(Slow(iter(lambda: b"x" * 4096, None)))
    with pytest.raises(UserError, match=r"is no list of files but .* bytes without an end of line"):
        list(find_images(["-"], listed=endless))


# Reading


def test_batches_hold_the_pixels_in_the_order_of_the_files(tree: Path) -> None:
    (tree / "a" / "bad.png").write_bytes(b"\x89PNG and no more")
    batches = list(read_batches(find_images(["a", "nowhere", "b"]), GREY, batch_size=2, threads=2))
    paths = [str(path) for batch in batches for path in batch.paths]
    assert paths == ["a/0000.png", "a/0002.png", "a/without_ending", *ALL_B]
    assert max(len(batch.images) for batch in batches) == 2
    images = torch.cat([batch.images for batch in batches])
    assert images.dtype == torch.uint8
    wanted = digits().images[torch.tensor([0, 2, 1, 3, 4])]
    assert torch.equal(as_stored(images, 16), wanted.float())
    problems = [problem for batch in batches for problem in batch.problems]
    assert {problem.path for problem in problems} == {"a/bad.png", "nowhere"}


def test_only_bad_files_are_batches_too(tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"nothing")
    (batch,) = read_batches([tmp_path / "bad.png"], GREY)
    assert batch.images.shape == (0, *GREY)
    assert batch.problems == (Problem(str(tmp_path / "bad.png"), "not an image that can be read"),)


def test_colours_are_kept_or_made_grey(tmp_path: Path) -> None:
    Image.fromarray(np.full((40, 60, 3), (255, 0, 0), np.uint8)).save(tmp_path / "red.png")
    (red,) = read_batches([tmp_path / "red.png"], (3, 16, 12))
    assert torch.equal(red.images, torch.tensor([255, 0, 0]).view(1, 3, 1, 1).expand(1, 3, 16, 12))
    (grey,) = read_batches([tmp_path / "red.png"], (1, 16, 12))
    assert grey.images.unique().tolist() == [76]  # 0.299 of 255


def test_memory_does_not_grow_with_the_number_of_files(tmp_path: Path) -> None:
    """Of 400 large images no more than a quarter is ever in memory, however far threads could go ahead."""
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "x.png")
    shape = (1, 200, 200)

    def peak(count: int) -> int:
        seen = 0
        tracemalloc.start()
        paths = (tmp_path / "x.png" for _ in range(count))
        for batch in read_batches(paths, shape, batch_size=8, threads=2):
            seen += len(batch.paths)
            time.sleep(0.02)  # the network is busy; threads could go ahead
        memory = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert seen == count
        return memory

    most = peak(400)
    assert most > 8 * 200 * 200  # the images are seen by tracemalloc
    assert most < 100 * 200 * 200


def test_no_file_is_read_long_before_its_turn(tmp_path: Path) -> None:
    paths = save_digits(tmp_path, range(40))
    asked = 0

    def counted() -> Iterator[Path]:
        nonlocal asked
        for path in paths:
            asked += 1
            yield path

    batches = read_batches(counted(), GREY, batch_size=4, threads=2)
    next(batches)
    assert asked <= 9
    del batches


def test_warnings_are_as_before_when_threads_have_read_images(tmp_path: Path) -> None:
    paths = save_digits(tmp_path, range(8))
    before = list(warnings.filters)
    for _ in range(5):
        for _ in read_batches(paths * 8, GREY, batch_size=8, threads=8):
            pass
    assert warnings.filters == before


# What a run takes


def test_digits_are_stored_up_to_16(tmp_path: Path) -> None:
    predictor = Predictor.load(FORMAT_2)
    intake = intake_of(predictor.trained)
    assert intake.shape == GREY
    (batch,) = read_batches(save_digits(tmp_path, range(50)), intake.shape)
    assert torch.equal(intake.stored(batch.images), digits().images[:50].float())


def test_bytes_stay_bytes() -> None:
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    assert as_stored(images, 255) is images


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((64,), "trained on vectors of 64 values, not on images: predict vectors from Python"),
        ((2, 8, 8), "trained on images of 2 channels, files are grey or coloured"),
    ],
)
def test_runs_on_something_else_are_refused(shape: tuple[int, ...], message: str) -> None:
    trained = Predictor.load(FORMAT_2).trained
    with pytest.raises(UserError, match=message):
        intake_of(replace(trained, input_shape=shape))


def test_features_are_those_of_the_pretrained_network() -> None:
    trained = Predictor.load(FORMAT_2).trained
    config = replace(trained.config, data=replace(trained.config.data, features="efficientnet_lite0"))
    features = replace(trained, config=config, input_shape=(1280,), image_shape=(3, 32, 32))
    intake = intake_of(features)
    assert intake.shape == (3, 32, 32)
    images = torch.arange(6144).remainder(251).to(torch.uint8).view(2, 3, 32, 32)
    torch.testing.assert_close(intake.stored(images), encoder("efficientnet_lite0")(images))
    with pytest.raises(UserError, match="the run takes 64 features, 'efficientnet_lite0' has 1280"):
        intake_of(replace(features, input_shape=(64,)))
