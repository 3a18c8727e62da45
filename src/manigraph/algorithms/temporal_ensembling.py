"""Temporal Ensembling (Laine & Aila 2017, section 2.2).

| equation | function |
|---|---|
| L_clf,I | `torch.nn.functional.cross_entropy` |
| Z ← α Z + (1 - α) z | `functional.accumulated`, for each image in `nn.PredictionEnsemble.update` |
| z̃ = Z / (1 - α^t) | `functional.bias_corrected`, in `nn.PredictionEnsemble.targets` |
| L_con = ‖z̃ - z‖² | `functional.mse_consistency` or `functional.kl_consistency` |

One pass over labelled images and one view of the unlabelled ones, with dropout, gives all predictions; it
moves batch-norm running statistics, and there is no other. The target of an image is the mean of its earlier
predictions; that of this step enters after the update of the weights. An image that comes for the first time
has no target and counts as zero in the mean over the batch (it is compared with itself); in the paper's first
epoch the weight is zero.

The paper updates all of Z at the end of an epoch. Every image comes once before any comes again, so that
doing so at once, image by image, gives the same targets; t is the image's own count of predictions. Where a
batch has an image twice (at the border of two epochs, or in a pool smaller than the batch), the mean of both
predictions enters as one.

Different from the paper: the labelled images are compared with nobody (`data.labelled_in_pool` puts them
among the unlabelled ones), and the inputs have no Gaussian noise beside the augmentation. Entropy and balance
are on offer; the paper has neither. With `balance_memory` the targets are balanced, not what is remembered.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from manigraph.algorithms.base import prediction_health
from manigraph.algorithms.parts import (
    ConsistencyConfig,
    ConsistencyMeasure,
    UnlabelledAlgorithm,
    prediction_distance,
    ramp_up,
)
from manigraph.contract import Batch, DataRequest, StepContext, StepOutput
from manigraph.nn import PredictionEnsemble
from manigraph.nn.backbones.base import Backbone


class TemporalEnsembling(UnlabelledAlgorithm["TemporalEnsembling.Config"]):
    """A prediction must agree with the mean of those made for the same image in earlier epochs."""

    @dataclass(frozen=True)
    class Config(ConsistencyConfig):
        """Settings of Temporal Ensembling."""

        consistency: ConsistencyMeasure = "mse"
        """How the distance of two predictions is measured."""
        consistency_weight: float = 3.0
        """Weight of the consistency term: the paper's 30 for a mean over 10 classes, where ours is a sum."""
        entropy_weight: float = 0.0
        """Weight of the entropy term; not in the paper."""
        ramp_fraction: float = 80 / 300
        """Share of the run over which the weights grow to their full size."""
        ensemble_decay: float = 0.6
        """α, share of the mean of earlier predictions that stays when a new one enters."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if not 0 <= self.ensemble_decay < 1:
                raise ValueError(f"ensemble_decay must be from 0 to below 1, got {self.ensemble_decay}")

    def __init__(self, config: "TemporalEnsembling.Config", backbone: Backbone, num_classes: int) -> None:
        super().__init__(config, backbone, num_classes)
        self.ensemble = PredictionEnsemble(num_classes, config.ensemble_decay)
        self._newest: tuple[Tensor, Tensor] | None = None  # positions and predictions of this step

    def expect_images(self, num_unlabelled: int) -> None:
        self.ensemble.make_room(num_unlabelled)

    def data_request(self) -> DataRequest:
        return DataRequest(unlabelled={"image": "weak"})

    def training_step(self, batch: Batch, context: StepContext) -> StepOutput:
        images, positions = batch.unlabelled["image"], batch.positions
        assert positions is not None
        config = self.config

        # The clean pass, and the only one.
        logits = self.model(torch.cat([batch.labelled["image"], images]))
        labelled_logits, clean_logits = logits.split([len(batch.labels), len(images)])
        target_logits = self._target_logits(positions, clean_logits.detach())
        self._newest = (positions, clean_logits.detach().softmax(dim=1))

        consistency = prediction_distance(config.consistency, target_logits, clean_logits)
        ramp = ramp_up(context.progress, config.ramp_fraction)
        return StepOutput(
            {
                "classification": F.cross_entropy(labelled_logits, batch.labels),
                "consistency": ramp * config.consistency_weight * consistency,
                **self.extra_terms(clean_logits, context.progress),
            },
            prediction_health(clean_logits, self.shard),
        )

    def after_step(self, context: StepContext) -> None:
        assert self._newest is not None, "a step comes before what is remembered of it"
        self.ensemble.update(*self._newest)
        self._newest = None

    def _target_logits(self, positions: Tensor, own_logits: Tensor) -> Tensor:
        """Log of z̃, balanced; the own prediction, at distance zero, where there is no earlier one."""
        targets = self.ensemble.targets(positions)
        known = targets.known.unsqueeze(1)  # (U, 1)
        smallest = torch.finfo(targets.probs.dtype).tiny  # a probability may have been rounded to 0
        target_logits = torch.where(known, targets.probs.clamp_min(smallest).log(), own_logits)  # (U, C)
        return torch.where(known, self.target_balance(target_logits), own_logits)
