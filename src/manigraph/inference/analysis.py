"""What a report shows of a trained run, computed once: so that reports need neither torch nor the images.

`analysis.json` holds names and numbers, `analysis.safetensors` what has many of them:

| tensor | content |
|---|---|
| `index`, `class`, `logits` | of the N images on the map; `logits_before` without the graph |
| `places_before`, `places_after` | where they are on the map, (N, 2); after the graph if there is one |
| `thumbnails` | (N, channels, height, width) bytes, small; none of vectors |
| `node_class`, `node_places_before`, `node_places_after` | of the P class nodes |
| `attention_rows`, `attention` | some of the N images, by class, and their rows of the graph, (R, P) |
| `attention_by_class` | (N, C): the sums of all rows over the nodes of each class |
| `attention_among` | (P, P): the rows of the nodes among one another |
| `node_usage` | mean weight of each node |
| `node_twin` | the largest cosine of each node with another of its class |
| `gallery_index`, `_label`, `_similarity`, `_thumbnails` | of each node the nearest training images, (P, M) |
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from manigraph.data.cache import Progress, silent
from manigraph.data.locations import Locations
from manigraph.data.sources.base import UNLABELLED, Dataset
from manigraph.engine import dataset_of, stored_indices
from manigraph.errors import UserError
from manigraph.functional import cosine_similarity
from manigraph.inference.manifold import (
    GraphView,
    ManifoldView,
    manifold_view,
    map_places,
    summary_of,
    why_without_graph,
)
from manigraph.inference.predictor import Predictor
from manigraph.runs import RunDirectory, write_bytes
from manigraph.training.checkpoint import tensor_bytes
from manigraph.training.selection import Part

MOST_IMAGES_OF_TEST = 2000
"""A run without enough validation images shows so many of its test images."""

ENOUGH_OF_VALIDATION = 50
"""From so many on, they show what there is to see."""
MOST_ROWS = 1000
"""Rows of images in the picture of the graph."""
MOST_NODES_AMONG = 2048
"""With more class nodes, their P·P edges are not kept."""
MOST_TRAINING_IMAGES = 5000
"""Training images among which the nearest to each class node are looked for: labelled ones first."""
NEAREST = 3
THUMBNAIL_SIDE = 48
BATCH = 512


def write_analysis(
    run: RunDirectory,
    *,
    dataset: Dataset | None = None,
    locations: Locations | None = None,
    progress: Progress = silent,
) -> None:
    """Compute all of it and put it into the run directory.

    Args:
        run: A run with trained weights.
        dataset: The images in memory, if the run was trained on such.
        locations: Where data sets and decoded pixels are; by default from the environment.
        progress: Called while it is computed.
    """
    values, tensors = analyse(run, dataset=dataset, locations=locations, progress=progress)
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    write_bytes(run.path / "analysis.safetensors", tensor_bytes(contiguous))
    run.write_json("analysis.json", values)


def part_to_show(split: Mapping[str, Any]) -> Part | None:
    """Validation images, or test images where there are more of these and too few of those."""
    validation, test = len(split.get("validation") or ()), len(split.get("test") or ())
    if validation >= min(ENOUGH_OF_VALIDATION, max(test, 1)):
        return "validation"
    return "test" if test else None


@torch.no_grad()
def analyse(
    run: RunDirectory,
    *,
    dataset: Dataset | None = None,
    locations: Locations | None = None,
    progress: Progress = silent,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Values and tensors, as `write_analysis` writes them."""
    split = run.read_json("split.json")
    part = part_to_show(split)
    if part is None:
        raise UserError(f"the run '{run.path}' has neither validation nor test images to show")
    predictor = Predictor.load(run.path)
    dataset = dataset_of(run, predictor.trained, dataset=dataset, locations=locations, progress=progress)
    most = None if part == "validation" else MOST_IMAGES_OF_TEST
    view = manifold_view(run, part, dataset=dataset, most=most)
    progress("placing images on a map", 0, 2)
    places, node_places = map_places(view.features, None if view.graph is None else view.graph.prototypes)
    tensors = {
        "index": view.indices,
        "class": view.classes,
        "logits": view.logits,
        "places_before": places,
    }
    if len(dataset.input_shape) == 3:
        tensors["thumbnails"] = thumbnails(dataset.images.index_select(0, view.indices), dataset.white)
    progress("placing images on a map", 1, 2)
    values: dict[str, Any] = {
        "part": part,
        "images_of_part": len(split[part]),
        "class_names": list(predictor.class_names),
        "without_graph": why_without_graph(view),
        "summary": summary_of(view),
    }
    if view.graph is not None:
        assert node_places is not None
        assert view.logits_before is not None
        after, nodes_after = map_places(view.graph.refined, view.graph.refined_prototypes)
        assert nodes_after is not None
        tensors |= {
            "logits_before": view.logits_before,
            "places_after": after,
            "node_class": view.graph.classes,
            "node_places_before": node_places,
            "node_places_after": nodes_after,
            **_edges(view, view.graph),
        }
        values["nodes"] = view.graph.nodes
        gallery, seen = _gallery(run, predictor, dataset, view.graph, progress)
        tensors |= gallery
        values["gallery_images"] = seen
    progress("placing images on a map", 2, 2)
    return values, tensors


