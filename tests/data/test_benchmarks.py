"""The benchmarks from files of every format they come in, whole and damaged."""

import gzip
import os
import struct
import tarfile
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from manigraph.data import cache
from manigraph.data.locations import DATA_VARIABLE, Locations
from manigraph.data.sources import benchmarks, cifar_binary, idx, parquet, svhn_mat
from manigraph.data.sources.base import Dataset, Source, SourceRequest
from manigraph.data.sources.benchmarks import load_cifar10, load_cifar100, load_fashion_mnist, load_svhn
from manigraph.errors import UserError
from tests.data.formats import (
    Bytes,
    cifar_records,
    encoded,
    idx_bytes,
    link_member,
    write_mat,
    write_maybe_gzipped,
    write_parquet,
    write_tar_gz,
)

CIFAR10_NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
CIFAR100_NAMES = [f"fine_{number}" for number in range(100)]
DIGIT_NAMES = list("0123456789")
FASHION_NAMES = [
    "T - shirt / top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
]


@dataclass(frozen=True)
class Example:
    """Random images with classes, among them the first and the last."""

    train: Bytes
    train_classes: list[int]
    test: Bytes
    test_classes: list[int]


def example(channels: int = 3, size: int = 32, num_classes: int = 10) -> Example:
    generator = np.random.default_rng(channels * num_classes)
    images = generator.integers(0, 256, (18, channels, size, size), dtype=np.uint8)
    classes = [0, num_classes - 1, *generator.integers(0, num_classes, 16).tolist()]
    return Example(images[:11], classes[:11], images[11:], classes[11:])


COLOUR = example()
COLOUR100 = example(num_classes=100)
GREY = example(1, 28)


def request_for(tmp_path: Path, data: str = "data") -> SourceRequest:
    return SourceRequest(locations=Locations(data=tmp_path / data, cache=tmp_path / "cache"))


def write_hub(
    folder: Path,
    data: Example,
    names: list[str] | None,
    *,
    kind: str = "PNG",
    train: str = "train.parquet",
    test: str = "test.parquet",
    image: str = "img",
    label: str = "label",
) -> None:
    for file, images, classes in (
        (train, data.train, data.train_classes),
        (test, data.test, data.test_classes),
    ):
        others = {"coarse_label": [7] * len(classes)} if label == "fine_label" else None
        pictures = [encoded(picture, kind) for picture in images]
        write_parquet(folder / file, pictures, classes, names, image=image, label=label, others=others)


def cifar10_files(data: Example) -> dict[str, bytes]:
    """Five training files of 3, 2, 2, 2 and 2 images, in an order that is not theirs, as in the original."""
    bounds = [0, 3, 5, 7, 9, 11]
    files = {"test_batch.bin": cifar_records(data.test, data.test_classes)}
    for number in (1, 3, 4, 5, 2):
        part = slice(bounds[number - 1], bounds[number])
        files[f"data_batch_{number}.bin"] = cifar_records(data.train[part], data.train_classes[part])
    return {**files, "batches.meta.txt": ("\n".join(CIFAR10_NAMES) + "\n\n").encode()}


def cifar100_files(data: Example) -> dict[str, bytes]:
    """The coarse classes count down, so that they are never taken for the fine ones unnoticed."""
    return {
        "train.bin": cifar_records(data.train, data.train_classes, coarse=range(19, 8, -1)),
        "test.bin": cifar_records(data.test, data.test_classes, coarse=range(19, 12, -1)),
        "coarse_label_names.txt": b"coarse\n" * 20,
        "fine_label_names.txt": ("\n".join(CIFAR100_NAMES) + "\n").encode(),
    }


def write_unpacked(folder: Path, files: dict[str, bytes], name: str) -> None:
    (folder / name).mkdir(parents=True)
    for file, content in files.items():
        (folder / name / file).write_bytes(content)


def write_archive(folder: Path, files: dict[str, bytes], name: str, archive: str) -> None:
    write_tar_gz(folder / archive, {f"{name}/{file}": content for file, content in files.items()})


def write_svhn(folder: Path, *, compressed: bool, data: Example = COLOUR) -> None:
    for part, images, classes in (
        ("train", data.train, data.train_classes),
        ("test", data.test, data.test_classes),
    ):
        digits = np.array([[digit or 10] for digit in classes], np.uint8)
        arrays = {"X": images.transpose(2, 3, 1, 0), "y": digits}
        write_mat(folder / f"{part}_32x32.mat", arrays, compressed=compressed)


