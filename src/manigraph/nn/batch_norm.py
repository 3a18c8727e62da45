"""Batch norm in the passes that must not be remembered."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
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
