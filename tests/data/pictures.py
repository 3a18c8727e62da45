"""Folders of pictures for tests."""

import io
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image


def picture(seed: int, size: tuple[int, int] = (10, 12), kind: str = "PNG") -> bytes:
    """A file with a picture that no other seed has."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def pixels(data: bytes) -> list[int]:
    """What `picture` shows, as channels, rows, columns in one list."""
    values: list[int] = np.asarray(Image.open(io.BytesIO(data))).transpose(2, 0, 1).flatten().tolist()
    return values


def write_files(root: Path, files: Iterable[tuple[str, bytes]]) -> Path:
    """Files with their folders."""
    for name, data in files:
        path = root / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def photo_folder(root: Path, *, per_class: int = 6, unlabelled: int = 20, test: int = 4) -> Path:
    """Two classes, unlabelled and test images, all different."""
    names = [f"{c}/{i}.png" for c in ("cat", "dog") for i in range(per_class)]
    names += [f"unlabelled/{i}.png" for i in range(unlabelled)]
    names += [f"test/{c}/{i}.png" for c in ("cat", "dog") for i in range(test // 2)]
    return write_files(root, ((name, picture(seed)) for seed, name in enumerate(names)))