def write_fashion(folder: Path, *, suffix: str, data: Example = GREY) -> None:
    for part, images, classes in (
        ("train", data.train, data.train_classes),
        ("t10k", data.test, data.test_classes),
    ):
        write_maybe_gzipped(folder / f"{part}-images-idx3-ubyte{suffix}", idx_bytes(images[:, 0]))
        labels = np.array(classes, np.uint8)
        write_maybe_gzipped(folder / f"{part}-labels-idx1-ubyte{suffix}", idx_bytes(labels))


Write = Callable[[Path], object]
SHARDS = {"train": "train-00000-of-00001.parquet", "test": "test-00000-of-00001.parquet"}
BIN10, BIN100 = "cifar-10-batches-bin", "cifar-100-binary"
TAR10, TAR100 = "cifar-10-binary.tar.gz", "cifar-100-binary.tar.gz"


def hub(data: Example, names: list[str] | None, subfolder: str = "", **options: str) -> Write:
    return lambda folder: write_hub(folder / subfolder, data, names, **options)


FORMATS: dict[str, tuple[str, Source, Example, list[str], Write]] = {
    "cifar10 parquet png": ("cifar10", load_cifar10, COLOUR, CIFAR10_NAMES, hub(COLOUR, CIFAR10_NAMES)),
    "cifar10 parquet webp": (
        *("cifar10", load_cifar10, COLOUR, CIFAR10_NAMES),
        hub(COLOUR, CIFAR10_NAMES, kind="WEBP"),
    ),
    "cifar10 parquet hub": (
        *("cifar10", load_cifar10, COLOUR, CIFAR10_NAMES),
        hub(COLOUR, CIFAR10_NAMES, "plain_text", **SHARDS),
    ),
    "cifar10 parquet without names": ("cifar10", load_cifar10, COLOUR, CIFAR10_NAMES, hub(COLOUR, None)),
    "cifar10 folder": (
        *("cifar10", load_cifar10, COLOUR, CIFAR10_NAMES),
        partial(write_unpacked, files=cifar10_files(COLOUR), name=BIN10),
    ),
    "cifar10 archive": (
        *("cifar10", load_cifar10, COLOUR, CIFAR10_NAMES),
        partial(write_archive, files=cifar10_files(COLOUR), name=BIN10, archive=TAR10),
    ),
    "cifar100 parquet hub": (
        *("cifar100", load_cifar100, COLOUR100, CIFAR100_NAMES),
        hub(COLOUR100, CIFAR100_NAMES, "cifar100", label="fine_label", **SHARDS),
    ),
    "cifar100 folder": (
        *("cifar100", load_cifar100, COLOUR100, CIFAR100_NAMES),
        partial(write_unpacked, files=cifar100_files(COLOUR100), name=BIN100),
    ),
    "cifar100 archive": (
        *("cifar100", load_cifar100, COLOUR100, CIFAR100_NAMES),
        partial(write_archive, files=cifar100_files(COLOUR100), name=BIN100, archive=TAR100),
    ),
    "svhn parquet hub": (
        *("svhn", load_svhn, COLOUR, DIGIT_NAMES),
        hub(COLOUR, DIGIT_NAMES, "cropped_digits", image="image", **SHARDS),
    ),
    "svhn mat": ("svhn", load_svhn, COLOUR, DIGIT_NAMES, partial(write_svhn, compressed=False)),
    "svhn mat compressed": ("svhn", load_svhn, COLOUR, DIGIT_NAMES, partial(write_svhn, compressed=True)),
    "fashion_mnist parquet png": (
        *("fashion_mnist", load_fashion_mnist, GREY, FASHION_NAMES),
        hub(GREY, FASHION_NAMES, image="image"),
    ),
    "fashion_mnist parquet webp": (
        *("fashion_mnist", load_fashion_mnist, GREY, FASHION_NAMES),
        hub(GREY, FASHION_NAMES, "fashion_mnist", image="image", kind="WEBP", **SHARDS),
    ),
    "fashion_mnist idx": (
        *("fashion_mnist", load_fashion_mnist, GREY, FASHION_NAMES),
        partial(write_fashion, suffix=""),
    ),
    "fashion_mnist idx gzipped": (
        *("fashion_mnist", load_fashion_mnist, GREY, FASHION_NAMES),
        partial(write_fashion, suffix=".gz"),
    ),
}


