"""How good the estimators are as they come, beside scikit-learn's LabelSpreading and labels alone.

`python -m tests.estimator.measure results/estimator.json` writes the errors that `docs/estimator.md` shows.
Nothing here is set: whatever the estimators use, they choose. LabelSpreading has 7 neighbours on
standardised vectors, otherwise its defaults.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_iris, load_wine, make_blobs, make_moons
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelSpreading

from manigraph import ManifoldGraphClassifier, SemiSupervisedClassifier
from manigraph.data.sources.base import SourceRequest
from manigraph.data.sources.digits import load_digits
from manigraph.data.split import draw_split
from tests.estimator.data import Array

FRESH = 100
"""The first draw of vectors; the rules for vectors were chosen with draws 0 to 4."""

Problem = tuple[Array, Array, Array, Array]
"""Training data, their labels with -1, test data, their labels."""


def digits(seed: int) -> Problem:
    """The splits of `manigraph reproduce digits` with 20 labels."""
    dataset = load_digits(SourceRequest())
    split = draw_split(dataset, num_labels=20, num_validation=0, seed=seed, stratify="equal")
    train = torch.cat([split.labelled, split.unlabelled])
    y = dataset.classes[train].clone()
    y[len(split.labelled) :] = -1
    images = dataset.images.squeeze(1).numpy()
    return images[train], y.numpy(), images[split.test], dataset.classes[split.test].numpy()


def vectors(name: str, seed: int) -> Problem:
    """Three fifths to train on, with 3 labels a class; the others to test."""
    if name == "two moons":
        X, truth = make_moons(500, noise=0.1, random_state=seed)
    elif name == "blobs":
        X, truth = make_blobs(400, centers=4, n_features=5, cluster_std=2.0, random_state=seed)
    else:
        load = {"wine": load_wine, "breast cancer": load_breast_cancer, "iris": load_iris}[name]
        X, truth = load(return_X_y=True)
    order = np.random.RandomState(seed).permutation(len(X))
    test, train = np.split(order, [2 * len(X) // 5])
    y = np.full(len(train), -1)
    for label in np.unique(truth):
        y[np.flatnonzero(truth[train] == label)[:3]] = label
    return X[train], y, X[test], truth[test]


def error(model: Any, problem: Problem) -> float:
    """In per cent."""
    X, y, test, truth = problem
    return float(100 * (model.fit(X, y).predict(test) != truth).mean())


def label_spreading(problem: Problem) -> float:
    """Its error; images are vectors of pixels, as they are."""
    X, y, test, truth = problem
    model = LabelSpreading(kernel="knn", n_neighbors=7, max_iter=1000)
    if X.ndim == 2:
        return error(make_pipeline(StandardScaler(), model), problem)
    flat = X.reshape(len(X), -1).astype(float), y, test.reshape(len(test), -1).astype(float), truth
    return error(model, flat)


def main() -> None:
    """Measure everything and write it after every data set."""
    path, seeds = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 5
    results: dict[str, Any] = {}
    for name in ("two moons", "blobs", "iris", "wine", "breast cancer", "digits"):
        rows: dict[str, list[float]] = {"supervised": [], "label_spreading": [], "manifold_graph": []}
        seconds = []
        for seed in range(seeds):
            problem = digits(seed) if name == "digits" else vectors(name, FRESH + seed)
            rows["supervised"].append(
                error(SemiSupervisedClassifier("supervised", random_state=seed), problem)
            )
            rows["label_spreading"].append(label_spreading(problem))
            began = time.process_time()
            rows["manifold_graph"].append(error(ManifoldGraphClassifier(random_state=seed), problem))
            seconds.append(time.process_time() - began)
        results[name] = {**rows, "processor_seconds_of_manifold_graph": seconds}
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="ascii")
        means = {method: round(float(np.mean(errors)), 2) for method, errors in rows.items()}
        print(name, means, f"{np.mean(seconds):.0f} s", flush=True)


if __name__ == "__main__":
    main()
