"""Where images and prototypes lie, and who listens to whom: what the paper's qualitative figures show.

Each image has its own graph of itself and all prototypes, so the adjacency matrix of all graphs has two
parts: the row of each image over the prototypes, and the rows of the prototypes over one another. The latter
are the same in every graph, up to the share of each row that goes to the graph's image.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from manigraph.data.cache import Progress, silent
from manigraph.data.locations import Locations
from manigraph.data.prepared import PreparedImages
from manigraph.data.sources.base import Dataset
from manigraph.engine import TrainedRun, dataset_of, indices_of, load
from manigraph.errors import UserError
from manigraph.functional.graph import image_share, prototype_context
from manigraph.inference.tsne import METRIC, PERPLEXITY, SEED, map_of
from manigraph.nn import FrozenGraphClassifier
from manigraph.nn.manifold_graph import Nodes
from manigraph.runs import RunDirectory
from manigraph.training.evaluation import predict_logits
from manigraph.training.selection import Part

VALUES_AT_ONCE = 1 << 22
"""16 MB in float32, of prototypes that are refined in the graphs of some images."""


@dataclass(frozen=True, eq=False)
class GraphView:
    """The graphs of N images."""

    nodes: str
    """What the class nodes are, in words."""
    classes: Tensor
    """Of the class nodes, (P,), ascending."""
    prototypes: Tensor
    """p, (P, D)."""
    refined_prototypes: Tensor
    """p̂, (P, D): mean over the graphs of all images."""
    refined: Tensor
    """f̂ of the images, (N, D)."""
    image_attention: Tensor
    """w_bp, (N, P): the row of each image in its graph; mean over heads."""
    prototype_attention: Tensor | None
    """w_pq, (P, P): the rows of the prototypes, without what goes to the image; None if they hear nothing."""
    image_share: float
    """α_bp, mean over all: what of a prototype's row goes to the image."""


@dataclass(frozen=True, eq=False)
class ManifoldView:
    """The images of one part of a run's split, sorted by class, and what the run makes of them."""

    run: str
    trained: TrainedRun
    part: Part
    indices: Tensor
    """In the data set, (N,); ascending within a class."""
    classes: Tensor
    """(N,), ascending."""
    features: Tensor
    """(N, D): f, before any graph."""
    logits: Tensor
    """(N, C): the run's answers."""
    logits_before: Tensor | None
    """(N, C): what the linear layer would answer without the graph; None if there is none."""
    graph: GraphView | None

    @property
    def predicted(self) -> Tensor:
        """(N,): the most probable classes."""
        return self.logits.argmax(dim=1)

    @property
    def predicted_before(self) -> Tensor | None:
        """(N,): the same without the graph."""
        return None if self.logits_before is None else self.logits_before.argmax(dim=1)


