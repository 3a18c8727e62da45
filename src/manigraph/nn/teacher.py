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
        n = int(self.num_updates)
        kept = min(decay, (1 + n) / (10 + n))
        self.num_updates.add_(1)
        torch._foreach_lerp_(list(self.model.parameters()), list(student.parameters()), 1 - kept)
        for own, others in zip(self.model.modules(), student.modules(), strict=True):
            if not isinstance(own, _BatchNorm):
                for buffer, newest in zip(own.buffers(False), others.buffers(False), strict=True):
                    buffer.copy_(newest)
