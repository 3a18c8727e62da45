"""Smooth Neighbours on Teacher Graphs, SNTG (Luo et al. 2018), on the Π-model or Mean Teacher.

| equation | function |
|---|---|
| L_clf,I | `torch.nn.functional.cross_entropy` |
| L_con | `comparisons.PiModelComparison` or `comparisons.MeanTeacherComparison`, by `comparison` |
| W_ij = 1 if the classes of i and j agree, else 0 | in `functional.neighbour_contrast` |
| L_G = ‖h_i - h_j‖² if W_ij = 1, max(m - ‖h_i - h_j‖, 0)² if W_ij = 0 | `functional.neighbour_contrast` |

The class of a labelled image is its label; that of an unlabelled one is what its target predicts (balanced,
with `balance_memory`), a constant. h are the student's features before the linear layer: those of labelled
images, and of unlabelled ones those of the view whose prediction is the student's (the second with pi_model,
the first with mean_teacher). The clean pass over first views alone moves the student's running statistics; a
teacher moves its own. Labelled images go with the first views; with pi_model, where neither entropy nor
balance learns from the first views, they go with the second ones.

Different from the paper: L_G is the mean over all pairs of the batch, where the authors draw as many pairs as
half a batch has images. Distances are means over the features, as in the authors' code. The labelled images
are compared with nobody in L_con. Entropy and balance are on offer; entropy is off.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from manigraph.algorithms.base import prediction_health
from manigraph.algorithms.comparisons import ComparisonAlgorithm, ComparisonName, NoiseConfig, TeacherConfig
from manigraph.algorithms.parts import ConsistencyMeasure, ramp_up
from manigraph.contract import Batch, StepContext, StepOutput
from manigraph.functional import neighbour_contrast


class SNTG(ComparisonAlgorithm["SNTG.Config"]):
    """Images that the target takes for one class get similar features, others different ones."""

    @dataclass(frozen=True)
    class Config(NoiseConfig, TeacherConfig):
        """Settings of SNTG."""

        comparison: Literal["pi_model", "mean_teacher"] = "pi_model"
        """How targets and student predictions are made."""
        noise: float = 0.0
        """With pi_model: standard deviation of Gaussian noise added to the student's view."""
        teacher_decay: float = 0.999
        """With mean_teacher: share of its weights that the teacher keeps in a step; less at first."""
        consistency: ConsistencyMeasure = "mse"
        """How the distance of two predictions is measured."""
        consistency_weight: float = 10.0
        """λ1, of the consistency term: the paper's 100 for a mean over 10 classes, where ours is a sum."""
        neighbours_weight: float = 40.0
        """λ2, weight of L_G: 0.4 of λ1 = 100, as in the authors' code."""
        margin: float = 1.0
        """m, the distance at which images of different classes are far enough apart."""
        entropy_weight: float = 0.0
        """Weight of the entropy term; not part of SNTG."""
        ramp_fraction: float = 80 / 300
        """Share of the run over which the weights, that of the neighbours too, grow to their full size."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.margin < 0:
                raise ValueError(f"margin cannot be negative, got {self.margin}")

    def chosen_comparison(self) -> ComparisonName:
        return self.config.comparison

    def training_step(self, batch: Batch, context: StepContext) -> StepOutput:
        config = self.config
        passes = self.compared(batch, context)
        target_logits = self.target_balance(passes.predictions.target_logits)
        consistency = self.comparison.distance(target_logits, passes.predictions.student_logits)
        neighbours = neighbour_contrast(
            self.shard.gather(torch.cat([passes.labelled_features, passes.student_features])),
            self.shard.gather(torch.cat([batch.labels, target_logits.argmax(dim=1)])),
            margin=config.margin,
        )
        ramp = ramp_up(context.progress, config.ramp_fraction)
        return StepOutput(
            {
                "classification": F.cross_entropy(passes.labelled_logits, batch.labels),
                "consistency": ramp * config.consistency_weight * consistency,
                "neighbours": ramp * config.neighbours_weight * neighbours,
                **self.extra_terms(passes.clean_logits, context.progress),
            },
            prediction_health(passes.clean_logits, self.shard),
        )
