"""What has parameters: backbones, the prototype generator, the manifold graph, the classifiers."""

from manigraph.nn.batch_norm import frozen_running_statistics
from manigraph.nn.classifier import Classifier, FrozenGraphClassifier, GraphClassifier
from manigraph.nn.dropout import RandomState
from manigraph.nn.manifold_graph import ManifoldGraph, PrototypeUpdate
from manigraph.nn.prototypes import LabelledImageNodes, PrototypeGenerator
from manigraph.nn.target_balance import TargetBalance

__all__ = [
    "Classifier",
    "FrozenGraphClassifier",
    "GraphClassifier",
    "LabelledImageNodes",
    "ManifoldGraph",
    "PrototypeGenerator",
    "PrototypeUpdate",
    "RandomState",
    "TargetBalance",
    "frozen_running_statistics",
]
