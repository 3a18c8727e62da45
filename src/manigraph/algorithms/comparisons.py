"""Ways to get a target and a student prediction of each unlabelled image: what consistency methods differ in.

| name | target | student |
|---|---|---|
| `pi_model` | p(x1) | p(x2 + noise) |
| `pi_vat` | p(x1) | p(x2 + r), r the virtual adversarial perturbation |
| `mean_teacher` | p(x2) of the teacher | p(x1) |
| `fixmatch` | the class of p(x1), or of a teacher's, if sure | p(strong view) |

x1, the first view, goes through the clean pass, with the labelled images unless nothing is learned from it;
its prediction is the target or the student, unless a teacher looks at it too. A method takes a comparison by
its name, so the manifold graph goes with any of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manigraph.algorithms.base import prediction_health
from manigraph.algorithms.parts import (
    AdversarialConfig,
    ConsistencyConfig,
    UnlabelledAlgorithm,
    UnlabelledConfig,
    UnlabelledConfigT,
    perturbation,
    prediction_distance,
    ramp_up,
    with_masks,
)
from manigraph.contract import NEUTRAL, Batch, DataRequest, StepContext, StepOutput, ViewKind
from manigraph.functional import confident_cross_entropy
from manigraph.nn import Classifier, RandomState, Teacher, frozen_running_statistics, full_precision
from manigraph.nn.backbones.base import Backbone

Forward = Callable[[Tensor], Tensor]


class Predictions(NamedTuple):
    """Of the unlabelled images; for the consistency term the target is a constant."""

    target_logits: Tensor
    student_logits: Tensor


class Comparison(nn.Module):
    """One way to make the two predictions, with the state it needs."""

    second_view: ClassVar[ViewKind] = "weak"

    def __init__(self, config: Any, model: Classifier) -> None:
        super().__init__()
        self.config = config

    def predictions(
        self, model: Classifier, forward: Forward, clean_logits: Tensor, second: Tensor, context: StepContext
    ) -> Predictions:
        """Target and student.

        Args:
            model: The student.
            forward: Images to the student's logits, with whatever nodes the graph has in this step.
            clean_logits: `first_logits` of the first view.
            second: The second view.
            context: Where in the run the step is.
        """
        raise NotImplementedError

    def target_model(self, model: Classifier) -> Classifier:
        """The network whose predictions of first views are compared: the student itself, or a teacher."""
        return model

    def first_logits(self, model: Classifier, first: Tensor, clean_logits: Tensor) -> Tensor:
        """Its predictions of the first views, where the student's own, `clean_logits`, are there already."""
        target = self.target_model(model)
        if target is model:
            return clean_logits
        with torch.no_grad():
            logits: Tensor = target(first)
        return logits

    def student_view(self, second: Tensor, context: StepContext) -> Tensor | None:
        """What the student sees, if that does not depend on the target; else None."""
        return None

    def distance(self, target_logits: Tensor, student_logits: Tensor) -> Tensor:
        """L_con."""
        return prediction_distance(self.config.consistency, target_logits, student_logits)

    def after_step(self, model: Classifier, context: StepContext) -> None:
        """Called after each update of the student."""

    def evaluated(self, model: Classifier) -> Classifier:
        """The model whose predictions count."""
        return model


@dataclass(frozen=True)
class NoiseConfig(ConsistencyConfig):
    """What the Π-model's student sees."""

    noise: float = 0.0
    """Standard deviation of Gaussian noise added to the student's view."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise < 0:
            raise ValueError(f"noise cannot be negative, got {self.noise}")


class PiModelComparison(Comparison):
    """Two views, each with its own dropout masks."""

    config: NoiseConfig

    def predictions(
        self, model: Classifier, forward: Forward, clean_logits: Tensor, second: Tensor, context: StepContext
    ) -> Predictions:
        return Predictions(clean_logits, forward(self.student_view(second, context)))

    def student_view(self, second: Tensor, context: StepContext) -> Tensor:
        noise = self.config.noise
        return second + noise * context.normal_like(second) if noise > 0 else second


@dataclass(frozen=True)
class PiVATConfig(AdversarialConfig):
    """How Π-VAT's student is disturbed."""

    adversarial_reference: Literal["target", "own_view"] = "target"
    """The prediction the perturbation moves away from: view 1's (the target) or view 2's own."""


