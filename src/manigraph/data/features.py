"""Photographs as the vectors that a pretrained network makes of them: computed once, then learned from.

encoder("efficientnet_lite0")(images)     # (B, 3, H, W) bytes to (B, 1280)
with_features(dataset, encoder("efficientnet_lite0"), cache)
"""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from manigraph.catalogue import ENCODERS
from manigraph.data.cache import Progress, combined_digest, remember, silent
from manigraph.data.encoders.base import Encoder
from manigraph.data.pixels import create_pixels, map_pixels
from manigraph.data.sources.base import Dataset
from manigraph.errors import UserError

__all__ = ["Encoder", "as_bytes", "encoder", "with_features"]

VERSION = 1
"""Part of the key of features: raise it when they would come out otherwise."""
CHUNK = 256
"""Images that are taken at a time."""


def encoder(name: str) -> Encoder:
    """The pretrained network of this name: `efficientnet_lite0`, or `timm:NAME`."""
    family, _, variant = name.partition(":")
    return ENCODERS.get(family)(variant)


def with_features(dataset: Dataset, encoder: Encoder, cache: Path, progress: Progress = silent) -> Dataset:
    """The data set with features in the place of its images; all else stays as it is.

    They are kept in the cache under the digest of the images and the network, so that the next time the
    network is not needed. A process that is killed on the way leaves nothing that could be taken for
    features.

    Args:
        dataset: Images.
        encoder: The pretrained network.
        cache: Folder of all that is computed once (`Locations.cache`).
        progress: Called while features are computed.
    """
    images = dataset.images
    if images.ndim != 4:
        raise UserError(
            f"'{encoder.name}' looks at images, {dataset.name} holds vectors of {images.shape[1]} values: "
            f"leave out data.features"
        )
    key = combined_digest(
        *("features", VERSION, encoder.name, encoder.digest, encoder.size_for(*dataset.input_shape[1:])),
        *(dataset.white, tuple(images.shape), str(images.dtype), _digest(images)),
    )
    features = remember(
        cache / "features", key, lambda folder: _compute(folder, dataset, encoder, progress), map_pixels
    )
    return replace(dataset, images=features, image_shape=dataset.input_shape, made_from=key)


def as_bytes(images: Tensor, white: float = 255.0) -> Tensor:
    """Images of any brightness as an encoder takes them."""
    if images.dtype == torch.uint8 and white == 255:
        return images
    return (images.float() * (255 / white)).round().clamp(0, 255).to(torch.uint8)


def _digest(images: Tensor) -> str:
    """SHA-256 of the images alone: other classes or splits leave features as they are."""
    return hashlib.sha256(images.contiguous().numpy().data).hexdigest()


def _compute(folder: Path, dataset: Dataset, encoder: Encoder, progress: Progress) -> None:
    """Features of all images into a file, a chunk at a time; an image that occurs twice is looked at once."""
    ids = dataset.content_ids
    total = len(ids)
    features = create_pixels(folder, (total, encoder.feature_size), np.float32)
    first = torch.full((int(ids.max()) + 1 if total else 0,), total).scatter_reduce(
        0, ids, torch.arange(total), reduce="amin"
    )  # of each content, the place where it occurs first
    what = f"features by {encoder.name}"
    for places in first.split(CHUNK):
        images = as_bytes(dataset.images.index_select(0, places), dataset.white)
        features[places.numpy()] = encoder(images).numpy()
        progress(what, int(places[-1]) + 1, total)
    copies = (first[ids] != torch.arange(total)).nonzero().flatten()
    features[copies.numpy()] = features[first[ids[copies]].numpy()]
    features.flush()
