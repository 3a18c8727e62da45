"""A look at the data before anything starts: what is there, and what would make training wrong."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from manigraph.data.batches import BatchConfig
from manigraph.data.sources.base import UNLABELLED, Dataset, Doubt
from manigraph.data.split import Split

Severity = Literal["error", "warning", "note"]

HARMLESS_SHARE = 0.01
"""Copies of up to this share of the validation or test images are only warned of: benchmarks have some."""

FEW_LABELS = 5
MUCH_IMBALANCE = 5
SMALL_VALIDATION = 50

MANY_REPEATS = 2
"""A batch that holds each labelled image more often than this on average is warned of. Somewhat more than
once is meant where labels are few: each time it is augmented anew."""

SAMPLE_FOR_BRIGHTNESS = 1000
"""Images that are looked at to see how bright pixels get."""


@dataclass(frozen=True)
class Finding:
    """One thing to know, and what to do about it."""

    severity: Severity
    kind: str
    """For programs, such as `unreadable_files`."""
    message: str
    suggestion: str
    examples: Sequence[str] = ()
    """All files or classes concerned."""


@dataclass(frozen=True)
class ClassCounts:
    """How many images of one class are where."""

    name: str
    images: int
    """All images known to be of this class, whether the split shows their class or not."""
    labelled: int
    unlabelled: int
    """Those of them whose class the split hides."""
    validation: int
    test: int


@dataclass(frozen=True)
class Check:
    """What was found in a data set and its split."""

    dataset: str
    input_shape: Sequence[int]
    num_images: int
    original_formats: dict[str, int]
    parts: dict[str, int]
    """Number of images in each part of the split; empty if no split could be drawn."""
    classes: Sequence[ClassCounts]
    findings: Sequence[Finding]

    @property
    def errors(self) -> list[Finding]:
        """What makes training wrong."""
        return [finding for finding in self.findings if finding.severity == "error"]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "can_train": not self.errors}


def check_data(
    dataset: Dataset, split: Split | None, *, split_problem: str = "", needs_unlabelled: bool = True
) -> Check:
    """Look at a data set and its split.

    Args:
        dataset: All images.
        split: Their split; None if none could be drawn.
        split_problem: Why not.
        needs_unlabelled: Whether the method learns from unlabelled images.
    """
    findings = [*_about_files(dataset), *_about_classes(dataset)]
    if split is None:
        if not any(finding.severity == "error" for finding in findings):
            what, way_out = _cut(split_problem or "no split can be drawn")
            findings.append(Finding("error", "no_split", what, way_out))
    else:
        findings += _about_labels(dataset, split)
        findings += _about_parts(split, needs_unlabelled)
        findings += _about_copies(dataset, split)
    order = ("error", "warning", "note")
    return Check(
        dataset=dataset.name,
        input_shape=dataset.input_shape,
        num_images=len(dataset.images),
        original_formats=dict(sorted(dataset.original_formats.items(), key=lambda item: -item[1])),
        parts={} if split is None else {name: len(part) for name, part in split.as_lists().items()},
        classes=[] if split is None else _class_counts(dataset, split),
        findings=sorted(findings, key=lambda finding: order.index(finding.severity)),
    )


def check_brightness(dataset: Dataset) -> list[Finding]:
    """What is to be said of pixels that strong views would take for dark."""
    pixels = dataset.images[:SAMPLE_FOR_BRIGHTNESS]
    if pixels.dtype != torch.uint8 or len(pixels) == 0 or pixels.amax() >= dataset.white / 4:
        return []
    return [
        Finding(
            "warning",
            "dark_images",
            f"the brightest of the first pixels is {int(pixels.amax())}, while white is {dataset.white:g}: "
            f"strong views are made for the full range",
            "scale the pixels up to 255, or give `white` to `from_arrays`",
        )
    ]


def check_batches(split: Split, batch: BatchConfig, *, pool: int, uses_unlabelled: bool) -> list[Finding]:
    """What is to be said of batches that are larger than what they are drawn from.

    Args:
        split: For the number of labelled images.
        batch: Sizes of a batch.
        pool: Number of images from which the unlabelled part of a batch is drawn.
        uses_unlabelled: Whether the method learns from unlabelled images.
    """
    findings = []
    num_labelled = len(split.labelled)
    if 0 < MANY_REPEATS * num_labelled < batch.labelled:
        findings.append(
            Finding(
                "warning",
                "labelled_batch_too_large",
                f"a batch of {batch.labelled} labelled images holds each of the {num_labelled} there are "
                f"{batch.labelled / num_labelled:.1f} times on average",
                f"use smaller batches, which take less time: --batch.labelled {_batch_size(num_labelled)}",
            )
        )
    if uses_unlabelled and 0 < pool < batch.unlabelled:
        findings.append(
            Finding(
                "warning",
                "unlabelled_batch_too_large",
                f"a batch of {batch.unlabelled} unlabelled images is larger than all {pool} there are, so it "
                f"holds some more than once",
                f"use smaller batches: --batch.unlabelled {_batch_size(pool)}",
            )
        )
    return findings


def _batch_size(images: int) -> int:
    """All images, but no fewer than a batch must have."""
    return max(images, 2)


def no_data(name: str, problem: str) -> Check:
    """What is to be said of a data set that cannot even be read."""
    what, way_out = _cut(problem)
    return Check(name, (), 0, {}, {}, [], [Finding("error", "no_data", what, way_out)])


def _cut(problem: str) -> tuple[str, str]:
    """What is wrong and the way out, which comes last; what is wrong may itself hold a colon."""
    what, colon, way_out = problem.rpartition(": ")
    return (what, way_out) if colon else (problem, "change the numbers of images")


def _about_files(dataset: Dataset) -> Iterator[Finding]:
    unlisted = [problem for problem in dataset.problems if problem.reason.startswith("listed in ")]
    unusable = [problem for problem in dataset.problems if problem not in unlisted]
    if unusable:
        yield Finding(
            "warning",
            "unreadable_files",
            f"{len(unusable)} of {len(unusable) + len(dataset.images)} files could not be used",
            "repair or remove them; training goes on without them",
            [f"{problem.path} ({problem.reason})" for problem in unusable],
        )
    if unlisted:
        yield Finding(
            "warning",
            "rows_without_image",
            f"{len(unlisted)} rows of the CSV name no image, so their labels are lost",
            "correct the paths, which are relative to the CSV",
            [f"{problem.path} ({problem.reason})" for problem in unlisted],
        )
    if dataset.lost_classes:
        yield Finding(
            "warning",
            "classes_without_images",
            f"{len(dataset.lost_classes)} classes have a name but no readable image and will not be learned",
            "add images to them, or remove the folders",
            dataset.lost_classes,
        )
    blank = [i for start in range(0, len(dataset.images), 4096) for i in _blank(dataset.images, start)]
    if blank:
        yield Finding(
            "warning",
            "blank_images",
            f"{len(blank)} images have one colour and nothing on them",
            "remove them unless they are meant",
            [_name(dataset, i) for i in blank],
        )
    for remark in dataset.remarks:
        doubtful = isinstance(remark, Doubt)
        severity: Severity = "warning" if doubtful else "note"
        yield Finding(severity, "doubt" if doubtful else "remark", remark, "nothing to do if this is meant")


def _blank(images: Tensor, start: int) -> list[int]:
    if images.ndim != 4:
        return []
    part = images[start : start + 4096].flatten(2)
    return (start + (part.amax(2) == part.amin(2)).all(1).nonzero().flatten()).tolist()


def _about_classes(dataset: Dataset) -> Iterator[Finding]:
    if len(dataset.images) == 0:
        yield Finding("error", "no_images", "there is not one readable image", "repair the files")
    elif dataset.num_classes == 0:
        yield Finding(
            "error",
            "no_labels",
            "no image has a label",
            "put a few images of each class into a folder named after the class, or list them in a CSV",
        )
    elif dataset.num_classes == 1:
        yield Finding(
            "error",
            "one_class",
            f"there is only one class, '{dataset.class_names[0]}'",
            "label images of another one, or give the folder that directly holds the class folders",
        )
    folded: dict[str, list[str]] = {}
    for name in dataset.class_names:
        folded.setdefault(name.casefold(), []).append(name)
    alike = [" and ".join(names) for names in folded.values() if len(names) > 1]
    if alike:
        yield Finding(
            "warning",
            "classes_alike",
            f"{len(alike)} classes differ from another only in capital letters ({_few(alike)})",
            "give them one name if they are one class",
            alike,
        )


def _about_labels(dataset: Dataset, split: Split) -> Iterator[Finding]:
    counts = _counts(dataset, split.labelled)
    names = dataset.class_names
    if not names:
        return
    missing = [name for name, count in zip(names, counts, strict=True) if count == 0]
    if missing:
        yield Finding(
            "error",
            "classes_without_labels",
            f"{len(missing)} of {len(names)} classes have no labelled image ({_few(missing)})",
            "label at least one image of each, or remove the class from validation and test",
            missing,
        )
        return
    few = [f"{name}: {n}" for name, n in zip(names, counts, strict=True) if n < FEW_LABELS]
    if few:
        alone = min(counts) == 1
        yield Finding(
            "warning" if alone else "note",
            "few_labels",
            f"{len(few)} of {len(names)} classes have fewer than {FEW_LABELS} labelled images",
            "a few more labels there help more than anything else",
            few,
        )
    if max(counts) > MUCH_IMBALANCE * min(counts):
        rarest, commonest = counts.index(min(counts)), counts.index(max(counts))
        yield Finding(
            "warning",
            "imbalance",
            f"labels are unequal: '{names[commonest]}' has {max(counts)}, '{names[rarest]}' {min(counts)}",
            "label more of the rare classes, and look at the error of each class, not only at the whole",
        )


def _about_parts(split: Split, needs_unlabelled: bool) -> Iterator[Finding]:
    if needs_unlabelled and len(split.unlabelled) == 0:
        yield Finding(
            "error",
            "no_unlabelled",
            "there are no unlabelled images to learn from",
            "add a folder 'unlabelled', use only some of the labels (--data.labels N), or train with "
            "--algorithm supervised",
        )
    elif needs_unlabelled and len(split.unlabelled) < len(split.labelled):
        yield Finding(
            "warning",
            "few_unlabelled",
            f"there are fewer unlabelled images ({len(split.unlabelled)}) than labelled ones "
            f"({len(split.labelled)})",
            "unlabelled images help when there are many: add more",
        )
    if len(split.validation) + len(split.test) == 0:
        yield Finding(
            "warning",
            "no_validation",
            "no images are left to measure the error on",
            "add labels (a fifth is held out), or a folder 'test'",
        )
    elif 0 < len(split.validation) < SMALL_VALIDATION:
        yield Finding(
            "note",
            "small_validation",
            f"with {len(split.validation)} validation images one image is "
            f"{100 / len(split.validation):.1f} % of the error",
            "take small differences for chance",
        )


def _about_copies(dataset: Dataset, split: Split) -> Iterator[Finding]:
    ids = dataset.content_ids
    parts = {name: getattr(split, name) for name in ("labelled", "unlabelled", "validation", "test")}
    for first, second in (
        ("labelled", "validation"),
        ("labelled", "test"),
        ("unlabelled", "validation"),
        ("unlabelled", "test"),
        ("validation", "test"),
        ("labelled", "unlabelled"),
    ):
        copies = parts[second][torch.isin(ids[parts[second]], ids[parts[first]])]
        if len(copies) == 0:
            continue
        leaks = first == "labelled" and second in ("validation", "test")
        much = len(copies) > HARMLESS_SHARE * len(parts[second])
        severity: Severity = "note"
        if leaks:
            severity = "error" if much else "warning"
        elif much and second in ("validation", "test"):
            severity = "warning"
        yield Finding(
            severity,
            f"copies_{first}_{second}",
            f"{len(copies)} of {len(parts[second])} {second} images are exact copies of {first} ones",
            f"remove them from {second}: their error would look too good"
            if leaks
            else "remove the copies if the result must be strict",
            sorted(_pairs(dataset, parts[first], copies)),
        )
    alike = ids[split.labelled] * dataset.num_classes + dataset.classes[split.labelled]  # image and class
    again = alike.bincount()[alike] > 1
    if again.any():
        distinct = len(alike[again].unique())
        yield Finding(
            "note",
            "copies_labelled_labelled",
            f"{int(again.sum())} labelled images are only {distinct} different ones",
            "count a copy once when you count labels",
            sorted(_name(dataset, index) for index in split.labelled[again].tolist()),
        )
    yield from _about_contradictions(dataset, split.labelled)


def _about_contradictions(dataset: Dataset, labelled: Tensor) -> Iterator[Finding]:
    """Labelled images that are the same pixel by pixel but not in their class."""
    seen: dict[int, int] = {}
    pairs = []
    for index in labelled.tolist():
        other = seen.setdefault(int(dataset.content_ids[index]), index)
        if dataset.classes[other] != dataset.classes[index]:
            pairs.append(f"{_labelled_name(dataset, other)} and {_labelled_name(dataset, index)}")
    if pairs:
        # Equal photographs show the same thing; rows of a few measured figures may well be of two classes.
        much = dataset.images.ndim == 4 and len(pairs) > HARMLESS_SHARE * len(labelled)
        yield Finding(
            "error" if much else "warning",
            "contradicting_labels",
            f"{len(pairs)} labelled images are exact copies of one with another label",
            "decide for one label and remove the other file",
            pairs,
        )


def _pairs(dataset: Dataset, among: Tensor, copies: Tensor) -> list[str]:
    """Each copy with the first image among the others that shows the same."""
    originals: dict[int, int] = {}
    for content, index in zip(dataset.content_ids[among].tolist(), among.tolist(), strict=True):
        originals.setdefault(content, index)
    contents = dataset.content_ids[copies].tolist()
    return [
        f"{_name(dataset, copy)} = {_name(dataset, originals[content])}"
        for copy, content in zip(copies.tolist(), contents, strict=True)
    ]


def _name(dataset: Dataset, index: int) -> str:
    return dataset.paths[index] if dataset.paths is not None else f"image {index}"


def _labelled_name(dataset: Dataset, index: int) -> str:
    return f"{_name(dataset, index)} as '{dataset.class_names[int(dataset.classes[index])]}'"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")


def _counts(dataset: Dataset, indices: Tensor) -> list[int]:
    classes = dataset.classes[indices]
    counts: list[int] = classes[classes != UNLABELLED].bincount(minlength=dataset.num_classes).tolist()
    return counts


def _class_counts(dataset: Dataset, split: Split) -> list[ClassCounts]:
    everything = torch.arange(len(dataset.images))
    parts = (everything, split.labelled, split.unlabelled, split.validation, split.test)
    columns = (_counts(dataset, part) for part in parts)
    return [
        ClassCounts(name, *counts)
        for name, counts in zip(dataset.class_names, zip(*columns, strict=True), strict=True)
    ]