class PiVATComparison(Comparison):
    """Two views, the second one disturbed in the direction in which its prediction changes most."""

    config: PiVATConfig

    def predictions(
        self, model: Classifier, forward: Forward, clean_logits: Tensor, second: Tensor, context: StepContext
    ) -> Predictions:
        reference, probe = clean_logits, forward
        if self.config.adversarial_reference == "own_view":
            # p(x2) and p(x2 + ξ d) of one and the same network, as in VAT.
            probe = with_masks(forward, RandomState(second.device))
            with full_precision(model), torch.no_grad():
                reference = probe(second)
        noise = perturbation(self.config, model, probe, second, reference, context)
        return Predictions(clean_logits, forward(second + noise))


@dataclass(frozen=True)
class TeacherConfig(ConsistencyConfig):
    """How the teacher follows."""

    teacher_decay: float = 0.999
    """Share of its weights that a teacher keeps in a step; less in the first steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.teacher_decay < 1:
            raise ValueError(f"teacher_decay must be from 0 to below 1, got {self.teacher_decay}")


class MeanTeacherComparison(Comparison):
    """The student follows the average of its own past; the teacher predicts in the end."""

    config: TeacherConfig

    def __init__(self, config: TeacherConfig, model: Classifier) -> None:
        super().__init__(config, model)
        self.teacher = Teacher(model)

    def predictions(
        self, model: Classifier, forward: Forward, clean_logits: Tensor, second: Tensor, context: StepContext
    ) -> Predictions:
        # The teacher's own pass, which moves its own running statistics.
        return Predictions(self.teacher(second), clean_logits)

    def after_step(self, model: Classifier, context: StepContext) -> None:
        self.teacher.follow(model, self.config.teacher_decay)

    def evaluated(self, model: Classifier) -> Classifier:
        return self.teacher.model


@dataclass(frozen=True)
class ThresholdConfig(UnlabelledConfig):
    """Which predictions become targets."""

    threshold: float = 0.95
    """Confidence from which on a prediction is a target."""
    consistency_weight: float = 1.0
    """λ_u, weight of the consistency term."""
    target_decay: float = field(default=0.0, metadata=NEUTRAL)
    """Above 0, targets are predictions of a teacher that keeps this share of its weights in a step (less at
    first), and that predicts in the end; 0 means the network's own, as in the paper."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold must be from 0 to 1, got {self.threshold}")
        if not 0 <= self.target_decay < 1:
            raise ValueError(f"target_decay must be from 0 to below 1, got {self.target_decay}")


class FixMatchComparison(Comparison):
    """The class of a weak view's sure prediction is the target of a strong view.

    A teacher looks at the weak views in passes of its own, which move its own running statistics.
    """

    second_view = "strong"
    config: ThresholdConfig

    def __init__(self, config: Any, model: Classifier) -> None:
        super().__init__(config, model)
        self.teacher = Teacher(model) if config.target_decay > 0 else None

    def predictions(
        self, model: Classifier, forward: Forward, clean_logits: Tensor, second: Tensor, context: StepContext
    ) -> Predictions:
        return Predictions(clean_logits, forward(second))

    def target_model(self, model: Classifier) -> Classifier:
        return model if self.teacher is None else self.teacher.model

    def student_view(self, second: Tensor, context: StepContext) -> Tensor:
        return second

    def after_step(self, model: Classifier, context: StepContext) -> None:
        if self.teacher is not None:
            self.teacher.follow(model, self.config.target_decay)

    def evaluated(self, model: Classifier) -> Classifier:
        return self.target_model(model)

    def distance(self, target_logits: Tensor, student_logits: Tensor) -> Tensor:
        return confident_cross_entropy(target_logits, student_logits, threshold=self.config.threshold)


ComparisonName = Literal["pi_model", "pi_vat", "mean_teacher", "fixmatch"]
COMPARISONS: Mapping[ComparisonName, type[Comparison]] = {
    "pi_model": PiModelComparison,
    "pi_vat": PiVATComparison,
    "mean_teacher": MeanTeacherComparison,
    "fixmatch": FixMatchComparison,
}


