"""Pillow's own operations, one image at a time, and squares cut out pixel by pixel."""

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageEnhance, ImageOps

Pixels = npt.NDArray[np.uint8]
"""(channels, height, width), with 1 or 3 channels."""


def to_pillow(pixels: Pixels) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0).squeeze()))


def from_pillow(image: Image.Image) -> Pixels:
    pixels = np.asarray(image)
    return pixels[np.newaxis] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def operation(name: str, pixels: Pixels, amount: float, fill: int) -> Pixels:
    """What Pillow makes of an image."""
    image = to_pillow(pixels)
    return from_pillow(changed(name, image, amount, (fill,) * len(image.getbands())))


def changed(name: str, image: Image.Image, amount: float, fill: tuple[int, ...]) -> Image.Image:
    width, height = image.size
    colour: Any = fill if len(fill) > 1 else fill[0]

    def affine(*numbers: float) -> Image.Image:
        return image.transform(image.size, Image.Transform.AFFINE, numbers, fillcolor=colour)

    match name:
        case "identity":
            return image
        case "autocontrast":
            return ImageOps.autocontrast(image)
        case "brightness":
            return ImageEnhance.Brightness(image).enhance(amount)
        case "contrast":
            return ImageEnhance.Contrast(image).enhance(amount)
        case "equalise":
            return ImageOps.equalize(image)
        case "posterise":
            return ImageOps.posterize(image, int(amount))
        case "solarise":
            return ImageOps.solarize(image, amount)  # type: ignore[arg-type]  # takes fractions as well
        case "colour":
            return ImageEnhance.Color(image).enhance(amount)
        case "sharpness":
            return ImageEnhance.Sharpness(image).enhance(amount)
        case "rotate":
            return image.rotate(amount, fillcolor=colour)
        case "shear_x":
            return affine(1, amount, 0, 0, 1, 0)
        case "shear_y":
            return affine(1, 0, 0, amount, 1, 0)
        case "translate_x":
            return affine(1, 0, amount * width, 0, 1, 0)
        case "translate_y":
            return affine(1, 0, 0, 0, 1, amount * height)
    raise ValueError(name)


def cut_out(pixels: Pixels, row: int, column: int, side: int, fill: int) -> Pixels:
    """A square whose centre is at (row, column); an even side reaches one pixel further up and left."""
    answer = pixels.copy()
    _, height, width = pixels.shape
    for r in range(row - side // 2, row - side // 2 + side):
        for c in range(column - side // 2, column - side // 2 + side):
            if 0 <= r < height and 0 <= c < width:
                answer[:, r, c] = fill
    return answer


LIST: dict[str, tuple[float, float]] = {
    "identity": (0, 0),
    "autocontrast": (0, 0),
    "brightness": (0.05, 0.95),
    "contrast": (0.05, 0.95),
    "equalise": (0, 0),
    "posterise": (4, 9),  # 4, 5, 6, 7 or 8 bits
    "solarise": (0, 256),
    "colour": (0.05, 0.95),
    "sharpness": (0.05, 0.95),
    "rotate": (-30, 30),
    "shear_x": (-0.3, 0.3),
    "shear_y": (-0.3, 0.3),
    "translate_x": (-0.3, 0.3),
    "translate_y": (-0.3, 0.3),
}
"""FixMatch's operations with the lowest and the highest amount."""


def names(draws: list[float], num_operations: int) -> list[str]:
    """The operations an image draws."""
    return [list(LIST)[int(draw * len(LIST))] for draw in draws[:num_operations]]


def strong_view(
    pixels: Pixels, draws: list[float], *, num_operations: int, largest_square: float, fill: int
) -> Pixels:
    """Operations one after the other, then the square.

    Draws are from 0 to 1: which operations, how much of each, then the square's side, row and column.
    """
    for name, draw in zip(names(draws, num_operations), draws[num_operations:-3], strict=True):
        low, high = LIST[name]
        pixels = operation(name, pixels, low + (high - low) * draw, fill)
    _, height, width = pixels.shape
    side = int(draws[-3] * (int(largest_square * min(height, width)) + 1))
    return cut_out(pixels, int(draws[-2] * height), int(draws[-1] * width), side, fill)
