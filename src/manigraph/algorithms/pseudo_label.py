"""Pseudo-Label (Lee 2013).

| equation | function |
|---|---|
| L_clf,I | `torch.nn.functional.cross_entropy` |
| y' = argmax p(u) (14), mean of H(y', p(u)) over images (15) | `functional.confident_cross_entropy` |
| α(t): 0, then linear, then α_f (16) | `parts.linear_ramp`, `pseudo_label_weight` |

The prediction of an unlabelled image is turned into a class, and the same prediction is taught that class:
one pass does for both. That makes predictions more decided, much as minimal entropy does.

What differs from the paper. Its outputs are sigmoids, one for each class; here they are a softmax, as in all
later work. It has no threshold and no augmentation; Oliver et al. (2018) teach only classes that are at least
0.95 sure (`threshold`), and like them images below it count as zero in the mean. α(t) is given in shares of
the run, because the paper gives its T1 = 100 and T2 = 600 in units that differ between accounts of it. α
has this ramp of its own; `ramp_fraction` is that of the entropy term alone. Balanced targets
(`balance_memory`) decide the class and how sure it is, not what is taught. The one pass is clean and moves
batch-norm running statistics.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from manigraph.algorithms.base import prediction_health
from manigraph.algorithms.parts import UnlabelledAlgorithm, UnlabelledConfig, linear_ramp
from manigraph.contract import Batch, DataRequest, StepContext, StepOutput
from manigraph.functional import confident_cross_entropy


class PseudoLabel(UnlabelledAlgorithm["PseudoLabel.Config"]):
    """The most likely class of an unlabelled image is taken for its label."""

    @dataclass(frozen=True)
    class Config(UnlabelledConfig):
        """Settings of Pseudo-Label."""

        pseudo_label_weight: float = 3.0
        """α_f, weight of the pseudo-labels once the ramp is over."""
        threshold: float = 0.0
        """How probable a class must at least be to become a label; 0, the paper's, means all do."""
        ramp_start: float = 0.1
        """T1 as a share of the run: pseudo-labels have no weight before."""
        ramp_end: float = 0.6
        """T2 as a share of the run: they have their full weight from here on."""
        entropy_weight: float = 0.0
        """λ2, weight of the entropy term; not in the paper."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if not 0 <= self.threshold <= 1:
                raise ValueError(f"threshold must be from 0 to 1, got {self.threshold}")
            if not 0 <= self.ramp_start <= self.ramp_end:
                raise ValueError(
                    f"ramp_start must be at least 0 and ramp_end not before it, got {self.ramp_start} and "
                    f"{self.ramp_end}"
                )

    def data_request(self) -> DataRequest:
        return DataRequest(unlabelled={"image": "weak"})

    def training_step(self, batch: Batch, context: StepContext) -> StepOutput:
        unlabelled = batch.unlabelled["image"]
        config = self.config

        # The only pass: it is clean and moves batch-norm running statistics.
        logits = self.model(torch.cat([batch.labelled["image"], unlabelled]))
        labelled_logits, unlabelled_logits = logits.split([len(batch.labels), len(unlabelled)])
        target_logits = self.target_balance(unlabelled_logits)

        ramp = linear_ramp(context.progress, config.ramp_start, config.ramp_end)
        pseudo_label = confident_cross_entropy(target_logits, unlabelled_logits, threshold=config.threshold)
        return StepOutput(
            {
                "classification": F.cross_entropy(labelled_logits, batch.labels),
                "pseudo_label": ramp * config.pseudo_label_weight * pseudo_label,
                **self.extra_terms(unlabelled_logits, context.progress),
            },
            prediction_health(unlabelled_logits, self.shard),
        )
