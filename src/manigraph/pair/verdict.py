"""Whether the unlabelled images helped: a run against its control, on the same held-out images."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from manigraph.chance import (
    Disagreement,
    difference_interval,
    error_interval,
    images_needed,
    mcnemar,
)
from manigraph.data.cache import Progress, silent
from manigraph.data.locations import Locations
from manigraph.data.prepared import PreparedImages
from manigraph.data.sources.base import Dataset
from manigraph.engine import TrainedRun, dataset_of, load, stored_indices
from manigraph.errors import UserError
from manigraph.pair.checks import Advice, Evidence, Pool, advice
from manigraph.runs import RunDirectory
from manigraph.significance import SIGNIFICANT
from manigraph.training.evaluation import predict_logits
from manigraph.training.selection import Part

VERDICT_FILE = "verdict.json"

Outcome = Literal["helped", "worse", "unclear"]

POOL_SAMPLE = 1000
"""Unlabelled images that are predicted to see how the models take them."""

WORTH_SEEING = 0.25
"""Where no difference was seen: the share of the control's error whose loss one would want to notice."""


@dataclass(frozen=True)
class Measured:
    """The error of one model, in per cent."""

    run: str
    wrong: int
    error: float
    low: float
    """Ends of the 95 % interval (Wilson)."""
    high: float


@dataclass(frozen=True)
class Verdict:
    """What the comparison says."""

    outcome: Outcome
    part: Part
    """Which images were counted."""
    num_images: int
    with_unlabelled: Measured
    control: Measured
    difference: float
    """Error of the run minus that of the control, in points of per cent."""
    difference_low: float
    """Ends of its 95 % interval (Bonett & Price)."""
    difference_high: float
    only_run_wrong: int
    """Images that the run gets wrong and the control does not."""
    only_control_wrong: int
    p: float
    """Of the exact McNemar test, two-sided."""
    images_needed: int | None
    """If it cannot be told: how many images it would take; None if no number would do."""
    chosen_on_them: bool
    """Whether weights were chosen on the very images that are counted, so that both errors are too low."""
    advice: tuple[Advice, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "sentence": self.sentence}

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        ours, theirs = f"{self.with_unlabelled.error:.1f} %", f"{self.control.error:.1f} %"
        if self.outcome == "helped":
            return f"the unlabelled images lowered the error from {theirs} to {ours}"
        if self.outcome == "worse":
            return f"with the unlabelled images the error is higher: {ours} instead of {theirs}"
        seen = f"{ours} with them, {theirs} without"
        if self.with_unlabelled.error == self.control.error:
            seen = f"{ours} with and without them"
        images = f"{self.num_images} {self.part} images"
        return f"cannot tell from {images} whether the unlabelled images help: {seen}; {self._needed}"

    @property
    def _needed(self) -> str:
        if self.images_needed is None:
            return "neither makes an error that the other avoids"
        about = f"about {_rounded(self.images_needed)} images"
        if self.difference == 0:
            return f"to notice a quarter less error takes {about}"
        return f"if that is the true difference, {about} would show it"


