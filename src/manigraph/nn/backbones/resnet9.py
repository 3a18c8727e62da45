"""ResNet-9, the network of Page's short trainings on CIFAR-10 (How to train your ResNet, 2018)."""

from torch import Tensor, nn

from manigraph.nn.backbones.base import Backbone, convolution, image_channels, scaled
from manigraph.nn.dropout import Dropout
from manigraph.nn.normalised_activation import Chain
from manigraph.nn.passes import Layers


class _Residual(nn.Module):
    """Two convolutions, plus what went in."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.residual = Chain(*convolution(channels, channels), *convolution(channels, channels))

    def forward(self, maps: Tensor) -> Tensor:
        total: Tensor = maps + self.residual(maps)
        return total


class ResNet9(Backbone):
    """3×3 64; 3×3 128, pool, residual; 3×3 256, pool; 3×3 512, pool, residual; maximum over the map.

    Most of its weights see small maps: half of CNN-13's products at the same width, with twice its weights.
    """

    takes_any_size = True

    def __init__(
        self, input_shape: tuple[int, ...], *, width: float = 1.0, dropout: float | None = None
    ) -> None:
        super().__init__(input_shape, width=width, dropout=dropout)
        rate = 0.0 if dropout is None else dropout
        channels = image_channels(input_shape)
        sizes = [scaled(c, width) for c in (64, 128, 256, 512)]
        self.feature_size = sizes[-1]
        self.layers = Layers(
            *convolution(channels, sizes[0]),
            *convolution(sizes[0], sizes[1]),
            nn.MaxPool2d(2),
            _Residual(sizes[1]),
            Dropout(rate),
            *convolution(sizes[1], sizes[2]),
            nn.MaxPool2d(2),
            *convolution(sizes[2], sizes[3]),
            nn.MaxPool2d(2),
            _Residual(sizes[3]),
        )
        # Behind the maximum, which would grow if some values were left out and the others enlarged.
        self.feature_dropout = Dropout(rate)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) to (B, D)."""
        maps: Tensor = self.layers(images)
        features: Tensor = self.feature_dropout(maps.amax(dim=(2, 3)))
        return features
