"""Π-VAT, the baseline of Kuo et al. (2019, section 3.1): a Π-model with adversarial noise.

| equation | function |
|---|---|
| L_clf,I | `torch.nn.functional.cross_entropy` |
| r = ε g/‖g‖, g = ∇_d KL(p(x1) ‖ p(x2 + ξ d)) | `functional.virtual_adversarial_perturbation` |
| L_con = KL(p(x1) ‖ p(x2 + r)) | `functional.kl_consistency` or `functional.mse_consistency` |
| L_em = H(p(x1)) | `functional.entropy` |

The paper does not say against which prediction r is found; here it is the target itself, p(x1), and
`adversarial_reference="own_view"` takes p(x2) instead. Where targets are balanced (`balance_memory`), r
is still found against the prediction itself: what is balanced is only what the student is told.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from manigraph.algorithms.base import prediction_health
from manigraph.algorithms.parts import AdversarialConfig, ConsistencyAlgorithm, perturbation, with_masks
from manigraph.contract import Batch, DataRequest, StepContext, StepOutput
from manigraph.nn import RandomState, frozen_running_statistics, full_precision


class PiVAT(ConsistencyAlgorithm["PiVAT.Config"]):
    """One view predicts, the other, adversarially disturbed, must agree."""

    @dataclass(frozen=True)
    class Config(AdversarialConfig):
        """Settings of Π-VAT."""

        adversarial_reference: Literal["target", "own_view"] = "target"
        """The prediction the perturbation moves away from: view 1's (the target) or view 2's own."""

    def data_request(self) -> DataRequest:
        return DataRequest(unlabelled={"first": "weak", "second": "weak"})

    def training_step(self, batch: Batch, context: StepContext) -> StepOutput:
        first, second = batch.unlabelled["first"], batch.unlabelled["second"]
        config = self.config

        # The clean pass, and the only one that moves batch-norm running statistics.
        logits = self.model(torch.cat([batch.labelled["image"], first]))
        labelled_logits, target_logits = logits.split([len(batch.labels), len(first)])
        with frozen_running_statistics(self.model):
            reference = target_logits
            probe: Callable[[Tensor], Tensor] = self.model
            if config.adversarial_reference == "own_view":
                # p(x2) and p(x2 + ξ d) of one and the same network, as in VAT.
                probe = with_masks(self.model, RandomState(second.device))
                with full_precision(self.model), torch.no_grad():
                    reference = probe(second)
            noise = perturbation(config, self.model, probe, second, reference, context)
            student_logits = self.model(second + noise)

        return StepOutput(
            {
                "classification": F.cross_entropy(labelled_logits, batch.labels),
                **self.unlabelled_terms(target_logits, student_logits, context.progress),
            },
            prediction_health(target_logits, self.shard),
        )
