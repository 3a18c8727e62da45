"""Images in parquet files of the public hub's schema.

A column `img` or `image` of structs {bytes, path} holds the encoded images, `label` or `fine_label` the
classes; the names of the classes are in the schema's metadata. A part is one file (`train.parquet`) or
numbered shards (`train-00000-of-00002.parquet`).
"""

import io
import json
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from manigraph.data.sources.files import BATCH_IMAGES, Batch, Part, checked_count, damaged
from manigraph.errors import UserError

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("fine_label", "label")
IMAGE_FORMATS = ("PNG", "WEBP", "JPEG")
METADATA_KEY = b"huggingface"

_SHARD = re.compile(r"-(\d+)-of-(\d+)(?:-[0-9a-f]+)?\.parquet")
# Pillow's decoders raise all of these for damaged bytes.
_DECODING_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)


class MissingColumnsError(UserError):
    """A parquet file without images or classes, perhaps of another configuration of the data set."""


@dataclass(frozen=True)
class ParquetShards:
    """The files of one part in their order."""

    files: tuple[Path, ...]
    channels: int
    size: int

    def class_names(self) -> list[str] | None:
        first, *others = [(path, _class_names(path)) for path in self.files]
        for path, names in others:
            if names != first[1]:
                raise damaged(path, f"its class names are not those of {first[0].name}")
        return first[1]

    def count(self) -> int:
        return sum(_count(path) for path in self.files)

    def batches(self) -> Iterator[Batch]:
        for path in self.files:
            yield from self._batches_of(path)

    def _batches_of(self, path: Path) -> Iterator[Batch]:
        with _opened(path) as file:
            image_column, label_column = _columns(path, file.schema_arrow)
            done = 0
            # Only the encoded bytes of one batch are in memory at a time.
            for table in file.iter_batches(BATCH_IMAGES, columns=[f"{image_column}.bytes", label_column]):
                encoded = table.column(image_column).field("bytes").to_pylist()
                images = np.empty((len(encoded), self.channels, self.size, self.size), np.uint8)
                for row, data in enumerate(encoded):
                    images[row] = self._decoded(data, f"image {done + row} of {path}")
                yield Batch(images, _classes(path, table.column(label_column)), str(path))
                done += len(encoded)

    def _decoded(self, data: bytes | None, origin: str) -> npt.NDArray[np.uint8]:
        """(channels, size, size) pixels of one encoded image."""
        if data is None:
            raise damaged(origin, "its bytes are not in the file")
        try:
            with Image.open(io.BytesIO(data), formats=IMAGE_FORMATS) as image:
                size = image.size
                if size == (self.size, self.size):
                    pixels = np.asarray(image.convert("RGB" if self.channels == 3 else "L"))
        except _DECODING_ERRORS as error:
            raise damaged(origin, f"it cannot be decoded: {error}") from error
        if size != (self.size, self.size):
            raise damaged(origin, f"it has {size[0]}×{size[1]} pixels instead of {self.size}×{self.size}")
        return pixels.reshape(self.size, self.size, self.channels).transpose(2, 0, 1)


def find_parquet(folder: Path, *, channels: int, size: int) -> tuple[Part, Part] | None:
    """The training and test part in a folder, None if it has no parquet files of either name.

    Raises:
        MissingColumnsError: the files have no images or no classes.
        UserError: a part or a shard is missing, or a file is damaged.
    """
    train, test = (_shards(folder, part) for part in ("train", "test"))
    if not train and not test:
        return None
    if not train or not test:
        there, missing = ("train", "test") if train else ("test", "train")
        raise UserError(
            f"{folder} has parquet files for '{there}' but none for '{missing}': add {missing}.parquet"
        )
    for path in train + test:
        with _opened(path) as file:
            _columns(path, file.schema_arrow)
    return ParquetShards(train, channels, size), ParquetShards(test, channels, size)


def _shards(folder: Path, part: str) -> tuple[Path, ...]:
    """`part.parquet`, else its numbered shards in order, all of which must be there."""
    single = folder / f"{part}.parquet"
    if single.is_file():
        return (single,)
    shards: dict[int, Path] = {}
    totals = set()
    for path in sorted(folder.glob(f"{part}-*.parquet")):
        if match := _SHARD.fullmatch(path.name.removeprefix(part)):
            shards[int(match[1])] = path
            totals.add(int(match[2]))
    if len(totals) > 1:
        raise UserError(f"{folder} mixes the '{part}' shards of different versions: keep those of one")
    for total in totals:
        missing = sorted(set(range(total)) - set(shards))
        if missing:
            raise UserError(
                f"{folder} lacks {part}-{missing[0]:05d}-of-{total:05d}.parquet: get all {total} shards"
            )
    return tuple(shards[number] for number in sorted(shards))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The parquet file; what goes wrong while it is open is reported with its name."""
    import pyarrow as pa  # 0.1 s, only when there are such files
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        raise damaged(path, str(error).strip().rstrip(".")) from error


def _columns(path: Path, schema: Any) -> tuple[str, str]:
    """Names of the image column and the label column."""
    import pyarrow as pa

    image = next((name for name in IMAGE_COLUMNS if name in schema.names), None)
    label = next((name for name in LABEL_COLUMNS if name in schema.names), None)
    if image is None or label is None:
        raise MissingColumnsError(
            f"{path} needs a column 'img' or 'image' and a column 'label' or 'fine_label', "
            f"but has {', '.join(schema.names)}"
        )
    kind = schema.field(image).type
    if not pa.types.is_struct(kind) or kind.get_field_index("bytes") < 0:
        raise damaged(path, f"column '{image}' has no encoded images but {kind}")
    if not pa.types.is_integer(schema.field(label).type):
        raise damaged(path, f"column '{label}' has no numbers of classes but {schema.field(label).type}")
    return image, label


def _class_names(path: Path) -> list[str] | None:
    with _opened(path) as file:
        _, label = _columns(path, file.schema_arrow)
        metadata = (file.schema_arrow.metadata or {}).get(METADATA_KEY)
    if metadata is None:
        return None
    try:
        names = json.loads(metadata)["info"]["features"][label].get("names")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(path, f"its metadata does not describe column '{label}'") from error
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise damaged(path, f"its metadata gives no list of names for column '{label}'")
    return names


def _count(path: Path) -> int:
    with _opened(path) as file:
        return checked_count(path, file.metadata.num_rows)


def _classes(path: Path, column: Any) -> npt.NDArray[np.int64]:
    if column.null_count:
        raise damaged(path, "an image has no class")
    classes: npt.NDArray[np.int64] = column.to_numpy(zero_copy_only=False).astype(np.int64)
    return classes
