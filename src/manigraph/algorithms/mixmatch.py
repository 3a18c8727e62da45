"""MixMatch (Berthelot et al. 2019).

| equation | function |
|---|---|
| q̄ = 1/K Σ_k p(u_k) (6) | `functional.mean_log_probs` |
| q = Sharpen(q̄, T) (7) | `functional.sharpen` |
| λ ~ Beta(α, α), λ' = max(λ, 1 - λ) (8, 9) | `functional.symmetric_beta`, `mixing.mixed_with_others` |
| x' = λ' x1 + (1 - λ') x2, the same for labels (10, 11) | `functional.mix` |
| L_X = mean of H(p', p(x')) (3) | `functional.soft_cross_entropy` |
| L_U = 1/(C U') Σ ‖q' - p(u')‖² (4) | `functional.soft_squared_error` |

The guess q of an image is the mean of the predictions of its K views, sharpened. Labelled images and all
views are then shuffled, each is mixed with its partner in the shuffled row, and everything mixed goes through
the network in one pass. The paper's algorithm mixes pair by pair, so every image has a λ of its own, as in
the authors' code. The guesses are those of the network in training mode, with the dropout masks as they are
drawn; no gradient flows into them.

What differs from the paper. Batch-norm running statistics are moved by the clean pass over the labelled
images and the first view alone, because mixed images are not what the model will be used on; the other views
and the mixed pass leave them still. The authors take them from a part of the mixed images, and put images of
all groups into each of their passes for that reason; one pass for all needs no such order. λ_U grows linearly
over a share of the run, not over 16,000 steps. The entropy and balance terms, which the paper does not have,
are of the clean predictions, since a mixed image should be undecided; only for them does the clean pass keep
what a gradient needs. Balanced targets (`balance_memory`) are balanced before they are sharpened.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from manigraph.algorithms.base import prediction_health
from manigraph.algorithms.mixing import MixingConfig, mixed_with_others
from manigraph.algorithms.parts import UnlabelledAlgorithm, gradient_of_clean_pass, linear_ramp
from manigraph.contract import Batch, DataRequest, StepContext, StepOutput
from manigraph.functional import mean_log_probs, sharpen, soft_cross_entropy, soft_squared_error
from manigraph.nn import frozen_running_statistics


class MixMatch(UnlabelledAlgorithm["MixMatch.Config"]):
    """Guess a label for each unlabelled image, then learn from mixtures of all images."""

    @dataclass(frozen=True)
    class Config(MixingConfig):
        """Settings of MixMatch."""

        num_views: int = 2
        """K, views of an unlabelled image whose predictions are averaged to a guess."""
        temperature: float = 0.5
        """T of the sharpening; 1 leaves guesses as they are, the smaller the more decided they are."""
        mixed_consistency_weight: float = 75.0
        """λ_U, weight of the squared error on mixed unlabelled images; the paper's for CIFAR-10."""
        ramp_fraction: float = 0.4
        """Share of the run over which λ_U grows linearly, λ2 as elsewhere; the authors' is 1/64."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.num_views < 1:
                raise ValueError(f"num_views must be at least 1, got {self.num_views}")
            if not self.temperature > 0:
                raise ValueError(f"temperature must be above 0, got {self.temperature}")

    def data_request(self) -> DataRequest:
        return DataRequest(unlabelled={f"view{k + 1}": "weak" for k in range(self.config.num_views)})

    def training_step(self, batch: Batch, context: StepContext) -> StepOutput:
        labelled, views = batch.labelled["image"], list(batch.unlabelled.values())
        first, *others = views
        config = self.config

        # The clean pass, and the only one that moves batch-norm running statistics.
        with gradient_of_clean_pass(config):
            logits = self.model(torch.cat([labelled, first]))
        _, first_logits = logits.split([len(labelled), len(first)])
        with frozen_running_statistics(self.model):
            with torch.no_grad():
                view_logits = [first_logits.detach(), *(self.model(view) for view in others)]
                guess = self.target_balance(mean_log_probs(torch.stack(view_logits)))
                guess = sharpen(guess, config.temperature)  # (U, C)
            classes = F.one_hot(batch.labels, self.model.num_classes).to(guess.dtype)
            mixed = mixed_with_others(
                torch.cat([labelled, *views]),
                torch.cat([classes, *[guess] * len(views)]),
                config.alpha,
                context,
            )
            mixed_logits = self.model(mixed.images)

        sizes = [len(labelled), len(first) * len(views)]
        labelled_logits, unlabelled_logits = mixed_logits.split(sizes)
        labelled_probs, unlabelled_probs = mixed.probs.split(sizes)
        ramp = linear_ramp(context.progress, 0.0, config.ramp_fraction)
        consistency = soft_squared_error(unlabelled_probs, unlabelled_logits)
        return StepOutput(
            {
                "mixed_classification": soft_cross_entropy(labelled_probs, labelled_logits),
                "mixed_consistency": ramp * config.mixed_consistency_weight * consistency,
                **self.extra_terms(first_logits, context.progress),
            },
            prediction_health(first_logits, self.shard),
        )
