"""What a trained run says about image files, one answer for each."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from manigraph.data.sources.base import Problem
from manigraph.errors import UserError, shown
from manigraph.inference.files import find_images, intake_of, read_batches
from manigraph.inference.predictor import Answers, Predictor

NEAREST = 3
"""Prototypes that are named for an image."""


@dataclass(frozen=True)
class NearNode:
    """A class node of the graph that an image hears."""

    class_name: str
    number: int
    """Within its class, from 1, as in explanations and reports."""
    weight: float
    """What of all the image hears comes from it."""


@dataclass(frozen=True)
class FilePrediction:
    """What a run says about one file."""

    path: Path
    class_name: str
    """The most probable one."""
    probability: float
    """Of that class."""
    probabilities: tuple[float, ...]
    """Of all classes, in the order of `Predictor.class_names`."""
    nearest: tuple[NearNode, ...]
    """The prototypes (or labelled images, where these are the nodes) that the image hears most of; none if
    the run has no graph."""


def refuse(problem: Problem) -> None:
    """Stop at the first file that cannot be read."""
    raise UserError(
        f"'{shown(problem.path)}' cannot be read: {problem.reason} (`on_problem` lets you go on without it)"
    )


def predict_files(
    predictor: Predictor,
    places: Iterable[Path | str],
    *,
    nearest: int = NEAREST,
    on_problem: Callable[[Problem], None] = refuse,
    listed: BinaryIO | None = None,
    batch_size: int | None = None,
    threads: int | None = None,
) -> Iterator[FilePrediction]:
    """Answers in the order of the files, while they are read; any number of files takes the same memory.

    Args:
        predictor: The run.
        places: Files, folders and patterns like `photos/**/*.jpg`; `-` for the list in `listed`.
        nearest: How many prototypes to name for each image.
        on_problem: Called with each file that cannot be read; by default the first one is an error.
        listed: A file with a path on each line, or with a zero byte after each path.
        batch_size: Images that are predicted at once; by default as many as take some megabytes.
        threads: That decode files; by default one for each core.
    """
    intake = intake_of(predictor.trained)
    files = find_images(places, listed=listed)
    for batch in read_batches(files, intake.shape, batch_size=batch_size, threads=threads):
        for problem in batch.problems:
            on_problem(problem)
        if batch.paths:
            yield from _rows(predictor, batch.paths, predictor(intake.stored(batch.images)), nearest)


def _rows(
    predictor: Predictor, paths: tuple[Path, ...], answers: Answers, nearest: int
) -> Iterator[FilePrediction]:
    names = predictor.class_names
    predicted, probabilities = answers.predicted.tolist(), answers.probabilities.tolist()
    near = _nearest(predictor, answers, nearest)
    for path, winner, row, nodes in zip(paths, predicted, probabilities, near, strict=True):
        yield FilePrediction(path, names[winner], row[winner], tuple(row), nodes)


def _nearest(predictor: Predictor, answers: Answers, nearest: int) -> list[tuple[NearNode, ...]]:
    if answers.attention is None:
        return [()] * len(answers.logits)
    weights, nodes = answers.attention.topk(min(nearest, answers.attention.shape[1]), dim=1)
    names, classes = predictor.class_names, predictor.node_classes.tolist()
    per_class = len(classes) // len(names)
    return [
        tuple(
            NearNode(names[classes[node]], node % per_class + 1, weight)
            for node, weight in zip(row, row_weights, strict=True)
        )
        for row, row_weights in zip(nodes.tolist(), weights.tolist(), strict=True)
    ]
