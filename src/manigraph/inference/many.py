"""What a run says about many images of its data set, a few at a time."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from manigraph.data.cache import Progress, silent
from manigraph.inference.predictor import Answers, Predictor

AT_ONCE = 512


def answers_in_turn(
    predictor: Predictor, images: Tensor, indices: Tensor, progress: Progress = silent
) -> Iterator[tuple[Tensor, Answers]]:
    """Some indices and what the run says about their images, until all have come.

    Args:
        predictor: The run.
        images: All images of the data set as they are stored, perhaps mapped from a file.
        indices: (N,): which of them.
        progress: Called on the way.
    """
    done = 0
    for chunk in indices.split(AT_ONCE):
        yield chunk, predictor(images.index_select(0, chunk))
        done += len(chunk)
        progress("looking at training images", done, len(indices))


class Outlook(NamedTuple):
    """Of N images, in the order in which they were asked for."""

    logits: Tensor
    """(N, C)."""
    features: Tensor
    """(N, D): f, before any graph."""


def outlook(predictor: Predictor, images: Tensor, indices: Tensor, progress: Progress = silent) -> Outlook:
    """Logits and features of the images at `indices`, at least one; 4·(C + D) bytes an image are kept."""
    answers = [
        (answer.logits, answer.features)
        for _, answer in answers_in_turn(predictor, images, indices, progress)
    ]
    logits, features = zip(*answers, strict=True)
    return Outlook(torch.cat(logits), torch.cat(features))


class Nearest(NamedTuple):
    """For each of Q places the images nearest to it, the nearest first; k, or as many as there are."""

    indices: Tensor
    """(Q, k): in the data set."""
    cosines: Tensor
    """(Q, k)."""
    predicted: Tensor
    """(Q, k): the run's answers."""


def nearest_images(
    predictor: Predictor,
    images: Tensor,
    indices: Tensor,
    places: Tensor,
    k: int,
    progress: Progress = silent,
) -> Nearest:
    """By the cosine of features before the graph; of equally near images the first in `indices`.

    Only the nearest so far are kept, so the number of images does not matter.

    Args:
        predictor: The run.
        images: All images of the data set.
        indices: (N,): those to look at.
        places: (Q, D): where to look.
        k: How many for each place.
        progress: Called on the way.
    """
    Q = len(places)
    places = F.normalize(places, dim=1)
    found = Nearest(
        torch.zeros(Q, 0, dtype=torch.long), torch.zeros(Q, 0), torch.zeros(Q, 0, dtype=torch.long)
    )
    for chunk, answers in answers_in_turn(predictor, images, indices, progress):
        cosines = places @ F.normalize(answers.features, dim=1).T  # (Q, n)
        merged = Nearest(
            torch.cat([found.indices, chunk.expand(Q, -1)], dim=1),
            torch.cat([found.cosines, cosines], dim=1),
            torch.cat([found.predicted, answers.predicted.expand(Q, -1)], dim=1),
        )
        order = merged.cosines.argsort(dim=1, descending=True, stable=True)[:, :k]
        found = Nearest(*(values.gather(1, order) for values in merged))
    return found
