"""The first entries of long vectors: after `preprocessing.kind pca`, those in which they vary most."""

import math

import torch
from torch import Tensor, nn

from manigraph.nn.backbones.base import Backbone, scaled
from manigraph.nn.dropout import Dropout


class Leading(Backbone):
    """512·width features: as many leading entries of the vectors, turned at random; with dropout if asked.

    What follows becomes cheap, and the noise of the other directions is gone. Nothing of it learns: on
    embeddings a network from scratch loses what they know where labels are few. The turn spreads what varies
    over all entries, since the graph's activations treat each of them alike. Images are flattened.
    """

    turn: Tensor

    def __init__(
        self, input_shape: tuple[int, ...], *, width: float = 1.0, dropout: float | None = None
    ) -> None:
        super().__init__(input_shape, width=width, dropout=dropout)
        self.feature_size = min(scaled(512, width), math.prod(input_shape))
        self.register_buffer("turn", nn.init.orthogonal_(torch.empty(self.feature_size, self.feature_size)))
        self.layers = nn.Sequential(nn.Flatten(), Dropout(0.0 if dropout is None else dropout))

    def forward(self, vectors: Tensor) -> Tensor:
        """(B, ...) to (B, D)."""
        features: Tensor = self.layers(vectors)[:, : self.feature_size] @ self.turn
        return features
