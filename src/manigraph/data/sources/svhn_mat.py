"""SVHN's cropped digits in MATLAB files: X (32, 32, 3, N) bytes, y (N, 1) with 10 for the digit 0."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from manigraph.data.sources.files import BATCH_IMAGES, Batch, Part, checked_count, damaged
from manigraph.errors import UserError

TRAIN_FILE = "train_32x32.mat"
TEST_FILE = "test_32x32.mat"
IMAGE_SHAPE = (32, 32, 3)
ZERO = 10


@dataclass(frozen=True)
class SvhnFile:
    """One part."""

    path: Path

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.path,)

    def class_names(self) -> None:
        return None

    def count(self) -> int:
        """N, from the headers of the arrays, which must fit each other."""
        from scipy.io import whosmat  # 0.2 s, only when there are such files

        with _reported(self.path):
            arrays = {name: (tuple(shape), kind) for name, shape, kind in whosmat(self.path)}
        images_shape, images_kind = arrays.get("X", ((), "missing"))
        labels_shape, _ = arrays.get("y", ((), "missing"))
        num = images_shape[-1] if len(images_shape) == 4 else 0
        if (*images_shape, images_kind) != (*IMAGE_SHAPE, num, "uint8"):
            raise damaged(self.path, f"X is {images_kind} {images_shape} instead of uint8 (32, 32, 3, N)")
        if labels_shape != (num, 1):
            raise damaged(self.path, f"y is {labels_shape} instead of ({num}, 1)")
        return checked_count(self.path, num)

    def batches(self) -> Iterator[Batch]:
        from scipy.io import loadmat

        num = self.count()
        with _reported(self.path):
            arrays = loadmat(self.path, variable_names=["X", "y"])
            labels = arrays["y"].reshape(num).astype(np.int64)
            if labels.min() < 1 or labels.max() > ZERO:
                raise damaged(self.path, "y has values other than 1 to 10")
            for start in range(0, num, BATCH_IMAGES):
                part = slice(start, start + BATCH_IMAGES)
                images = arrays["X"][..., part].transpose(3, 2, 0, 1)  # (n, channels, rows, columns)
                yield Batch(images, labels[part] % ZERO, str(self.path))


def find_svhn(folder: Path) -> tuple[Part, Part] | None:
    """The training and test part in a folder, None if it has neither file."""
    paths = [folder / TRAIN_FILE, folder / TEST_FILE]
    missing = [path.name for path in paths if not path.is_file()]
    if len(missing) == 2:
        return None
    if missing:
        raise UserError(f"{folder} lacks {missing[0]}: put it next to the other file")
    return SvhnFile(paths[0]), SvhnFile(paths[1])


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    """What goes wrong while the file is read is reported with its name.

    scipy promises no particular error for a damaged file: TypeError, zlib.error and its own MatReadError
    are among those that come.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise damaged(path, str(error) or type(error).__name__) from error
