"""Convolutions that take fewer multiplications where the machine and the shapes allow it."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.grad import conv2d_weight

from manigraph.native import convolution as native


class Convolution(nn.Conv2d):
    """`nn.Conv2d`, whose 3×3 kernels go by Winograd's minimal filtering on a CPU: the same up to rounding.

    Images must be float32 in `channels_last`; others go torch's way. Differentiable once; inside of
    `manigraph.native.native(False)`, where all go torch's way, as often as you like.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (torch's name)
        if not self._is_plain():
            return super().forward(input)
        padding = int(self.padding[0])
        if not native.suits_gradient(input, self.weight, padding):
            return super().forward(input)
        result: Tensor = _Winograd.apply(input, self.weight, padding)  # type: ignore[no-untyped-call]
        return result

    def _is_plain(self) -> bool:
        return (
            self.kernel_size == (3, 3)
            and self.stride == self.dilation == (1, 1)
            and self.bias is None
            and self.padding in ((0, 0), (1, 1))
            and self.padding_mode == "zeros"
            and not torch.is_autocast_enabled("cpu")
        )


class _Winograd(torch.autograd.Function):
    """Torch's way where images have too few channels, but for their gradient, at which torch is slow."""

    @staticmethod
    def forward(context: Any, images: Tensor, kernels: Tensor, padding: int) -> Tensor:
        context.padding = padding
        context.save_for_backward(images, kernels)
        if native.suits(images, kernels, padding):
            return native.convolution(images, kernels, padding)
        return F.conv2d(images, kernels, padding=padding)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        images, kernels = context.saved_tensors
        to_images = to_kernels = None
        if _is_wanted(context, 0):
            to_images = native.image_gradient(gradient, kernels, context.padding)
        if _is_wanted(context, 1):
            if native.suits(images, kernels, context.padding):
                to_kernels = native.kernel_gradient(images, gradient, context.padding)
            else:
                to_kernels = conv2d_weight(images, kernels.shape, gradient, padding=context.padding)
        return to_images, to_kernels, None


def _is_wanted(context: Any, place: int) -> bool:
    """Whether this backward pass has a use for the gradient of an input.

    `needs_input_grad` only says whether the input could have one. VAT's power step asks for the gradient of
    the perturbation alone, for which no kernel's gradient is needed.
    """
    if not context.needs_input_grad[place]:
        return False
    node, _ = context.next_functions[place]
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # a leaf whose own gradient was asked for
        return True
