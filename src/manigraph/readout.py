"""The classes of images, read out of a trained run's features by a graph instead of its linear layer.

| method | paper | scikit-learn |
|---|---|---|
| `label_propagation` | Zhu & Ghahramani 2002: labels stay as they are | `LabelPropagation` |
| `label_spreading` | Zhou et al. 2004: labels may give way, α = 0.99 | `LabelSpreading` |

Two training images, labelled or not, are joined if one is among the other's nearest by the cosine of their
features. These are what the linear layer gets: with Manifold Graph, the refined ones. scikit-learn's own
graph of nearest neighbours goes one way only, so that a labelled image that is nobody's neighbour tells
nobody; on validation images of digits it was worse in every run. Evaluated images are not in the graph unless
asked for (`transductive`): each takes the mean of what its nearest training images have.

Labels come only to images from which a path leads to a labelled one. An evaluated image that none comes to
keeps the class that the run's own model predicts.
"""

import warnings
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manigraph.data.cache import Progress, silent
from manigraph.data.locations import Locations
from manigraph.data.prepared import PreparedImages
from manigraph.data.sources.base import UNLABELLED, Dataset
from manigraph.engine import TrainedRun, dataset_of, indices_of, load
from manigraph.errors import UserError
from manigraph.runs import RunDirectory
from manigraph.training.evaluation import Evaluation, evaluate, predict_logits
from manigraph.training.selection import Part

ReadOutMethod = Literal["label_propagation", "label_spreading"]
Features = npt.NDArray[np.float64]

NEIGHBOURS = 7
"""As in scikit-learn, where every image in the graph is its own first neighbour."""
ALPHA = 0.99
"""Of label spreading, as in the paper: what of an image's label comes from its neighbours."""
MAX_ITERATIONS = 10_000
TOLERANCE = 1e-6
"""They end when labels move by less than that, summed over all images and classes; scikit-learn's 1e-3 is too
early for propagation."""


class Spread(NamedTuple):
    """How labels have spread."""

    probs: Features
    """Of the evaluated images, (M, C); a row of zeros where no label came to."""
    reached: npt.NDArray[np.bool_]
    """Whether any label came to an evaluated image, (M,)."""
    graph_reached: npt.NDArray[np.bool_]
    """The same of the images in the graph, (N,)."""
    converged: bool
    """Whether labels had stopped moving."""


def graph_model(method: ReadOutMethod, neighbours: int = NEIGHBOURS) -> Any:
    """scikit-learn's estimator, on the graph that joins two images if one is a neighbour of the other."""
    from sklearn.neighbors import kneighbors_graph
    from sklearn.semi_supervised import LabelPropagation, LabelSpreading

    def either_way(features: Features, _: Features) -> Any:
        one_way = kneighbors_graph(features, neighbours, include_self=True)
        return one_way.maximum(one_way.T)  # sparse

    settings: dict[str, Any] = {"kernel": either_way, "max_iter": MAX_ITERATIONS, "tol": TOLERANCE}
    if method == "label_propagation":
        return LabelPropagation(**settings)
    return LabelSpreading(alpha=ALPHA, **settings)


def spread_labels(
    model: Any,
    features: Features,
    known: npt.NDArray[np.int64],
    evaluated: Features,
    *,
    num_classes: int,
    neighbours: int = NEIGHBOURS,
    transductive: bool = False,
) -> Spread:
    """Probabilities of the classes, for images that are not in the graph or join it without a label.

    Args:
        model: scikit-learn's estimator, not yet fitted: see `graph_model`.
        features: Of the images in the graph, (N, D).
        known: Their classes, (N,); `UNLABELLED` where the class is not told.
        evaluated: Features of the images that are asked for, (M, D).
        num_classes: C; a class without any label gets no probability.
        neighbours: In the graph of which an image out of it takes the mean.
        transductive: Whether the images that are asked for join the graph.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neighbors import NearestNeighbors

    N, M = len(features), len(evaluated)
    joined = np.concatenate([features, evaluated]) if transductive else features
    labels = np.concatenate([known, np.full(len(joined) - N, UNLABELLED)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(joined, labels)
    spread = np.zeros((len(joined), num_classes))
    spread[:, model.classes_] = model.label_distributions_
    if transductive:
        answers = spread[N:]
    else:
        nearest = NearestNeighbors(n_neighbors=neighbours).fit(features)
        answers = spread[nearest.kneighbors(evaluated, return_distance=False)].sum(axis=1)  # (M, C)
    total = answers.sum(axis=1)
    return Spread(
        probs=answers / np.where(total > 0, total, 1).reshape(M, 1),
        reached=total > 0,
        graph_reached=spread[:N].sum(axis=1) > 0,
        converged=model.n_iter_ < model.max_iter,
    )


@runtime_checkable
class _HasFeatures(Protocol):
    """A model with linear layers in the end, and nothing after them."""

    def final_features(self, images: Tensor) -> Tensor: ...


class _BeforeLinear(nn.Module):
    """Images to the features that the linear layer gets."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        assert isinstance(self.model, _HasFeatures)
        return self.model.final_features(images)


