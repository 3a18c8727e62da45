"""Labels of any kind to numbers of classes, and which of them mean that the class is not known."""

import contextlib
import math
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from manigraph.data.sources.base import UNLABELLED
from manigraph.errors import UserError

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def label_column(y: Any) -> npt.NDArray[Any]:
    """`y` as one row of labels."""
    if y is None:
        raise UserError(
            "y should be a 1d array of labels, got None: give one label, or -1, for each row of X"
        )
    if isinstance(y, (list, tuple)) and len({isinstance(label, str) for label in y}) == 2:
        return _objects(y)  # NumPy would make text of all
    try:
        column: npt.NDArray[Any] = column_or_1d(y, warn=True)
    except ValueError as error:
        if not isinstance(y, (list, tuple)):
            raise UserError(f"{error}: give one label for each row of X") from None
        return _objects(y)  # tuples, say
    return column


def _objects(labels: Sequence[Any]) -> npt.NDArray[Any]:
    column = np.empty(len(labels), dtype=object)
    column[:] = labels
    return column


def is_unlabelled(labels: npt.NDArray[Any], unlabelled: Any) -> Flags:
    """Where the class is not known: None, NaN, empty text and, if there is one, the label that means so.

    NumPy makes text of a -1 that stands among strings, so "-1" means it there.
    """
    if labels.dtype.kind == "O":
        return np.fromiter((_is_missing(label, unlabelled) for label in labels), np.bool_, len(labels))
    missing: Flags = np.zeros(len(labels), dtype=np.bool_)
    if labels.dtype.kind in "fcmM":
        missing = labels != labels
    elif labels.dtype.kind in "US":
        missing = np.char.str_len(np.char.strip(labels)) == 0
    if unlabelled is None:
        return missing
    if labels.dtype.kind in "US":
        missing |= labels == np.array(str(unlabelled)).astype(labels.dtype.kind)
    elif isinstance(unlabelled, numbers.Number) and labels.dtype.kind in "iuf":
        missing |= labels == unlabelled
    return missing


def _is_missing(label: Any, unlabelled: Any) -> bool:
    if label is None or type(label).__name__ in ("NAType", "NaTType"):  # pandas', which is not needed here
        return True
    if isinstance(label, numbers.Real) and math.isnan(label):
        return True
    if isinstance(label, str) and not label.strip():  # as an empty label in a CSV
        return True
    if unlabelled is None or isinstance(label, (bool, np.bool_)):
        return False
    if isinstance(label, str):
        return label == str(unlabelled)
    return isinstance(label, numbers.Number) and bool(label == unlabelled)


def known_classes(labels: npt.NDArray[Any], missing: Flags) -> tuple[npt.NDArray[Any], Numbers]:
    """The classes in order, and the number of each label's class among them; -1 where it is missing."""
    known = _plain(labels[~missing])
    if known.dtype.kind == "f" and not np.isfinite(known).all():
        raise UserError("y holds infinite values: give classes, or -1 where the class is not known")
    if known.dtype.kind in "iufb" or (len(known) and isinstance(known.flat[0], str)):
        check_classification_targets(known)
    numbers_of = np.full(len(labels), UNLABELLED, dtype=np.int64)
    if known.dtype.kind == "O":
        classes = _in_order(known)
    else:
        classes = np.unique(known)
    numbers_of[~missing] = class_numbers(known, classes)
    return classes, numbers_of


def class_numbers(labels: npt.NDArray[Any], classes: npt.NDArray[Any]) -> Numbers:
    """The place of each label among the classes; -1 for one that is not there."""
    place = {label: number for number, label in enumerate(classes.tolist())}
    return np.fromiter((place.get(label, -1) for label in labels.tolist()), np.int64, len(labels))


def _plain(labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Objects that are all text, or all numbers, as an array of such; others as they are."""
    if labels.dtype.kind != "O":
        return labels
    texts = sum(isinstance(label, str) for label in labels)
    if 0 < texts < len(labels):
        other = next(label for label in labels if not isinstance(label, str))
        raise UserError(
            f"y mixes text and other labels ({other!r} of type {type(other).__name__}): give classes of one "
            f"kind, and None or -1 where the class is not known"
        )
    if texts or not all(isinstance(label, (numbers.Real, np.bool_)) for label in labels):
        return labels
    return np.array(labels.tolist())


def _in_order(labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Different labels of any kind: sorted if they can be, else as they come."""
    try:
        distinct: list[Any] = list(dict.fromkeys(labels.tolist()))
    except TypeError:
        raise UserError(
            "labels in y must be text, numbers or anything else that can be a key of a dict"
        ) from None
    with contextlib.suppress(TypeError):
        distinct.sort()
    return _objects(distinct)
