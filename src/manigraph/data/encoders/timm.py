"""Any network of timm, by its name there, as in `--data.features timm:resnet18.a1_in1k`."""

import importlib.util
from typing import Any

from manigraph.data.encoders.base import Encoder, weights_digest
from manigraph.errors import UserError

SMALLEST_SIZE = 96


def timm_network(variant: str = "") -> Encoder:
    """The network without its classifier; timm downloads weights that are not there."""
    if not variant:
        raise UserError("name a network of timm after the colon, as in --data.features timm:resnet18.a1_in1k")
    if importlib.util.find_spec("timm") is None:
        raise UserError(
            f"'timm:{variant}' needs the package timm, which is not installed: pip install timm, or use "
            f"--data.features efficientnet_lite0"
        )
    import timm

    if not timm.is_model(variant):
        raise UserError(f"timm has no network '{variant}': `timm.list_pretrained()` names them all")
    network: Any = timm.create_model(variant, pretrained=True, num_classes=0)
    data = timm.data.resolve_model_data_config(network)
    size = int(data["input_size"][-1])
    fixed = bool(data.get("fixed_input_size"))
    return Encoder(
        name=f"timm:{variant}",
        network=network,
        digest=weights_digest(network),
        feature_size=int(network.num_features),
        image_size=size,
        smallest_size=size if fixed else min(SMALLEST_SIZE, size),
        mean=[255.0 * value for value in data["mean"]],
        std=[255.0 * value for value in data["std"]],
    )
