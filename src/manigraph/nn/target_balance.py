"""Targets in which no class is forgotten."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from manigraph.nn.memory import Memory
from manigraph.sharding import ALONE, Shard


class TargetBalance(Memory):
    """Adds to the target's logits what makes all classes equally frequent among recent predictions.

    Finds a bias b with mean over the last `memory` predictions of softmax(logits + b) = 1/C for every
    class, by a few steps of b ← b - log C - log mean softmax(logits + b), each starting from the last
    b. The targets of the consistency term are then balanced over the memory, not in each small batch,
    so a group of images that went over to a wrong class is pulled back to the class that misses it.
    Not in the paper, and only right where the unlabelled images hold about as many of each class.

    Args:
        num_classes: C.
        memory: How many predictions to balance over; 0 leaves the logits as they are.
        num_iterations: Steps of the fixed-point iteration for each batch.
    """

    recent_logits: Tensor
    count: Tensor
    bias: Tensor
    shard: Shard = ALONE

    def __init__(self, num_classes: int, memory: int, num_iterations: int = 3) -> None:
        super().__init__()
        if memory < 0:
            raise ValueError(f"the memory of balanced targets cannot be negative, got {memory}")
        self.memory = memory
        self.num_iterations = num_iterations
        self.register_buffer("recent_logits", torch.zeros(memory, num_classes))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("bias", torch.zeros(num_classes))

    @torch.no_grad()
    def forward(self, target_logits: Float[Tensor, "U C"]) -> Float[Tensor, "U C"]:
        """Remember these logits and return them balanced, as a constant."""
        target_logits = target_logits.detach()
        if self.memory == 0:
            return target_logits
        everybodys = self.shard.gather(target_logits.float())
        newest_first = torch.cat([everybodys, self.recent_logits])[: self.memory]
        self.recent_logits.copy_(newest_first)
        self.count.add_(len(everybodys)).clamp_(max=self.memory)
        known = newest_first[: int(self.count)]
        for _ in range(self.num_iterations):
            log_probs = torch.log_softmax(known + self.bias, dim=1)
            log_frequency = log_probs.logsumexp(dim=0) - math.log(len(known))  # (C,)
            self.bias.sub_(log_frequency + math.log(log_frequency.numel()))
        self.bias.sub_(self.bias.mean())
        return target_logits + self.bias
