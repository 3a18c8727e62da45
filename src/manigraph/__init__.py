"""Train an image classifier from a few labels and many unlabelled images."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from manigraph.estimator import ManifoldGraphClassifier, SemiSupervisedClassifier

__all__ = ["ManifoldGraphClassifier", "SemiSupervisedClassifier"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Help and lists import neither torch nor scikit-learn.
    if name in __all__:
        return getattr(importlib.import_module("manigraph.estimator"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
