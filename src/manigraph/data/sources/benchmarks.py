"""CIFAR-10, CIFAR-100, SVHN and Fashion-MNIST, from parquet files or from their original ones.

The files are decoded once; later loads map the decoded pixels from the cache.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from manigraph.data.cache import Fingerprints, Progress, combined_digest, remember, require_digests
from manigraph.data.locations import DATA_VARIABLE
from manigraph.data.pixels import create_pixels, map_pixels
from manigraph.data.sources.base import Dataset, SourceRequest
from manigraph.data.sources.cifar_binary import CIFAR10_LAYOUT, CIFAR100_LAYOUT, find_cifar
from manigraph.data.sources.files import Batch, Part, damaged
from manigraph.data.sources.idx import find_idx
from manigraph.data.sources.parquet import MissingColumnsError, find_parquet
from manigraph.data.sources.svhn_mat import find_svhn
from manigraph.errors import UserError

CACHE_VERSION = 1
"""To be raised when the same files would be decoded to something else."""
SMALLEST_SIZE = 8
"""To which images can be reduced."""
REDUCED_AT_ONCE = 4096
CLASSES_FILE = "classes.npy"
ABOUT_FILE = "about.json"

Format = Callable[[Path], tuple[Part, Part] | None]
"""Finds the training and the test part of a data set in a folder, None if they are not there."""


@dataclass(frozen=True)
class Benchmark:
    """What is known of a data set before its files are read."""

    name: str
    channels: int
    size: int
    num_classes: int
    full_size: tuple[int, int]
    """Training and test images of the whole data set."""
    formats: tuple[Format, ...]
    """Tried in this order."""
    subfolders: tuple[str, ...]
    """Where the files may be inside the data set's folder: the hub's configuration, the unpacked archive."""
    class_names: tuple[str, ...] | None = None
    """For files that have no names."""
    system_folders: tuple[Path, ...] = ()
    """Where packages of an operating system put the files."""
    pickled: tuple[str, ...] = ()
    """Files that hold the data set but are not read."""


CIFAR10 = Benchmark(
    name="cifar10",
    channels=3,
    size=32,
    num_classes=10,
    full_size=(50_000, 10_000),
    formats=(partial(find_parquet, channels=3, size=32), partial(find_cifar, layout=CIFAR10_LAYOUT)),
    subfolders=("plain_text", CIFAR10_LAYOUT.folder),
    class_names=(
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    ),
    pickled=("cifar-10-python.tar.gz", "cifar-10-batches-py"),
)
CIFAR100 = Benchmark(
    name="cifar100",
    channels=3,
    size=32,
    num_classes=100,
    full_size=(50_000, 10_000),
    formats=(partial(find_parquet, channels=3, size=32), partial(find_cifar, layout=CIFAR100_LAYOUT)),
    subfolders=("cifar100", CIFAR100_LAYOUT.folder),
    pickled=("cifar-100-python.tar.gz", "cifar-100-python"),
)
SVHN = Benchmark(
    name="svhn",
    channels=3,
    size=32,
    num_classes=10,
    full_size=(73_257, 26_032),
    formats=(partial(find_parquet, channels=3, size=32), find_svhn),
    subfolders=("cropped_digits",),
    class_names=tuple(str(digit) for digit in range(10)),
)
FASHION_MNIST = Benchmark(
    name="fashion_mnist",
    channels=1,
    size=28,
    num_classes=10,
    full_size=(60_000, 10_000),
    formats=(partial(find_parquet, channels=1, size=28), partial(find_idx, size=28)),
    subfolders=("fashion_mnist",),
    # Spelled as in the hub's files, so that both formats give the same data set.
    class_names=(
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
    ),
    system_folders=(Path("/usr/share/datasets/fashion-mnist"),),  # Debian's package dataset-fashion-mnist
)
BENCHMARKS = (CIFAR10, CIFAR100, SVHN, FASHION_MNIST)


def load_cifar10(request: SourceRequest) -> Dataset:
    """CIFAR-10: 32×32 colour photographs of ten kinds of animals and vehicles."""
    return _load(CIFAR10, request)


def load_cifar100(request: SourceRequest) -> Dataset:
    """CIFAR-100 with its hundred fine classes: 32×32 colour photographs."""
    return _load(CIFAR100, request)


def load_svhn(request: SourceRequest) -> Dataset:
    """SVHN, cropped: 32×32 colour photographs of digits of house numbers, without the extra ones."""
    return _load(SVHN, request)


def load_fashion_mnist(request: SourceRequest) -> Dataset:
    """Fashion-MNIST: 28×28 grey pictures of ten kinds of clothes."""
    return _load(FASHION_MNIST, request)


def _load(benchmark: Benchmark, request: SourceRequest) -> Dataset:
    size = request.image_size or benchmark.size
    if size < SMALLEST_SIZE or benchmark.size % size:
        sizes = [size for size in range(SMALLEST_SIZE, benchmark.size) if benchmark.size % size == 0]
        raise UserError(
            f"the images of {benchmark.name} have {benchmark.size}×{benchmark.size} pixels, of which whole "
            f"squares can be averaged: data.image_size may be {' or '.join(map(str, sizes))}, not {size}"
        )
    train, test = _find(benchmark, request.locations.data)
    digests = _digests(train, test, request.locations.cache)
    cache, read = request.locations.cache / "decoded", partial(_read, benchmark)
    key = combined_digest(benchmark.name, CACHE_VERSION, digests)
    dataset = remember(cache, key, partial(_decode, benchmark, train, test, request.progress), read)
    if size == benchmark.size:
        return dataset
    key = combined_digest(benchmark.name, CACHE_VERSION, digests, size)
    reduced = remember(cache, key, partial(_reduce, dataset, size, request.progress), read)
    return replace(reduced, remarks=[*reduced.remarks, _reduced_remark(benchmark, size)])


def _reduce(dataset: Dataset, size: int, progress: Progress, folder: Path) -> None:
    """Write the data set again, with the mean of a square of pixels in the place of each."""
    count, channels, side, _ = dataset.images.shape
    images = create_pixels(folder, (count, channels, size, size))
    for start in range(0, count, REDUCED_AT_ONCE):
        rows = slice(start, start + REDUCED_AT_ONCE)
        means = torch.nn.functional.avg_pool2d(dataset.images[rows].float(), side // size)
        images[rows] = means.round().to(torch.uint8).numpy()
        progress(f"reducing {dataset.name} to {size}×{size}", min(rows.stop, count), count)
    images.flush()
    _write_classes(folder, dataset.classes.numpy(), list(dataset.class_names), len(dataset.train))


def _reduced_remark(benchmark: Benchmark, size: int) -> str:
    return (
        f"images of {benchmark.name} are reduced from {benchmark.size} to {size} pixels, so errors are not "
        f"comparable with published ones"
    )


def _read(benchmark: Benchmark, folder: Path) -> Dataset:
    """What `_decode` or `_reduce` wrote."""
    about = json.loads((folder / ABOUT_FILE).read_text(encoding="utf-8"))
    classes = np.load(folder / CLASSES_FILE, allow_pickle=False)
    return Dataset(
        name=benchmark.name,
        images=map_pixels(folder),
        classes=torch.from_numpy(classes),
        class_names=about["class_names"],
        train=torch.arange(about["num_train"]),
        test=torch.arange(about["num_train"], len(classes)),
        remarks=_remarks(benchmark, about["num_train"], len(classes) - about["num_train"]),
    )


def _remarks(benchmark: Benchmark, num_train: int, num_test: int) -> list[str]:
    """Whether this is the whole data set."""
    if (num_train, num_test) == benchmark.full_size:
        return []
    whole_train, whole_test = benchmark.full_size
    return [
        f"these are {num_train:,} of the {whole_train:,} training and {num_test:,} of the {whole_test:,} "
        f"test images of {benchmark.name}, so errors are not comparable with published ones"
    ]


def _find(benchmark: Benchmark, data: Path) -> tuple[Part, Part]:
    """The files in the first place that has them."""
    places = list(_places(benchmark, data))
    other_columns: UserError | None = None
    for place in places:
        for find in benchmark.formats:
            try:
                found = find(place)
            except MissingColumnsError as error:  # the hub keeps other configurations next to the right one
                other_columns = other_columns or error
                continue
            if found:
                return found
    raise other_columns or _nothing_found(benchmark, data, places)


def _places(benchmark: Benchmark, data: Path) -> Iterator[Path]:
    """Folders to look in, each of which is looked at without its subfolders."""
    own = data / benchmark.name
    yield own
    yield from (own / name for name in benchmark.subfolders)
    if own.is_dir():
        yield from sorted(
            path for path in own.iterdir() if path.is_dir() and path.name not in benchmark.subfolders
        )
    # Other subfolders of `data` belong to other data sets.
    yield data
    yield from (data / name for name in benchmark.subfolders)
    yield from benchmark.system_folders


def _nothing_found(benchmark: Benchmark, data: Path, places: list[Path]) -> UserError:
    name = benchmark.name
    for path in (place / pickled for place in places for pickled in benchmark.pickled):
        if path.exists():
            return UserError(
                f"{path} is not read because unpickling a file can run any program in it: "
                f"get the files without pickles with `manigraph data get {name}`"
            )
    return UserError(
        f"no files of {name} in {data / name} or {data}: get them with `manigraph data get {name}`, "
        f"or say where they are with --data_dir or the variable {DATA_VARIABLE}"
    )


def _digests(train: Part, test: Part, cache: Path) -> list[list[str]]:
    """Name and digest of each file; asked for at once, since a folder's fingerprints replace each other."""
    folder = train.files[0].parent
    names = list(dict.fromkeys(path.name for path in (*train.files, *test.files)))
    try:
        digests = require_digests(Fingerprints(cache, folder).digests(names))
    except OSError as error:
        raise UserError(f"the files in {folder} cannot be read: {error}") from error
    return [[name, digest] for name, digest in zip(names, digests, strict=True)]


