"""Methods of other libraries, on the same splits, for comparison."""

from collections.abc import Callable

import numpy as np

from manigraph.data.sources.base import UNLABELLED, Dataset
from manigraph.data.split import Split


def label_spreading(dataset: Dataset, split: Split) -> float:
    """Test error (%) of scikit-learn's LabelSpreading on raw pixels, 7 nearest neighbours."""
    from sklearn.semi_supervised import LabelSpreading

    pixels = dataset.images.flatten(1).double().numpy()
    classes = dataset.classes.numpy()
    known = np.full(len(classes), UNLABELLED)
    known[split.labelled.numpy()] = classes[split.labelled.numpy()]
    # In the order of the data set: ties among neighbours are broken by position.
    train = dataset.train.numpy()[~np.isin(dataset.train.numpy(), split.validation.numpy())]
    test = split.test.numpy()
    model = LabelSpreading(kernel="knn", n_neighbors=7, max_iter=100)
    model.fit(pixels[train], known[train])
    # A test image none of whose neighbours was reached has a 0/0 there and counts as class 0.
    with np.errstate(invalid="ignore"):
        predicted = model.predict(pixels[test])
    return float(100 * (predicted != classes[test]).mean())


OUTSIDERS: dict[str, Callable[[Dataset, Split], float]] = {"label_spreading": label_spreading}