def _edges(view: ManifoldView, graph: GraphView) -> dict[str, Tensor]:
    """Whole rows of some images, spread evenly over all, and what of every row goes to which class."""
    N = len(view.indices)
    rows = torch.arange(N) if N <= MOST_ROWS else torch.linspace(0, N - 1, MOST_ROWS).round().long()
    C = len(view.trained.class_names)
    edges = {
        "attention_rows": rows,
        "attention": graph.image_attention[rows],
        "attention_by_class": graph.image_attention.unflatten(1, (C, -1)).sum(dim=2),
    }
    if graph.prototype_attention is not None and len(graph.classes) <= MOST_NODES_AMONG:
        edges["attention_among"] = graph.prototype_attention
    return edges


def _gallery(
    run: RunDirectory, predictor: Predictor, dataset: Dataset, graph: GraphView, progress: Progress
) -> tuple[dict[str, Tensor], int]:
    """The training images nearest to each class node, how much each node is used, and which are alike."""
    indices, labels = _training_images(run, dataset)
    C, P = len(predictor.class_names), len(graph.classes)
    similarity, usage = torch.empty(len(indices), P), torch.zeros(P, dtype=torch.double)
    for start in range(0, len(indices), BATCH):
        part = slice(start, start + BATCH)
        answers = predictor(dataset.images.index_select(0, indices[part]))
        assert answers.attention is not None
        similarity[part] = cosine_similarity(answers.features, graph.prototypes)
        usage += answers.attention.sum(dim=0)
        progress("looking at training images", min(start + BATCH, len(indices)), len(indices))
    best, nearest = similarity.topk(min(NEAREST, len(indices)), dim=0)  # (M, P)
    grouped = graph.prototypes.unflatten(0, (C, -1))
    alike = cosine_similarity(grouped, grouped)  # (C, K, K)
    alike.diagonal(dim1=1, dim2=2).fill_(-1.0)
    found = {
        "gallery_index": indices[nearest.T],
        "gallery_label": labels[nearest.T],
        "gallery_similarity": best.T,
        "node_usage": (usage / len(indices)).float(),
        "node_twin": alike.amax(dim=2).flatten(),
    }
    if len(dataset.input_shape) == 3:
        images = dataset.images.index_select(0, indices[nearest.T].flatten())
        found["gallery_thumbnails"] = thumbnails(images, dataset.white).unflatten(0, (P, -1))
    return found, len(indices)


def _training_images(run: RunDirectory, dataset: Dataset) -> tuple[Tensor, Tensor]:
    """Labelled images with their classes, then unlabelled ones, whose classes nobody knows here."""
    labelled = stored_indices(run, "labelled")[:MOST_TRAINING_IMAGES]
    unlabelled = stored_indices(run, "unlabelled")
    unlabelled = unlabelled[: MOST_TRAINING_IMAGES - len(labelled)]
    unknown = torch.full_like(unlabelled, UNLABELLED)
    return torch.cat([labelled, unlabelled]), torch.cat([dataset.classes[labelled], unknown])


def thumbnails(images: Tensor, white: float) -> Tensor:
    """(N, channels, height, width) bytes with white at 255, no side longer than `THUMBNAIL_SIDE`."""
    # A few at a time: as floats, many photographs would not fit into memory.
    return torch.cat([_small(chunk, white) for chunk in images.split(BATCH)])


def _small(images: Tensor, white: float) -> Tensor:
    height, width = images.shape[2:]
    factor = -(-max(height, width) // THUMBNAIL_SIDE)
    bright = (images.float() * (255 / white)).clamp(0, 255)
    if factor > 1:
        bright = torch.nn.functional.avg_pool2d(bright, factor, ceil_mode=True, count_include_pad=False)
    return bright.round().to(torch.uint8)
