"""What predictions are like: confusions, errors of classes, calibration, confident mistakes. No torch."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from manigraph.reports.facts import Array, softmax

BINS = 15
"""As in the calibration error."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """Of the images of one part of a split."""

    part: str
    index: Array
    classes: Array
    probabilities: npt.NDArray[np.float64]

    @classmethod
    def of(cls, part: str, index: Array, classes: Array, logits: Array) -> "Predictions":
        """From logits."""
        return cls(part, index, classes, softmax(logits))

    @property
    def predicted(self) -> Array:
        """The most probable class of each image."""
        highest: Array = self.probabilities.argmax(axis=1)
        return highest

    @property
    def confidence(self) -> npt.NDArray[np.float64]:
        """Its probability."""
        highest: npt.NDArray[np.float64] = self.probabilities.max(axis=1)
        return highest

    @property
    def wrong(self) -> Array:
        """Whether each is wrong."""
        differs: Array = self.predicted != self.classes
        return differs


def confusion(predictions: Predictions) -> npt.NDArray[np.int64]:
    """(C, C): how many images of a class (row) are taken for which (column)."""
    C = predictions.probabilities.shape[1]
    counts = np.zeros((C, C), dtype=np.int64)
    np.add.at(counts, (predictions.classes, predictions.predicted), 1)
    return counts


def class_rows(counts: npt.NDArray[np.int64], names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Of each class that has images: how many, how many are wrong, and for what they are taken most."""
    rows = []
    for c, name in enumerate(names):
        images = int(counts[c].sum())
        if images == 0:
            continue
        others = counts[c].copy()
        others[c] = 0
        most = int(others.argmax())
        wrong = int(others.sum())
        rows.append(
            {
                "number": c,
                "name": name,
                "images": images,
                "wrong": wrong,
                "error": 100 * wrong / images,
                "taken_for": None if wrong == 0 else names[most],
                "taken_for_count": int(others[most]),
            }
        )
    return rows


def reliability(predictions: Predictions) -> list[dict[str, float]]:
    """Of each bin of confidence that has images: mean confidence, share of right answers, and how many."""
    confidence, right = predictions.confidence, ~predictions.wrong
    # A probability on the border of two bins belongs to the lower one, as in torchmetrics.
    bins = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    found = []
    for number in range(BINS):
        inside = bins == number
        if inside.any():
            found.append(
                {
                    "low": number / BINS,
                    "high": (number + 1) / BINS,
                    "confidence": float(confidence[inside].mean()),
                    "accuracy": float(right[inside].mean()),
                    "images": int(inside.sum()),
                }
            )
    return found


def calibration_error(bins: list[dict[str, float]]) -> float:
    """Expected calibration error, in per cent: Σ n_b / N · |accuracy_b - confidence_b|."""
    total = sum(row["images"] for row in bins)
    return 100 * sum(row["images"] * abs(row["accuracy"] - row["confidence"]) for row in bins) / total


def confident_mistakes(predictions: Predictions, most: int) -> npt.NDArray[np.int64]:
    """Positions of wrong predictions, the most confident first."""
    wrong = np.flatnonzero(predictions.wrong)
    order = np.argsort(-predictions.confidence[wrong], kind="stable")
    chosen: npt.NDArray[np.int64] = wrong[order][:most]
    return chosen
