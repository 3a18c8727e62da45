"""Small data for the estimators."""

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits, make_blobs

Array = npt.NDArray[Any]


def hidden(truth: Array, known: int, *, mark: Any = -1) -> Array:
    """The labels with all but the first `known` of each class taken away."""
    labels = np.full(len(truth), mark, dtype=truth.dtype)
    for label in np.unique(truth):
        first = np.flatnonzero(truth == label)[:known]
        labels[first] = label
    return labels


def blobs(num: int = 90, classes: int = 3) -> tuple[Array, Array]:
    """Vectors of well separated classes."""
    vectors, truth = make_blobs(num, centers=classes, n_features=4, random_state=1)
    return vectors, truth


def digits(num: int = 120) -> tuple[Array, Array]:
    """Images (N, 8, 8) of floats from 0 to 16."""
    bunch = load_digits()
    return bunch.images[:num], bunch.target[:num]
