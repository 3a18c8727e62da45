"""Batch norm by the batch's own statistics and the leaky ReLU after it, by `batch_norm.c`."""

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor

from manigraph.native import lanes, loaded_library


class Shape(ctypes.Structure):
    """What the loops need to know beside the numbers themselves."""

    _fields_ = (
        ("rows", ctypes.c_ssize_t),
        ("channels", ctypes.c_ssize_t),
        ("eps", ctypes.c_double),
        ("slope", ctypes.c_float),
    )


def suits(values: Tensor) -> bool:
    """Whether (B, C, H, W) or (B, C) can be normalised here: channels side by side, several values each."""
    if values.dtype != torch.float32 or not values.is_cpu or values.ndim not in (2, 4):
        return False
    channels = values.shape[1]
    if channels == 0 or channels % lanes() or values.numel() <= channels:
        return False
    return values.is_contiguous(memory_format=_layout(values))


def _layout(values: Tensor) -> torch.memory_format:
    """That in which the channels of a place are side by side."""
    return torch.channels_last if values.ndim == 4 else torch.contiguous_format


def forward(
    values: Tensor,
    weight: Tensor,
    bias: Tensor,
    running: tuple[Tensor | None, Tensor | None],
    momentum: float,
    shape: Shape,
) -> tuple[Tensor, Tensor]:
    """The activated values, and what the gradient needs of the statistics; running mean and variance move."""
    result = torch.empty_like(values)
    statistics = torch.empty(3, values.shape[1], dtype=torch.float32, device="cpu")
    threads, scratch = _memory(values.shape[1])
    _functions()[0](
        values.data_ptr(),
        weight.data_ptr(),
        bias.data_ptr(),
        result.data_ptr(),
        statistics.data_ptr(),
        *(None if tensor is None else tensor.data_ptr() for tensor in running),
        momentum,
        shape,
        threads,
        scratch.data_ptr(),
    )
    return result, statistics


def backward(
    values: Tensor,
    weight: Tensor,
    bias: Tensor,
    statistics: Tensor,
    gradient: Tensor,
    shape: Shape,
    *,
    of_values: bool,
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Gradients of the values, if they are wanted, of the weight and of the bias."""
    gradient = gradient.contiguous(memory_format=_layout(gradient))
    result = torch.empty_like(values) if of_values else None
    weight_gradient, bias_gradient = torch.empty_like(weight), torch.empty_like(bias)
    threads, scratch = _memory(values.shape[1])
    _functions()[1](
        values.data_ptr(),
        weight.data_ptr(),
        bias.data_ptr(),
        statistics.data_ptr(),
        gradient.data_ptr(),
        None if result is None else result.data_ptr(),
        weight_gradient.data_ptr(),
        bias_gradient.data_ptr(),
        shape,
        threads,
        scratch.data_ptr(),
    )
    return result, weight_gradient, bias_gradient


def _memory(channels: int) -> tuple[int, Tensor]:
    """How many threads at most, and the memory to work in."""
    threads = torch.get_num_threads()
    return threads, torch.empty(channels * (1 + 4 * threads), dtype=torch.float64, device="cpu")


@functools.cache
def _functions() -> tuple[Any, Any]:
    """Forward and backward. Kept, so that a gradient can be had whatever `library` says by then."""
    loaded = loaded_library()
    assert loaded is not None, "whoever calls this asked `library` before"
    pointer, shape = ctypes.c_void_p, ctypes.POINTER(Shape)
    there, back = loaded.batch_norm_forward, loaded.batch_norm_backward
    there.argtypes = [*[pointer] * 7, ctypes.c_double, shape, ctypes.c_int, pointer]
    back.argtypes = [*[pointer] * 8, shape, ctypes.c_int, pointer]
    there.restype = back.restype = None
    return there, back
