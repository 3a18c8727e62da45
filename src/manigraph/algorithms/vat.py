"""Virtual adversarial training (Miyato et al. 2018).

| equation | function |
|---|---|
| L_clf,I | `torch.nn.functional.cross_entropy` |
| r = ε g/‖g‖, g = ∇_d KL(p(x) ‖ p(x + ξ d)) | `functional.virtual_adversarial_perturbation` |
| L_con = KL(p(x) ‖ p(x + r)) | `functional.kl_consistency` or `functional.mse_consistency` |
| L_em = H(p(x)) | `functional.entropy` |

One view. All passes over the unlabelled images share their dropout masks: KL(p(x) ‖ p(x + ξ d))
is compared at one and the same network, or the noise of the masks would decide the direction. That is
why labelled and unlabelled images go through separate clean passes here. ξ is 0.1, not the original
1e-6, which float32 cannot resolve. ε is in the units of the
preprocessed images. Both clean passes move running statistics, so labelled images weigh more in them
than in Π-VAT's joint pass. Without entropy and balance, the one over unlabelled images has no gradient.
"""

from dataclasses import dataclass

import torch.nn.functional as F

from manigraph.algorithms.base import prediction_health
from manigraph.algorithms.parts import (
    AdversarialConfig,
    UnlabelledAlgorithm,
    gradient_of_clean_pass,
    perturbation,
    precise_reference,
    prediction_distance,
    ramp_up,
    with_masks,
)
from manigraph.contract import Batch, DataRequest, StepContext, StepOutput
from manigraph.nn import RandomState, frozen_running_statistics


class VAT(UnlabelledAlgorithm["VAT.Config"]):
    """Predictions must not change in the direction in which they would change most."""

    @dataclass(frozen=True)
    class Config(AdversarialConfig):
        """Settings of virtual adversarial training."""

    def data_request(self) -> DataRequest:
        return DataRequest(unlabelled={"image": "weak"})

    def training_step(self, batch: Batch, context: StepContext) -> StepOutput:
        images = batch.unlabelled["image"]
        config = self.config

        # The clean passes, and the only ones that move batch-norm running statistics.
        labelled_logits = self.model(batch.labelled["image"])
        masks = RandomState(images.device)
        with gradient_of_clean_pass(config):
            target_logits = self.model(images)
        same_network = with_masks(self.model, masks)
        with frozen_running_statistics(self.model):
            reference = precise_reference(self.model, same_network, images, target_logits)
            noise = perturbation(config, self.model, same_network, images, reference, context)
            student_logits = same_network(images + noise)

        target = self.target_balance(target_logits)
        consistency = prediction_distance(config.consistency, target, student_logits)
        ramp = ramp_up(context.progress, config.ramp_fraction)
        return StepOutput(
            {
                "classification": F.cross_entropy(labelled_logits, batch.labels),
                "consistency": ramp * config.consistency_weight * consistency,
                **self.extra_terms(target_logits, context.progress),
            },
            prediction_health(target_logits, self.shard),
        )
