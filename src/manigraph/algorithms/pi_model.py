"""Π-model (Laine & Aila 2017; Sajjadi et al. 2016).

| equation | function |
|---|---|
| L_clf,I | `torch.nn.functional.cross_entropy` |
| L_con = KL(p(x1) ‖ p(x2)) | `functional.kl_consistency` or `functional.mse_consistency` |
| L_em = H(p(x1)) | `functional.entropy` |

Two views of each unlabelled image, each with its own augmentation and dropout masks; the first gives
the target, the second is the student. L_em and its weight are those of the manifold-graph paper's
baselines; Laine & Aila have no such term, and use MSE with a ramp (`consistency`, `ramp_fraction`).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from manigraph.algorithms.base import prediction_health
from manigraph.algorithms.parts import ConsistencyAlgorithm, ConsistencyConfig
from manigraph.contract import Batch, DataRequest, StepContext, StepOutput
from manigraph.nn import frozen_running_statistics


class PiModel(ConsistencyAlgorithm["PiModel.Config"]):
    """Two views of an unlabelled image must give the same prediction."""

    @dataclass(frozen=True)
    class Config(ConsistencyConfig):
        """Settings of the Π-model."""

        noise: float = 0.0
        """Standard deviation of Gaussian noise added to the student's view."""

    def data_request(self) -> DataRequest:
        return DataRequest(unlabelled={"first": "weak", "second": "weak"})

    def training_step(self, batch: Batch, context: StepContext) -> StepOutput:
        first, second = batch.unlabelled["first"], batch.unlabelled["second"]
        config = self.config

        # The clean pass, and the only one that moves batch-norm running statistics.
        logits = self.model(torch.cat([batch.labelled["image"], first]))
        labelled_logits, target_logits = logits.split([len(batch.labels), len(first)])
        with frozen_running_statistics(self.model):
            student_logits = self.model(second + config.noise * context.normal_like(second))

        return StepOutput(
            {
                "classification": F.cross_entropy(labelled_logits, batch.labels),
                **self.unlabelled_terms(target_logits, student_logits, context.progress),
            },
            prediction_health(target_logits, self.shard),
        )
