"""Many small images as one picture that a page can hold."""

import base64
import io
import math
from typing import Any

import numpy as np
import numpy.typing as npt

MOST_BYTES = 3 << 20
"""Of one picture; beyond, quality and then size are lowered."""


def sprite(thumbnails: npt.NDArray[np.uint8]) -> dict[str, Any]:
    """One WebP picture with all thumbnails row by row, as a data address, and how it is laid out.

    Args:
        thumbnails: (N, channels, height, width), one or three channels (others are shown by their first).
    """
    N, _, height, width = thumbnails.shape
    columns = max(1, math.ceil(math.sqrt(N)))
    grid = _grid(thumbnails, columns)
    for quality, factor in ((82, 1), (60, 1), (40, 1), (50, 2), (30, 3)):
        data = _webp(grid, quality, factor)
        if len(data) <= MOST_BYTES:
            break
    address = "data:image/webp;base64," + base64.b64encode(data).decode("ascii")
    return {"address": address, "columns": columns, "rows": math.ceil(N / columns), "tile": [width, height]}


def _grid(thumbnails: npt.NDArray[np.uint8], columns: int) -> npt.NDArray[np.uint8]:
    N, channels, height, width = thumbnails.shape
    pixels = thumbnails if channels == 3 else np.repeat(thumbnails[:, :1], 3, axis=1)
    rows = math.ceil(N / columns)
    padded = np.zeros((rows * columns, 3, height, width), dtype=np.uint8)
    padded[:N] = pixels
    tiles = padded.reshape(rows, columns, 3, height, width)
    return np.ascontiguousarray(tiles.transpose(0, 3, 1, 4, 2).reshape(rows * height, columns * width, 3))


def _webp(grid: npt.NDArray[np.uint8], quality: int, factor: int) -> bytes:
    from PIL import Image

    image = Image.fromarray(grid)
    if factor > 1:
        image = image.reduce(factor)
    largest = 16_383  # what WebP can hold
    if max(image.size) > largest:
        image.thumbnail((largest, largest))
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=quality, method=4)
    return buffer.getvalue()
