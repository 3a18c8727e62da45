"""What was seen of each class: where its features are, and how its images are predicted."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from manigraph.functional import ClassSlots, class_address, memory_logits, updated_slots
from manigraph.nn.memory import Memory
from manigraph.sharding import ALONE, Shard


class ClassMemory(Memory):
    """One key and one value for each class, written from labelled images and read for all.

    A class that has not been seen has key 0 and a uniform value, and is given no weight when the memory is
    read, so that it speaks for nobody. Gradients flow through the features that are looked up, not into the
    memory. Where there are several processes, all hold the whole of it.

    Args:
        num_classes: C.
        feature_size: D.
        rate: η, how fast slots follow the labelled images; above 0 and at most 1.
    """

    keys: Tensor
    """k, (C, D)."""
    values: Tensor
    """v, (C, C); rows sum to 1."""
    is_known: Tensor
    """Whether a class has been seen, (C,)."""
    shard: Shard = ALONE

    def __init__(self, num_classes: int, feature_size: int, rate: float = 0.5) -> None:
        super().__init__()
        if not 0 < rate <= 1:
            raise ValueError(f"the rate of a memory must be above 0 and at most 1, got {rate}")
        self.rate = rate
        self.register_buffer("keys", torch.zeros(num_classes, feature_size))
        self.register_buffer("values", torch.full((num_classes, num_classes), 1 / num_classes))
        self.register_buffer("is_known", torch.zeros(num_classes, dtype=torch.bool))

    @torch.no_grad()
    def update(
        self, features: Float[Tensor, "L D"], logits: Float[Tensor, "L C"], labels: Int[Tensor, " L"]
    ) -> None:
        """Let the labelled images of this step in, with those of all processes."""
        dtype = self.keys.dtype
        labels = self.shard.gather(labels)
        keys, values = updated_slots(
            ClassSlots(self.keys, self.values),
            self.shard.gather(features.detach().to(dtype)),
            self.shard.gather(logits.detach().to(dtype).softmax(dim=1)),
            labels,
            rate=self.rate,
        )
        self.keys.copy_(keys)
        self.values.copy_(values)
        self.is_known[labels] = True

    def of_classes(self, labels: Int[Tensor, " L"]) -> Float[Tensor, "L C"]:
        """Logits of the memory's prediction, v_c, for images whose class is known; constants."""
        address = F.one_hot(labels, len(self.values)).to(self.values.dtype)
        return memory_logits(address, self.values)

    def forward(self, features: Float[Tensor, "U D"]) -> Float[Tensor, "U C"]:
        """Logits of the memory's prediction, for images whose class is not known."""
        # Copies: the next update must not change what a gradient of this step still needs.
        keys, values = self.keys.clone(), self.values.clone()
        return memory_logits(class_address(features.to(keys.dtype), keys, self.is_known), values)