def assert_holds(dataset: Dataset, data: Example, names: list[str]) -> None:
    images = np.concatenate([data.train, data.test])
    assert dataset.images.dtype == torch.uint8
    assert dataset.classes.dtype == torch.int64
    assert np.array_equal(dataset.images.numpy(), images)
    assert dataset.classes.tolist() == data.train_classes + data.test_classes
    assert list(dataset.class_names) == names
    assert dataset.train.tolist() == list(range(len(data.train)))
    assert dataset.test.tolist() == list(range(len(data.train), len(images)))


@pytest.mark.parametrize("inside", ["its own folder", "the data folder"])
@pytest.mark.parametrize("variant", FORMATS)
def test_images_classes_and_names_come_back_exactly(tmp_path: Path, variant: str, inside: str) -> None:
    name, load, data, names, write = FORMATS[variant]
    write(tmp_path / "data" / name if inside == "its own folder" else tmp_path / "data")
    dataset = load(request_for(tmp_path))
    assert dataset.name == name
    assert_holds(dataset, data, names)


@pytest.mark.parametrize("variant", FORMATS)
def test_files_are_decoded_once(tmp_path: Path, variant: str) -> None:
    name, load, data, names, write = FORMATS[variant]
    write(tmp_path / "data" / name)
    calls: list[tuple[str, int, int]] = []
    request = replace(request_for(tmp_path), progress=lambda *call: calls.append(call))
    load(request)
    assert calls[-1] == (f"decoding {name}", 18, 18)
    calls.clear()
    again = load(request)
    assert calls == []
    assert_holds(again, data, names)


@pytest.mark.parametrize("variant", FORMATS)
def test_batches_follow_each_other_without_gaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    name, load, data, names, write = FORMATS[variant]
    for module in (cifar_binary, idx, parquet, svhn_mat):
        monkeypatch.setattr(module, "BATCH_IMAGES", 4)
    write(tmp_path / "data" / name)
    done: list[int] = []
    dataset = load(replace(request_for(tmp_path), progress=lambda what, now, total: done.append(now)))
    assert_holds(dataset, data, names)
    assert len(done) >= 5  # 11 and 7 images make 3 and 2 batches
    assert done == sorted(done)


@pytest.mark.parametrize("variant", FORMATS)
def test_unchanged_files_are_not_even_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    name, load, data, names, write = FORMATS[variant]
    write(tmp_path / "data" / name)
    load(request_for(tmp_path))
    monkeypatch.setattr(cache, "file_digest", lambda path: pytest.fail(f"{path} was read again"))
    assert_holds(load(request_for(tmp_path)), data, names)


def test_a_changed_file_is_noticed(tmp_path: Path) -> None:
    write_unpacked(tmp_path / "data", cifar10_files(COLOUR), BIN10)
    before = load_cifar10(request_for(tmp_path))
    path = tmp_path / "data" / BIN10 / "data_batch_1.bin"
    records = bytearray(path.read_bytes())
    records[1] ^= 0xFF  # the first red value
    path.write_bytes(records)
    after = load_cifar10(request_for(tmp_path))
    assert int(after.images[0, 0, 0, 0]) == 255 - int(before.images[0, 0, 0, 0])
    assert torch.equal(after.images[1:], before.images[1:])


def test_changed_class_names_are_noticed(tmp_path: Path) -> None:
    write_unpacked(tmp_path / "data", cifar10_files(COLOUR), BIN10)
    load_cifar10(request_for(tmp_path))
    path = tmp_path / "data" / BIN10 / "batches.meta.txt"
    path.write_text(path.read_text().replace("airplane", "plane"))
    assert load_cifar10(request_for(tmp_path)).class_names[0] == "plane"


def test_both_formats_of_a_data_set_are_the_same_data_set(tmp_path: Path) -> None:
    write_fashion(tmp_path / "idx", suffix=".gz")
    write_hub(tmp_path / "hub", GREY, FASHION_NAMES, image="image")
    first, second = (load_fashion_mnist(request_for(tmp_path, data)) for data in ("idx", "hub"))
    assert first.digest == second.digest


def write_shards(folder: Path, numbers: list[int], total: int, names: list[str] = CIFAR10_NAMES) -> None:
    """Training shards of one image each, written in the given order, and a test file."""
    for number in numbers:
        path = folder / f"train-{number:05d}-of-{total:05d}.parquet"
        write_parquet(path, [encoded(COLOUR.train[number])], [COLOUR.train_classes[number]], names)
    test = [encoded(image) for image in COLOUR.test]
    write_parquet(folder / SHARDS["test"], test, COLOUR.test_classes, CIFAR10_NAMES)


