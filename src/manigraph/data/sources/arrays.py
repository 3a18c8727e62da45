"""Arrays and tensors that are already in memory; class -1 means unlabelled."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manigraph.data.sources.base import UNLABELLED, Dataset
from manigraph.errors import UserError

CHANNELS = (1, 2, 3, 4)
"""What the convolutional networks take."""


def from_arrays(
    images: Any,
    classes: Any,
    *,
    test_images: Any = None,
    test_classes: Any = None,
    class_names: Sequence[str] | None = None,
    name: str = "arrays",
    white: float = 255.0,
) -> Dataset:
    """A data set from NumPy arrays or tensors.

    Args:
        images: (N, height, width), (N, height, width, channels), (N, channels, height, width) or vectors
            (N, size). Pixels are uint8, or floats from 0 to 1; vectors are floats. Where the shape fits both
            orders of channels, arrays have them last and tensors first.
        classes: (N,) whole numbers from 0; -1 where the class is not known.
        test_images: Images only for testing, of the same shape.
        test_classes: Their classes, all known.
        class_names: Name of each class; by default their numbers.
        name: What the data set is called.
        white: The value of full brightness of uint8 images, which strong views go by.
    """
    train, numbers = stored_images(images), _classes(classes, "classes")
    _same_length(train, numbers, "images", "classes")
    everything, all_numbers = train, numbers
    if (test_images is None) != (test_classes is None):
        raise UserError("test_images and test_classes go together: give both or neither")
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
    if class_names is None and num_classes > len(all_numbers):
        raise UserError(
            f"there are classes up to {num_classes - 1} but only {len(all_numbers)} images: number the "
            f"classes from 0 without gaps"
        )
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
        white=white,
    )


def stored_images(images: Any) -> Tensor:
    """(N, channels, height, width) uint8, or vectors (N, size) float32."""
    tensor = _tensor(images, "images")
    if tensor.ndim == 2:
        vectors = tensor.float()
        if not vectors.isfinite().all():
            raise UserError("vectors must be finite, got nan or inf: fill or remove them")
        return vectors
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
    _, one, two, three = images.shape
    first, last = one in CHANNELS, three in CHANNELS
    if first != last:
        return last
    if (one == two) != (two == three):  # square images
        return one == two
    if not first:
        raise UserError(
            f"cannot tell the channels of images of the shape {tuple(images.shape)}: give 1 to 4 channels, "
            f"second or last"
        )
    return prefer_last


def _classes(classes: Any, name: str) -> Tensor:
    tensor = _tensor(classes, name)
    if tensor.ndim != 1 or tensor.is_floating_point() or tensor.dtype == torch.bool:
        raise UserError(
            f"{name} must be one row of whole numbers, got {tensor.dtype} of {tuple(tensor.shape)}"
        )
    numbers = tensor.long()
    if len(numbers) and int(numbers.min()) < UNLABELLED:
        raise UserError(f"{name} must be at least -1 (unlabelled), got {int(numbers.min())}")
    return numbers


def _tensor(values: Any, name: str) -> Tensor:
    """Values of any kind of array as a tensor on the CPU that nothing is learned through."""
    if isinstance(values, Tensor):
        return values.detach().cpu()
    try:
        array = np.asarray(values)
    except ValueError:
        raise UserError(f"{name} must all have the same shape") from None
    if array.dtype.kind not in "biuf":
        raise UserError(f"{name} must be numbers, got {array.dtype}")
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    # Torch has no arrays that cannot be written to.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _same_length(images: Tensor, classes: Tensor, images_name: str, classes_name: str) -> None:
    if len(images) != len(classes):
        raise UserError(f"{images_name} has {len(images)} entries but {classes_name} has {len(classes)}")
