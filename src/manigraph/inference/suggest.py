"""Which unlabelled images to label next.

| score of an image | what it is |
|---|---|
| uncertainty | 1 − (p₁ − p₂): how near the two most probable classes are to each other |
| distance | 1 − the largest cosine with a prototype; with a labelled image where there is no graph |

A strategy chooses by them, and by where the images lie: angles between features before the graph, which is
where the prototypes are. `docs/suggest.md` says what each strategy brought.
"""

import csv
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from manigraph.data.cache import Progress, silent
from manigraph.data.sources.base import Dataset
from manigraph.engine import indices_of, stored_indices
from manigraph.errors import UserError
from manigraph.inference.many import outlook
from manigraph.inference.predictor import Predictor
from manigraph.inference.tables import name_cell, no_formula

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
    listed = by_uncertainty(candidates, SHORT_LIST * count, generator)
    weights = candidates.uncertainty[listed]
    centres, _ = _groups(candidates.features[listed], count, generator, weights)
    chosen = _middles(candidates.features[listed], centres)
    return listed[chosen[weights[chosen].argsort(descending=True, stable=True)]]


def weighted_groups(candidates: Candidates, count: int, generator: torch.Generator) -> Tensor:
    """All candidates in groups, weighted by uncertainty; of each group its middle (Prabhu et al. 2021)."""
    weights = candidates.uncertainty
    centres, _ = _groups(candidates.features, count, generator, weights)
    chosen = _middles(candidates.features, centres)
    return chosen[weights[chosen].argsort(descending=True, stable=True)]


def typical_groups(candidates: Candidates, count: int, generator: torch.Generator) -> Tensor:
    """All images in groups, one for each label there is and one for each asked for.

    Of the largest groups without a label the middle, as Hacohen et al. 2022 have it: with few labels, what is
    typical teaches more than what is doubtful.
    """
    L, N = len(candidates.labelled), len(candidates.features)
    features = torch.cat([candidates.labelled, candidates.features])
    centres, group = _groups(features, min(L + count, L + N), generator)
    sizes = group[L:].bincount(minlength=len(centres))
    has_label = torch.isin(torch.arange(len(centres)), group[:L])
    order = (sizes - has_label * (L + N)).argsort(descending=True, stable=True)[:count]
    return _middles(candidates.features, centres[order])


