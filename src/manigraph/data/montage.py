"""A picture of a data set: one row of images for each class, to see whether it was read right."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from manigraph.data.sources.base import Dataset
from manigraph.errors import UserError

ROW_HEIGHT = 64
"""Pixels; small images are enlarged so that a person can see them."""

GAP = 3
NAME_WIDTH = 130


def save_montage(dataset: Dataset, path: Path, *, images_per_class: int = 10, max_classes: int = 100) -> None:
    """Write a PNG with the names of the classes and the first images of each."""
    if len(dataset.input_shape) != 3:
        raise UserError(f"{dataset.name} holds vectors, of which there is no picture")
    if not path.absolute().parent.is_dir():
        raise UserError(f"the folder of '{path}' does not exist")
    _, height, width = dataset.input_shape
    factor = max(1, ROW_HEIGHT // height)
    height, width = height * factor + GAP, width * factor + GAP
    classes = range(min(dataset.num_classes, max_classes))
    picture = Image.new("RGB", (NAME_WIDTH + images_per_class * width, len(classes) * height), "white")
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(14)
    for c in classes:
        draw.text((4, c * height + height // 2 - 8), dataset.class_names[c][:18], fill="black", font=font)
        chosen = (dataset.classes == c).nonzero().flatten()[:images_per_class]
        for column, index in enumerate(chosen.tolist()):
            image = Image.fromarray(_visible(dataset, index)).convert("RGB")
            enlarged = image.resize((width - GAP, height - GAP), Image.Resampling.NEAREST)
            picture.paste(enlarged, (NAME_WIDTH + column * width, c * height))
    picture.save(path, "PNG")


def _visible(dataset: Dataset, index: int) -> npt.NDArray[np.uint8]:
    """(height, width[, channels]); values that stay far below 255, as in digits, are spread out."""
    pixels = dataset.images[index]
    brightest = max(1, int(dataset.images[:1000].max()))
    if brightest < 128:
        pixels = pixels * (255 // brightest)
    return np.ascontiguousarray(pixels.permute(1, 2, 0).squeeze(2).numpy())
