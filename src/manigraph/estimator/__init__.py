"""The scikit-learn face: `fit(X, y)` with y = -1 where the class is not known, `predict`, `transform`."""

from manigraph.estimator.classifier import SemiSupervisedClassifier
from manigraph.estimator.graph import ManifoldGraphClassifier

__all__ = ["ManifoldGraphClassifier", "SemiSupervisedClassifier"]
