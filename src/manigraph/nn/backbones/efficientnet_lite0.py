"""A network that has seen a million photographs, trained on: all of its layers learn."""

import torch.nn.functional as F
from torch import Tensor

from manigraph.nn.backbones.base import Backbone
from manigraph.nn.dropout import Dropout
from manigraph.nn.efficientnet_lite import EfficientNetLite0, pretrained_lite0

SMALLEST_SIDE = 96
"""Smaller images are enlarged to it: five halvings make 3×3 of it."""


class FineTunedLite0(Backbone):
    """EfficientNet-Lite0 on colour or grey images, which should have values from -1 to 1.

    It is made with random weights; training begins with the published ones (`begin`), and a trained run
    needs no others than its own. There is nothing to widen, so `width` has no effect. Dropout, if a rate
    is given, is that of the features.
    """

    feature_size = EfficientNetLite0.feature_size

    def __init__(
        self, input_shape: tuple[int, ...], *, width: float = 1.0, dropout: float | None = None
    ) -> None:
        super().__init__(input_shape, width=width, dropout=dropout)
        if len(input_shape) != 3 or input_shape[0] not in (1, 3):
            raise ValueError(
                f"the backbone 'efficientnet_lite0' takes grey or colour images, got shape {input_shape}"
            )
        self.network = EfficientNetLite0()
        self.dropout_of_features = Dropout(0.0 if dropout is None else dropout)

    def begin(self) -> None:
        """Take the published weights, which the package of the extra `pretrained` brings."""
        self.network.load_state_dict(pretrained_lite0().state_dict())

    def forward(self, images: Tensor) -> Tensor:
        """(B, 1 or 3, H, W) to (B, 1280)."""
        height, width = images.shape[2:]
        if min(height, width) < SMALLEST_SIDE:
            factor = SMALLEST_SIDE / min(height, width)
            size = (round(height * factor), round(width * factor))
            images = F.interpolate(images, size, mode="bilinear", align_corners=False)
        features: Tensor = self.dropout_of_features(self.network(images.expand(-1, 3, -1, -1)))
        return features
