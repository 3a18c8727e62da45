"""Why a run takes an image for what it does: what it hears in its graph, and which training images are near.

| question | answer |
|---|---|
| to whom does the image listen? | its row of the graph, w_bp over the prototypes; their sums over classes |
| what do these prototypes stand for? | the training images with the largest cosine to them |
| what is the graph good for? | what the linear layer would say of the features before the graph |
| what is the image like? | the training images with the largest cosine to it |

All cosines are between features before the graph, where the prototypes are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from manigraph.data.cache import Progress, silent
from manigraph.data.locations import Locations
from manigraph.data.sources.base import UNLABELLED, Dataset
from manigraph.engine import dataset_of, indices_of
from manigraph.errors import UserError
from manigraph.inference.many import Nearest, nearest_images
from manigraph.inference.pictures import Picture, picture_of
from manigraph.inference.predictor import Answers, Predictor
from manigraph.nn import FrozenGraphClassifier

PARTS: tuple[Literal["labelled"], Literal["unlabelled"]] = ("labelled", "unlabelled")
"""Of training images."""

PROTOTYPES = 3
NEIGHBOURS = 5


@dataclass(frozen=True, eq=False)
class Explanation:
    """What there is to say about one image, and the pictures that go with it."""

    facts: dict[str, Any]
    """Plain values, for JSON."""
    picture: Picture | None
    """Of the image itself; None for vectors."""
    pictures: Mapping[int, Picture]
    """Of the training images that are named, by their index in the data set."""


def training_images(
    predictor: Predictor,
    *,
    dataset: Dataset | None = None,
    locations: Locations | None = None,
    progress: Progress = silent,
) -> Dataset | str:
    """The data set that a run was trained on, or why it is not at hand.

    Args:
        predictor: The run.
        dataset: The images in memory, if the run was trained on such.
        locations: Where data sets and decoded pixels are; by default from the environment.
        progress: Called while data is read.
    """
    try:
        return dataset_of(
            predictor.run, predictor.trained, dataset=dataset, locations=locations, progress=progress
        )
    except UserError as error:
        return str(error)


def explain(
    predictor: Predictor,
    image: Tensor,
    dataset: Dataset | str,
    *,
    name: str = "",
    index: int | None = None,
    picture: Picture | None = None,
    pixels: Dataset | None = None,
    prototypes: int = PROTOTYPES,
    neighbours: int = NEIGHBOURS,
    progress: Progress = silent,
) -> Explanation:
    """What a run sees in one image.

    Args:
        predictor: The run.
        image: As its data set stores images: (channels, height, width), or (size,) of vectors and features.
        dataset: The images it was trained on, or why they are not at hand.
        name: What the image is called.
        index: Where it is in the data set, if that is known.
        picture: What the image looks like; by default made from `image`, unless that is a vector.
        pixels: Where training images are pictures; by default `dataset`, unless that holds vectors.
        prototypes: Of so many, those that the image hears most of, the nearest training images are named.
        neighbours: How many labelled and how many unlabelled images are named for each.
        progress: Called while training images are looked at.
    """
    answers = predictor(image.unsqueeze(0))
    most = torch.zeros(0, dtype=torch.long)
    places = answers.features
    if answers.attention is not None and predictor.nodes is not None:
        P = answers.attention.shape[1]
        most = answers.attention[0].argsort(descending=True, stable=True)[: min(prototypes, P)]
        places = torch.cat([answers.features, predictor.nodes.prototypes[most]])
    near: dict[str, Nearest] = {}
    own_part = None
    if isinstance(dataset, Dataset):
        for part in PARTS:
            indices = indices_of(predictor.run, part)
            found = nearest_images(predictor, dataset.images, indices, places, neighbours + 1, progress)
            near[part], has_copy = _without_itself(found, image, index, dataset, neighbours)
            own_part = part if has_copy else own_part
    facts = {
        "run": predictor.run.path.resolve().name,
        "algorithm": predictor.trained.config.algorithm,
        "image": {
            "name": name,
            "index": index,
            "class": _known_class(index, dataset, predictor),
            "training_part": own_part,
        },
        **_answer_facts(predictor, answers),
        "graph": _graph_facts(predictor, answers),
        "without_graph": _without_graph(predictor),
        "prototypes": [
            _prototype_facts(predictor, answers, int(p), _near_facts(near, row, dataset, predictor))
            for row, p in enumerate(most, start=1)
        ],
        "nearest": _near_facts(near, 0, dataset, predictor),
        "without_training_images": dataset if isinstance(dataset, str) else None,
    }
    if picture is None and image.ndim == 3:
        picture = picture_of(image, predictor.trained.white)
    if pixels is None and isinstance(dataset, Dataset) and dataset.images.ndim == 4:
        pixels = dataset
    pictures = {}
    if pixels is not None and near:
        named = torch.cat([found.indices.flatten() for found in near.values()]).unique().tolist()
        pictures = {i: picture_of(pixels.images[i], pixels.white) for i in named}
    return Explanation(facts, picture, pictures)


def _without_itself(
    found: Nearest, image: Tensor, index: int | None, dataset: Dataset, k: int
) -> tuple[Nearest, bool]:
    """The first k of k + 1, and whether the image is among them, which is then not its own neighbour."""
    near = found.indices[0].tolist()
    copies = [i for i in near if torch.allclose(dataset.images[i].float(), image.float(), atol=1e-4)]
    if not copies:
        return Nearest(*(values[:, :k] for values in found)), False
    own = near.index(index if index in copies else copies[0])
    keep = torch.arange(found.indices.shape[1]).expand(len(found.indices), -1).clone()
    keep[0, own:] += 1  # its row goes on after it; the rows of prototypes may hold it
    keep = keep[:, : min(k, found.indices.shape[1] - 1)]
    return Nearest(*(values.gather(1, keep) for values in found)), True


def _known_class(index: int | None, dataset: Dataset | str, predictor: Predictor) -> str | None:
    if index is None or isinstance(dataset, str) or int(dataset.classes[index]) == UNLABELLED:
        return None
    return predictor.class_names[int(dataset.classes[index])]


def _answer_facts(predictor: Predictor, answers: Answers) -> dict[str, Any]:
    """Probabilities with and without the graph, and what is heard of each class."""
    names, C = predictor.class_names, len(predictor.class_names)
    # In doubles: a float that is almost 1 would be called certain.
    probs = answers.logits[0].double().softmax(dim=0)
    raw = answers.logits_without_graph
    before = None if raw is None else raw[0].double().softmax(dim=0)
    heard = None
    if answers.attention is not None:
        heard = torch.zeros(C).index_add(0, predictor.node_classes, answers.attention[0])
    return {
        "predicted": _best(names, probs),
        "predicted_without_graph": None if before is None else _best(names, before),
        "classes": [
            {
                "class": names[c],
                "probability": _number(probs[c]),
                "probability_without_graph": None if before is None else _number(before[c]),
                "attention": None if heard is None else _number(heard[c]),
            }
            for c in range(C)
        ],
    }


def _best(names: tuple[str, ...], probs: Tensor) -> dict[str, Any]:
    best = int(probs.argmax())
    return {"class": names[best], "probability": _number(probs[best])}


def _graph_facts(predictor: Predictor, answers: Answers) -> dict[str, Any] | None:
    if answers.attention is None:
        return None
    images = predictor.model.nodes_are_images
    return {
        "nodes": "labelled images" if images else "prototypes",
        "per_class": len(predictor.node_classes) // len(predictor.class_names),
        "attention": [_number(weight) for weight in answers.attention[0]],
    }


def _without_graph(predictor: Predictor) -> str | None:
    """Why there is none."""
    if predictor.nodes is not None:
        return None
    if isinstance(predictor.model, FrozenGraphClassifier):
        return "the run ended before its graph was on"
    return f"{predictor.trained.config.algorithm} has no graph"


def _prototype_facts(
    predictor: Predictor, answers: Answers, number: int, near: dict[str, Any] | None
) -> dict[str, Any]:
    assert answers.attention is not None
    assert predictor.nodes is not None
    per_class = len(predictor.node_classes) // len(predictor.class_names)
    cosine = F.cosine_similarity(answers.features[0], predictor.nodes.prototypes[number], dim=0)
    return {
        "number": number,
        "class": predictor.class_names[number // per_class],
        "number_in_class": number % per_class + 1,
        "attention": _number(answers.attention[0, number]),
        "cosine": _number(cosine),
        "nearest": near,
    }


def _near_facts(
    near: Mapping[str, Nearest], row: int, dataset: Dataset | str, predictor: Predictor
) -> dict[str, Any] | None:
    if not isinstance(dataset, Dataset):
        return None
    return {part: _neighbours(found, row, part, dataset, predictor) for part, found in near.items()}


def _neighbours(
    found: Nearest, row: int, part: str, dataset: Dataset, predictor: Predictor
) -> list[dict[str, Any]]:
    """The label of an unlabelled image is not told, even where the data set has it: the run never saw it."""
    names = predictor.class_names
    return [
        {
            "index": index,
            "path": None if dataset.paths is None else dataset.paths[index],
            "class": names[int(dataset.classes[index])] if part == "labelled" else None,
            "predicted": names[predicted],
            "cosine": round(cosine, 6),
        }
        for index, cosine, predicted in zip(
            found.indices[row].tolist(),
            found.cosines[row].tolist(),
            found.predicted[row].tolist(),
            strict=True,
        )
    ]


def _number(value: Tensor) -> float:
    return round(value.item(), 9)
