"""The method of the package as an estimator, with its own settings as parameters."""

import os
from collections.abc import Mapping
from typing import Any

import torch

from manigraph.estimator.classifier import SemiSupervisedClassifier


class ManifoldGraphClassifier(SemiSupervisedClassifier):
    """Manifold Graph with Learned Prototypes (Kuo et al. 2019), with the interface of scikit-learn.

    All that is not listed here is as in `SemiSupervisedClassifier`.

    Args:
        prototypes_per_class: K, class nodes of the graph for each class.
        num_heads: Attention heads of the graph.
        prototype_update: Whether prototypes are refined in every image's graph (`per_image`, the paper's),
            once for all (`shared`), or not (`none`).
        warmup_fraction: Share of the training before the graph comes in; 1 means never.
        comparison: Where consistency comes from: `pi_vat` (the paper's), `pi_model`, `mean_teacher` or
            `fixmatch`.
        consistency_weight: λ1, of the consistency of predictions.
        entropy_weight: λ2, of their entropy.
        anchor_weight: λ3, of the loss that holds prototypes and images of a class together.
        divergence_weight: λ4, of the loss that keeps the prototypes of a class apart.
        prototype_weight: λ5, of the classification of refined prototypes.
        epsilon: ε, length of the adversarial perturbation, in units of prepared images; by default in
            proportion to the square root of the number of values.
        settings: Further settings of the method by name, which win over those above.
        unlabelled: As in `SemiSupervisedClassifier`, as are all that follow.
        backbone: Network that makes the features; `head` is none, for ready-made embeddings.
        width: Multiplier on its channels.
        dropout: Its dropout rate.
        image_size: Names of files: side in pixels to which images are resized.
        augmentation: How views of images are made.
        max_iter: Number of updates.
        minutes: Make only as many updates as fit into this time.
        labelled_batch: Labelled images in a batch.
        unlabelled_batch: Unlabelled images in a batch.
        learning_rate: The highest.
        weight_decay: L2 penalty on all weights.
        warm_start: Go on from the weights of the last `fit`.
        random_state: Decides everything random.
        device: Where to compute.
        runs: Folder in which to leave a run directory.
        verbose: Print how training goes.

    Examples:
        >>> from sklearn.datasets import load_digits
        >>> from manigraph import ManifoldGraphClassifier
        >>> digits = load_digits()
        >>> y = digits.target.copy()
        >>> y[100:] = -1  # labels of the first 100 images, and no others
        >>> model = ManifoldGraphClassifier(max_iter=20, random_state=0).fit(digits.images, y)
        >>> model.predict(digits.images[-2:]).shape
        (2,)
        >>> model.transform(digits.images[-2:]).shape  # features, refined by the graph
        (2, 256)
    """

    algorithm = "manifold_graph"

    def __init__(
        self,
        *,
        prototypes_per_class: int = 5,
        num_heads: int = 1,
        prototype_update: str = "shared",
        warmup_fraction: float = 0.2,
        comparison: str = "pi_vat",
        consistency_weight: float = 4.0,
        entropy_weight: float = 0.1,
        anchor_weight: float = 1.0,
        divergence_weight: float = 1.0,
        prototype_weight: float = 0.1,
        epsilon: float | None = None,
        settings: Mapping[str, Any] | None = None,
        unlabelled: Any = -1,
        backbone: str = "auto",
        width: float | None = None,
        dropout: float | None = None,
        image_size: int | None = None,
        augmentation: Mapping[str, Any] | None = None,
        max_iter: int | None = None,
        minutes: float | None = None,
        labelled_batch: int = 32,
        unlabelled_batch: int = 128,
        learning_rate: float | None = None,
        weight_decay: float | None = None,
        warm_start: bool = False,
        random_state: Any = None,
        device: str | torch.device = "auto",
        runs: str | os.PathLike[str] | None = None,
        verbose: bool | int = False,
    ) -> None:
        self.prototypes_per_class = prototypes_per_class
        self.num_heads = num_heads
        self.prototype_update = prototype_update
        self.warmup_fraction = warmup_fraction
        self.comparison = comparison
        self.consistency_weight = consistency_weight
        self.entropy_weight = entropy_weight
        self.anchor_weight = anchor_weight
        self.divergence_weight = divergence_weight
        self.prototype_weight = prototype_weight
        self.epsilon = epsilon
        self.settings = settings
        self.unlabelled = unlabelled
        self.backbone = backbone
        self.width = width
        self.dropout = dropout
        self.image_size = image_size
        self.augmentation = augmentation
        self.max_iter = max_iter
        self.minutes = minutes
        self.labelled_batch = labelled_batch
        self.unlabelled_batch = unlabelled_batch
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.warm_start = warm_start
        self.random_state = random_state
        self.device = device
        self.runs = runs
        self.verbose = verbose

    def _method_settings(self) -> Mapping[str, Any]:
        own = {
            name: getattr(self, name)
            for name in (
                "prototypes_per_class",
                "num_heads",
                "prototype_update",
                "warmup_fraction",
                "comparison",
                "consistency_weight",
                "entropy_weight",
                "anchor_weight",
                "divergence_weight",
                "prototype_weight",
                "epsilon",
            )
            if getattr(self, name) is not None
        }
        return {**own, **(self.settings or {})}
