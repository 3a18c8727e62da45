"""Decoded pixels in a file: written once, then mapped into memory, so that only what is used takes room."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

IMAGES_FILE = "images.npy"


def create_pixels(
    folder: Path, shape: tuple[int, ...], dtype: type[np.generic] = np.uint8
) -> "np.memmap[Any, np.dtype[Any]]":
    """A new file of (N, channels, height, width) zeros to be filled in place; `flush()` it at the end."""
    pixels = np.lib.format.open_memmap(folder / IMAGES_FILE, mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):
        # Claim the room now: on a full disk this is an error, a later write to a mapped page a crash.
        with (folder / IMAGES_FILE).open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, file.seek(0, os.SEEK_END)))
    return pixels


def map_pixels(folder: Path) -> Tensor:
    """The images of a folder that `create_pixels` made, mapped: changes to the tensor stay in memory."""
    array = np.load(folder / IMAGES_FILE, mmap_mode="c", allow_pickle=False)
    return torch.from_numpy(array)
