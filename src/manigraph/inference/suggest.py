"""Which unlabelled images to label next.

| score of an image | what it is |
|---|---|
| uncertainty | 1 − (p₁ − p₂): how near the two most probable classes are to each other |
| distance | 1 − the largest cosine with a prototype; with a labelled image where there is no graph |

A strategy chooses by them, and by where the images lie: angles between features before the graph, which is
where the prototypes are. `docs/suggest.md` says what each strategy brought.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from manigraph.data.cache import Progress, silent
from manigraph.data.sources.base import Dataset
from manigraph.engine import indices_of
from manigraph.errors import UserError
from manigraph.inference.many import outlook
from manigraph.inference.predictor import Predictor

SHORT_LIST = 10
"""Of so many times the images asked for, the most uncertain ones, the groups are made."""

Strategy = Callable[["Candidates", int, torch.Generator], Tensor]
"""Candidates, how many to choose, random numbers to the chosen ones, the most wanted first, (n,)."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """N unlabelled images, and what a run makes of them."""

    probs: Tensor
    """(N, C)."""
    features: Tensor
    """(N, D), of length 1."""
    labelled: Tensor
    """(L, D): features of the labelled images, of length 1."""
    nodes: Tensor | None = None
    """(P, D): the prototypes, of length 1; None if there is no graph."""

    @classmethod
    def of(cls, logits: Tensor, features: Tensor, labelled: Tensor, nodes: Tensor | None) -> "Candidates":
        """From what a run answers; doubles, as trained networks are sure to the last digit of a float."""
        return cls(
            logits.double().softmax(dim=1),
            F.normalize(features, dim=1),
            F.normalize(labelled, dim=1),
            None if nodes is None else F.normalize(nodes, dim=1),
        )

    @property
    def uncertainty(self) -> Tensor:
        """(N,), from 0 to 1."""
        first, second = self.probs.topk(2, dim=1).values.unbind(dim=1)
        return 1 - (first - second)

    @property
    def distance(self) -> Tensor:
        """(N,), from 0 to 2."""
        return distance_to_nearest(self.features, self.labelled if self.nodes is None else self.nodes)


def distance_to_nearest(features: Tensor, places: Tensor) -> Tensor:
    """1 − cosine with the nearest of some places, (N,); vectors have length 1."""
    largest = [(chunk @ places.T).amax(dim=1) for chunk in features.split(4096)]
    return (1 - torch.cat(largest)).clamp_min(0)


def farthest_first(features: Tensor, count: int, *, given: Tensor, weights: Tensor | None = None) -> Tensor:
    """Again and again the one that is farthest from those given and those chosen, times its weight.

    Args:
        features: (N, D), of length 1.
        count: How many to choose, at most N.
        given: (L, D): where there is no need to look again.
        weights: (N,); by default all alike.
    """
    nearest = distance_to_nearest(features, given)
    weights = torch.ones_like(nearest) if weights is None else weights.to(nearest.dtype)
    chosen: list[int] = []
    while len(chosen) < count:
        worth = weights * nearest
        worth[chosen] = -1
        chosen.append(int(worth.argmax()))
        nearest = torch.minimum(nearest, (1 - features @ features[chosen[-1]]).clamp_min(0))
    return torch.tensor(chosen, dtype=torch.long)


def at_random(candidates: Candidates, count: int, generator: torch.Generator) -> Tensor:
    """What every other strategy has to be better than."""
    return torch.randperm(len(candidates.probs), generator=generator)[:count]


def by_uncertainty(candidates: Candidates, count: int, generator: torch.Generator) -> Tensor:
    """The most uncertain ones, however alike they are."""
    return candidates.uncertainty.argsort(descending=True, stable=True)[:count]


def by_distance(candidates: Candidates, count: int, generator: torch.Generator) -> Tensor:
    """Those farthest from every prototype."""
    return candidates.distance.argsort(descending=True, stable=True)[:count]


def by_diversity(candidates: Candidates, count: int, generator: torch.Generator) -> Tensor:
    """Farthest first, beginning with the labelled images (k-centre: Sener and Savarese 2018)."""
    return farthest_first(candidates.features, count, given=candidates.labelled)


def uncertain_and_far(candidates: Candidates, count: int, generator: torch.Generator) -> Tensor:
    """Farthest first, weighted by uncertainty."""
    return farthest_first(
        candidates.features, count, given=candidates.labelled, weights=candidates.uncertainty
    )


def uncertain_groups(candidates: Candidates, count: int, generator: torch.Generator) -> Tensor:
    """The most uncertain ones in as many groups as images are asked for; of each group its middle.

    k-means weighted by uncertainty, as Zhdanov 2019 has it. The middle of a group is an image like others:
    farthest first finds those that are like none.
    """
    from sklearn.cluster import KMeans

    listed = by_uncertainty(candidates, SHORT_LIST * count, generator)
    features, weights = candidates.features[listed].double(), candidates.uncertainty[listed]
    seed = int(torch.randint(2**31, (), generator=generator))
    groups = KMeans(min(count, len(listed)), n_init=3, random_state=seed)
    groups.fit(features.numpy(), sample_weight=weights.clamp_min(1e-12).numpy())
    centres = torch.from_numpy(groups.cluster_centers_)
    distances = torch.cdist(centres, features)
    chosen: list[int] = []
    for row in distances:
        row[chosen] = torch.inf
        chosen.append(int(row.argmin()))
    picked = torch.tensor(chosen, dtype=torch.long)
    return listed[picked[weights[picked].argsort(descending=True, stable=True)]]


STRATEGIES: Mapping[str, Strategy] = {
    "random": at_random,
    "uncertainty": by_uncertainty,
    "distance": by_distance,
    "diversity": by_diversity,
    "uncertain and far": uncertain_and_far,
    "uncertain groups": uncertain_groups,
}

DEFAULT_STRATEGY = "uncertain groups"


def candidates_of(
    predictor: Predictor, dataset: Dataset, progress: Progress = silent
) -> tuple[Candidates, Tensor]:
    """All unlabelled images of a run, and where they are in its data set, (N,)."""
    run = predictor.run
    labelled, unlabelled = indices_of(run, "labelled"), indices_of(run, "unlabelled")
    if len(unlabelled) == 0:
        raise UserError(f"the run '{run.path}' has no unlabelled images: there is nothing left to label")
    seen = outlook(predictor, dataset.images, torch.cat([labelled, unlabelled]), progress)
    features, given = seen.features[len(labelled) :], seen.features[: len(labelled)]
    nodes = None if predictor.nodes is None else predictor.nodes.prototypes
    return Candidates.of(seen.logits[len(labelled) :], features, given, nodes), unlabelled
