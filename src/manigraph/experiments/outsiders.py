"""Methods of other libraries, on the same splits, for comparison."""

from collections.abc import Callable

import numpy as np

from manigraph.data.sources.base import UNLABELLED, Dataset
from manigraph.data.split import Split
from manigraph.readout import spread_labels


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
    spread = spread_labels(
        model, pixels[train], known[train], pixels[test], num_classes=dataset.num_classes, neighbours=7
    )
    # A test image that no label came to counts as class 0.
    return float(100 * (spread.probs.argmax(axis=1) != classes[test]).mean())


OUTSIDERS: dict[str, Callable[[Dataset, Split], float]] = {"label_spreading": label_spreading}