def test_shards_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    write_shards(tmp_path / "data" / "cifar10" / "plain_text", [9, 3, 10, 0, 1, 8, 2, 7, 4, 6, 5], 11)
    assert_holds(load_cifar10(request_for(tmp_path)), COLOUR, CIFAR10_NAMES)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path / "data", [0, 2], 3)
    with pytest.raises(UserError, match=r"data lacks train-00001-of-00003\.parquet: get all 3 shards"):
        load_cifar10(request_for(tmp_path))


def test_shards_of_two_versions_are_not_mixed(tmp_path: Path) -> None:
    write_shards(tmp_path / "data", [0], 1)
    write_shards(tmp_path / "data", [1], 2)
    with pytest.raises(UserError, match="mixes the 'train' shards of different versions"):
        load_cifar10(request_for(tmp_path))


def test_other_configurations_and_extra_images_are_left_alone(tmp_path: Path) -> None:
    """`a_first` comes first in the alphabet, and svhn's own configuration is not there under its name."""
    svhn = tmp_path / "data" / "svhn"
    for name in ("train.parquet", "test.parquet"):
        write_parquet(svhn / "a_first" / name, [b""], [1], None, image="image", label="digits")
    write_hub(svhn / "cropped", COLOUR, DIGIT_NAMES, image="image", **SHARDS)
    write_parquet(svhn / "cropped" / "extra-00000-of-00001.parquet", [b"no image"], [3], DIGIT_NAMES)
    assert_holds(load_svhn(request_for(tmp_path)), COLOUR, DIGIT_NAMES)


def test_folders_of_other_data_sets_are_not_searched(tmp_path: Path) -> None:
    write_hub(tmp_path / "data" / "other", COLOUR, CIFAR10_NAMES)
    with pytest.raises(UserError, match="no files of cifar10"):
        load_cifar10(request_for(tmp_path))


def test_fashion_mnist_is_found_where_debian_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert benchmarks.FASHION_MNIST.system_folders == (Path("/usr/share/datasets/fashion-mnist"),)
    write_fashion(tmp_path / "system", suffix=".gz")
    moved = replace(benchmarks.FASHION_MNIST, system_folders=(tmp_path / "system",))
    monkeypatch.setattr(benchmarks, "FASHION_MNIST", moved)
    assert_holds(load_fashion_mnist(request_for(tmp_path)), GREY, FASHION_NAMES)


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "svhn", "fashion_mnist"])
def test_the_message_for_missing_files_says_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(benchmarks, "FASHION_MNIST", replace(benchmarks.FASHION_MNIST, system_folders=()))
    with pytest.raises(UserError) as caught:
        getattr(benchmarks, f"load_{name}")(request_for(tmp_path))
    folder = tmp_path / "data"
    for part in (str(folder / name), "--data_dir", "MANIGRAPH_DATA", f"`manigraph data get {name}`"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("load", "file", "name"),
    [
        (load_cifar10, "cifar-10-python.tar.gz", "cifar10"),
        (load_cifar10, "cifar-10-batches-py/data_batch_1", "cifar10"),
        (load_cifar100, "cifar-100-python.tar.gz", "cifar100"),
        (load_cifar100, "cifar-100-python/train", "cifar100"),
    ],
)
def test_pickles_are_refused_in_one_sentence(tmp_path: Path, load: Source, file: str, name: str) -> None:
    path = tmp_path / "data" / name / file
    path.parent.mkdir(parents=True)
    path.write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(
        UserError, match=f"{name}/cifar-.* is not read because .* `manigraph data get {name}`"
    ):
        load(request_for(tmp_path))


@pytest.mark.parametrize("load", [load_cifar10, load_cifar100, load_svhn, load_fashion_mnist])
@pytest.mark.parametrize("size", [64, 20, 4])
def test_image_sizes_that_are_no_whole_fraction_are_refused(tmp_path: Path, load: Source, size: int) -> None:
    with pytest.raises(UserError, match=f"data.image_size may be (8 or 16|14), not {size}"):
        load(replace(request_for(tmp_path), image_size=size))


