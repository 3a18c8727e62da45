"""Wide-ResNet-28-2 (Zagoruyko & Komodakis 2016) with the pre-activation blocks of the original."""

import itertools

from torch import Tensor, nn

from manigraph.nn.backbones.base import (
    LEAKY_SLOPE,
    Backbone,
    global_average,
    image_channels,
    scaled,
)
from manigraph.nn.convolution import Convolution
from manigraph.nn.dropout import Dropout
from manigraph.nn.normalised_activation import Chain
from manigraph.nn.passes import Layers


def _convolution(in_channels: int, out_channels: int, kernel_size: int, stride: int) -> nn.Conv2d:
    conv = Convolution(
        in_channels,
        out_channels,
        kernel_size,
        stride=stride,
        padding=kernel_size // 2,
        bias=False,
    )
    nn.init.kaiming_normal_(conv.weight, a=LEAKY_SLOPE)
    return conv


class _Block(nn.Module):
    """Batch norm, activation, 3×3; twice; plus the input (through a 1×1 where the shape changes)."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.activate = Chain(nn.BatchNorm2d(in_channels), nn.LeakyReLU(LEAKY_SLOPE, inplace=True))
        self.residual = Chain(
            _convolution(in_channels, out_channels, 3, stride),
            nn.BatchNorm2d(out_channels),
            nn.LeakyReLU(LEAKY_SLOPE, inplace=True),
            Dropout(dropout),
            _convolution(out_channels, out_channels, 3, 1),
        )
        self.shortcut = (
            None
            if stride == 1 and in_channels == out_channels
            else _convolution(in_channels, out_channels, 1, stride)
        )

    def forward(self, maps: Tensor) -> Tensor:
        activated = self.activate(maps)
        carried = maps if self.shortcut is None else self.shortcut(activated)
        total: Tensor = carried + self.residual(activated)
        return total


class WideResNet28x2(Backbone):
    """28 layers: a 3×3 to 16 channels, then three groups of four blocks with 32, 64, 128 channels."""

    takes_any_size = True

    def __init__(
        self, input_shape: tuple[int, ...], *, width: float = 1.0, dropout: float | None = None
    ) -> None:
        super().__init__(input_shape, width=width, dropout=dropout)
        rate = 0.0 if dropout is None else dropout
        channels = image_channels(input_shape)
        sizes = [scaled(c, width) for c in (16, 32, 64, 128)]
        self.feature_size = sizes[-1]
        layers: list[nn.Module] = [_convolution(channels, sizes[0], 3, 1)]
        for group, (before, after) in enumerate(itertools.pairwise(sizes)):
            for block in range(4):
                stride = 2 if group > 0 and block == 0 else 1
                layers.append(_Block(before if block == 0 else after, after, stride, rate))
        layers += [nn.BatchNorm2d(sizes[-1]), nn.LeakyReLU(LEAKY_SLOPE, inplace=True)]
        self.layers = Layers(*layers)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) to (B, D)."""
        return global_average(self.layers(images))
