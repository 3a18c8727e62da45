"""No network at all: ready-made embeddings are the features, and only what follows them learns."""

import math

from torch import Tensor, nn

from manigraph.nn.backbones.base import Backbone
from manigraph.nn.dropout import Dropout


class Head(Backbone):
    """The features are the vectors themselves, with dropout if a rate is given; images are flattened.

    There is nothing to widen, so `width` has no effect.
    """

    def __init__(
        self, input_shape: tuple[int, ...], *, width: float = 1.0, dropout: float | None = None
    ) -> None:
        super().__init__(input_shape, width=width, dropout=dropout)
        self.feature_size = math.prod(input_shape)
        self.layers = nn.Sequential(nn.Flatten(), Dropout(0.0 if dropout is None else dropout))

    def forward(self, vectors: Tensor) -> Tensor:
        """(B, ...) to (B, D)."""
        features: Tensor = self.layers(vectors)
        return features
