"""Arrays and tensors that are already in memory; class -1 means unlabelled."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manigraph.data.sources.base import UNLABELLED, Dataset
from manigraph.errors import UserError

CHANNELS = (1, 3, 4)


def from_arrays(
    images: Any,
    classes: Any,
    *,
    test_images: Any = None,
    test_classes: Any = None,
    class_names: Sequence[str] | None = None,
    name: str = "arrays",
) -> Dataset:
    """A data set from NumPy arrays or tensors.

    Args:
        images: (N, height, width), (N, height, width, channels), (N, channels, height, width) or vectors
            (N, size). Pixels are uint8, or floats from 0 to 1; vectors are floats.
        classes: (N,) whole numbers from 0; -1 where the class is not known.
        test_images: Images only for testing, of the same shape.
        test_classes: Their classes, all known.
        class_names: Name of each class; by default their numbers.
        name: What the data set is called.
    """
    train, numbers = stored_images(images), _classes(classes, "classes")
    _same_length(train, numbers, "images", "classes")
    everything, all_numbers = train, numbers
    if test_images is not None:
        test, test_numbers = stored_images(test_images), _classes(test_classes, "test_classes")
        _same_length(test, test_numbers, "test_images", "test_classes")
        if test.shape[1:] != train.shape[1:] or test.dtype != train.dtype:
            raise UserError(
                f"test_images are {tuple(test.shape[1:])} but images are {tuple(train.shape[1:])}: "
                f"give both the same shape and type"
            )
        if (test_numbers == UNLABELLED).any():
            raise UserError("test_classes holds -1: every test image needs its class")
        everything, all_numbers = torch.cat([train, test]), torch.cat([numbers, test_numbers])
    num_classes = int(all_numbers.max()) + 1 if len(all_numbers) else 0
    names = [str(c) for c in range(num_classes)] if class_names is None else list(class_names)
    if num_classes > len(names):
        raise UserError(f"there are classes up to {num_classes - 1} but only {len(names)} class names")
    return Dataset(
        name=name,
        images=everything,
        classes=all_numbers,
        class_names=names,
        train=torch.arange(len(train)),
        test=torch.arange(len(train), len(everything)),
    )


def stored_images(images: Any) -> Tensor:
    """(N, channels, height, width) uint8, or vectors (N, size) float32."""
    tensor = images if isinstance(images, Tensor) else torch.from_numpy(np.ascontiguousarray(images))
    if tensor.ndim == 2:
        return tensor.float()
    if tensor.ndim == 3:
        tensor = tensor.unsqueeze(1)
    elif tensor.ndim != 4:
        raise UserError(f"images must have 2, 3 or 4 dimensions, got the shape {tuple(tensor.shape)}")
    elif _has_channels_last(tensor, prefer_last=not isinstance(images, Tensor)):
        tensor = tensor.permute(0, 3, 1, 2)
    if tensor.dtype == torch.uint8:
        return tensor.contiguous()
    if not tensor.is_floating_point():
        raise UserError(f"pixels must be uint8 or floats from 0 to 1, got {tensor.dtype}")
    if len(tensor) and not (float(tensor.min()) >= 0 and float(tensor.max()) <= 1):
        raise UserError(
            f"float pixels must be from 0 to 1, got {float(tensor.min()):.3g} to {float(tensor.max()):.3g}: "
            f"scale them, or give uint8"
        )
    return (255 * tensor).round().to(torch.uint8).contiguous()


def _has_channels_last(images: Tensor, *, prefer_last: bool) -> bool:
    first, last = images.shape[1] in CHANNELS, images.shape[3] in CHANNELS
    if first == last:
        return prefer_last
    return last


def _classes(classes: Any, name: str) -> Tensor:
    tensor = classes if isinstance(classes, Tensor) else torch.from_numpy(np.asarray(classes))
    if tensor.ndim != 1 or tensor.is_floating_point() or tensor.dtype == torch.bool:
        raise UserError(
            f"{name} must be one row of whole numbers, got {tensor.dtype} of {tuple(tensor.shape)}"
        )
    if len(tensor) and int(tensor.min()) < UNLABELLED:
        raise UserError(f"{name} must be at least -1 (unlabelled), got {int(tensor.min())}")
    return tensor.long()


def _same_length(images: Tensor, classes: Tensor, images_name: str, classes_name: str) -> None:
    if len(images) != len(classes):
        raise UserError(f"{images_name} has {len(images)} entries but {classes_name} has {len(classes)}")
