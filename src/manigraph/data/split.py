"""Which images are labelled, unlabelled, for validation and for testing."""

import hashlib
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from manigraph.data.sources.base import Dataset
from manigraph.errors import UserError


@dataclass(frozen=True)
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


def draw_split(dataset: Dataset, *, num_labels: int, num_validation: int, seed: int) -> Split:
    """Draw the labelled images, the same number of each class, then validation from the rest.

    One generator seeded `seed`; for the classes in order a permutation of that class's training
    images, of which the first `num_labels / C` are labelled. What remains is shuffled by the same
    generator; its first `num_validation` are for validation and the others are unlabelled. So the
    labelled images of a seed do not depend on the size of the validation set.
    """
    C = dataset.num_classes
    if num_labels < C:
        raise UserError(
            f"{num_labels} labels are fewer than the {C} classes of {dataset.name}: give at least "
            f"one label per class (data.labels >= {C})"
        )
    if num_labels % C:
        raise UserError(
            f"{num_labels} labels do not divide evenly among the {C} classes of {dataset.name}: "
            f"try {num_labels // C * C} or {(num_labels // C + 1) * C}"
        )
    generator = torch.Generator().manual_seed(seed)
    train_classes = dataset.classes[dataset.train]
    labelled = []
    for c in range(C):
        candidates = dataset.train[train_classes == c]
        if len(candidates) < num_labels // C:
            raise UserError(
                f"class '{dataset.class_names[c]}' of {dataset.name} has {len(candidates)} training "
                f"images, fewer than the {num_labels // C} labels asked for: lower data.labels"
            )
        order = torch.randperm(len(candidates), generator=generator)
        labelled.append(candidates[order[: num_labels // C]])
    chosen = torch.cat(labelled)
    rest = dataset.train[~torch.isin(dataset.train, chosen)]
    if num_validation < 0:
        raise UserError(f"the number of validation images cannot be negative, got {num_validation}")
    if num_validation >= len(rest):
        raise UserError(
            f"{num_validation} validation images leave none of the {len(rest)} unlabelled ones: "
            f"lower data.validation"
        )
    rest = rest[torch.randperm(len(rest), generator=generator)]
    return Split(
        labelled=chosen,
        unlabelled=rest[num_validation:],
        validation=rest[:num_validation],
        test=dataset.test,
    )
