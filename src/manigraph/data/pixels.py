"""Decoded pixels in a file: written once, then mapped into memory, so that only what is used takes room."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

IMAGES_FILE = "images.npy"


def create_pixels(folder: Path, shape: tuple[int, ...]) -> "np.memmap[Any, np.dtype[np.uint8]]":
    """A new file of (N, channels, height, width) zeros to be filled in place; `flush()` it at the end."""
    return np.lib.format.open_memmap(folder / IMAGES_FILE, mode="w+", dtype=np.uint8, shape=shape)


def map_pixels(folder: Path) -> Tensor:
    """The images of a folder that `create_pixels` made, mapped: changes to the tensor stay in memory."""
    array = np.load(folder / IMAGES_FILE, mmap_mode="c", allow_pickle=False)
    return torch.from_numpy(array)