@dataclass(frozen=True, eq=False)
class ReadOut:
    """What a graph over the features of a run says about images, and how good it is."""

    trained: TrainedRun
    method: ReadOutMethod
    neighbours: int
    transductive: bool
    evaluation: Evaluation
    own_error: float
    """Error of the run's own model on the same images, in per cent."""
    probs: Tensor
    """Of the evaluated images, (M, C), in the order of the split."""
    num_labelled: int
    """Labelled images in the graph."""
    num_graph: int
    """All training images in the graph."""
    unreached: int
    """Evaluated images that no label came to; they keep the class that the run's own model predicts."""
    graph_unreached: int
    """Training images that no label came to."""
    converged: bool
    """Whether labels had stopped moving."""
    classes_without_label: tuple[str, ...]
    """They are never the answer."""

    def facts(self) -> dict[str, Any]:
        """All but the run and the predictions, as plain values."""
        hidden = ("trained", "evaluation", "probs")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in hidden}


def read_out(
    run: RunDirectory,
    method: ReadOutMethod,
    part: Part = "test",
    *,
    neighbours: int = NEIGHBOURS,
    transductive: bool = False,
    dataset: Dataset | None = None,
    locations: Locations | None = None,
    progress: Progress = silent,
) -> ReadOut:
    """Evaluate a run's features by a graph over its training images.

    Args:
        run: A run with trained weights.
        method: How labels go from image to image.
        part: Which images of the run's split are evaluated.
        neighbours: Of each image; in the graph the image itself counts as one.
        transductive: Whether evaluated images join the graph (without their labels).
        dataset: The images in memory, if the run was trained on such.
        locations: Where data sets and decoded pixels are; by default from the environment.
        progress: Called while data is read.
    """
    trained = load(run)
    if not isinstance(trained.model, _HasFeatures):
        raise UserError(
            f"the run '{run.path}' cannot be read out: the model of {trained.config.algorithm} says nothing "
            f"of its features"
        )
    labelled, evaluated = indices_of(run, "labelled"), indices_of(run, part)
    graph = torch.cat([labelled, indices_of(run, "unlabelled")]).sort().values
    limit = len(graph) + (len(evaluated) if transductive else 0)
    if not 2 <= neighbours <= limit:
        raise UserError(f"neighbours must be from 2 to the {limit} images of the graph, got {neighbours}")
    dataset = dataset_of(run, trained, dataset=dataset, locations=locations, progress=progress)

    def outputs(model: nn.Module, indices: Tensor) -> Tensor:
        images = PreparedImages(dataset.images.index_select(0, indices), trained.preprocessing)
        return predict_logits(model, images, torch.arange(len(indices)))

    own_logits = outputs(trained.model, evaluated)
    before_linear = _BeforeLinear(trained.model)
    graph_features, features = outputs(before_linear, graph), outputs(before_linear, evaluated)
    known = torch.where(torch.isin(graph, labelled), dataset.classes[graph], UNLABELLED)
    spread = spread_labels(
        graph_model(method, neighbours),
        *(_directions(graph_features), known.numpy(), _directions(features)),
        num_classes=dataset.num_classes,
        neighbours=neighbours,
        transductive=transductive,
    )
    reached = torch.from_numpy(spread.reached)
    probs = torch.where(reached[:, None], torch.from_numpy(spread.probs), own_logits.double().softmax(dim=1))
    classes = dataset.classes[evaluated]
    with_label = set(dataset.classes[labelled].tolist())
    return ReadOut(
        trained=trained,
        method=method,
        neighbours=neighbours,
        transductive=transductive,
        evaluation=evaluate(probs.log(), classes),
        own_error=evaluate(own_logits, classes).error,
        probs=probs,
        num_labelled=len(labelled),
        num_graph=len(graph),
        unreached=int((~spread.reached).sum()),
        graph_unreached=int((~spread.graph_reached).sum()),
        converged=spread.converged,
        classes_without_label=tuple(
            name for number, name in enumerate(dataset.class_names) if number not in with_label
        ),
    )


def _directions(features: Tensor) -> Features:
    """Of length 1, so that the nearest is the one with the largest cosine."""
    directions: Features = F.normalize(features.double(), dim=1).numpy()
    return directions
