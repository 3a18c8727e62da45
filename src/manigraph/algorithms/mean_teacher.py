"""Mean Teacher (Tarvainen & Valpola 2017).

| equation | function |
|---|---|
| L_clf,I | `torch.nn.functional.cross_entropy` |
| θ' ← α θ' + (1 - α) θ | `nn.Teacher.follow`, after every update of the student |
| J = ‖p_θ(x1) - p_θ'(x2)‖² | `functional.mse_consistency` or `functional.kl_consistency` |

The teacher is a network of its own (`comparison.teacher`), in no gradient and not in the optimiser. It
predicts in training mode, with dropout and the statistics of its own batch; these passes, and nothing else,
move its own running statistics, while the student's move in its clean pass. In the end the teacher predicts,
in evaluation mode. α is at most (1 + n) / (10 + n) in update n, so that the first weights are soon forgotten:
the average goes over the last tenth of a short run. (The authors' code has 1 - 1/(n + 1) there, with which
the teacher of a run of a thousand steps is the mean of all weights since the first.)

Different from the paper: the labelled images go through the student alone and are compared with nobody
(`data.labelled_in_pool` puts them among the unlabelled ones), α does not change in the middle of the run, as
it does in the authors' runs on SVHN, and the ramp is that of the other methods here. Entropy and balance are
on offer; the paper has neither.
"""

from dataclasses import dataclass

from manigraph.algorithms.comparisons import ComparisonAlgorithm, TeacherConfig
from manigraph.algorithms.parts import ConsistencyMeasure


class MeanTeacher(ComparisonAlgorithm["MeanTeacher.Config"]):
    """The student must agree with the average of its own past."""

    comparison_name = "mean_teacher"

    @dataclass(frozen=True)
    class Config(TeacherConfig):
        """Settings of Mean Teacher."""

        consistency: ConsistencyMeasure = "mse"
        """How the distance of two predictions is measured."""
        consistency_weight: float = 10.0
        """Weight of the consistency term: the paper's 100 for a mean over 10 classes, where ours is a sum."""
        entropy_weight: float = 0.0
        """Weight of the entropy term; not in the paper."""
        ramp_fraction: float = 0.25
        """Share of the run over which the weights grow to their full size."""

    @classmethod
    def keeps_average(cls, config: Config) -> bool:
        return True
