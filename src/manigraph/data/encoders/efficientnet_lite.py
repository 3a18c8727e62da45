"""EfficientNet-Lite0, trained on ImageNet; the weights come in a package of their own (Apache licence)."""

import torch

from manigraph.data.encoders.base import BothWays, Encoder, weights_digest
from manigraph.errors import UserError
from manigraph.nn.efficientnet_lite import pretrained_lite0

MIRRORED = "mirrored"

IMAGE_SIZE = 160
"""It was trained at 224, which takes twice the time of 160."""
SMALLEST_SIZE = 96
"""Five halvings make 3×3 of this."""


def efficientnet_lite0(variant: str = "") -> Encoder:
    """1,280 features of a photograph; `efficientnet_lite0:mirrored` looks at it from both sides."""
    if variant not in ("", MIRRORED):
        raise UserError(
            f"'efficientnet_lite0:{variant}' is none: use efficientnet_lite0 or efficientnet_lite0:{MIRRORED}"
        )
    network = pretrained_lite0()
    digest = weights_digest(network)  # before they are folded, which other processors may round otherwise
    network.fold()
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Encoder(
        name=f"efficientnet_lite0:{MIRRORED}" if variant else "efficientnet_lite0",
        network=BothWays(network) if variant else network,
        digest=digest,
        feature_size=network.feature_size,
        image_size=IMAGE_SIZE,
        smallest_size=SMALLEST_SIZE,
        mean=(127.0,) * 3,
        std=(128.0,) * 3,
    )
