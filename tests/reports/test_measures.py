"""What is said about predictions, against loops over images and torchmetrics."""

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from manigraph.reports.facts import softmax
from manigraph.reports.measures import (
    Predictions,
    calibration_error,
    class_rows,
    confident_mistakes,
    confusion,
    reliability,
)


@pytest.fixture
def predictions() -> Predictions:
    random = np.random.default_rng(0)
    return Predictions.of(
        "test", np.arange(300) + 7, random.integers(0, 4, 300), 2 * random.normal(size=(300, 4))
    )


def test_confusion_counts_images(predictions: Predictions) -> None:
    counts = confusion(predictions)
    for row in range(4):
        for column in range(4):
            pairs = zip(predictions.classes, predictions.predicted, strict=True)
            assert counts[row, column] == sum(c == row and p == column for c, p in pairs)


def test_rows_of_classes(predictions: Predictions) -> None:
    counts = confusion(predictions)
    counts[2] = 0
    rows = class_rows(counts, ("a", "b", "c", "d"))
    assert [row["name"] for row in rows] == ["a", "b", "d"]  # c has no image
    first = rows[0]
    assert first["wrong"] == counts[0, 1:].sum()
    assert first["error"] == pytest.approx(100 * counts[0, 1:].sum() / counts[0].sum())
    assert first["taken_for"] == "abcd"[1 + int(counts[0, 1:].argmax())]
    assert first["taken_for_count"] == counts[0, 1:].max()


def test_a_class_without_mistakes() -> None:
    (row,) = class_rows(np.array([[5]]), ("only",))
    assert row["error"] == 0
    assert row["taken_for"] is None


def test_calibration_is_that_of_torchmetrics(predictions: Predictions) -> None:
    bins = reliability(predictions)
    expected = multiclass_calibration_error(
        torch.from_numpy(predictions.probabilities),
        torch.from_numpy(predictions.classes),
        num_classes=4,
        n_bins=15,
        norm="l1",
    )
    assert calibration_error(bins) == pytest.approx(100 * float(expected), abs=1e-4)
    assert sum(row["images"] for row in bins) == 300


def test_the_most_confident_mistakes_come_first(predictions: Predictions) -> None:
    chosen = confident_mistakes(predictions, 10)
    wrong = [
        (-predictions.confidence[i], i)
        for i in range(300)
        if predictions.predicted[i] != predictions.classes[i]
    ]
    assert chosen.tolist() == [i for _, i in sorted(wrong)[:10]]


def test_softmax_of_large_logits() -> None:
    rows = softmax(np.array([[1000.0, 1000.0], [0.0, -1000.0]], dtype=np.float32))
    np.testing.assert_allclose(rows, [[0.5, 0.5], [1.0, 0.0]])