def _groups(
    features: Tensor, count: int, generator: torch.Generator, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Centres, (count, D), and the group of each image, (N,), by k-means."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    seed = int(torch.randint(2**31, (), generator=generator))
    kmeans = KMeans(min(count, len(features)), n_init=1, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different images than groups
        kmeans.fit(
            features.double().numpy(),
            sample_weight=None if weights is None else weights.clamp_min(1e-12).numpy(),
        )
    return torch.from_numpy(kmeans.cluster_centers_), torch.from_numpy(kmeans.labels_).long()


def _middles(features: Tensor, centres: Tensor) -> Tensor:
    """For each centre the nearest image that is not chosen yet."""
    distances = torch.cdist(centres, features.double())
    chosen: list[int] = []
    for row in distances:
        row[chosen] = torch.inf
        chosen.append(int(row.argmin()))
    return torch.tensor(chosen, dtype=torch.long)


STRATEGIES: Mapping[str, Strategy] = {
    "random": at_random,
    "uncertainty": by_uncertainty,
    "distance": by_distance,
    "diversity": by_diversity,
    "uncertain and far": uncertain_and_far,
    "uncertain groups": uncertain_groups,
    "weighted groups": weighted_groups,
    "typical groups": typical_groups,
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


@dataclass(frozen=True)
class Suggestion:
    """An image that a person should label."""

    rank: int
    """1 is the most wanted."""
    index: int
    """In the data set."""
    path: str | None
    """Own images: its file, relative to their folder."""
    predicted: str
    probability: float
    second: str
    """The second most probable class."""
    second_probability: float
    uncertainty: float
    distance: float
    reason: str
    """`uncertain`, `unfamiliar` (far from every prototype) or `varied` (neither, but unlike the others)."""


STANDS_OUT = 0.75
"""An image is called uncertain or unfamiliar if it is so more than this share of all."""


def suggest(
    predictor: Predictor,
    dataset: Dataset,
    count: int,
    *,
    strategy: str = DEFAULT_STRATEGY,
    seed: int = 0,
    progress: Progress = silent,
) -> list[Suggestion]:
    """The unlabelled images of a run that are most worth a label, the most wanted first.

    Args:
        predictor: The run.
        dataset: The images it was trained on.
        count: How many; fewer if there are fewer.
        strategy: One of `STRATEGIES`.
        seed: Of what is drawn; the same seed suggests the same images.
        progress: Called on the way.
    """
    candidates, indices = candidates_of(predictor, dataset, progress)
    generator = torch.Generator().manual_seed(seed)
    chosen = STRATEGIES[strategy](candidates, min(count, len(indices)), generator)
    uncertainty, distance = candidates.uncertainty, candidates.distance
    names = predictor.class_names
    suggestions = []
    for rank, place in enumerate(chosen.tolist(), start=1):
        (first, second), (likely, less) = (
            part.tolist() for part in reversed(candidates.probs[place].topk(2))
        )
        index = int(indices[place])
        more_sure = (uncertainty < uncertainty[place]).double().mean().item()
        nearer = (distance < distance[place]).double().mean().item()
        suggestions.append(
            Suggestion(
                rank=rank,
                index=index,
                path=None if dataset.paths is None else dataset.paths[index],
                predicted=names[first],
                probability=round(likely, 6),
                second=names[second],
                second_probability=round(less, 6),
                uncertainty=round(uncertainty[place].item(), 6),
                distance=round(distance[place].item(), 6),
                reason=_reason(more_sure, nearer),
            )
        )
    return suggestions


def _reason(more_sure: float, nearer: float) -> str:
    """From the shares of all candidates that are more sure, and that are nearer to a prototype."""
    if max(more_sure, nearer) < STANDS_OUT:
        return "varied"
    return "uncertain" if more_sure >= nearer else "unfamiliar"


COLUMNS = (
    *("rank", "predicted", "probability", "second", "second_probability"),
    *("uncertainty", "distance", "reason"),
)


def as_table(suggestions: Sequence[Suggestion], known: Mapping[str, str] | None = None) -> str:
    """CSV with a row for each suggestion, then one for each label there is already.

    Of own images the first columns are `path` and `label`. Labels of suggestions are left empty for
    somebody to fill in; with the others below them the file holds all labels, and can be trained on. So
    labels are as they are; a path that begins as a formula gets `./` before it, which readers leave out.

    Args:
        suggestions: The rows to fill in.
        known: Own images: file to label, of all images whose label the run knew; None for other data.
    """
    file = io.StringIO()
    own = known is not None
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*(("path", "label") if own else ("index",)), *COLUMNS])
    for suggestion in suggestions:
        values = asdict(suggestion)
        for name in ("predicted", "second"):
            values[name] = name_cell(values[name])
        start = [no_formula(suggestion.path or ""), ""] if own else [suggestion.index]
        writer.writerow([*start, *(values[name] for name in COLUMNS)])
    for path, label in (known or {}).items():
        writer.writerow([no_formula(path), label, *("" for _ in COLUMNS)])
    return file.getvalue()


def known_labels(predictor: Predictor, dataset: Dataset) -> dict[str, str] | None:
    """Own images: file to label, of all that the run knew, for training or for measuring; None for others."""
    if dataset.paths is None:
        return None
    parts = [stored_indices(predictor.run, part) for part in ("labelled", "validation", "test")]
    indices = torch.cat(parts).tolist()
    return {dataset.paths[i]: predictor.class_names[int(dataset.classes[i])] for i in indices}
