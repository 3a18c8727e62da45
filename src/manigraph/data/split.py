"""Which images are labelled, unlabelled, for validation and for testing."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from manigraph.data.sources.base import UNLABELLED, Dataset
from manigraph.errors import UserError

Stratify = Literal["proportional", "equal"]

DEFAULT_VALIDATION_SHARE = 5
"""One in so many of the images with a known class is held out if nothing else is said."""

MAX_DEFAULT_VALIDATION = 1000


@dataclass(frozen=True, eq=False)
class Split:
    """Four disjoint sets of indices into a data set."""

    labelled: Tensor
    unlabelled: Tensor
    validation: Tensor
    test: Tensor

    def as_lists(self) -> dict[str, list[int]]:
        """For JSON."""
        return {field.name: getattr(self, field.name).tolist() for field in fields(self)}

    @property
    def digest(self) -> str:
        """SHA-256 of all indices: equal digests mean the same split."""
        text = repr([(name, indices) for name, indices in self.as_lists().items()])
        return hashlib.sha256(text.encode()).hexdigest()


def draw_split(
    dataset: Dataset,
    *,
    num_labels: int | None,
    num_validation: int | None,
    seed: int,
    stratify: Stratify = "proportional",
    num_test: int | None = None,
) -> Split:
    """Draw labelled and validation images; all others are unlabelled.

    Both are drawn class by class: in proportion to the classes' sizes or, for labelled images if so
    wished, the same number of each. An image that occurs twice in the data set is never drawn for
    validation, so no copy of a validation image is trained on.

    Args:
        dataset: What to draw from; images without a class are always unlabelled.
        num_labels: Labelled images in all; None means every known class that validation leaves.
        num_validation: Images held out; None means a fifth of those whose class is known (and not needed
            as a label), at most 1,000.
        seed: Decides the draw. With `num_labels`, the labelled images of a seed do not depend on
            `num_validation`.
        stratify: How `num_labels` are shared among the classes.
        num_test: Test images to draw, at most; None means all. The other parts do not depend on it.
    """
    if dataset.num_classes == 0:
        raise UserError(f"{dataset.name} has no labelled images: label a few of each class")
    given = len(dataset.validation) > 0
    if given and num_validation:
        raise UserError(
            f"{dataset.name} has validation images of its own, so data.validation cannot be set to "
            f"{num_validation}"
        )
    if num_validation is not None and num_validation < 0:
        raise UserError(f"the number of validation images cannot be negative, got {num_validation}")
    if num_test is not None and num_test < 1:
        raise UserError(f"the number of test images must be at least 1, got {num_test}")
    generator = torch.Generator().manual_seed(seed)
    held_out = 0 if given else num_validation
    if num_labels is None:
        labelled, validation, unlabelled = _draw_all_labels(dataset, held_out, generator)
    else:
        counts = _label_counts(dataset, num_labels, stratify)
        labelled, validation, unlabelled = _draw_some_labels(dataset, counts, held_out, generator)
    test = dataset.test
    if num_test is not None:
        test = test[torch.randperm(len(test), generator=generator)[:num_test]]
    return Split(
        labelled=labelled,
        unlabelled=unlabelled,
        validation=dataset.validation if given else validation,
        test=test,
    )


def _draw_some_labels(
    dataset: Dataset, counts: Sequence[int], num_validation: int | None, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """For the classes in order a permutation of their images, of which the first are labelled.

    What remains is shuffled by the same generator; validation takes the first of each class, and the
    others are unlabelled.
    """
    labelled = []
    for candidates, count in zip(_by_class(dataset, dataset.train), counts, strict=True):
        order = torch.randperm(len(candidates), generator=generator)
        labelled.append(candidates[order[:count]])
    chosen = torch.cat(labelled)
    rest = dataset.train[~torch.isin(dataset.train, chosen)]
    rest = rest[torch.randperm(len(rest), generator=generator)]
    if num_validation is None:
        known = dataset.classes[rest] != UNLABELLED
        singles = int((known & ~dataset.has_copy[rest]).sum())
        num_validation = min(int(known.sum()) // DEFAULT_VALIDATION_SHARE, MAX_DEFAULT_VALIDATION, singles)
    if num_validation >= len(rest) and num_validation:
        raise UserError(
            f"{num_validation} validation images leave none of the {len(rest)} unlabelled ones: "
            f"lower data.validation"
        )
    validation = _draw_validation(dataset, rest, num_validation)
    return chosen, validation, rest[~torch.isin(rest, validation)]


def _draw_all_labels(
    dataset: Dataset, num_validation: int | None, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Validation takes some of each class, which keeps at least one label; the other labels are used."""
    order = dataset.train[torch.randperm(len(dataset.train), generator=generator)]
    known = order[dataset.classes[order] != UNLABELLED]
    if num_validation is None:
        num_validation = min(len(known) // DEFAULT_VALIDATION_SHARE, MAX_DEFAULT_VALIDATION)
        kept_back = [min(1, len(images)) for images in _by_class(dataset, known)]
        num_validation = min(num_validation, int((~dataset.has_copy[known]).sum()) - sum(kept_back))
        num_validation = max(num_validation, 0)
    validation = _draw_validation(dataset, known, num_validation, keep=1)
    labelled = known[~torch.isin(known, validation)]
    return labelled, validation, order[dataset.classes[order] == UNLABELLED]


def _draw_validation(dataset: Dataset, candidates: Tensor, count: int, keep: int = 0) -> Tensor:
    """The first of each class, in proportion to the classes, leaving `keep` of each; no copies."""
    if count == 0:
        return candidates[:0]
    sizes = [len(images) for images in _by_class(dataset, candidates)]
    singles = _by_class(dataset, candidates[~dataset.has_copy[candidates]])
    capacities = [min(len(images), max(size - keep, 0)) for images, size in zip(singles, sizes, strict=True)]
    if count > sum(capacities):
        raise UserError(
            f"{dataset.name} has {sum(capacities)} images that could be held out for validation, fewer than "
            f"{count}: lower data.validation"
        )
    counts = shares(count, sizes, capacities)
    return torch.cat([images[:number] for images, number in zip(singles, counts, strict=True)])


def _by_class(dataset: Dataset, indices: Tensor) -> list[Tensor]:
    """Indices of each class in their order; those without a class are left out."""
    classes = dataset.classes[indices]
    counts = (classes + 1).bincount(minlength=dataset.num_classes + 1)  # unlabelled ones come first
    return list(indices[classes.argsort(stable=True)].split(counts.tolist()))[1:]


def _label_counts(dataset: Dataset, num_labels: int, stratify: Stratify) -> list[int]:
    """How many of each class are labelled; at least one."""
    C = dataset.num_classes
    sizes = [len(images) for images in _by_class(dataset, dataset.train)]
    if num_labels < C:
        raise UserError(
            f"{num_labels} labels are fewer than the {C} classes of {dataset.name}: give at least "
            f"one label per class (data.labels >= {C})"
        )
    if num_labels > sum(sizes):
        raise UserError(
            f"{dataset.name} has {sum(sizes)} training images whose class is known, fewer than the "
            f"{num_labels} labels asked for: lower data.labels"
        )
    wanted = shares(num_labels, sizes if stratify == "proportional" else [1] * C, minimum=1)
    for name, size, count in zip(dataset.class_names, sizes, wanted, strict=True):
        if size < count:
            raise UserError(
                f"class '{name}' of {dataset.name} has {size} training images, fewer than the {count} labels "
                f"asked for: lower data.labels"
            )
    return wanted


def shares(
    total: int, sizes: Sequence[int], capacities: Sequence[int] | None = None, *, minimum: int = 0
) -> list[int]:
    """Whole numbers in proportion to `sizes` that add up to `total`, by the largest remainders.

    None is below `minimum` or above its capacity; ties go to the first.
    """
    whole = sum(sizes)
    limits = [total] * len(sizes) if capacities is None else list(capacities)
    counts = [
        min(max(total * size // whole, minimum), limit) for size, limit in zip(sizes, limits, strict=True)
    ]

    def missing(c: int) -> int:
        return total * sizes[c] - counts[c] * whole

    while sum(counts) < total:
        counts[max((c for c in range(len(counts)) if counts[c] < limits[c]), key=missing)] += 1
    while sum(counts) > total:
        counts[min((c for c in range(len(counts)) if counts[c] > minimum), key=missing)] -= 1
    return counts


def split_as_json(split: Split, dataset: Dataset) -> dict[str, Any]:
    """What `split.json` holds: the indices, their digest, and which images they point into."""
    return {"digest": split.digest, "dataset": dataset.digest, **split.as_lists()}


def read_split(path: Path, dataset: Dataset) -> Split:
    """A split that was drawn before, from a run's `split.json` or a file like it."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        parts = {field.name: _indices(values[field.name]) for field in fields(Split)}
        origin, digest = values.get("dataset"), values.get("digest")
    except OSError as error:
        raise UserError(f"cannot read the split file '{path}': {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            f"'{path}' is not a split file: it should be a run's split.json, with labelled, unlabelled, "
            f"validation and test indices"
        ) from None
    split = Split(**parts)
    if digest is not None and digest != split.digest:
        raise UserError(f"the split '{path}' was changed after it was written: its digest is another one")
    if origin not in (None, dataset.digest):
        raise UserError(
            f"the split '{path}' was drawn from other images than {dataset.name} holds now: use the same "
            f"images, or draw a new split"
        )
    together = torch.cat(list(parts.values()))
    if len(together) and not (int(together.min()) >= 0 and int(together.max()) < len(dataset.images)):
        raise UserError(f"the split '{path}' points to images that {dataset.name} does not have")
    if len(together.unique()) != len(together):
        raise UserError(f"the split '{path}' has an image in two parts, or twice in one")
    kept = torch.cat([split.labelled, split.unlabelled, split.validation])
    if torch.isin(kept, dataset.test).any() or not torch.isin(split.test, dataset.test).all():
        raise UserError(f"the split '{path}' mixes test images of {dataset.name} with others")
    if torch.isin(torch.cat([split.labelled, split.unlabelled]), dataset.validation).any():
        raise UserError(f"the split '{path}' trains on validation images of {dataset.name}")
    for part in ("labelled", "validation", "test"):
        if (dataset.classes[parts[part]] == UNLABELLED).any():
            raise UserError(f"the split '{path}' has a {part} image whose class is not known")
    return split


def _indices(values: Any) -> Tensor:
    if not isinstance(values, list) or any(type(value) is not int for value in values):
        raise TypeError("a part of a split is a list of whole numbers")
    return torch.tensor(values, dtype=torch.long)