class ComparedPasses(NamedTuple):
    """What the passes of a step gave."""

    labelled_logits: Tensor
    clean_logits: Tensor
    """Of the first views."""
    predictions: Predictions
    labelled_features: Tensor
    student_features: Tensor


class _Forward:
    """Images to logits; the features of the last images stay at hand."""

    features: Tensor

    def __init__(self, model: Classifier) -> None:
        self.model = model

    def __call__(self, images: Tensor) -> Tensor:
        self.features = self.model.features(images)
        logits: Tensor = self.model.linear(self.features)
        return logits


class ComparisonAlgorithm(UnlabelledAlgorithm[UnlabelledConfigT]):
    """Cross-entropy on labelled images, and one comparison on unlabelled ones."""

    comparison_name: ClassVar[ComparisonName]

    def __init__(self, config: UnlabelledConfigT, backbone: Backbone, num_classes: int) -> None:
        super().__init__(config, backbone, num_classes)
        self.comparison = COMPARISONS[self.chosen_comparison()](config, self.model)

    def chosen_comparison(self) -> ComparisonName:
        """By which name the comparison goes."""
        return self.comparison_name

    def data_request(self) -> DataRequest:
        return DataRequest(unlabelled={"first": "weak", "second": self.comparison.second_view})

    def training_step(self, batch: Batch, context: StepContext) -> StepOutput:
        passes = self.compared(batch, context)
        return StepOutput(
            {
                "classification": F.cross_entropy(passes.labelled_logits, batch.labels),
                **self.unlabelled_terms(passes.predictions, passes.clean_logits, context.progress),
            },
            prediction_health(passes.clean_logits, self.shard),
        )

    def compared(self, batch: Batch, context: StepContext) -> ComparedPasses:
        """All passes of a step.

        Labelled images go with the first views, in the clean pass. If nothing is learned from the first views
        and the student's view is known beforehand, the clean pass has the first views alone and no gradient,
        and labelled images go with the student: a third less to compute.
        """
        first, second = batch.unlabelled["first"], batch.unlabelled["second"]
        labelled, model = batch.labelled["image"], self.model
        sizes = [len(labelled), len(first)]
        student_view = None
        if not self.config.learns_from_clean_predictions:
            student_view = self.comparison.student_view(second, context)
        forward = _Forward(model)
        # The clean pass, and the only one that moves batch-norm running statistics.
        if student_view is None:
            labelled_logits, clean_logits = forward(torch.cat([labelled, first])).split(sizes)
            labelled_features, forward.features = forward.features.split(sizes)
            first_logits = self.comparison.first_logits(model, first, clean_logits)
            with frozen_running_statistics(model):
                predictions = self.comparison.predictions(model, forward, first_logits, second, context)
            return ComparedPasses(
                labelled_logits, clean_logits, predictions, labelled_features, forward.features
            )
        with torch.no_grad():
            clean_logits = self.comparison.target_model(model)(first)
        with frozen_running_statistics(model):
            labelled_logits, student_logits = forward(torch.cat([labelled, student_view])).split(sizes)
        labelled_features, student_features = forward.features.split(sizes)
        predictions = Predictions(clean_logits, student_logits)
        return ComparedPasses(labelled_logits, clean_logits, predictions, labelled_features, student_features)

    def unlabelled_terms(
        self, predictions: Predictions, clean_logits: Tensor, progress: float
    ) -> dict[str, Tensor]:
        """λ1 L_con and what every method can add: the student follows the (constant) target."""
        config: Any = self.config  # every comparison's settings have a consistency_weight
        target = self.target_balance(predictions.target_logits)
        consistency = self.comparison.distance(target, predictions.student_logits)
        ramp = ramp_up(progress, self.config.ramp_fraction)
        return {
            "consistency": ramp * config.consistency_weight * consistency,
            **self.extra_terms(clean_logits, progress),
        }

    def after_step(self, context: StepContext) -> None:
        self.comparison.after_step(self.model, context)

    def inference_model(self) -> nn.Module:
        return self.comparison.evaluated(self.model)
