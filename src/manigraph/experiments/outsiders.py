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
    train = np.concatenate([split.labelled.numpy(), split.unlabelled.numpy()])
    test = split.test.numpy()
    model = LabelSpreading(kernel="knn", n_neighbors=7, max_iter=100)
    model.fit(pixels[train], known[train])
    return float(100 * (model.predict(pixels[test]) != classes[test]).mean())


OUTSIDERS: dict[str, Callable[[Dataset, Split], float]] = {"label_spreading": label_spreading}
