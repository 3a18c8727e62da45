"""Batch norm and the leaky ReLU that follows it, as one operation where that is possible.

Each of the two reads and writes whole maps, which takes longer than computing them. Together they read them
half as often, and only the input is kept for the gradient.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import _has_any_global_hook

from manigraph.native import batch_norm, library


class Chain(nn.Sequential):
    """Layers one after the other, batch norm together with its activation."""

    def forward(self, values: Tensor) -> Tensor:
        layers = list(self)[::-1]
        while layers:
            layer = layers.pop()
            following = layers[-1] if layers else None
            if isinstance(layer, _BatchNorm) and isinstance(following, nn.LeakyReLU):
                values = normalised_activation(layer, following, values)
                layers.pop()
            else:
                values = layer(values)
        return values


def normalised_activation(layer: _BatchNorm, activation: nn.LeakyReLU, values: Tensor) -> Tensor:
    """`activation(layer(values))`, up to rounding."""
    result: Tensor
    if not _suits(layer, activation, values):
        result = activation(layer(values))
        return result
    running: tuple[Tensor | None, Tensor | None] = (None, None)
    momentum = layer.momentum
    if layer.track_running_stats:
        running = (layer.running_mean, layer.running_var)
        count = layer.num_batches_tracked
        if count is not None:
            count.add_(1)
            if momentum is None:  # the plain mean over all batches
                momentum = 1 / int(count)
    channels = layer.num_features
    rows = values.numel() // channels
    shape = batch_norm.Shape(rows, channels, layer.eps, activation.negative_slope)
    result = _NormalisedActivation.apply(values, layer.weight, layer.bias, running, momentum or 0.0, shape)  # type: ignore[no-untyped-call]
    return result


def _suits(layer: _BatchNorm, activation: nn.LeakyReLU, values: Tensor) -> bool:
    """Whether one operation does the same as the two layers."""
    if library() is None or not layer.training or torch.is_autocast_enabled("cpu"):
        return False
    # Subclasses may do something else.
    if type(activation) is not nn.LeakyReLU or type(layer) is not _DIMENSIONS.get(values.ndim):
        return False
    if values.shape[1] != layer.num_features or not batch_norm.suits(values):
        return False
    tensors = (layer.weight, layer.bias, layer.running_mean, layer.running_var)
    if not all(isinstance(tensor, Tensor) for tensor in tensors[:2]):
        return False
    if not all(tensor is None or _is_plain(tensor, layer) for tensor in tensors):
        return False
    return not (_has_hooks(layer) or _has_hooks(activation) or _has_any_global_hook())


_DIMENSIONS = {2: nn.BatchNorm1d, 4: nn.BatchNorm2d}


def _is_plain(tensor: Tensor, layer: _BatchNorm) -> bool:
    return (
        tensor.dtype == torch.float32
        and tensor.is_cpu
        and tensor.is_contiguous()
        and tensor.numel() == layer.num_features
    )


def _has_hooks(module: nn.Module) -> bool:
    """Whether somebody wants to see what goes in or comes out, which only the layer itself could show."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


class _NormalisedActivation(torch.autograd.Function):
    """The value by the C loops, and its gradient."""

    @staticmethod
    def forward(
        context: Any,
        values: Tensor,
        weight: Tensor,
        bias: Tensor,
        running: tuple[Tensor | None, Tensor | None],
        momentum: float,
        shape: batch_norm.Shape,
    ) -> Tensor:
        result, statistics = batch_norm.forward(values, weight, bias, running, momentum, shape)
        context.save_for_backward(values, weight, bias, statistics)
        context.shape = shape
        return result

    @staticmethod
    @once_differentiable
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        values, weight, bias, statistics = context.saved_tensors
        of_values = context.needs_input_grad[0]
        found = batch_norm.backward(
            values, weight, bias, statistics, gradients[0], context.shape, of_values=of_values
        )
        return *found, None, None, None
