"""The sum over all triplets, by `triplets.c`."""

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor

from manigraph.native import library, loaded_library


def suits(similarity: Tensor, classes: Tensor) -> bool:
    """Whether these similarities can be looked at here."""
    return (
        similarity.dtype == torch.float32
        and classes.dtype == torch.int64
        and similarity.is_cpu
        and classes.is_cpu
        and similarity.ndim == 2
        and classes.shape == similarity.shape[:1]
        and similarity.numel() > 0
        and library() is not None
    )


def triplet_sums(similarity: Tensor, classes: Tensor, margin: float) -> tuple[Tensor, Tensor, Tensor]:
    """Sum of the non-zero terms (float64), their number, and the gradient of the sum, (N, C)."""
    similarity, classes = similarity.contiguous(), classes.contiguous()
    num_members, num_centres = similarity.shape
    sums, scratch_size = _functions()
    torch.get_num_threads()  # tells OpenMP how many, if this Python thread is new
    totals = torch.empty(num_centres, dtype=torch.float64, device="cpu")
    numbers = torch.empty(num_centres, dtype=torch.int64, device="cpu")
    gradient = torch.empty_like(similarity)
    scratch = torch.empty(scratch_size(num_members), dtype=torch.float64, device="cpu")
    sums(
        similarity.data_ptr(),
        classes.data_ptr(),
        num_members,
        num_centres,
        margin,
        totals.data_ptr(),
        numbers.data_ptr(),
        gradient.data_ptr(),
        scratch.data_ptr(),
    )
    return totals.sum(), numbers.sum(), gradient


@functools.cache
def _functions() -> tuple[Any, Any]:
    loaded = loaded_library()
    assert loaded is not None, "whoever calls this asked `suits` before"
    pointer, size = ctypes.c_void_p, ctypes.c_ssize_t
    loaded.triplet_sums.argtypes = [pointer, pointer, size, size, ctypes.c_double, *[pointer] * 4]
    loaded.triplet_sums.restype = None
    loaded.triplet_scratch.argtypes = [size]
    loaded.triplet_scratch.restype = size
    return loaded.triplet_sums, loaded.triplet_scratch
