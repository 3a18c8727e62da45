"""What has parameters: backbones, the prototype generator, the manifold graph, the classifiers."""

from manigraph.nn.batch_norm import frozen_running_statistics, share_batch_norm
from manigraph.nn.classifier import Classifier, FrozenGraphClassifier, GraphClassifier
from manigraph.nn.dropout import RandomState
from manigraph.nn.manifold_graph import ManifoldGraph, PrototypeUpdate
from manigraph.nn.passes import Layers, Passes, full_precision
from manigraph.nn.prototypes import LabelledImageNodes, PrototypeGenerator
from manigraph.nn.target_balance import TargetBalance

__all__ = [
    "Classifier",
    "FrozenGraphClassifier",
    "GraphClassifier",
    "LabelledImageNodes",
    "Layers",
    "ManifoldGraph",
    "Passes",
    "PrototypeGenerator",
    "PrototypeUpdate",
    "RandomState",
    "TargetBalance",
    "frozen_running_statistics",
    "full_precision",
    "share_batch_norm",
]
