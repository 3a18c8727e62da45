"""What has parameters: backbones, the prototype generator, the manifold graph, the classifiers."""

from manigraph.nn.batch_norm import frozen_running_statistics, share_batch_norm
from manigraph.nn.class_memory import ClassMemory
from manigraph.nn.classifier import Classifier, FrozenGraphClassifier, GraphClassifier
from manigraph.nn.cotrained import CoTrainedViews
from manigraph.nn.dropout import RandomState
from manigraph.nn.ensemble import EnsembleTargets, PredictionEnsemble
from manigraph.nn.manifold_graph import Attention, ManifoldGraph, PrototypeUpdate
from manigraph.nn.memory import Memory, buffers_changed_in_steps, load_trained_state, trained_state
from manigraph.nn.passes import Layers, Passes, full_precision
from manigraph.nn.prototypes import LabelledImageNodes, PrototypeGenerator
from manigraph.nn.target_balance import TargetBalance
from manigraph.nn.teacher import Teacher

__all__ = [
    "Attention",
    "ClassMemory",
    "Classifier",
    "CoTrainedViews",
    "EnsembleTargets",
    "FrozenGraphClassifier",
    "GraphClassifier",
    "LabelledImageNodes",
    "Layers",
    "ManifoldGraph",
    "Memory",
    "Passes",
    "PredictionEnsemble",
    "PrototypeGenerator",
    "PrototypeUpdate",
    "RandomState",
    "TargetBalance",
    "Teacher",
    "buffers_changed_in_steps",
    "frozen_running_statistics",
    "full_precision",
    "load_trained_state",
    "share_batch_norm",
    "trained_state",
]
