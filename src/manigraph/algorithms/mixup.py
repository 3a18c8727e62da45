"""MixUp (Zhang et al. 2018) with unlabelled images, as Berthelot et al. (2019) compare MixMatch with it.

| equation | function |
|---|---|
| λ ~ Beta(α, α), λ' = max(λ, 1 - λ) | `functional.symmetric_beta`, `mixing.mixed_with_others` |
| x' = λ' x1 + (1 - λ') x2, y' = λ' y1 + (1 - λ') y2 | `functional.mix` |
| L_X = mean of H(y', p(x')) on mixed labelled images | `functional.soft_cross_entropy` |
| L_U = mean of H(q', p(u')) on mixed unlabelled images, q = p(u) | `functional.soft_cross_entropy` |

The label of an unlabelled image is what the network says of it in the same step, in training mode and with
the dropout masks as they are drawn; no gradient flows into it. Labelled images are mixed with labelled ones
and unlabelled with unlabelled ones, as in the code of Berthelot et al.; their text leaves it open. Like
there, every image has a λ of its own, and λ' instead of λ, which among equals changes nothing on average: it
only says which of two images comes first. Partners are drawn at random, where that code takes the batch in
reverse.

Batch-norm running statistics are moved by the clean pass over labelled and unlabelled images alone, because
mixed images are not what the model will be used on; the pass over all mixed images leaves them still. (That
code takes them from the mixed labelled images.) The entropy and balance terms, which neither paper has, are
of the clean predictions, since a mixed image should be undecided; only for them does the clean pass keep what
a gradient needs. `balance_memory` balances the labels of the unlabelled images before they are mixed.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from manigraph.algorithms.base import prediction_health
from manigraph.algorithms.mixing import MixingConfig, mixed_with_others
from manigraph.algorithms.parts import UnlabelledAlgorithm, gradient_of_clean_pass, ramp_up
from manigraph.contract import Batch, DataRequest, StepContext, StepOutput
from manigraph.functional import soft_cross_entropy
from manigraph.nn import frozen_running_statistics


class MixUp(UnlabelledAlgorithm["MixUp.Config"]):
    """Between two images, the prediction should be between their labels."""

    @dataclass(frozen=True)
    class Config(MixingConfig):
        """Settings of MixUp."""

        mixed_consistency_weight: float = 1.0
        """Weight of the cross-entropy on mixed unlabelled images; it has the ramp of `ramp_fraction`."""

    def data_request(self) -> DataRequest:
        return DataRequest(unlabelled={"image": "weak"})

    def training_step(self, batch: Batch, context: StepContext) -> StepOutput:
        labelled, unlabelled = batch.labelled["image"], batch.unlabelled["image"]
        sizes = [len(labelled), len(unlabelled)]
        config = self.config

        # The clean pass, and the only one that moves batch-norm running statistics.
        with gradient_of_clean_pass(config):
            logits = self.model(torch.cat([labelled, unlabelled]))
        _, clean_logits = logits.split(sizes)
        guess = self.target_balance(clean_logits).softmax(dim=1)
        classes = F.one_hot(batch.labels, self.model.num_classes).to(guess.dtype)
        mixed_labelled = mixed_with_others(labelled, classes, config.alpha, context)
        mixed_unlabelled = mixed_with_others(unlabelled, guess, config.alpha, context)
        with frozen_running_statistics(self.model):
            mixed_logits = self.model(torch.cat([mixed_labelled.images, mixed_unlabelled.images]))

        labelled_logits, unlabelled_logits = mixed_logits.split(sizes)
        ramp = ramp_up(context.progress, config.ramp_fraction)
        consistency = soft_cross_entropy(mixed_unlabelled.probs, unlabelled_logits)
        return StepOutput(
            {
                "mixed_classification": soft_cross_entropy(mixed_labelled.probs, labelled_logits),
                "mixed_consistency": ramp * config.mixed_consistency_weight * consistency,
                **self.extra_terms(clean_logits, context.progress),
            },
            prediction_health(clean_logits, self.shard),
        )
