"""SWA and fast-SWA for consistency methods (Athiwaratkun et al. 2019; SWA itself: Izmailov et al. 2018).

| equation | function |
|---|---|
| L_clf,I | `torch.nn.functional.cross_entropy` |
| ‖p(x1) - p(x2)‖² of a Π-model or Mean Teacher (`comparison`) | `algorithms.comparisons` |
| learning rate: a cosine, then cycles that repeat its end | `training.schedule`, shape `cosine_cycles` |
| w_SWA, the mean of the weights met every `swa_every` | `training.loop`, `swa_fraction` and `swa_every` |
| batch-norm statistics of w_SWA | `Trainer.refresh_statistics`, before every evaluation |

With a consistency term SGD does not settle: it goes on from one explanation of the unlabelled images to
another, and the mean of the weights on its way is better than they are. Training does not see the average.
The student's weights are averaged, with Mean Teacher too, and the average predicts in the end. Without it
this would be a plain Π-model, so a run without it is refused (`needs_weight_average`).

SWA and fast-SWA differ in a setting of the loop: weights enter once in a cycle, at its end where the rate is
lowest, or several times.

The clean pass moves the student's running statistics, the teacher's pass its own; the average's are measured.

Different from the paper: the first weights that enter are those of one interval after the rates of the cycles
begin, not those at their beginning (110 instead of 111 in 480 epochs). Labelled images are compared with
nobody (`data.labelled_in_pool` puts them among the unlabelled ones). There is no second linear layer with a
loss between the logits of the two. Entropy and balance are on offer; the paper has neither.
"""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from manigraph.algorithms.comparisons import ComparisonAlgorithm, ComparisonName, NoiseConfig, TeacherConfig
from manigraph.algorithms.parts import ConsistencyMeasure


class WeightAveraging(ComparisonAlgorithm["WeightAveraging.Config"]):
    """A Π-model or Mean Teacher whose weights are averaged along cycles of the learning rate."""

    needs_weight_average = True

    @dataclass(frozen=True)
    class Config(NoiseConfig, TeacherConfig):
        """Settings of the method that is averaged; those of the average are the loop's."""

        comparison: Literal["pi_model", "mean_teacher"] = "pi_model"
        """How targets and student predictions are made."""
        consistency: ConsistencyMeasure = "mse"
        """How the distance of two predictions is measured."""
        consistency_weight: float = 10.0
        """Weight of the consistency term: the paper's 100 for a mean over 10 classes, where ours is a sum."""
        entropy_weight: float = 0.0
        """Weight of the entropy term; not in the paper."""
        ramp_fraction: float = 5 / 480
        """Share of the run over which the weights grow to their full size."""
        noise: float = 0.0
        """With pi_model: standard deviation of Gaussian noise added to the student's view."""
        teacher_decay: float = 0.97
        """With mean_teacher: share of its weights that the teacher keeps in a step; less at first."""

    def chosen_comparison(self) -> ComparisonName:
        return self.config.comparison

    def inference_model(self) -> nn.Module:
        return self.model
