"""A CNN for images of a few pixels, where global average pooling would throw the positions away."""

from torch import Tensor, nn

from manigraph.nn.backbones.base import Backbone, convolution, image_channels, scaled
from manigraph.nn.dropout import Dropout
from manigraph.nn.passes import Layers


class SmallCNN(Backbone):
    """[3×3, 32]×2, pool, [3×3, 64]×2, pool, flattened, dropout: 65 k parameters on 8×8 grey images."""

    def __init__(
        self, input_shape: tuple[int, ...], *, width: float = 1.0, dropout: float | None = None
    ) -> None:
        super().__init__(input_shape, width=width, dropout=dropout)
        rate = 0.3 if dropout is None else dropout
        channels = image_channels(input_shape)
        _, image_height, image_width = input_shape
        first, second = scaled(32, width), scaled(64, width)
        self.feature_size = second * (image_height // 4) * (image_width // 4)
        self.layers = Layers(
            *convolution(channels, first),
            *convolution(first, first),
            nn.MaxPool2d(2),
            *convolution(first, second),
            *convolution(second, second),
            nn.MaxPool2d(2),
            nn.Flatten(),
            Dropout(rate),
        )

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) to (B, D)."""
        features: Tensor = self.layers(images)
        return features
