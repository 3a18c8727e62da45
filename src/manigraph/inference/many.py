"""What a run says about many images of its data set, a few at a time."""

from typing import NamedTuple

import torch
from torch import Tensor

from manigraph.data.cache import Progress, silent
from manigraph.inference.predictor import Predictor

AT_ONCE = 512


class Outlook(NamedTuple):
    """Of N images, in the order in which they were asked for."""

    logits: Tensor
    """(N, C)."""
    features: Tensor
    """(N, D): f, before any graph."""


def outlook(predictor: Predictor, images: Tensor, indices: Tensor, progress: Progress = silent) -> Outlook:
    """Logits and features of the images at `indices`; only these, 8·(C + D) bytes an image, are kept.

    Args:
        predictor: The run.
        images: All images of the data set as they are stored, perhaps mapped from a file.
        indices: (N,), at least one.
        progress: Called on the way.
    """
    parts, done = [], 0
    for chunk in indices.split(AT_ONCE):
        answers = predictor(images.index_select(0, chunk))
        parts.append(Outlook(answers.logits, answers.features))
        done += len(chunk)
        progress("looking at training images", done, len(indices))
    return Outlook(*(torch.cat(values) for values in zip(*parts, strict=True)))