def _decode(benchmark: Benchmark, train: Part, test: Part, progress: Progress, folder: Path) -> None:
    """Write the pixels, the classes and the names into a folder of the cache."""
    class_names = _class_names(benchmark, train, test)
    num_train = train.count()
    total = num_train + test.count()
    images = create_pixels(folder, (total, benchmark.channels, benchmark.size, benchmark.size))
    classes = np.empty(total, np.int64)
    done = 0
    for part, end in ((train, num_train), (test, total)):
        for batch in part.batches():
            _check_classes(batch, len(class_names))
            rows = slice(done, done + len(batch.classes))
            images[rows] = batch.images
            classes[rows] = batch.classes
            done = rows.stop
            progress(f"decoding {benchmark.name}", done, total)
        if done != end:
            raise damaged(part.files[0], f"{done:,} images were read where {end:,} were announced")
    assert isinstance(images, np.memmap)
    images.flush()
    _write_classes(folder, classes, class_names, num_train)


def _write_classes(
    folder: Path, classes: npt.NDArray[np.int64], class_names: list[str], num_train: int
) -> None:
    np.save(folder / CLASSES_FILE, classes, allow_pickle=False)
    about = {"class_names": class_names, "num_train": num_train}
    (folder / ABOUT_FILE).write_text(json.dumps(about), encoding="utf-8")


def _class_names(benchmark: Benchmark, train: Part, test: Part) -> list[str]:
    """The names in the files, which must be the same in both parts, else those of the description."""
    path = train.files[-1]
    names = train.class_names()
    if names != test.class_names():
        raise damaged(test.files[-1], f"its class names are not those of {path.name}")
    if names is None and benchmark.class_names:
        return list(benchmark.class_names)
    if names is None:
        raise damaged(path, "it does not say how the classes are called")
    if len(names) != benchmark.num_classes:
        raise damaged(
            path, f"it names {len(names)} classes, but {benchmark.name} has {benchmark.num_classes}"
        )
    for other in BENCHMARKS:
        if other.name != benchmark.name and other.class_names == tuple(names):
            raise UserError(f"{path} holds {other.name}, not {benchmark.name}: choose another folder")
    return names


def _check_classes(batch: Batch, num_classes: int) -> None:
    wrong = batch.classes[(batch.classes < 0) | (batch.classes >= num_classes)]
    if len(wrong):
        raise damaged(batch.origin, f"class {wrong[0]} where 0 to {num_classes - 1} are expected")
