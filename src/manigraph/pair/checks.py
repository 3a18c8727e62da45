"""What to look at when the unlabelled images did not help: what this run shows, and only that."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from manigraph.config import Config

RELEVANT = (
    "few_labels", "imbalance", "few_unlabelled", "unreadable_files", "rows_without_image", "classes_alike",
    "blank_images", "contradicting_labels", "doubt", "unlabelled_batch_too_large",
)  # fmt: skip
"""Findings of the look before training that may explain why unlabelled images do not help."""

NOTHING = 0.01
"""A consistency term below this, on average over the second half of a run, has taught nothing."""

FEW_PASSES = 5
"""An unlabelled image that was seen less often has taught little."""

STRANGE = 0.1
"""How much less sure, on average, the control is on unlabelled images than on held-out ones of known class,
from which on they count as different."""

CERTAIN = 3.0
"""Standard errors that such a difference must have."""

CROWDED = 2.0
"""A class with so many times its share of the labels, and a quarter of all images, has swallowed others."""

WITHIN_REACH = 20
"""Times as many images that somebody might still label to settle the matter."""

FEW_STEPS = 500
"""A network is hardly trained after fewer steps, let alone by its own predictions."""

HARD_TO_BEAT = 0.02
"""Error of the control below which there is little to gain."""


@dataclass(frozen=True)
class Advice:
    """What is seen, and what to do."""

    seen: str
    try_: str


@dataclass(frozen=True)
class Pool:
    """How unlabelled images are taken."""

    shares: Sequence[float]
    """Of each class among the run's predictions."""
    confidence: float
    """Mean probability of the control's predictions on them."""
    held_out_confidence: float
    """The same on the images that were counted."""
    uncertainty: float
    """Standard error of the difference of the two."""


@dataclass(frozen=True)
class Evidence:
    """All that a run shows."""

    config: Config[Any]
    class_names: Sequence[str]
    labels: Sequence[int]
    """Labelled images of each class that were trained on."""
    unlabelled: int
    findings: Sequence[Mapping[str, Any]]
    """Of check.json."""
    warnings: Sequence[str]
    """Of warnings.jsonl."""
    consistency: Sequence[float]
    """What was learned from unlabelled images, record by record; 1 for methods that have no such term."""
    pool: Pool | None
    control_error: float


def advice(evidence: Evidence, outcome: str, lacking: float) -> Iterator[Advice]:
    """What to check, the likeliest first; nothing if the images helped.

    Args:
        evidence: What the run shows.
        outcome: Of the comparison.
        lacking: If it is unclear: how many times as many images would tell; 0 if none would.
    """
    if outcome == "helped":
        return
    yield from _collapse(evidence)
    yield from _unused_images(evidence)
    yield from _crowded_class(evidence)
    yield from _strange_images(evidence)
    yield from _findings(evidence)
    yield from _length(evidence)
    yield from _room(evidence)
    if outcome == "worse" and getattr(evidence.config.method, "balance_weight", 0) > 0:
        yield Advice(
            "the classes were kept equally frequent among the unlabelled images",
            "if they are not, --method.balance_weight 0 --method.balance_memory 0",
        )
    if 0 < lacking <= WITHIN_REACH:
        yield Advice(
            f"{lacking:.1f} times as many counted images would tell",
            "label more images; those in a folder 'test' are only counted, never trained on",
        )
    elif outcome == "unclear":
        yield Advice("the difference is small, if there is one", "train longer, or label more images")


def _collapse(evidence: Evidence) -> Iterator[Advice]:
    for warning in evidence.warnings:
        seen, _, way_out = warning.partition(": ")
        yield Advice(seen, way_out or "see docs/training.md")


def _unused_images(evidence: Evidence) -> Iterator[Advice]:
    late = evidence.consistency[len(evidence.consistency) // 2 :]
    if not late or sum(late) / len(late) >= NOTHING:
        return
    config = evidence.config
    if getattr(config.method, "comparison", config.algorithm) == "fixmatch":
        yield Advice(
            "hardly a prediction on unlabelled images was sure enough to learn from: they only cost time",
            "train longer: more --minutes; or a lower --method.threshold, 0.8",
        )
    else:
        yield Advice(
            "predictions on the views of an unlabelled image hardly differed: little was learned from them",
            "train longer: more --minutes; or a larger --method.consistency_weight",
        )


def _crowded_class(evidence: Evidence) -> Iterator[Advice]:
    if evidence.pool is None or sum(evidence.labels) == 0:
        return
    shares, labels = evidence.pool.shares, evidence.labels
    largest = max(range(len(shares)), key=shares.__getitem__)
    fair = labels[largest] / sum(labels)
    if shares[largest] > max(CROWDED * fair, 0.25):
        yield Advice(
            f"{100 * shares[largest]:.0f} % of the unlabelled images are taken for "
            f"'{evidence.class_names[largest]}', which has {100 * fair:.0f} % of the labels",
            f"look at some of them: if they are of other classes, {_against_crowding(evidence.config)}label "
            f"a few of each of these",
        )


def _against_crowding(config: Config[Any]) -> str:
    """Settings that cure it, where a method has them and they are not set yet."""
    weight, memory = (getattr(config.method, name, None) for name in ("balance_weight", "balance_memory"))
    if weight is None or memory is None or (weight > 0 and memory > 0):
        return ""
    return "set --method.balance_weight 1 --method.balance_memory 1280 or "


def _strange_images(evidence: Evidence) -> Iterator[Advice]:
    pool = evidence.pool
    if pool is None:
        return
    gap = pool.held_out_confidence - pool.confidence
    if gap > max(STRANGE, CERTAIN * pool.uncertainty):
        yield Advice(
            f"the control is less sure of unlabelled images (mean probability {pool.confidence:.2f}) than of "
            f"labelled ones it has not seen ({pool.held_out_confidence:.2f})",
            "see whether they show other classes or were taken otherwise, and remove what does not belong",
        )


def _findings(evidence: Evidence) -> Iterator[Advice]:
    for finding in evidence.findings:
        if finding.get("kind") in RELEVANT:
            yield Advice(str(finding["message"]), str(finding["suggestion"]))


def _length(evidence: Evidence) -> Iterator[Advice]:
    config = evidence.config
    if evidence.unlabelled == 0:
        return
    steps = config.training.steps
    passes = steps * config.batch.unlabelled / evidence.unlabelled
    if passes < FEW_PASSES or steps < FEW_STEPS:
        seen = f"the run was short: {steps} steps, in which each unlabelled image was seen {passes:.1f} times"
        yield Advice(seen, "train longer: more --minutes")


def _room(evidence: Evidence) -> Iterator[Advice]:
    if evidence.control_error < HARD_TO_BEAT:
        yield Advice(
            f"labels alone give {100 * evidence.control_error:.1f} % error", "there is little left to gain"
        )
