"""Deep Co-Training (Qiao, Shen, Zhang, Wang, Yuille 2018).

| equation | function |
|---|---|
| L_sup = Σ_i H(y, p_i(x)), labelled images | `torch.nn.functional.cross_entropy` |
| L_cot = H(p̄(x)) - mean_i H(p_i(x)), unlabelled images | `functional.view_disagreement` |
| g_i(x) = x + ε sign(∇_x H(y, p_i(x))) | `functional.gradient_sign_perturbation` |
| L_dif = Σ_i H(p_i(x), p_j(g_i(x))), all images, j the partner of i | `functional.prediction_cross_entropy` |

Each view of the paper is a network: the same architecture, other first weights and dropout masks. They learn
to agree on unlabelled images (L_cot). To keep them from becoming one and the same, each must predict on the
images that mislead another what that other predicts without being misled (L_dif): then no image misleads
both. The y of an unlabelled image is the class that view i predicts. Gradient flows into both predictions of
L_dif.

Views are paired in every step: the pairs are the rounds of a tournament, so that each two meet equally often
and no random number is needed.

Different from the paper: there each view draws labelled images of its own, here all get those of the batch. ε
is not in the paper; 0.02 is what its authors told others (their images are not clamped either), here in units
of the preprocessed input. Predictions are the mean of all views, or those of the first (`predict_with`).
With `balance_memory`, what L_dif asks of partners is balanced by one bias for all views, that of their mean
prediction, and is a constant; else the views would move against the bias.

All views take the same images through their clean passes, and each moves its own batch-norm running
statistics there alone. Adversarial images are found with the dropout masks of the clean pass, in float32: by
the clean pass itself, or in lower precision by one of their own.
Entropy and balance, not in the paper, are those of all views.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manigraph.algorithms.base import prediction_health
from manigraph.algorithms.parts import UnlabelledAlgorithm, UnlabelledConfig, ramp_up, with_masks
from manigraph.contract import Batch, DataRequest, StepContext, StepOutput
from manigraph.functional import (
    gradient_sign,
    gradient_sign_perturbation,
    mean_log_probs,
    prediction_cross_entropy,
    view_disagreement,
)
from manigraph.nn import Classifier, CoTrainedViews, RandomState, frozen_running_statistics, full_precision
from manigraph.nn.backbones.base import Backbone


class DeepCoTraining(UnlabelledAlgorithm["DeepCoTraining.Config"]):
    """Several networks agree on images, and none is misled where another is."""

    @dataclass(frozen=True)
    class Config(UnlabelledConfig):
        """Settings of Deep Co-Training."""

        num_views: int = 2
        """Networks, an even number."""
        agreement_weight: float = 10.0
        """λ_cot, weight of the agreement of all views."""
        difference_weight: float = 0.5
        """λ_dif, weight of resisting the adversarial images of another view."""
        pixel_epsilon: float = 0.02
        """ε, by how much adversarial images differ in every pixel (in units of the preprocessed input)."""
        predict_with: Literal["all_views", "first_view"] = "all_views"
        """Whose prediction counts in the end: the mean of all views, or one network alone."""
        entropy_weight: float = 0.0
        """Weight of the entropy term; not in the paper."""
        ramp_fraction: float = 80 / 600
        """Share of the run over which the weights grow to their full size."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.num_views < 2 or self.num_views % 2:
                raise ValueError(f"num_views must be an even number from 2 on, got {self.num_views}")
            if self.pixel_epsilon < 0:
                raise ValueError(f"pixel_epsilon cannot be negative, got {self.pixel_epsilon}")

    def __init__(self, config: "DeepCoTraining.Config", backbone: Backbone, num_classes: int) -> None:
        super().__init__(config, backbone, num_classes)
        self.other_views = nn.ModuleList(
            self.build_model(backbone.another(), num_classes) for _ in range(config.num_views - 1)
        )

    @property
    def views(self) -> list[Classifier]:
        """All networks; the first is `model`."""
        views = [self.model, *self.other_views]
        return [view for view in views if isinstance(view, Classifier)]

    def data_request(self) -> DataRequest:
        return DataRequest(unlabelled={"image": "weak"})

    def training_step(self, batch: Batch, context: StepContext) -> StepOutput:
        images = torch.cat([batch.labelled["image"], batch.unlabelled["image"]])
        config, L = self.config, len(batch.labels)
        clean_passes_tell = self.model.passes.dtype == torch.float32 and torch.is_grad_enabled()
        if clean_passes_tell:  # what would mislead them
            images.requires_grad_(True)

        # The clean passes, one of each view, and the only ones that move batch-norm running statistics.
        masks, clean = [], []
        for view in self.views:
            masks.append(RandomState(images.device))
            clean.append(view(images))
        logits = torch.stack(clean)  # (V, L + U, C)
        targets = self._targets(logits, L)
        partners = [self.views[i] for i in partners_in(context.step, config.num_views)]
        differences = []
        with frozen_running_statistics(self):
            for view, partner, same_masks, of_view, target in zip(
                self.views, partners, masks, clean, targets, strict=True
            ):
                classes = torch.cat([batch.labels, target[L:].argmax(dim=1)])
                if clean_passes_tell:
                    noise = gradient_sign(images, of_view, classes, epsilon=config.pixel_epsilon)
                else:
                    with full_precision(view):
                        noise = gradient_sign_perturbation(
                            with_masks(view, same_masks), images, classes, epsilon=config.pixel_epsilon
                        )
                misleading = images.detach() + noise
                differences.append(prediction_cross_entropy(target, partner(misleading)))

        ramp = ramp_up(context.progress, config.ramp_fraction)
        classification = torch.stack([F.cross_entropy(of_view[:L], batch.labels) for of_view in logits])
        return StepOutput(
            {
                "classification": classification.sum(),
                "agreement": ramp * config.agreement_weight * view_disagreement(logits[:, L:]),
                "difference": ramp * config.difference_weight * torch.stack(differences).sum(),
                **self.extra_terms(logits[:, L:].flatten(0, 1), context.progress),
            },
            prediction_health(logits[0, L:], self.shard),
        )

    def inference_model(self) -> nn.Module:
        return self.model if self.config.predict_with == "first_view" else CoTrainedViews(self.views)

    def _targets(self, logits: Tensor, num_labelled: int) -> Tensor:
        """What partners should predict: the views' own logits, or balanced ones as constants."""
        if self.config.balance_memory == 0:
            return logits
        unlabelled = logits[:, num_labelled:].detach()
        mean = mean_log_probs(unlabelled)
        bias = self.target_balance(mean) - mean  # (U, C), the same for all views and images
        return torch.cat([logits[:, :num_labelled].detach(), unlabelled + bias], dim=1)


def partners_in(step: int, num_views: int) -> list[int]:
    """Whom each view meets in this round of a tournament, in which all meet all within V - 1 rounds.

    The last view meets number r in round r; all others sit around a table and meet the one opposite.
    """
    others = num_views - 1
    turn = step % others
    partners = [(2 * turn - i) % others for i in range(others)]
    partners[turn] = others
    return [*partners, turn]