def test_reduced_images_are_the_means_of_squares_and_are_kept_beside_the_whole_ones(tmp_path: Path) -> None:
    write_hub(tmp_path / "data/cifar10", COLOUR, CIFAR10_NAMES)
    request = request_for(tmp_path)
    whole, reduced = load_cifar10(request), load_cifar10(replace(request, image_size=16))
    square = whole.images[3, 1, 10:12, 20:22].double()
    assert reduced.images.shape == (18, 3, 16, 16)
    assert abs(float(reduced.images[3, 1, 5, 10]) - float(square.mean())) <= 0.5
    assert float(reduced.images.double().mean() - whole.images.double().mean()) == pytest.approx(0, abs=0.1)
    assert torch.equal(reduced.classes, whole.classes)
    assert torch.equal(reduced.test, whole.test)
    assert [remark for remark in reduced.remarks if "reduced from 32 to 16 pixels" in remark]
    assert whole.digest != reduced.digest
    assert torch.equal(load_cifar10(request).images, whole.images)
    again = load_cifar10(
        replace(request, image_size=16, progress=lambda *_: pytest.fail("computed once more"))
    )
    assert torch.equal(again.images, reduced.images)


# --- Damage: every message names the file ---


def cut(file: str, num: int) -> Write:
    """Take the last `num` bytes of a file away."""
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes()[:-num])


def lengthened(file: str) -> Write:
    """Append a byte to a file."""
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes() + b"\1")


def patched(file: str, offset: int, data: bytes) -> Write:
    """Write over some bytes of a file."""

    def patch(folder: Path) -> None:
        content = bytearray((folder / file).read_bytes())
        content[offset : offset + len(data)] = data
        (folder / file).write_bytes(content)

    return patch


def replaced(file: str, content: bytes) -> Write:
    return lambda folder: (folder / file).write_bytes(content)


def removed(file: str) -> Write:
    return lambda folder: (folder / file).unlink()


def parquet_of(
    images: Sequence[bytes | None], labels: Sequence[int | None], names: list[str] | None
) -> Write:
    """Put another training file in place of the right one."""
    return lambda folder: write_parquet(folder / "train.parquet", images, labels, names)


def archive_with_a_wrong_pixel(folder: Path) -> None:
    """Stored, not compressed: only the checksum at the end tells that a pixel is not what it was."""
    members = {f"{BIN10}/{name}": content for name, content in cifar10_files(COLOUR).items()}
    write_tar_gz(folder / TAR10, members, level=0)
    patched(TAR10, 3000, b"\0\0\0\0")(folder)


def idx_with_a_huge_length(folder: Path) -> None:
    for kind in ("images-idx3", "labels-idx1"):
        patched(f"train-{kind}-ubyte", 4, struct.pack(">I", 2**32 - 1))(folder)


PICTURE = encoded(COLOUR.train[0])
SMALL = encoded(COLOUR.train[0, :, :16, :16])
FIRST_LABEL = 8  # of an IDX file of labels: 4 bytes magic, 4 bytes length

