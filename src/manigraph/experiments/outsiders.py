"""Methods of other libraries, on the same splits, for comparison."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from manigraph.data.preprocessing import Standardise
from manigraph.data.sources.base import UNLABELLED, Dataset
from manigraph.data.split import Split
from manigraph.readout import spread_labels


def label_spreading(dataset: Dataset, split: Split) -> float:
    """Test error (%) of scikit-learn's LabelSpreading on raw pixels or features, 7 nearest neighbours."""
    from sklearn.semi_supervised import LabelSpreading

    pixels = dataset.images.flatten(1).double().numpy()
    classes = dataset.classes.numpy()
    known = np.full(len(classes), UNLABELLED)
    known[split.labelled.numpy()] = classes[split.labelled.numpy()]
    # In the order of the data set: ties among neighbours are broken by position.
    train = dataset.train.numpy()[~np.isin(dataset.train.numpy(), split.validation.numpy())]
    test = split.test.numpy()
    model = LabelSpreading(kernel="knn", n_neighbors=7, max_iter=100)
    spread = spread_labels(
        model, pixels[train], known[train], pixels[test], num_classes=dataset.num_classes, neighbours=7
    )
    # A test image that no label came to counts as class 0.
    return float(100 * (spread.probs.argmax(axis=1) != classes[test]).mean())


def logistic_regression(dataset: Dataset, split: Split) -> float:
    """Test error (%) of scikit-learn's logistic regression on the labelled images alone.

    Entries are standardised over all training images, and the strength of the penalty is chosen by
    cross-validation; with a single label of some class it is that which was best with few labels.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    classes = dataset.classes.numpy()
    seen = torch.cat([split.labelled, split.unlabelled])
    prepare = Standardise.fit(dataset.images, seen)

    def vectors(indices: Tensor) -> npt.NDArray[np.float64]:
        return prepare(dataset.images.index_select(0, indices)).flatten(1).double().numpy()

    labelled, known = vectors(split.labelled), classes[split.labelled.numpy()]
    folds = min(4, int(np.bincount(known)[np.unique(known)].min()))
    model: Any = LogisticRegression(C=FEW_LABELS_C, max_iter=1000)
    if folds > 1:
        model = GridSearchCV(model, {"C": PENALTIES}, cv=folds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(labelled, known)
    wrong = 0
    for part in split.test.split(2048):
        wrong += int((model.predict(vectors(part)) != classes[part.numpy()]).sum())
    return 100 * wrong / len(split.test)


FEW_LABELS_C = 1e-3
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""C of scikit-learn, where a smaller one is a stronger penalty; on entries of deviation 1."""

OUTSIDERS: dict[str, Callable[[Dataset, Split], float]] = {
    "label_spreading": label_spreading,
    "logistic_regression": logistic_regression,
}
