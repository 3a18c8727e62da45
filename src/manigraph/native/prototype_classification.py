"""The cross entropy of all refined prototypes by `prototype_classification.c`."""

import ctypes
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from manigraph.native import address, lanes, library


class _Shape(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int) for name in ("images", "prototypes", "features", "classes"))


class _Parts(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_void_p)
        for name in ("without_image", "of_prototypes", "of_image", "share", "weight", "bias")
    )


def suits(inputs: Sequence[Tensor], classes: Tensor) -> bool:
    """Whether the loss can be computed here: one head, float32 on the CPU, features that fill vectors.

    And whether all sizes agree, which C would not notice; where they do not, torch says so.
    """
    *_, share, weight, _ = inputs
    if library() is None or share.ndim != 3 or weight.ndim != 2:
        return False
    (B, _, P), (C, D) = share.shape, weight.shape
    sizes = [(P, D), (1, P, D), (1, B, D), (B, 1, P), (C, D), (C,)]
    return (
        all(tensor.dtype == torch.float32 and tensor.is_cpu for tensor in inputs)
        and [tuple(tensor.shape) for tensor in inputs] == sizes
        and classes.shape == (P,)
        and classes.is_cpu
        and not classes.is_floating_point()
        and B * P * C * D > 0
        and D % lanes() == 0
    )


def cross_entropy(
    inputs: Sequence[Tensor], classes: Tensor, *, with_gradient: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The mean over images and prototypes, and its gradient in all inputs or in none.

    Args:
        inputs: The four `MessageParts` (H = 1), weight and bias of the classifier.
        classes: Class of every prototype.
        with_gradient: Whether to compute that as well.
    """
    inputs, classes = [tensor.contiguous() for tensor in inputs], classes.long().contiguous()
    *_, share, weight, _ = inputs
    (B, _, P), (C, D) = share.shape, weight.shape
    gradients = tuple(torch.empty_like(tensor) for tensor in inputs) if with_gradient else ()
    loaded = library()
    assert loaded is not None, "whoever calls this asked `suits` before"
    torch.get_num_threads()  # tells OpenMP how many, if this Python thread is new
    losses = torch.empty(loaded.prototype_threads(), 3, dtype=torch.float64, device="cpu")
    scratch = torch.empty(scratch_size(loaded, B, P, D, C), dtype=torch.float32, device="cpu")
    is_wrong = loaded.prototype_cross_entropy(
        _parts(inputs),
        address(classes),
        ctypes.byref(_Shape(B, P, D, C)),
        _parts(gradients) if gradients else None,
        address(losses),
        address(scratch),
    )
    if is_wrong:
        raise IndexError(f"classes must be at least 0 and below {C}")
    gaps, product, exponent = losses[0].tolist()
    loss = (gaps + math.log(product) + exponent * math.log(2)) / (B * P)
    return weight.new_tensor(loss), gradients


def scratch_size(loaded: ctypes.CDLL, B: int, P: int, D: int, C: int) -> int:
    """How many numbers of memory the inner loops need to work in, for as many threads as there are."""
    loaded.prototype_scratch.restype = ctypes.c_ssize_t
    size: int = loaded.prototype_scratch(ctypes.byref(_Shape(B, P, D, C)))
    return size


def _parts(tensors: Sequence[Tensor]) -> object:
    return ctypes.byref(_Parts(*(tensor.data_ptr() for tensor in tensors)))
