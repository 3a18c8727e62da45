"""Compact latent space clustering, CCLP (Kamnitsas et al. 2018).

| equation | function |
|---|---|
| L_sup | `torch.nn.functional.cross_entropy` |
| H_ij = exp(z_i·z_j) / Σ_k exp(z_i·z_k) | `functional.transition_log_probs` |
| Φ_U = (I - H_UU)⁻¹ H_UL Y_L | `functional.propagated_labels` |
| T_ij = Σ_c φ_ic φ_jc / m_c | `functional.ideal_transitions` |
| H^(s) = (H ∘ M)^(s-1) H, M = Φ Φᵀ; mean of -Σ_j T_ij log H^(s)_ij | `functional.clustering_loss` |

The features of all images of a batch, over all processes, are the nodes of a graph (the way from an image to
itself included). Labels walk along it to the unlabelled images; then features move such that every class
becomes one compact cluster, along the ways there are. Gradient flows through the propagated labels, T and M
too: the authors count it among the merits of label propagation that it is differentiable, and their code
stops none. `detach_propagation` makes Φ a constant.

The loss is a mean over images (1/N), as in the authors' code, for which their weights are made. Different
from it: their code smooths H itself and adds 1e-6 before each logarithm, so that there is no pull between
images that are far apart; here the graph is computed in float64 from logarithms, and only the propagation is
smoothed, between different images. A class of which no labelled image is in the batch takes no part in that
step: its images are drawn to other classes, so batches should hold all classes (the authors take 10 images of
each). With `balance_memory`, Φ_U is balanced over recent batches before T and M are made of it; a class
without label in the batch stays at 0. Entropy, balance and the ramp are not in the paper. The one pass is
clean and moves batch-norm running statistics.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from manigraph.algorithms.base import prediction_health
from manigraph.algorithms.parts import UnlabelledAlgorithm, UnlabelledConfig, ramp_up
from manigraph.contract import Batch, DataRequest, StepContext, StepOutput
from manigraph.functional import clustering_loss, propagated_labels, transition_log_probs

SMALLEST_POSTERIOR = 1e-6
"""What counts as none when propagated labels are balanced."""


class CompactClustering(UnlabelledAlgorithm["CompactClustering.Config"]):
    """Labels walk over a graph of the batch, and every class becomes one cluster of features."""

    @dataclass(frozen=True)
    class Config(UnlabelledConfig):
        """Settings of compact latent space clustering."""

        clustering_weight: float = 1.0
        """w, weight of the clustering term."""
        num_steps: int = 3
        """S, the longest walk."""
        scale: float = 1.0
        """Factor on the dot products of features; 1 is the paper's."""
        smoothing: float = 1e-3
        """Share of the steps that lead to any other image while labels walk: none walks for ever."""
        detach_propagation: bool = False
        """Keep gradients from flowing through the propagated labels."""
        entropy_weight: float = 0.0
        """Weight of the entropy term; not in the paper."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.num_steps < 1:
                raise ValueError(f"num_steps must be at least 1, got {self.num_steps}")
            if not 0 < self.smoothing < 1 or self.scale <= 0:
                raise ValueError(
                    f"smoothing must be above 0 and below 1 and scale above 0, got {self.smoothing} and "
                    f"{self.scale}"
                )

    def data_request(self) -> DataRequest:
        return DataRequest(unlabelled={"image": "weak"})

    def training_step(self, batch: Batch, context: StepContext) -> StepOutput:
        config, L = self.config, len(batch.labels)

        # The only pass: it is clean and moves batch-norm running statistics.
        features = self.model.features(torch.cat([batch.labelled["image"], batch.unlabelled["image"]]))
        logits = self.model.linear(features)

        ramp = ramp_up(context.progress, config.ramp_fraction)
        clustering = self._clustering(self.shard.gather(features), self.shard.gather(batch.labels))
        return StepOutput(
            {
                "classification": F.cross_entropy(logits[:L], batch.labels),
                "clustering": ramp * config.clustering_weight * clustering.to(logits.dtype),
                **self.extra_terms(logits[L:], context.progress),
            },
            prediction_health(logits[L:], self.shard),
        )

    def _clustering(self, features: Tensor, labels: Tensor) -> Tensor:
        """L_CCLP of the images of all processes, labelled ones first."""
        config = self.config
        # Chances to meet are products of small ones, and a linear system is solved: float64.
        log_transitions = transition_log_probs(features.double(), scale=config.scale)
        posteriors = propagated_labels(
            log_transitions, labels, self.model.num_classes, smoothing=config.smoothing
        )
        posteriors = torch.cat([posteriors[: len(labels)], self._balanced(posteriors[len(labels) :])])
        if config.detach_propagation:
            posteriors = posteriors.detach()
        return clustering_loss(log_transitions, posteriors, num_steps=config.num_steps)

    def _balanced(self, posteriors: Tensor) -> Tensor:
        """Φ_U with all classes as frequent as in recent batches, if targets are balanced."""
        own = self.shard.own(posteriors.detach())
        self.target_balance(own.clamp_min(SMALLEST_POSTERIOR).log())
        weighted = posteriors * self.target_balance.bias.to(posteriors.dtype).exp()
        return weighted / weighted.sum(dim=1, keepdim=True)