def compare(
    run: RunDirectory,
    control: RunDirectory,
    *,
    locations: Locations | None = None,
    progress: Progress = silent,
) -> Verdict:
    """Predict the held-out images by both models and count.

    `part_to_count` says which.
    """
    if run.read_json("split.json").get("digest") != control.read_json("split.json").get("digest"):
        raise UserError(f"'{run.path}' and '{control.path}' have different splits: train both again")
    part = part_to_count(run)
    indices, pool, labelled = (stored_indices(run, name) for name in (part, "unlabelled", "labelled"))
    trained, trained_control = load(run), load(control)
    dataset = dataset_of(run, trained, locations=locations, progress=progress)
    classes = dataset.classes[indices]
    probs = _probabilities(trained, dataset, indices)
    control_probs = _probabilities(trained_control, dataset, indices)
    wrong, control_wrong = probs.argmax(1) != classes, control_probs.argmax(1) != classes
    sample = pool[:: max(1, len(pool) // POOL_SAMPLE)][:POOL_SAMPLE]
    evidence = Evidence(
        config=trained.config,
        class_names=trained.class_names,
        labels=dataset.classes[labelled].bincount(minlength=dataset.num_classes).tolist(),
        unlabelled=len(pool),
        findings=run.read_json("check.json").get("findings", []),
        warnings=[line["warning"] for line in run.read_lines("warnings.jsonl")],
        consistency=[line["terms"].get("consistency", 1.0) for line in run.read_lines("metrics.jsonl")],
        pool=_pool(trained, trained_control, dataset, sample, control_probs),
        control_error=control_wrong.double().mean().item(),
    )
    return judge(
        wrong,
        control_wrong,
        part=part,
        names=(run.path.name, control.path.name),
        chosen_on_them=trained.config.training.select == part,
        evidence=evidence,
    )


def judge(
    wrong: Tensor,
    control_wrong: Tensor,
    *,
    part: Part,
    names: tuple[str, str],
    chosen_on_them: bool = False,
    evidence: Evidence | None = None,
) -> Verdict:
    """The verdict on counted errors.

    Args:
        wrong: (N,) whether the run gets each image wrong.
        control_wrong: The same of the control.
        part: Which images these are.
        names: Of the run and the control.
        chosen_on_them: Whether weights were chosen on these images.
        evidence: What may explain a bad outcome.
    """
    N = len(wrong)
    seen = Disagreement(N, int((wrong & ~control_wrong).sum()), int((control_wrong & ~wrong).sum()))
    p = mcnemar(seen)
    outcome: Outcome = "unclear"
    if p < SIGNIFICANT:
        outcome = "helped" if seen.difference < 0 else "worse"
    low, high = difference_interval(seen)
    needed = _images_needed(seen, int(control_wrong.sum()) / N) if outcome == "unclear" else None
    measured = [
        _measured(name, int(w.sum()), N) for name, w in zip(names, (wrong, control_wrong), strict=True)
    ]
    return Verdict(
        outcome=outcome,
        part=part,
        num_images=N,
        with_unlabelled=measured[0],
        control=measured[1],
        difference=100 * seen.difference,
        difference_low=100 * low,
        difference_high=100 * high,
        only_run_wrong=seen.first_only,
        only_control_wrong=seen.second_only,
        p=p,
        images_needed=needed,
        chosen_on_them=chosen_on_them,
        advice=() if evidence is None else tuple(advice(evidence, outcome, (needed or 0) / N)),
    )


def part_to_count(run: RunDirectory) -> Part:
    """Validation images, or test images if there are more; rather those on which no weights were chosen."""
    rule = run.read_json("config.json")["training"]["select"]
    parts: tuple[Part, ...] = ("validation", "test")
    sizes: dict[Part, int] = {part: len(stored_indices(run, part)) for part in parts}
    if not any(sizes.values()):
        raise UserError(f"'{run.path}' holds no images out, so that there can be no verdict")
    return max(sizes, key=lambda part: (sizes[part] > 0 and part != rule, sizes[part], part == "validation"))


def _images_needed(seen: Disagreement, control_error: float) -> int | None:
    disagreeing = (seen.first_only + seen.second_only) / seen.images
    difference = abs(seen.difference) or WORTH_SEEING * control_error
    if difference == 0:
        return None
    return max(images_needed(max(disagreeing, difference), difference), seen.images + 1)


def _measured(name: str, wrong: int, images: int) -> Measured:
    low, high = error_interval(wrong, images)
    return Measured(name, wrong, 100 * wrong / images, 100 * low, 100 * high)


def _probabilities(trained: TrainedRun, dataset: Dataset, indices: Tensor) -> Tensor:
    images = PreparedImages(dataset.images.index_select(0, indices), trained.preprocessing)
    return predict_logits(trained.model, images, torch.arange(len(indices))).softmax(dim=1)


def _pool(
    trained: TrainedRun, control: TrainedRun, dataset: Dataset, indices: Tensor, held_out: Tensor
) -> Pool | None:
    """How both models take unlabelled images."""
    if len(indices) == 0:
        return None
    C = dataset.num_classes
    shares = _probabilities(trained, dataset, indices).argmax(1).bincount(minlength=C) / len(indices)
    sure, sure_held_out = (p.amax(1) for p in (_probabilities(control, dataset, indices), held_out))
    return Pool(
        shares=shares.tolist(),
        confidence=sure.mean().item(),
        held_out_confidence=sure_held_out.mean().item(),
        uncertainty=(sure.var() / len(sure) + sure_held_out.var() / len(sure_held_out)).sqrt().item()
        if min(len(sure), len(sure_held_out)) > 1
        else float("inf"),
    )


def _rounded(images: int) -> str:
    """Two digits say all that is known."""
    size = 10 ** max(len(str(images)) - 2, 0)
    return f"{-(-images // size) * size:,}"
