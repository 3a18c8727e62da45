"""A picture of a data set: one row of images for each class, to see whether it was read right."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from manigraph.data.sources.base import Dataset
from manigraph.errors import UserError

ROW_HEIGHT = 64
"""Pixels; small images are enlarged so that a person can see them."""

GAP = 3
BACKGROUND = (225, 228, 232)
"""Light grey, on which white images are seen too."""

NAME_WIDTH = 130


def save_montage(dataset: Dataset, path: Path, *, images_per_class: int = 10, max_classes: int = 100) -> None:
    """Write a PNG with the names of the classes and the first images of each."""
    if len(dataset.input_shape) != 3:
        raise UserError(f"{dataset.name} holds vectors, of which there is no picture")
    if path.suffix.lower() != ".png":
        raise UserError(f"a montage is a PNG file: call it '{path.with_suffix('.png').name}'")
    if not path.absolute().parent.is_dir():
        raise UserError(f"the folder of '{path}' does not exist")
    _, height, width = dataset.input_shape
    factor = max(1, ROW_HEIGHT // height)
    height, width = height * factor + GAP, width * factor + GAP
    classes = range(min(dataset.num_classes, max_classes))
    picture = Image.new("RGB", (NAME_WIDTH + images_per_class * width, len(classes) * height), BACKGROUND)
    factor_of_brightness = _factor(dataset)
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(14)
    for c in classes:
        draw.text((4, c * height + height // 2 - 8), dataset.class_names[c][:18], fill="black", font=font)
        chosen = (dataset.classes == c).nonzero().flatten()[:images_per_class]
        for column, index in enumerate(chosen.tolist()):
            visible = (dataset.images[index].int() * factor_of_brightness).clamp_max(255).to(torch.uint8)
            pixels = np.ascontiguousarray(visible.permute(1, 2, 0).squeeze(2).numpy())
            image = Image.fromarray(pixels).convert("RGB")
            enlarged = image.resize((width - GAP, height - GAP), Image.Resampling.NEAREST)
            picture.paste(enlarged, (NAME_WIDTH + column * width, c * height))
    picture.save(path, "PNG")


def _factor(dataset: Dataset) -> int:
    """Values that stay far below 255, as in digits, are spread out."""
    brightest = max(1, int(dataset.images[:1000].max())) if len(dataset.images) else 255
    return 255 // brightest if brightest < 128 else 1