DAMAGE: dict[str, tuple[str, Write, str]] = {
    "parquet truncated": ("cifar10 parquet png", cut("train.parquet", 40), r"train\.parquet is damaged"),
    "parquet empty": ("cifar10 parquet png", replaced("test.parquet", b""), r"test\.parquet is damaged"),
    "parquet image not decodable": (
        "cifar10 parquet png",
        parquet_of([PICTURE, b"not an image"], [0, 1], CIFAR10_NAMES),
        r"image 1 of .*train\.parquet is damaged .*cannot be decoded",
    ),
    "parquet image truncated": (
        "cifar10 parquet png",
        parquet_of([PICTURE[:-200]], [0], CIFAR10_NAMES),
        r"image 0 of .*train\.parquet is damaged .*cannot be decoded",
    ),
    "parquet image missing": (
        "cifar10 parquet png",
        parquet_of([None], [0], CIFAR10_NAMES),
        r"image 0 of .*train\.parquet is damaged .*bytes are not in the file",
    ),
    "parquet image of another size": (
        "cifar10 parquet png",
        parquet_of([PICTURE, PICTURE, SMALL], [0, 1, 2], CIFAR10_NAMES),
        r"image 2 of .*train\.parquet is damaged .*16×16 pixels instead of 32×32",
    ),
    "parquet class too high": (
        "cifar10 parquet png",
        parquet_of([PICTURE], [10], CIFAR10_NAMES),
        r"train\.parquet is damaged .*class 10 where 0 to 9",
    ),
    "parquet class negative": (
        "cifar10 parquet png",
        parquet_of([PICTURE], [-1], CIFAR10_NAMES),
        r"train\.parquet is damaged .*class -1 where 0 to 9",
    ),
    "parquet class missing": (
        "cifar10 parquet png",
        parquet_of([PICTURE], [None], CIFAR10_NAMES),
        r"train\.parquet is damaged .*an image has no class",
    ),
    "parquet without images": (
        "cifar10 parquet png",
        parquet_of([], [], CIFAR10_NAMES),
        r"train\.parquet is damaged .*claims to hold 0 images",
    ),
    "parquet with other names in one part": (
        "cifar10 parquet png",
        parquet_of([PICTURE], [0], CIFAR10_NAMES[::-1]),
        r"test\.parquet is damaged .*names are not those of train\.parquet",
    ),
    "parquet without the other part": (
        "cifar10 parquet png",
        removed("test.parquet"),
        "cifar10 has parquet files for 'train' but none for 'test'",
    ),
    "parquet of other columns": (
        "cifar10 parquet png",
        lambda folder: write_parquet(folder / "train.parquet", [PICTURE], [0], None, image="pixels"),
        r"train\.parquet needs a column 'img' or 'image'.*but has pixels, label",
    ),
    "records cut": (
        "cifar10 folder",
        cut(f"{BIN10}/data_batch_4.bin", 1),
        r"data_batch_4\.bin is damaged .*6,145 bytes are no whole number of records of 3,073",
    ),
    "records empty": (
        "cifar10 folder",
        replaced(f"{BIN10}/data_batch_2.bin", b""),
        r"data_batch_2\.bin is damaged .*0 images",
    ),
    "records with a class too high": (
        "cifar10 folder",
        patched(f"{BIN10}/test_batch.bin", 3073, b"\x0a"),
        r"test_batch\.bin is damaged .*class 10 where 0 to 9",
    ),
    "records missing": (
        "cifar10 folder",
        removed(f"{BIN10}/data_batch_3.bin"),
        r"cifar-10-batches-bin lacks data_batch_3\.bin",
    ),
    "record names missing": (
        "cifar10 folder",
        removed(f"{BIN10}/batches.meta.txt"),
        r"cifar-10-batches-bin lacks batches\.meta\.txt",
    ),
    "record names too few": (
        "cifar100 folder",
        replaced(f"{BIN100}/fine_label_names.txt", b"apple\n"),
        r"fine_label_names\.txt is damaged .*names 1 classes, but cifar100 has 100",
    ),
    "record names too long": (
        "cifar100 folder",
        replaced(f"{BIN100}/fine_label_names.txt", b"apple\n" * 2**14),
        r"fine_label_names\.txt is damaged .*98,304 bytes are too many",
    ),
    "record names no text": (
        "cifar100 folder",
        replaced(f"{BIN100}/fine_label_names.txt", b"\xff\xfe"),
        r"fine_label_names\.txt is damaged",
    ),
    "archive truncated": ("cifar10 archive", cut(TAR10, 5000), r"cifar-10-binary\.tar\.gz is damaged"),
    "archive with a wrong checksum": (
        "cifar10 archive",
        archive_with_a_wrong_pixel,
        r"cifar-10-binary\.tar\.gz is damaged .*CRC",
    ),
    "archive of something else": (
        "cifar10 archive",
        replaced(TAR10, gzip.compress(b"hello" * 1000)),
        r"cifar-10-binary\.tar\.gz is damaged",
    ),
    "mat truncated": ("svhn mat compressed", cut("train_32x32.mat", 3000), r"train_32x32\.mat is damaged"),
    "mat empty": ("svhn mat", replaced("train_32x32.mat", b""), r"train_32x32\.mat is damaged"),
    "mat of another shape": (
        "svhn mat",
        lambda folder: write_mat(
            folder / "test_32x32.mat",
            {"X": np.zeros((3, 32, 32, 2), np.uint8), "y": np.ones((2, 1), np.uint8)},
            compressed=True,
        ),
        r"test_32x32\.mat is damaged .*X is uint8 \(3, 32, 32, 2\)",
    ),
    "mat without y": (
        "svhn mat",
        lambda folder: write_mat(
            folder / "test_32x32.mat", {"X": np.zeros((32, 32, 3, 2), np.uint8)}, compressed=False
        ),
        r"test_32x32\.mat is damaged .*y is \(\) instead of \(2, 1\)",
    ),
    "mat with a class too high": (
        "svhn mat",
        lambda folder: write_mat(
            folder / "train_32x32.mat",
            {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[10], [11]], np.uint8)},
            compressed=False,
        ),
        r"train_32x32\.mat is damaged .*values other than 1 to 10",
    ),
    "mat with a class too low": (
        "svhn mat",
        lambda folder: write_mat(
            folder / "train_32x32.mat",
            {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[0], [1]], np.uint8)},
            compressed=False,
        ),
        r"train_32x32\.mat is damaged .*values other than 1 to 10",
    ),
    "mat missing": ("svhn mat", removed("test_32x32.mat"), r"svhn lacks test_32x32\.mat"),
    "idx magic": (
        "fashion_mnist idx",
        patched("train-images-idx3-ubyte", 2, b"\x0d"),
        r"train-images-idx3-ubyte is damaged .*begins with 00000d03 instead of 00000803",
    ),
    "idx truncated": (
        "fashion_mnist idx",
        cut("t10k-images-idx3-ubyte", 1),
        r"t10k-images-idx3-ubyte is damaged .*ends too early",
    ),
    "idx too long": (
        "fashion_mnist idx",
        lengthened("t10k-labels-idx1-ubyte"),
        r"t10k-labels-idx1-ubyte is damaged .*goes on after the last value",
    ),
    "idx gzip truncated": (
        "fashion_mnist idx gzipped",
        cut("train-images-idx3-ubyte.gz", 100),
        r"train-images-idx3-ubyte\.gz is damaged",
    ),
    "idx gzip with a wrong checksum": (
        "fashion_mnist idx gzipped",
        patched("train-images-idx3-ubyte.gz", -8, b"\0\0\0\0"),
        r"train-images-idx3-ubyte\.gz is damaged .*CRC",
    ),
    "idx of another size": (
        "fashion_mnist idx",
        replaced("train-images-idx3-ubyte", idx_bytes(np.zeros((11, 32, 32), np.uint8))),
        r"train-images-idx3-ubyte is damaged .*32×32 instead of 28×28",
    ),
    "idx with fewer classes": (
        "fashion_mnist idx",
        replaced("train-labels-idx1-ubyte", idx_bytes(np.zeros(10, np.uint8))),
        r"train-labels-idx1-ubyte is damaged .*10 classes for 11 images",
    ),
    "idx with a class too high": (
        "fashion_mnist idx",
        patched("train-labels-idx1-ubyte", FIRST_LABEL, b"\x0a"),
        r"train-labels-idx1-ubyte is damaged .*class 10 where 0 to 9",
    ),
    "idx that claims too much": (
        "fashion_mnist idx",
        idx_with_a_huge_length,
        r"train-images-idx3-ubyte is damaged .*claims to hold 4,294,967,295 images",
    ),
    "idx missing": (
        "fashion_mnist idx gzipped",
        removed("t10k-labels-idx1-ubyte.gz"),
        r"fashion_mnist lacks t10k-labels-idx1-ubyte\.gz",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_named_and_leave_nothing_in_the_cache(tmp_path: Path, damage: str) -> None:
    variant, spoil, message = DAMAGE[damage]
    name, load, _, _, write = FORMATS[variant]
    write(tmp_path / "data" / name)
    spoil(tmp_path / "data" / name)
    with pytest.raises(UserError, match=message) as caught:
        load(request_for(tmp_path))
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "data" / name) in str(caught.value)
    assert list(tmp_path.glob("cache/decoded/*")) == []
    assert list(tmp_path.glob("cache/decoded/.*")) == []


