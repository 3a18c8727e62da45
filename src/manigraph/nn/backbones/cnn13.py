"""The 13-layer CNN of Laine & Aila (2017), without its last classification layer."""

import torch.nn.functional as F
from torch import Tensor, nn

from manigraph.nn.backbones.base import (
    Backbone,
    convolution,
    global_average,
    image_channels,
    scaled,
)
from manigraph.nn.dropout import Dropout
from manigraph.nn.passes import Layers


class CNN13(Backbone):
    """[3×3, 128]×3, pool, dropout, [3×3, 256]×3, pool, dropout, 3×3 512, 1×1 256, 1×1 128, average.

    The 3×3 of the last part is unpadded, as in the paper; where the map has shrunk below 3×3
    (images under 12×12) it is padded by one pixel, so images from 8×8 on can be used.
    """

    takes_any_size = True

    def __init__(
        self, input_shape: tuple[int, ...], *, width: float = 1.0, dropout: float | None = None
    ) -> None:
        super().__init__(input_shape, width=width, dropout=dropout)
        rate = 0.3 if dropout is None else dropout
        channels = image_channels(input_shape)
        first, second, third = (scaled(c, width) for c in (128, 256, 512))
        self.feature_size = first
        self.blocks = Layers(
            *convolution(channels, first),
            *convolution(first, first),
            *convolution(first, first),
            nn.MaxPool2d(2),
            Dropout(rate),
            *convolution(first, second),
            *convolution(second, second),
            *convolution(second, second),
            nn.MaxPool2d(2),
            Dropout(rate),
        )
        self.head = Layers(
            *convolution(second, third, padding=0),
            *convolution(third, second, kernel_size=1, padding=0),
            *convolution(second, first, kernel_size=1, padding=0),
        )

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) to (B, D)."""
        maps = self.blocks(images)
        if min(maps.shape[2:]) < 3:
            maps = F.pad(maps, (1, 1, 1, 1))
        return global_average(self.head(maps))
