"""Own images: decoded once, noticed when changed, complete whatever else lies in the folder."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from manigraph.data.cache import Fingerprints, remember
from manigraph.data.locations import Locations
from manigraph.data.sources.base import Dataset, SourceRequest
from manigraph.data.sources.folder import load_folder
from manigraph.errors import UserError
from tests.data.pictures import photo_folder, picture, pixels, write_files


class Progress:
    """Counts the files that were really opened, by what was done with them."""

    def __init__(self) -> None:
        self.done: dict[str, int] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        self.done[what] = done


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def load(folder: Path, cache: Path, image_size: int | None = None) -> tuple[Dataset, dict[str, int]]:
    """The data set, and how many files had to be looked at and decoded for it."""
    progress = Progress()
    locations = Locations(data=folder, cache=cache)
    request = SourceRequest(locations, path=folder, image_size=image_size, progress=progress)
    return load_folder(request), progress.done


def test_a_folder_becomes_a_data_set(tmp_path: Path, cache: Path) -> None:
    root = photo_folder(tmp_path / "photos")
    dataset, _ = load(root, cache)
    assert dataset.name == "photos"
    assert list(dataset.class_names) == ["cat", "dog"]
    assert dataset.images.shape == (36, 3, 10, 12)
    assert dataset.images.dtype == torch.uint8
    assert dataset.paths is not None
    for index, name in enumerate(dataset.paths):
        assert dataset.images[index].flatten().tolist() == pixels((root / name).read_bytes())
        expected = {"cat": 0, "dog": 1, "unlabelled": -1}
        folders = name.split("/")
        assert int(dataset.classes[index]) == expected[folders[1] if folders[0] == "test" else folders[0]]
        assert (index in dataset.test.tolist()) == (folders[0] == "test")
    assert sorted(torch.cat([dataset.train, dataset.test]).tolist()) == list(range(36))
    assert dict(dataset.original_formats) == {"12x10 RGB": 36}


def test_nothing_is_decoded_twice(tmp_path: Path, cache: Path) -> None:
    root = photo_folder(tmp_path / "photos")
    first, done = load(root, cache)
    assert done == {"looking at images": 36, "decoding images": 36}
    again, done = load(root, cache)
    assert done == {}
    assert again.digest == first.digest


def test_a_moved_folder_is_not_decoded_again(tmp_path: Path, cache: Path) -> None:
    root = photo_folder(tmp_path / "photos")
    load(root, cache)
    shutil.copytree(root, tmp_path / "elsewhere")
    assert load(tmp_path / "elsewhere", cache)[1] == {}


def test_a_changed_file_is_noticed_even_with_its_old_size_and_time(tmp_path: Path, cache: Path) -> None:
    root = photo_folder(tmp_path / "photos")
    for file in root.rglob("*.png"):  # so that the size can stay the same
        Image.open(file).save(file.with_suffix(".bmp"))
        file.unlink()
    before, _ = load(root, cache)
    victim = root / "dog" / "3.bmp"
    status = victim.stat()
    Image.open(io_bytes := root / "cat" / "1.bmp").transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(victim)
    os.utime(victim, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert victim.stat().st_size == status.st_size
    assert victim.stat().st_mtime_ns == status.st_mtime_ns
    after, done = load(root, cache)
    assert done == {"looking at images": 1, "decoding images": 1}
    assert before.paths is not None
    index = list(before.paths).index("dog/3.bmp")
    expected = np.asarray(Image.open(io_bytes)).transpose(2, 0, 1)[:, :, ::-1]
    assert (after.images[index].numpy() == expected).all()
    same = [i for i in range(36) if i != index]
    assert torch.equal(after.images[same], before.images[same])
    assert after.digest != before.digest


def test_only_what_is_new_is_decoded_and_old_pixels_are_not_kept(tmp_path: Path, cache: Path) -> None:
    root = photo_folder(tmp_path / "photos")
    load(root, cache)
    write_files(root, [("cat/new.png", picture(99)), ("unlabelled/deep/er/new.png", picture(98))])
    (root / "dog" / "0.png").unlink()
    dataset, done = load(root, cache)
    assert done == {"looking at images": 2, "decoding images": 2}
    assert dataset.paths is not None
    for index, name in enumerate(dataset.paths):
        assert dataset.images[index].flatten().tolist() == pixels((root / name).read_bytes()), name
    assert len(list((cache / "decoded").iterdir())) == 1


def test_one_larger_image_changes_the_size_of_all(tmp_path: Path, cache: Path) -> None:
    root = photo_folder(tmp_path / "photos")
    load(root, cache)
    write_files(root, [("cat/new.png", picture(99, size=(30, 30)))])
    dataset, done = load(root, cache)
    assert dataset.images.shape == (37, 3, 8, 8)  # sizes differ: a square of the median side, 10 → 8
    assert done == {"looking at images": 1, "decoding images": 37}


@pytest.mark.parametrize(
    ("size", "image_size", "expected"),
    [
        ((40, 64), None, (40, 64)),  # small and all the same: as they are
        ((40, 65), None, (40, 40)),  # too large: a square
        ((300, 200), None, (64, 64)),
        ((6, 6), None, (8, 8)),  # too small for a network
        ((40, 64), 20, (20, 20)),
        ((10, 10), 32, (32, 32)),
    ],
)
def test_image_sizes(
    tmp_path: Path, cache: Path, size: tuple[int, int], image_size: int | None, expected: tuple[int, int]
) -> None:
    root = write_files(tmp_path / "x", [(f"{c}/{i}.png", picture(i, size)) for c in "ab" for i in range(3)])
    dataset, _ = load(root, cache, image_size)
    assert dataset.input_shape == (3, *expected)


def test_grey_only_folders_have_one_channel(tmp_path: Path, cache: Path) -> None:
    root = tmp_path / "x"
    for c in "ab":
        (root / c).mkdir(parents=True)
        Image.fromarray(np.full((9, 9), 77, np.uint8)).save(root / c / "1.png")
        Image.fromarray(np.full((9, 9), 77 * 257, np.uint16)).save(root / c / "2.png")
    grey, _ = load(root, cache)
    assert grey.input_shape == (1, 9, 9)
    assert bool((grey.images == 77).all())
    write_files(root, [("a/3.png", picture(0, (9, 9)))])
    assert load(root, cache)[0].input_shape == (3, 9, 9)


def test_classes_that_are_numbers_are_in_the_order_of_numbers(tmp_path: Path, cache: Path) -> None:
    root = write_files(tmp_path / "x", [(f"{c}/1.png", picture(c)) for c in range(12)])
    assert list(load(root, cache)[0].class_names) == [str(c) for c in range(12)]


def test_the_order_of_creation_does_not_matter(tmp_path: Path) -> None:
    names = [f"{c}/{i}.png" for c in ("a", "b", "unlabelled") for i in range(15)]
    digests = set()
    for turn in range(3):
        random.Random(turn).shuffle(names)
        root = write_files(tmp_path / str(turn) / "x", [(name, picture(hash_of(name))) for name in names])
        digests.add(load(root, tmp_path / str(turn) / "cache")[0].digest)
    assert len(digests) == 1


def hash_of(name: str) -> int:
    return sum((i + 1) * ord(letter) for i, letter in enumerate(name))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "there is no folder"),
        (lambda path: path.mkdir(), "there are no images in"),
        (lambda path: write_files(path.parent, [("x", b"text")]), "is a file: give the folder"),
    ],
)
def test_a_path_without_images_is_refused_in_one_sentence(tmp_path: Path, cache: Path, make, message) -> None:  # type: ignore[no-untyped-def]
    make(tmp_path / "x")
    with pytest.raises(UserError, match=message):
        load(tmp_path / "x", cache)


def test_sizes_below_8_are_refused(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(UserError, match="must be at least 8 pixels, got 7"):
        load(photo_folder(tmp_path / "x"), cache, 7)


# Damage


def damaged_files(root: Path, count: int) -> set[str]:
    """Files that are no images, in all the ways they can be; their names."""
    rng = np.random.default_rng(0)
    whole = {kind: picture(5, (64, 64), kind) for kind in ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")}
    suffixes = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp", "BMP": "bmp", "TIFF": "tif", "GIF": "gif"}
    alphabets = ("кошка", "猫", "γάτα", "חתול", "قط", "बिल्ली", "naïve", "a b'c\"d", "emoji🐈", "%s{}", "-rf")
    names: set[str] = set()
    for i in range(count):
        folder = ("cat", "dog", "unlabelled", "unlabelled/deep")[i % 4]
        kind = list(whole)[i % 6]
        name = f"{folder}/{alphabets[i % len(alphabets)]} {i}.{suffixes[kind]}"
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        match i % 10:
            case 0:
                path.write_bytes(b"")
            case 1:
                path.write_bytes(rng.bytes(int(rng.integers(1, 3000))))
            case 2 | 3:
                data = whole[kind]
                path.write_bytes(data[: int(rng.integers(1, len(data) * 9 // 10))])
            case 4:
                path.write_bytes(b"This is a letter, not a picture. " * 20)
            case 5:
                path.symlink_to("nowhere at all")
            case 6:
                path.mkdir()
            case 7:
                path.write_bytes(giant(60_000 + i))
            case 8:
                path.write_bytes(picture(i, (16, 16)))
                path.chmod(0)
            case 9:
                os.mkfifo(path)
        names.add(name)
    return names


def giant(side: int) -> bytes:
    """A BMP of a hundred bytes that says it has billions of pixels."""
    header = b"BM" + (10**9).to_bytes(4, "little") + bytes(4) + (54).to_bytes(4, "little")
    info = (40).to_bytes(4, "little") + side.to_bytes(4, "little") + side.to_bytes(4, "little")
    return header + info + (1).to_bytes(2, "little") + (24).to_bytes(2, "little") + bytes(24 + 46)


def test_300_damaged_files_are_all_named_and_nothing_else_is_lost(tmp_path: Path, cache: Path) -> None:
    good = 200
    root = photo_folder(tmp_path / "photos", per_class=40, unlabelled=good - 80, test=0)
    bad = damaged_files(root, 300)
    for folder in (tmp_path, *tmp_path.parents[:3], *root.rglob("*")):
        if folder.is_dir() and not folder.is_symlink():
            folder.chmod(0o777)
    if os.geteuid() == 0:
        os.seteuid(65534)  # root may read everything; somebody else may not
    try:
        dataset, _ = load(root, cache)
        again, done = load(root, cache)
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
    assert dataset.paths is not None
    assert len(dataset.paths) == good
    assert not bad & set(dataset.paths)
    problems = {problem.path: problem.reason for problem in dataset.problems}
    assert problems.keys() == bad
    assert {reason for reason in problems.values() if not reason.startswith("damaged: ")} == {
        "empty file",
        "not an image that can be read",
        "broken link",
        "a folder, not an image",
        "more than 89 million pixels",
        "no permission to read it",
        "not a regular file",
    }
    for index, name in enumerate(dataset.paths):
        assert dataset.images[index].flatten().tolist() == pixels((root / name).read_bytes())
    assert "decoding images" not in done
    assert again.digest == dataset.digest
    assert [problem.path for problem in again.problems] == [problem.path for problem in dataset.problems]


def test_a_class_with_only_damaged_images_is_named(tmp_path: Path, cache: Path) -> None:
    root = photo_folder(tmp_path / "photos")
    write_files(root, [("bird/1.png", b"no")])
    (root / "fish").mkdir()
    dataset, _ = load(root, cache)
    assert list(dataset.class_names) == ["cat", "dog"]
    assert list(dataset.lost_classes) == ["bird", "fish"]


# The cache


def write(text: str, folder: Path) -> None:
    (folder / "result").write_text(text)


def read(folder: Path) -> str:
    return (folder / "result").read_text()


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        remember(tmp_path, "key", build, read)
    assert list(tmp_path.iterdir()) == []
    assert remember(tmp_path, "key", partial(write, "whole"), read) == "whole"
    assert [file.name for file in tmp_path.rglob("*")] == ["key", "result"]


def test_what_was_built_is_not_built_again(tmp_path: Path) -> None:
    assert remember(tmp_path, "key", partial(write, "first"), read) == "first"
    assert remember(tmp_path, "key", partial(write, "second"), read) == "first"


def test_two_builds_at_once_end_in_one_result(tmp_path: Path) -> None:
    def other_wins(folder: Path) -> None:
        write("mine", folder)
        assert remember(tmp_path, "key", partial(write, "theirs"), read) == "theirs"

    assert remember(tmp_path, "key", other_wins, read) == "mine"
    assert [path.name for path in tmp_path.rglob("*")] == ["key", "result"]
    assert read(tmp_path / "key") == "theirs"


@pytest.mark.parametrize("name", ["images.npy", "about.json"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut"])
def test_a_damaged_cache_is_built_again(tmp_path: Path, cache: Path, name: str, damage: str) -> None:
    root = photo_folder(tmp_path / "photos")
    before, _ = load(root, cache)
    expected = before.digest
    del before
    (file,) = (cache / "decoded").rglob(name)
    data = file.read_bytes()
    file.unlink()
    if damage != "missing":
        file.write_bytes(b"" if damage == "empty" else data[: len(data) // 2])
    again, done = load(root, cache)
    assert again.digest == expected
    assert done["decoding images"] == 36


def test_a_data_set_in_use_survives_a_change_of_the_folder(tmp_path: Path, cache: Path) -> None:
    root = photo_folder(tmp_path / "photos")
    in_use, _ = load(root, cache)
    expected = in_use.images.clone()
    write_files(root, [("cat/new.png", picture(99))])
    load(root, cache)
    assert torch.equal(in_use.images, expected)


def test_damaged_fingerprints_are_made_again(tmp_path: Path) -> None:
    write_files(tmp_path / "x", [("a", b"1"), ("b", b"2")])
    fingerprints = Fingerprints(tmp_path / "cache", tmp_path / "x")
    expected = fingerprints.digests(["a", "b"])
    (file,) = (tmp_path / "cache" / "fingerprints").iterdir()
    for damage in ("", "{", "[]", json.dumps({"a": [1, 2, 3, 4, "wrong"], "b": "text"})):
        file.write_text(damage)
        assert fingerprints.digests(["a", "b"]) == expected


@pytest.mark.parametrize("pointer", ["", "../../precious", "x" * 64])
def test_a_damaged_pointer_deletes_nothing(tmp_path: Path, cache: Path, pointer: str) -> None:
    root = photo_folder(tmp_path / "photos")
    precious = write_files(tmp_path / "precious", [("file", b"x")])
    other, _ = load(photo_folder(tmp_path / "other", per_class=3), cache)
    load(root, cache)
    for file in (cache / "fingerprints").glob("*.last"):
        file.write_text(pointer)
    write_files(root, [("cat/new.png", picture(99))])
    load(root, cache)
    assert precious.is_dir()
    again, done = load(tmp_path / "other", cache)
    assert "decoding images" not in done
    assert again.digest == other.digest


def test_a_file_that_vanishes_takes_its_copies_along_and_is_not_remembered(
    tmp_path: Path, cache: Path
) -> None:
    """Pixels and names stay together even if one of two equal files fails."""
    root = photo_folder(tmp_path / "photos")
    write_files(root, [("cat/copy.png", (root / "dog/2.png").read_bytes())])
    victim, kept = root / "cat/copy.png", tmp_path / "kept.png"

    def hide(what: str, done: int, total: int) -> None:
        if what == "looking at images":
            victim.rename(kept)

    request = SourceRequest(Locations(data=root, cache=cache), path=root, progress=hide)
    dataset = load_folder(request)
    assert dataset.paths is not None
    assert sorted(problem.path for problem in dataset.problems) == ["cat/copy.png", "dog/2.png"]
    for index, name in enumerate(dataset.paths):
        assert dataset.images[index].flatten().tolist() == pixels((root / name).read_bytes()), name
    kept.rename(victim)
    again, _ = load(root, cache)
    assert not again.problems
    assert len(again.images) == 37


def test_a_full_disk_is_an_error_with_a_message(tmp_path: Path) -> None:
    """A file system of 400 kB in a name space of its own; writing to a mapped page would kill the process."""
    try:
        subprocess.run(["unshare", "-m", "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the right to mount")
    root = photo_folder(tmp_path / "photos", per_class=200, unlabelled=1100)
    small = tmp_path / "small"
    small.mkdir()
    script = tmp_path / "script.py"
    script.write_text(LOADER)
    commands = f"mount -t tmpfs -o size=400k none {small} && {sys.executable} {script} {root} {small}"
    result = subprocess.run(
        ["unshare", "-m", "sh", "-c", commands], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1, result.stderr
    assert "No space left on device" in result.stderr


LOADER = """
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from manigraph.data.locations import Locations
from manigraph.data.sources.base import SourceRequest
from manigraph.data.sources.folder import load_folder
root, cache = Path(sys.argv[1]), Path(sys.argv[2])
def progress(what, done, total):
    print(what, done, total, flush=True)
