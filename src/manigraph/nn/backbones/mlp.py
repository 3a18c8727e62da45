"""A multi-layer perceptron for feature vectors."""

import itertools
import math

from torch import Tensor, nn

from manigraph.nn.backbones.base import LEAKY_SLOPE, Backbone, scaled
from manigraph.nn.dropout import Dropout
from manigraph.nn.passes import Layers


class MLP(Backbone):
    """Two hidden layers of 256·width and 128·width, batch-normalised; images are flattened."""

    def __init__(
        self, input_shape: tuple[int, ...], *, width: float = 1.0, dropout: float | None = None
    ) -> None:
        super().__init__(input_shape, width=width, dropout=dropout)
        rate = 0.3 if dropout is None else dropout
        sizes = [math.prod(input_shape), scaled(256, width), scaled(128, width)]
        self.feature_size = sizes[-1]
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in itertools.pairwise(sizes):
            linear = nn.Linear(before, after, bias=False)
            nn.init.kaiming_normal_(linear.weight, a=LEAKY_SLOPE)
            layers += [linear, nn.BatchNorm1d(after), nn.LeakyReLU(LEAKY_SLOPE, inplace=True), Dropout(rate)]
        self.layers = Layers(*layers)

    def forward(self, vectors: Tensor) -> Tensor:
        """(B, ...) to (B, D)."""
        features: Tensor = self.layers(vectors)
        return features
