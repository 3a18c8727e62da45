"""Images of a run's data set as people look at them."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manigraph.build import load_images
from manigraph.data.cache import Progress, silent
from manigraph.data.locations import Locations
from manigraph.data.sources.base import Dataset
from manigraph.errors import UserError
from manigraph.inference.predictor import Predictor

Picture = npt.NDArray[np.uint8]
"""(height, width), or (height, width, 3)."""


def picture_of(image: Tensor, white: float = 255.0) -> Picture:
    """An image as it is stored, (channels, height, width), for people to look at: grey or RGB."""
    bright = (image.float() * (255 / white)).round().clamp(0, 255).to(torch.uint8)
    pixels: Picture = bright[0].numpy() if len(image) < 3 else bright[:3].permute(1, 2, 0).numpy()
    return pixels


def pixels_of(
    predictor: Predictor, dataset: Dataset, *, locations: Locations | None = None, progress: Progress = silent
) -> Dataset | None:
    """The data set with pixels, of which pictures can be made; None if it holds nothing but vectors.

    Args:
        predictor: The run.
        dataset: What it was trained on: pixels, or features of a pretrained network.
        locations: Where data sets and decoded pixels are; by default from the environment.
        progress: Called while data is read.
    """
    config, has_pixels = predictor.trained.config.data, dataset.images.ndim == 4
    if has_pixels and config.image_size is None:
        return dataset
    if not has_pixels and not config.features:
        return None
    learned_from = dataset if has_pixels else None
    try:  # people see more than a network that has little time
        pixels = load_images(replace(config, image_size=None), locations, progress)
    except UserError:
        return learned_from
    return pixels if torch.equal(pixels.classes, dataset.classes) else learned_from
