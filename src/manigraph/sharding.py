"""Which part of every batch a process holds, such that N processes compute what one would.

Each process takes every N-th image: number r takes the images r, r + N, r + 2N, … A batch that is put
together of several groups (labelled, unlabelled) is then still every N-th image of the whole, whatever the
groups, as long as each can be divided by N. Random numbers are drawn for the whole batch, by generators that
agree in all processes, and each process keeps its own part.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from torch import Tensor


@dataclass(frozen=True)
class Shard:
    """Process `rank` of `size`; alone by default."""

    rank: int = 0
    size: int = 1

    def own(self, whole: Tensor) -> Tensor:
        """This process's rows of a tensor that holds those of all."""
        return whole if self.size == 1 else whole[self.rank :: self.size]

    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all processes in their order; gradients flow back to the process a row came from.

        A loss on the result is the same in all processes. Their gradients are averaged in the end, so what
        flows back is the sum over the processes.
        """
        if self.size == 1:
            return rows
        gathered: Tensor = _Gather.apply(rows, self)  # type: ignore[no-untyped-call]
        return gathered


ALONE = Shard()
"""The only process."""


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, rows: Tensor, shard: Shard) -> Tensor:
        context.shard = shard
        parts = [torch.empty_like(rows, memory_format=torch.contiguous_format) for _ in range(shard.size)]
        torch.distributed.all_gather(parts, rows.contiguous())
        return torch.stack(parts, dim=1).flatten(0, 1)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        torch.distributed.all_reduce(total)
        return context.shard.own(total).contiguous(), None
