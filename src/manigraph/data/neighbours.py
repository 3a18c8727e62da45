"""Views of vectors: a vector on the way to one of those that are nearest to it.

Images are shifted and turned, which leaves what they show. Vectors have nothing of the kind, but between
near ones one stays about on the manifold that they lie on.
"""

import torch
from torch import Tensor

from manigraph.contract import ImageTable
from manigraph.sharding import ALONE, Shard

MOST_CANDIDATES = 20_000
"""Vectors among which neighbours are looked for; of more, so many are drawn."""

FARTHEST = 0.5
"""Share of the way that a view goes at most: beyond the middle it would be a view of the neighbour."""

CHUNK = 1024


class Neighbours:
    """The nearest vectors of each vector that is trained on, after preprocessing.

    Args:
        vectors: Gives vectors by index.
        indices: Those that are trained on; others are nobody's neighbours.
        count: How many neighbours each has, if there are so many.
    """

    def __init__(self, vectors: ImageTable, indices: Tensor, count: int) -> None:
        self._vectors = vectors
        self._indices = indices.unique()
        candidates = self._indices
        if len(candidates) > MOST_CANDIDATES:
            order = torch.randperm(len(candidates), generator=torch.Generator().manual_seed(0))
            candidates = candidates[order[:MOST_CANDIDATES]]
        count = min(count, len(candidates) - 1)
        prepared = vectors.prepare(vectors.stored(candidates))
        nearest = []
        for chunk in self._indices.split(CHUNK):
            distances = torch.cdist(vectors.prepare(vectors.stored(chunk)), prepared)
            distances[chunk.unsqueeze(1) == candidates] = float("inf")  # none is its own neighbour
            nearest.append(candidates[distances.topk(count, largest=False).indices])
        self.table = torch.cat(nearest)
        """(N, count) indices of the nearest, in the order of the sorted indices."""

    def views(
        self, indices: Tensor, stored: Tensor, generator: torch.Generator, shard: Shard = ALONE
    ) -> Tensor:
        """One random view of each vector.

        Args:
            indices: Of this process's part of the batch.
            stored: The vectors there.
            generator: Source of randomness, which agrees in all processes.
            shard: Which part of the batch the vectors are; random numbers are drawn for all of it.
        """
        whole, count = len(indices) * shard.size, self.table.shape[1]
        if count == 0:
            return stored
        choice = shard.own(torch.randint(count, (whole,), generator=generator))
        way = FARTHEST * shard.own(torch.rand((whole, 1), generator=generator))
        rows = torch.searchsorted(self._indices, indices.contiguous())
        other = self._vectors.stored(self.table[rows, choice])
        return torch.lerp(stored, other, way.to(stored.dtype))