def test_the_number_of_a_damaged_image_counts_from_the_beginning_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "BATCH_IMAGES", 2)
    write_hub(tmp_path / "data", COLOUR, CIFAR10_NAMES)
    parquet_of([PICTURE] * 5 + [SMALL], [0] * 6, CIFAR10_NAMES)(tmp_path / "data")
    with pytest.raises(UserError, match=r"image 5 of .*train\.parquet"):
        load_cifar10(request_for(tmp_path))


def test_a_data_set_is_not_taken_for_another(tmp_path: Path) -> None:
    write_hub(tmp_path / "data", COLOUR, CIFAR10_NAMES)
    with pytest.raises(UserError, match=r"train\.parquet holds cifar10, not svhn"):
        load_svhn(request_for(tmp_path))


def test_a_hundred_classes_without_names_are_refused(tmp_path: Path) -> None:
    write_hub(tmp_path / "data", COLOUR100, None, label="fine_label")
    with pytest.raises(UserError, match=r"train\.parquet .*does not say how the classes are called"):
        load_cifar100(request_for(tmp_path))


def test_a_file_that_unpacks_to_much_more_than_it_says_is_not_unpacked(tmp_path: Path) -> None:
    write_fashion(tmp_path / "data", suffix=".gz")
    path = tmp_path / "data" / "train-images-idx3-ubyte.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(idx_bytes(GREY.train[:, 0]))
        for _ in range(64):
            file.write(bytes(2**20))
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match="goes on after the last value"):
            load_fashion_mnist(request_for(tmp_path))
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    finally:
        tracemalloc.stop()


