"""A teacher: the slowly following copy of a model."""

import copy

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from manigraph.nn.classifier import Classifier


class Teacher(nn.Module):
    """An exponential average of a model's weights, with a network of its own.

    In training it predicts in training mode: with dropout masks of its own and the statistics of its batch,
    which also move its own running statistics. These belong to the averaged weights, as the student's would
    not. Everything else that is no weight (whether the graph is on, images as nodes) is the student's.
    """

    model: Classifier
    num_updates: Tensor

    def __init__(self, student: Classifier) -> None:
        super().__init__()
        self.model = copy.deepcopy(student).requires_grad_(False)
        self.register_buffer("num_updates", torch.tensor(0))

    @torch.no_grad()
    def forward(self, images: Float[Tensor, "B ..."]) -> Float[Tensor, "B C"]:
        """Logits, as constants."""
        logits: Tensor = self.model(images)
        return logits

    @torch.no_grad()
    def follow(self, student: Classifier, decay: float) -> None:
        """θ' ← a θ' + (1 - a) θ with a = min(decay, (1 + n) / (10 + n)) in update n, from 0.

        As long as the run is short the average goes over about its last tenth. A large decay alone would keep
        the first, random weights in it for as many steps as 1 / (1 - decay).
        """
        kept = ((1 + self.num_updates) / (10 + self.num_updates)).clamp(max=decay)
        self.num_updates.add_(1)
        for own, weight in zip(self.model.parameters(), student.parameters(), strict=True):
            own.lerp_(weight, (1 - kept).to(own.dtype))
        statistics = _statistics(self.model)
        for (name, own_buffer), buffer in zip(self.model.named_buffers(), student.buffers(), strict=True):
            if name not in statistics:
                own_buffer.copy_(buffer)


def _statistics(module: nn.Module) -> set[str]:
    """Names of the running statistics of batch norm."""
    return {
        f"{name}.{inner}"
        for name, layer in module.named_modules()
        if isinstance(layer, _BatchNorm)
        for inner, _ in layer.named_buffers(recurse=False)
    }