dataset = load_folder(SourceRequest(Locations(root, cache), path=root, progress=progress))
print("images", len(dataset.images), flush=True)
"""


def test_a_loader_killed_while_it_decodes_leaves_no_half_result(tmp_path: Path, cache: Path) -> None:
    """Also shows that a script without a main guard may load a folder with worker processes."""
    root = write_files(
        tmp_path / "x", [(f"{'ab'[i % 2]}/{i}.png", picture(i, (40, 40))) for i in range(1200)]
    )
    script = tmp_path / "script.py"
    script.write_text(LOADER)
    command = [sys.executable, str(script), str(root), str(cache)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("decoding"):
                os.killpg(process.pid, signal.SIGKILL)
                break
        process.wait(timeout=60)
    assert not [path for path in (cache / "decoded").iterdir() if not path.name.startswith(".")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines().count("images 1200") == 1
    assert "decoding images 1200 1200" in result.stdout


MEASURE = """
import json, resource, sys, time
from pathlib import Path
import torch
from manigraph.data.locations import Locations
from manigraph.data.sources.base import SourceRequest
from manigraph.data.sources.folder import load_folder
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before, began = peak(), time.perf_counter()
request = SourceRequest(Locations(Path(sys.argv[1]), Path(sys.argv[2])), path=Path(sys.argv[1]))
dataset = load_folder(request)
print(json.dumps({
    "images": len(dataset.images),
    "bytes": dataset.images.numel(),
    "imported": before,
    "peak": peak(),
    "seconds": time.perf_counter() - began,
}))
"""


def test_the_memory_that_20000_files_take(
    tmp_path: Path, cache: Path, record_property: Callable[[str, object], None]
) -> None:
    root = tmp_path / "many"
    for c in range(10):
        (root / str(c)).mkdir(parents=True)
    rng = np.random.default_rng(0)
    for i in range(20_000):
        colour = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
        Image.fromarray(colour).save(root / str(i % 10) / f"{i}.bmp")
    command = [sys.executable, "-c", MEASURE, str(root), str(cache)]
    first = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    again = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    for name, figures in (("first", first), ("again", again)):
        record_property(name, figures)
        print(name, figures)
    assert first["images"] == again["images"] == 20_000
    # The pixels themselves (59 MiB) may be in memory, as pages of the file; a list of names and little else.
    assert first["peak"] - first["imported"] < 59 + 100
    assert again["peak"] - again["imported"] < 60
