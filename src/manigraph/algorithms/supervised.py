"""Supervised training on the labelled images alone: the control of every comparison.

L = L_clf,I = cross-entropy (METHOD 2) → `torch.nn.functional.cross_entropy`.
"""

from dataclasses import dataclass

import torch.nn.functional as F

from manigraph.algorithms.base import Algorithm, prediction_health
from manigraph.contract import Batch, DataRequest, StepContext, StepOutput


class Supervised(Algorithm["Supervised.Config"]):
    """Cross-entropy on labelled images."""

    uses_unlabelled = False

    @dataclass(frozen=True)
    class Config:
        """Supervised training has no settings of its own."""

    def data_request(self) -> DataRequest:
        return DataRequest()

    def training_step(self, batch: Batch, context: StepContext) -> StepOutput:
        logits = self.model(batch.labelled["image"])
        terms = {"classification": F.cross_entropy(logits, batch.labels)}
        return StepOutput(terms, prediction_health(logits, self.shard))