# --- Archives that mean harm ---


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if "cache" not in path.parts}


@pytest.mark.parametrize("hard", [False, True])
def test_links_in_an_archive_are_not_followed(tmp_path: Path, hard: bool) -> None:
    records = cifar10_files(COLOUR)["test_batch.bin"]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "outside.bin").write_bytes(records)
    members = {f"{BIN10}/{name}": content for name, content in cifar10_files(COLOUR).items()}
    target = f"{BIN10}/data_batch_1.bin" if hard else "../outside.bin"
    link = link_member(f"{BIN10}/test_batch.bin", target, hard=hard)
    write_tar_gz(tmp_path / "data" / TAR10, {**members, f"{BIN10}/test_batch.bin": link})
    with pytest.raises(UserError, match=rf"{TAR10} .*{BIN10}/test_batch\.bin is not a regular file"):
        load_cifar10(request_for(tmp_path))


def test_names_that_lead_out_of_the_archive_are_neither_used_nor_written(tmp_path: Path) -> None:
    members = {f"{BIN10}/{name}": content for name, content in cifar10_files(COLOUR).items()}
    spoilt = cifar_records(COLOUR.test[::-1], COLOUR.test_classes)
    evil = {f"{BIN10}/../{BIN10}/test_batch.bin": spoilt, "../evil.bin": b"evil", "/evil.bin": b"evil"}
    write_tar_gz(tmp_path / "data" / TAR10, {**members, **evil})
    before = files_below(tmp_path)
    assert_holds(load_cifar10(request_for(tmp_path)), COLOUR, CIFAR10_NAMES)
    assert files_below(tmp_path) == before

    del members[f"{BIN10}/test_batch.bin"]
    write_tar_gz(tmp_path / "data" / TAR10, {**members, **evil})
    with pytest.raises(UserError, match=rf"{TAR10} .*has no member {BIN10}/test_batch\.bin"):
        load_cifar10(request_for(tmp_path))


def test_an_archive_that_claims_to_be_huge_is_not_read(tmp_path: Path) -> None:
    huge = tarfile.TarInfo(f"{BIN10}/data_batch_1.bin")
    huge.size = 2**31
    path = tmp_path / "data" / TAR10
    path.parent.mkdir()
    path.write_bytes(gzip.compress(huge.tobuf() + bytes(1024)))
    with pytest.raises(UserError, match=rf"{TAR10} .*unpacks to more than 1,073,741,824 bytes"):
        load_cifar10(request_for(tmp_path))


# --- The real images ---

REAL: dict[str, tuple[Source, int, tuple[int, ...], list[str]]] = {
    "cifar10": (load_cifar10, 25_000, (3, 32, 32), CIFAR10_NAMES),
    "svhn": (load_svhn, 25_000, (3, 32, 32), DIGIT_NAMES),
    "fashion_mnist": (load_fashion_mnist, 20_000, (1, 28, 28), FASHION_NAMES),
}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> SourceRequest:
    if not os.environ.get(DATA_VARIABLE):
        pytest.skip(f"{DATA_VARIABLE} does not say where the real images are")
    data = Path(os.environ[DATA_VARIABLE])
    return SourceRequest(locations=Locations(data=data, cache=tmp_path_factory.mktemp("cache")))


@pytest.mark.parametrize("name", REAL)
def test_the_real_images_are_all_there(real: SourceRequest, name: str) -> None:
    load, num_train, shape, names = REAL[name]
    dataset = load(real)
    assert dataset.images.shape == (num_train + 10_000, *shape)
    assert (len(dataset.train), len(dataset.test)) == (num_train, 10_000)
    assert list(dataset.class_names) == names
    assert set(dataset.classes.tolist()) == set(range(10))
    assert (int(dataset.images.min()), int(dataset.images.max())) == (0, 255)


def test_real_cifar10_is_balanced(real: SourceRequest) -> None:
    dataset = load_cifar10(real)
    assert dataset.classes[dataset.train].bincount().tolist() == [2500] * 10
    assert dataset.classes[dataset.test].bincount().tolist() == [1000] * 10