class _FinalFeatures(nn.Module):
    """Images to the features that the linear layers get, of a model without a graph."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.model.final_features(images)  # type: ignore[operator]
        return features


@torch.no_grad()
def manifold_view(
    run: RunDirectory,
    part: Part = "validation",
    *,
    most: int | None = None,
    dataset: Dataset | None = None,
    locations: Locations | None = None,
    progress: Progress = silent,
) -> ManifoldView:
    """Features, predictions and graph of a trained run.

    Args:
        run: A run with trained weights.
        part: Which images of the run's split.
        most: How many of them, evenly spread over the classes; by default all.
        dataset: The images in memory, if the run was trained on such.
        locations: Where data sets and decoded pixels are; by default from the environment.
        progress: Called while data is read.
    """
    trained = load(run)
    if not run.read_json("split.json").get(part) and part == "validation":
        raise UserError(f"the run '{run.path}' has no validation images: use --part test")
    indices = indices_of(run, part).sort().values
    dataset = dataset_of(run, trained, dataset=dataset, locations=locations, progress=progress)
    indices = indices[dataset.classes[indices].argsort(stable=True)]
    if most is not None and len(indices) > most:
        indices = indices[torch.linspace(0, len(indices) - 1, most).round().long()]
    images = PreparedImages(dataset.images.index_select(0, indices), trained.preprocessing)

    def outputs(model: nn.Module) -> Tensor:
        return predict_logits(model, images, torch.arange(len(indices)))

    model = trained.model
    graph, logits_before = None, None
    if isinstance(model, FrozenGraphClassifier):
        features = outputs(model.backbone)
        if model.nodes is not None:
            graph = _graph_view(model, model.nodes, features)
            logits_before = model.linear(features)
    else:
        features = outputs(_FinalFeatures(model))
    return ManifoldView(
        run=run.path.resolve().name,
        trained=trained,
        part=part,
        indices=indices,
        classes=dataset.classes[indices],
        features=features,
        logits=outputs(model),
        logits_before=logits_before,
        graph=graph,
    )


def _graph_view(model: FrozenGraphClassifier, nodes: Nodes, features: Tensor) -> GraphView:
    graph = model.graph
    P, D = nodes.prototypes.shape
    g = graph.embedding(features)
    refined_prototypes = torch.zeros_like(nodes.prototypes)
    for chunk in features.split(max(1, VALUES_AT_ONCE // (P * D))):
        refined = graph.refine_prototypes(nodes.prototypes, nodes.embeddings, chunk)  # (G, P, D)
        refined_prototypes += refined.mean(dim=0) * len(chunk) / len(features)
    share = torch.zeros(())
    if graph.prototype_update == "per_image":
        log_normaliser = prototype_context(nodes.embeddings, scale=graph.scale).log_normaliser
        share = image_share(g, nodes.embeddings, log_normaliser, scale=graph.scale).mean()
    return GraphView(
        nodes="labelled images" if model.nodes_are_images else "prototypes",
        classes=torch.arange(model.num_classes).repeat_interleave(P // model.num_classes),
        prototypes=nodes.prototypes,
        refined_prototypes=refined_prototypes,
        refined=graph.refine_images(features, nodes.embeddings, nodes.messages),
        image_attention=graph.image_attention(g, nodes.embeddings).mean(dim=1),
        prototype_attention=None
        if graph.prototype_update == "none"
        else _attention_among(nodes.embeddings, graph.scale),
        image_share=share.item(),
    )


def _attention_among(embeddings: Tensor, scale: float) -> Tensor:
    """Softmax over q ≠ p of scale · g_p·g_q, mean over heads, (P, P)."""
    g = embeddings.transpose(0, 1)  # (H, P, E)
    scores = scale * torch.bmm(g, g.mT)
    scores.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
    return scores.softmax(dim=2).mean(dim=0)


def own_class_share(weights: Tensor, row_classes: Tensor, column_classes: Tensor) -> float:
    """What of the rows' weight is in columns of the row's own class, mean over rows."""
    own = row_classes[:, None] == column_classes
    return (weights * own).sum(dim=1).mean().item()


def summary_of(view: ManifoldView) -> dict[str, Any]:
    """What the figures show, in a few numbers."""
    graph, predicted_before = view.graph, view.predicted_before
    summary: dict[str, Any] = {"images": len(view.indices), "error": _error(view.predicted, view.classes)}
    if graph is None or predicted_before is None:
        return summary
    among = graph.prototype_attention
    P, C = len(graph.classes), len(view.trained.class_names)
    return summary | {
        "error_before": _error(predicted_before, view.classes),
        "image_own_class": own_class_share(graph.image_attention, view.classes, graph.classes),
        "image_own_class_by_chance": 1 / C,
        "prototype_own_class": None
        if among is None
        else own_class_share(among, graph.classes, graph.classes),
        "prototype_own_class_by_chance": (P // C - 1) / (P - 1),
        "image_share": graph.image_share,
    }


def figure_data(view: ManifoldView) -> dict[str, Any]:
    """All that the figures show, as plain values: maps by t-SNE, classes, the adjacency matrix."""
    graph, config = view.graph, view.trained.config
    before, prototypes_before = map_places(view.features, None if graph is None else graph.prototypes)
    images: dict[str, Any] = {
        "index": view.indices.tolist(),
        "class": view.classes.tolist(),
        "predicted": view.predicted.tolist(),
        "before": _rounded(before, 3),
    }
    data: dict[str, Any] = {
        "run": view.run,
        "algorithm": config.algorithm,
        "data": config.data.name,
        "labels": config.data.labels,
        "seed": config.seed,
        "part": view.part,
        "class_names": list(view.trained.class_names),
        "tsne": {"perplexity": PERPLEXITY, "seed": SEED, "metric": METRIC},
        "images": images,
        "without_graph": why_without_graph(view),
        "nodes": None,
        "adjacency": None,
        "summary": summary_of(view),
    }
    if graph is not None:
        assert view.predicted_before is not None
        assert prototypes_before is not None
        after, prototypes_after = map_places(graph.refined, graph.refined_prototypes)
        assert prototypes_after is not None
        images |= {"predicted_before": view.predicted_before.tolist(), "after": _rounded(after, 3)}
        data["nodes"] = {
            "kind": graph.nodes,
            "class": graph.classes.tolist(),
            "before": _rounded(prototypes_before, 3),
            "after": _rounded(prototypes_after, 3),
        }
        among = graph.prototype_attention
        data["adjacency"] = {
            "images": _rounded(graph.image_attention, 5),
            "prototypes": None if among is None else _rounded(among, 5),
        }
    return data


def why_without_graph(view: ManifoldView) -> str | None:
    """In words why there is none; None if there is one."""
    if view.graph is not None:
        return None
    if isinstance(view.trained.model, FrozenGraphClassifier):
        return "the run ended before its graph was on"
    return f"{view.trained.config.algorithm} has no graph"


def map_places(features: Tensor, prototypes: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Places of images and prototypes on one map, (N, 2) and (P, 2)."""
    if prototypes is None:
        return torch.from_numpy(map_of(features.double().numpy())), None
    together = torch.from_numpy(map_of(torch.cat([features, prototypes]).double().numpy()))
    return together[: len(features)], together[len(features) :]


def _rounded(values: Tensor, decimals: int) -> list[Any]:
    rounded: list[Any] = values.double().numpy().round(decimals).tolist()
    return rounded


def _error(predicted: Tensor, classes: Tensor) -> float:
    """In per cent."""
    return 100 * (predicted != classes).double().mean().item()
