"""Targets in which no class is forgotten."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from manigraph.nn.memory import Memory
from manigraph.sharding import ALONE, Shard


class TargetBalance(Memory):
    """Adds to the target's logits what makes classes as frequent among recent predictions as they should be.

    Finds a bias b with mean over the last `memory` predictions of softmax(logits + b) = the share of every
    class, 1/C unless others are given, by a few steps of b ← b + log share - log mean softmax(logits + b),
    each starting from the last b. The targets of the consistency term are then balanced over the memory, not
    in each small batch, so a group of images that went over to a wrong class is pulled back to the class that
    misses it. Not in the paper, and only right where the unlabelled images hold about these shares.

    Args:
        num_classes: C.
        memory: How many predictions to balance over; 0 leaves the logits as they are.
        num_iterations: Steps of the fixed-point iteration for each batch.
        shares: Of the classes, above 0; what they sum to does not matter. Empty means all alike.
    """

    recent_logits: Tensor
    count: Tensor
    bias: Tensor
    shard: Shard = ALONE

    def __init__(
        self, num_classes: int, memory: int, num_iterations: int = 3, shares: Sequence[float] = ()
    ) -> None:
        super().__init__()
        if memory < 0:
            raise ValueError(f"the memory of balanced targets cannot be negative, got {memory}")
        if shares and (len(shares) != num_classes or min(shares) <= 0):
            raise ValueError(f"there must be a share above 0 for each of {num_classes} classes, got {shares}")
        self.log_shares = [math.log(share / sum(shares)) for share in shares] or -math.log(num_classes)
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
            self.bias.sub_(log_frequency - log_frequency.new_tensor(self.log_shares))
        self.bias.sub_(self.bias.mean())
        return target_logits + self.bias
