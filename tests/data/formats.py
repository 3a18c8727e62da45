"""Writers of the benchmarks' file formats, written from their specifications and used by tests only."""

import gzip
import io
import json
import struct
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

Bytes = npt.NDArray[np.uint8]


def encoded(image: Bytes, kind: str = "PNG") -> bytes:
    """A (channels, height, width) image as PNG or as lossless WebP."""
    pixels = image.transpose(1, 2, 0)
    buffer = io.BytesIO()
    picture = Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels)
    picture.save(buffer, kind, **({"lossless": True} if kind == "WEBP" else {}))
    return buffer.getvalue()


def write_parquet(
    path: Path,
    images: Sequence[bytes | None],
    labels: Sequence[int | None],
    names: Sequence[str] | None,
    *,
    image: str = "img",
    label: str = "label",
    others: Mapping[str, Sequence[Any]] | None = None,
) -> None:
    """A file in the hub's schema; without names it has no metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    structs = pa.array(
        [{"bytes": data, "path": None} for data in images],
        pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
    )
    columns = {image: structs, label: pa.array(labels, pa.int64()), **(others or {})}
    table = pa.table(columns)
    if names is not None:
        features = {image: {"_type": "Image"}, label: {"names": list(names), "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=2)


def cifar_records(images: Bytes, classes: Sequence[int], *, coarse: Sequence[int] | None = None) -> bytes:
    """CIFAR's binary version: [coarse class] class, then the red, green and blue plane row by row."""
    data = bytearray()
    for i, image in enumerate(images):
        if coarse is not None:
            data.append(coarse[i])
        data.append(classes[i])
        for plane in image:
            for row in plane:
                data += bytes(row)
    return bytes(data)


def write_tar_gz(path: Path, members: Mapping[str, bytes | tarfile.TarInfo], *, level: int = 6) -> None:
    """An archive of files with these contents; a TarInfo is written as it is, without contents."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz", compresslevel=level) as tar:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(content)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def link_member(name: str, target: str, *, hard: bool) -> tarfile.TarInfo:
    """A link inside an archive."""
    info = tarfile.TarInfo(name)
    info.type = tarfile.LNKTYPE if hard else tarfile.SYMTYPE
    info.linkname = target
    return info


# MAT-file level 5: data types and array classes by their numbers in MathWorks' specification.
MI_INT8, MI_UINT8, MI_INT32, MI_UINT32, MI_MATRIX, MI_COMPRESSED = 1, 2, 5, 6, 14, 15
MX_UINT8_CLASS = 9


def write_mat(path: Path, arrays: Mapping[str, Bytes], *, compressed: bool) -> None:
    """Arrays of bytes in a MAT-file of level 5, little-endian."""
    header = (
        b"MATLAB 5.0 MAT-file, written by a test".ljust(116) + bytes(8) + struct.pack("<H2s", 0x0100, b"IM")
    )
    elements = [mat_array(name, array) for name, array in arrays.items()]
    if compressed:
        packed = [zlib.compress(element) for element in elements]
        elements = [struct.pack("<II", MI_COMPRESSED, len(data)) + data for data in packed]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header + b"".join(elements))


def mat_array(name: str, array: Bytes) -> bytes:
    """miMATRIX: flags, dimensions, name and values, the first axis innermost."""
    parts = (
        mat_element(MI_UINT32, struct.pack("<II", MX_UINT8_CLASS, 0))
        + mat_element(MI_INT32, struct.pack(f"<{array.ndim}i", *array.shape))
        + mat_element(MI_INT8, name.encode())
        + mat_element(MI_UINT8, array.tobytes(order="F"))
    )
    return struct.pack("<II", MI_MATRIX, len(parts)) + parts


def mat_element(kind: int, data: bytes) -> bytes:
    """Tag and data, filled up to a multiple of 8 bytes; up to 4 bytes go into the tag itself."""
    if 0 < len(data) <= 4:
        return struct.pack("<HH", kind, len(data)) + data.ljust(4, b"\0")
    return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)


def idx_bytes(array: Bytes) -> bytes:
    """IDX: 0, 0, 8 for unsigned bytes, number of axes, big-endian axes, values."""
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def write_maybe_gzipped(path: Path, data: bytes) -> None:
    """Gzipped if the name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
