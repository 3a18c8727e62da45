"""Image files of the data set that the short runs were trained on."""

from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from manigraph.build import load_dataset
from manigraph.config import DataConfig
from manigraph.data.sources.base import Dataset


def digits() -> Dataset:
    return load_dataset(DataConfig("digits"))


def save_digits(folder: Path, indices: Tensor | range, *, ending: str = "png") -> list[Path]:
    """Digits as anybody would save them: white is 255."""
    folder.mkdir(parents=True, exist_ok=True)
    images, paths = digits().images, []
    for index in indices:
        pixels = (images[int(index), 0].double() * 255 / 16).round().numpy().astype(np.uint8)
        paths.append(folder / f"{int(index):04d}.{ending}")
        Image.fromarray(pixels).save(paths[-1])
    return paths
