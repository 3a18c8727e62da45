"""Methods of other libraries, on the same splits, for comparison."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from manigraph.data.preprocessing import Standardise
from manigraph.data.sources.base import UNLABELLED, Dataset
from manigraph.data.split import Split
from manigraph.readout import graph_model, spread_labels


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


def label_spreading_by_cosine(dataset: Dataset, split: Split) -> float:
    """The same by the cosine of standardised vectors, on a graph whose edges go both ways, α = 0.99.

    What `manigraph.readout` does with the features of a run, here with those of a pretrained network.
    """
    vectors = F.normalize(_standardised(dataset, split), dim=1).double().numpy()
    train = torch.cat([split.labelled, split.unlabelled]).sort().values
    known = torch.where(torch.isin(train, split.labelled), dataset.classes[train], UNLABELLED)
    spread = spread_labels(
        graph_model("label_spreading"),
        *(vectors[train.numpy()], known.numpy(), vectors[split.test.numpy()]),
        num_classes=dataset.num_classes,
    )
    return float(100 * (spread.probs.argmax(axis=1) != dataset.classes[split.test].numpy()).mean())


def logistic_regression(dataset: Dataset, split: Split) -> float:
    """Test error (%) of scikit-learn's logistic regression on the labelled images alone.

    Entries are standardised over all training images, and the strength of the penalty is chosen by
    cross-validation; with a single label of some class it is that which was best with few labels.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    vectors, classes = _standardised(dataset, split).numpy(), dataset.classes.numpy()
    labelled, test = split.labelled.numpy(), split.test.numpy()
    known = classes[labelled]
    folds = min(4, int(np.bincount(known)[np.unique(known)].min()))
    model: Any = LogisticRegression(C=FEW_LABELS_C, max_iter=1000)
    if folds > 1:
        model = GridSearchCV(model, {"C": PENALTIES}, cv=folds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(vectors[labelled].astype(np.float64), known)
    return float(100 * (model.predict(vectors[test].astype(np.float64)) != classes[test]).mean())


def _standardised(dataset: Dataset, split: Split) -> Tensor:
    """All vectors, with mean 0 and deviation 1 of each entry over the training images."""
    prepare = Standardise.fit(dataset.images, torch.cat([split.labelled, split.unlabelled]))
    return prepare(dataset.images).flatten(1)


FEW_LABELS_C = 1e-3
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""C of scikit-learn, where a smaller one is a stronger penalty; on entries of deviation 1."""

OUTSIDERS: dict[str, Callable[[Dataset, Split], float]] = {
    "label_spreading": label_spreading,
    "label_spreading_by_cosine": label_spreading_by_cosine,
    "logistic_regression": logistic_regression,
}
