"""Convolutions with 3×3 kernels by `convolution.c`."""

import ctypes
import functools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from manigraph.native import lanes, library, loaded_library

NUMBERS_AT_ONCE = 1 << 17
"""Of the windows and products that a thread holds at a time: half a MB."""
FEWEST_TILES, MOST_TILES = 24, 48
"""In a block: fewer would read the kernels too often, more would leave the caches."""
TILE = 4
LEAST_USE = 0.55
"""The share of the computed outputs that must lie in the image."""
MOST_SCRATCH = 1 << 27
"""Numbers, half a GB, that the threads of a gradient may work in; they are fewer where each needs much."""


class _Shape(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_int) for name in ("images", "height", "width", "inputs", "outputs", "padding")
    )


def suits(images: Tensor, kernels: Tensor, padding: int) -> bool:
    """Whether these can be convolved here, and faster than torch's way."""
    return suits_gradient(images, kernels, padding) and kernels.shape[1] % lanes() == 0


def suits_gradient(images: Tensor, kernels: Tensor, padding: int) -> bool:
    """Whether the gradient of the images can be had here; for that they may have a few channels only."""
    return (
        images.ndim == 4
        and images.dtype == kernels.dtype == torch.float32
        and images.device.type == kernels.device.type == "cpu"
        and images.is_contiguous(memory_format=torch.channels_last)
        and library() is not None
        and _suit(images.shape, kernels.shape, padding)
    )


@functools.cache
def _suit(images: torch.Size, kernels: torch.Size, padding: int) -> bool:
    outputs, inputs, *sides = kernels
    height, width = (side + 2 * padding - 2 for side in images[2:])
    tiles = -(-height // TILE) * -(-width // TILE)
    return (
        images[0] > 0
        and images[1] == inputs
        and sides == [3, 3]
        and padding in (0, 1)
        and min(height, width) > 0
        and outputs % lanes() == 0
        and height * width >= LEAST_USE * tiles * TILE**2
    )


def convolution(images: Tensor, kernels: Tensor, padding: int) -> Tensor:
    """(B, I, H, W) and (O, I, 3, 3) to (B, O, H + 2 padding - 2, W + 2 padding - 2)."""
    return _convolved(images, kernels, len(kernels), padding, turned=False)


def image_gradient(gradient: Tensor, kernels: Tensor, padding: int) -> Tensor:
    """Of the images, from that of the output."""
    inputs = kernels.shape[1]
    missing = -inputs % lanes()
    if missing:  # channels up to a whole vector, of which nothing is used
        kernels = F.pad(kernels, (0, 0, 0, 0, 0, missing))
    result = _convolved(gradient, kernels, inputs + missing, 2 - padding, turned=True)
    return result[:, :inputs] if missing else result


def _convolved(images: Tensor, kernels: Tensor, outputs: int, padding: int, *, turned: bool) -> Tensor:
    images, kernels = _in_layout(images), _in_layout(kernels)
    number, inputs, height, width = images.shape
    size = (number, outputs, height + 2 * padding - 2, width + 2 * padding - 2)
    result = _empty(size, torch.channels_last)
    functions = _functions()
    tiles, threads = _division(number, size[2], size[3], inputs + outputs)
    scratch = _empty((functions.scratch(inputs, outputs, tiles, threads),))
    functions.convolution(
        images.data_ptr(),
        kernels.data_ptr(),
        result.data_ptr(),
        _Shape(number, height, width, inputs, outputs, padding),
        turned,
        tiles,
        threads,
        scratch.data_ptr(),
    )
    return result


def kernel_gradient(images: Tensor, gradient: Tensor, padding: int) -> Tensor:
    """Of the kernels, from the images and the gradient of the output."""
    images, gradient = _in_layout(images), _in_layout(gradient)
    number, inputs, height, width = images.shape
    outputs = gradient.shape[1]
    size = (outputs, inputs, 3, 3)
    result = _empty(size, torch.channels_last)
    functions = _functions()
    tiles, threads = _division(number, gradient.shape[2], gradient.shape[3], inputs + outputs)
    threads = min(threads, max(1, MOST_SCRATCH // functions.gradient_scratch(inputs, outputs, tiles, 1)))
    scratch = _empty((functions.gradient_scratch(inputs, outputs, tiles, threads),))
    functions.kernel_gradient(
        images.data_ptr(),
        gradient.data_ptr(),
        result.data_ptr(),
        _Shape(number, height, width, inputs, outputs, padding),
        tiles,
        threads,
        scratch.data_ptr(),
    )
    return result


def _in_layout(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def _empty(size: Sequence[int], layout: torch.memory_format = torch.contiguous_format) -> Tensor:
    """Whatever torch's defaults are."""
    return torch.empty(size, dtype=torch.float32, device="cpu", memory_format=layout)


def _division(number: int, height: int, width: int, channels: int) -> tuple[int, int]:
    """Tiles in a block, and threads, of which each has a block at least."""
    tiles = min(MOST_TILES, max(FEWEST_TILES, NUMBERS_AT_ONCE // (36 * channels)))
    blocks = -(-number * -(-height // TILE) * -(-width // TILE) // tiles)
    return tiles, min(torch.get_num_threads(), blocks)


class _Functions:
    """Those of the library, with the types of their arguments."""

    def __init__(self, loaded: ctypes.CDLL) -> None:
        pointer, number = ctypes.c_void_p, ctypes.c_int
        shape = ctypes.POINTER(_Shape)
        self.convolution = loaded.winograd_convolution
        self.convolution.argtypes = [pointer, pointer, pointer, shape, number, number, number, pointer]
        self.kernel_gradient = loaded.winograd_kernel_gradient
        self.kernel_gradient.argtypes = [pointer, pointer, pointer, shape, number, number, pointer]
        self.scratch, self.gradient_scratch = loaded.winograd_scratch, loaded.winograd_gradient_scratch
        for function in (self.scratch, self.gradient_scratch):
            function.argtypes = [number] * 4
            function.restype = ctypes.c_ssize_t
        for function in (self.convolution, self.kernel_gradient):
            function.restype = None


@functools.cache
def _functions() -> _Functions:
    loaded = loaded_library()
    assert loaded is not None, "whoever calls this asked `suits` before"
    return _Functions(loaded)
