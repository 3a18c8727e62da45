"""Batch norm in the passes that must not be remembered, and over the batches of several processes."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def frozen_running_statistics(module: nn.Module) -> Iterator[None]:
    """Keep batch-norm running statistics still; a training-mode pass still uses its batch's own.

    Adversarial and perturbed passes see other images than evaluation does, so their statistics must
    not enter the running ones. In training mode a layer that does not track its statistics
    normalises by the batch and touches no buffer, which is exactly what is wanted. In evaluation
    mode nothing moves anyway, and the running statistics stay in use.
    """
    tracking = [
        layer
        for layer in module.modules()
        if isinstance(layer, _BatchNorm) and layer.track_running_stats and layer.training
    ]
    for layer in tracking:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in tracking:
            layer.track_running_stats = True


@contextmanager
def repeated_pass(module: nn.Module, tracking: Mapping[str, bool]) -> Iterator[None]:
    """A pass over images whose statistics are in the running ones already: nothing moves a second time.

    Args:
        module: The layers.
        tracking: Which of its batch-norm layers, by name, took note the first time; the kernels differ.
    """
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, _BatchNorm)}
    before = {name: (layer.track_running_stats, layer.momentum) for name, layer in layers.items()}
    counts = {name: layer.num_batches_tracked for name, layer in layers.items()}
    kept = {name: None if count is None else count.clone() for name, count in counts.items()}
    for name, layer in layers.items():
        layer.track_running_stats, layer.momentum = tracking[name], 0.0
    try:
        yield
    finally:
        for name, layer in layers.items():
            layer.track_running_stats, layer.momentum = before[name]
            count, old = counts[name], kept[name]
            if count is not None and old is not None:
                count.copy_(old)


def tracking_layers(module: nn.Module) -> dict[str, bool]:
    """Whether each batch-norm layer takes note of the statistics it sees, by name."""
    layers = module.named_modules()
    return {name: layer.track_running_stats for name, layer in layers if isinstance(layer, _BatchNorm)}


class SharedBatchNorm(_BatchNorm):
    """Batch norm over the images of all processes, on any device; torch's own works on GPUs only.

    Every process holds equally many images. Mean and variance, and in the backward pass the two means that a
    batch's gradient needs, are the only numbers that travel.
    """

    @classmethod
    def taking_over(cls, layer: _BatchNorm) -> "SharedBatchNorm":
        """A layer with the parameters and buffers of `layer` themselves."""
        shared = cls(
            layer.num_features,
            layer.eps,
            layer.momentum,
            affine=layer.affine,
            track_running_stats=layer.track_running_stats,
        )
        shared.weight, shared.bias = layer.weight, layer.bias
        shared.running_mean, shared.running_var = layer.running_mean, layer.running_var
        shared.num_batches_tracked = layer.num_batches_tracked
        shared.training = layer.training
        return shared

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002  (torch's name)
        """Any number of axes."""

    def forward(self, values: Tensor) -> Tensor:
        if not self.training:
            return super().forward(values)
        normalised: Tensor
        assert self.affine, "shared batch norm has a weight and a bias"
        normalised, mean, var = _SharedNormalisation.apply(values, self.weight, self.bias, self.eps)  # type: ignore[no-untyped-call]
        if self.track_running_stats:
            assert self.running_mean is not None
            assert self.running_var is not None
            assert self.num_batches_tracked is not None
            count = torch.distributed.get_world_size() * values.numel() // values.shape[1]
            with torch.no_grad():
                self.num_batches_tracked.add_(1)
                # Without a momentum, the plain mean over all batches.
                share = 1 / int(self.num_batches_tracked) if self.momentum is None else self.momentum
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
                unbiased = var * (count / (count - 1))
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)
        return normalised


class _SharedNormalisation(torch.autograd.Function):
    """y = w (x - mean) / √(var + eps) + b with the statistics of all processes."""

    @staticmethod
    def forward(
        context: Any, values: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        axes = [axis for axis in range(values.ndim) if axis != 1]
        precise = values if values.dtype == torch.float64 else values.float()
        own_var, own_mean = torch.var_mean(precise, axes, correction=0)
        parts = [torch.empty(2, len(own_mean), dtype=own_mean.dtype, device=values.device) for _ in _world()]
        torch.distributed.all_gather(parts, torch.stack([own_mean, own_var]))
        means, variances = torch.stack(parts, dim=1)
        mean = means.mean(dim=0)
        var = variances.mean(dim=0) + (means - mean).square().mean(dim=0)
        context.axes = axes
        context.save_for_backward(values, weight, mean, (var + eps).rsqrt())
        context.mark_non_differentiable(mean, var)
        return F.batch_norm(values, mean, var, weight, bias, training=False, eps=eps), mean, var

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        values, weight, mean, scale = context.saved_tensors
        axes = context.axes
        shape = [1, -1] + [1] * (values.ndim - 2)
        gradient = gradients[0].to(mean.dtype)
        normalised = (values.to(mean.dtype) - mean.view(shape)) * scale.view(shape)
        bias_gradient = gradient.sum(axes)
        weight_gradient = (gradient * normalised).sum(axes)
        totals = torch.stack([bias_gradient, weight_gradient])
        torch.distributed.all_reduce(totals)
        mean_gradient, mean_product = totals / (len(_world()) * values.numel() / values.shape[1])
        centred = gradient - mean_gradient.view(shape) - normalised * mean_product.view(shape)
        value_gradient = centred * (scale * weight.to(mean.dtype)).view(shape)
        return (
            value_gradient.to(values.dtype),
            weight_gradient.to(weight.dtype),
            bias_gradient.to(weight.dtype),
            None,
        )


def _world() -> range:
    return range(torch.distributed.get_world_size())


def share_batch_norm(module: nn.Module) -> None:
    """Let every batch norm inside `module` take its statistics over all processes."""
    for name, child in module.named_children():
        if isinstance(child, _BatchNorm) and not isinstance(child, SharedBatchNorm):
            setattr(module, name, SharedBatchNorm.taking_over(child))
        else:
            share_batch_norm(child)
