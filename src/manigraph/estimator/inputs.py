"""Whatever is given as X to the images or vectors that the networks are trained on."""

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from sklearn.utils.validation import check_array, validate_data
from torch import Tensor

from manigraph.data.decode import DecodeError, Header, read_header, read_pixels
from manigraph.data.sources.arrays import stored_images
from manigraph.data.sources.folder import MIN_SIDE, common_shape
from manigraph.errors import UserError

Kind = Literal["vectors", "images", "files"]

WHITES = (1.0, 16.0, 255.0)
"""Pixels that are whole numbers, but not of type uint8, are taken to reach to the first of these that none
exceeds: black and white, scikit-learn's digits, bytes. Those of type uint8 reach to 255, as in files."""

BYTES_FROM = 64.0
"""Pixels with fractions are taken to reach to 255 if the brightest is from here to there; if it is below, too
few of the 256 levels of grey would be left of them, and white is the brightest of them."""

FAR_OUT = 0.5
"""Pixels that leave the range that was found at fit by more than this share of it are refused."""

NARROW = 1 / 8
"""Pixels that cover less than this share of the range of the training images are warned of."""


@dataclass(frozen=True)
class InputFormat:
    """What was given to `fit`, and how it was stored: whatever is given later must be like it."""

    kind: Kind
    shape: tuple[int, ...]
    """Of one stored image (channels, height, width) or vector."""
    given_shape: tuple[int, ...] = ()
    """Of one image as it was given."""
    low: float = 0.0
    high: float = 255.0
    """Pixels from here to there are stored as 0 to 255."""
    is_float: bool = False
    darkest: float = 0.0
    brightest: float = 0.0
    """Of the pixels that were given as arrays."""

    @property
    def is_image(self) -> bool:
        """Whether there are pixels."""
        return self.kind != "vectors"


def _unpacked(X: Any) -> Any:
    """X, as a list if it is a row of things, such as an array of arrays or a column of a table."""
    if isinstance(X, (str, os.PathLike)):
        raise UserError(f"X is one name, '{os.fspath(X)}': give a list of names of image files")
    holds_things = getattr(getattr(X, "dtype", None), "kind", "O") in "OUT"  # objects or text, not numbers
    if isinstance(X, Tensor) or not holds_things or len(getattr(X, "shape", ())) != 1:
        return X
    things = list(X)
    return things if any(map(_is_name, things)) or (things and _as_array(things[0]).ndim) else X


def _is_name(thing: Any) -> bool:
    return isinstance(thing, (str, os.PathLike))


def kind_of(X: Any) -> Kind:
    """What X holds, by its shape: names of files in one row, vectors in two dimensions, else images."""
    if _are_names(X):
        return "files"
    if hasattr(X, "ndim"):
        dimensions = X.ndim
    elif isinstance(X, (list, tuple)) and len(X):
        dimensions = 1 + _as_array(X[0]).ndim
    else:
        dimensions = _as_array(X).ndim
    return "images" if dimensions > 2 else "vectors"


def first_inputs(estimator: Any, X: Any, image_size: int | None) -> tuple[InputFormat, Tensor]:
    """What is given to `fit`, stored, and how that was done."""
    X = _unpacked(X)
    kind = kind_of(X)
    if kind == "vectors":
        vectors = _vectors(estimator, X, reset=True)
        return InputFormat(kind, tuple(vectors.shape[1:])), vectors
    # Whatever was learned of columns before does not hold for images.
    for name in ("n_features_in_", "feature_names_in_"):
        if hasattr(estimator, name):
            delattr(estimator, name)
    if kind == "files":
        if image_size is not None and image_size < MIN_SIDE:
            raise UserError(f"image_size must be at least {MIN_SIDE} pixels, got {image_size}")
        paths = [Path(name) for name in X]
        shape = common_shape([_header(path) for path in paths], image_size)
        return InputFormat(kind, shape), _decoded(paths, shape)
    array = _pixels(X)
    given = InputFormat(
        kind,
        shape=(),
        given_shape=tuple(array.shape[1:]),
        low=min(0.0, float(array.min())),
        high=_white(array),
        is_float=array.dtype.kind == "f",
        darkest=float(array.min()),
        brightest=float(array.max()),
    )
    images = _stored(array, given, is_tensor=isinstance(X, Tensor))
    return replace(given, shape=tuple(images.shape[1:])), images


def further_inputs(estimator: Any, X: Any, known: InputFormat) -> Tensor:
    """What is given after `fit`, stored in the same way."""
    X = _unpacked(X)
    kind = kind_of(X)
    if kind != known.kind and "vectors" not in (kind, known.kind):
        raise UserError(
            f"X holds {_named(kind)} now, but {_named(known.kind)} were given to fit: give the same"
        )
    if known.kind == "vectors":
        if kind != "vectors":
            raise UserError(
                f"X holds {_named(kind)}, but vectors of {known.shape[0]} features were given to fit: give "
                f"such"
            )
        return _vectors(estimator, X, reset=False)
    if kind == "vectors":
        shape = getattr(X, "shape", np.shape(X))
        raise UserError(
            f"X has the shape {tuple(shape)}, but {_named(known.kind)} were given to fit: give "
            f"{'their names' if known.kind == 'files' else f'(N, {_sizes(known.given_shape)})'}"
        )
    if kind == "files":
        return _decoded([Path(name) for name in X], known.shape)
    array = _pixels(X)
    if tuple(array.shape[1:]) != known.given_shape:
        raise UserError(
            f"images are {_sizes(array.shape[1:])}, but {_sizes(known.given_shape)} were given to fit: give "
            f"all the same shape"
        )
    if (array.dtype.kind == "f") != known.is_float:
        before, now = ("floats", "whole numbers") if known.is_float else ("whole numbers", "floats")
        raise UserError(f"pixels are {now}, but {before} were given to fit: give the same kind")
    stored = _stored(array, known, is_tensor=isinstance(X, Tensor))
    _warn_if_narrow(array, known)
    return stored


def _named(kind: Kind) -> str:
    return {"vectors": "vectors", "images": "images", "files": "names of files"}[kind]


def _sizes(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))


def _are_names(X: Any) -> bool:
    if not isinstance(X, (list, tuple)) or not any(_is_name(thing) for thing in X):
        return False
    for row, thing in enumerate(X):
        if not _is_name(thing):
            raise UserError(f"X holds names of files, but {thing!r} in row {row}: give names alone")
    return True


def _vectors(estimator: Any, X: Any, *, reset: bool) -> Tensor:
    if isinstance(X, Tensor):
        X = _as_array(X)
    elif isinstance(X, (list, tuple)) and any(isinstance(row, Tensor) for row in X):
        X = [_as_array(row) for row in X]
    try:
        array = validate_data(estimator, X, reset=reset, dtype="numeric")
    except ValueError as error:
        # scikit-learn goes on for a paragraph about its own estimators that take missing values.
        if "contains NaN" in str(error):
            raise UserError(
                "Input X contains NaN: fill in what is missing, or leave those rows out"
            ) from None
        if "inhomogeneous" in str(error):
            raise UserError("vectors in X must all have the same number of values") from None
        raise
    return stored_images(array)


def _as_array(image: Any) -> npt.NDArray[Any]:
    if isinstance(image, Tensor):
        tensor = image.detach().cpu()
        # NumPy has no bfloat16.
        array: npt.NDArray[Any] = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
        return array
    try:
        return np.asarray(image)
    except ValueError:
        raise UserError("images in X must all have the same shape") from None


def _pixels(X: Any) -> npt.NDArray[Any]:
    """(N, ...) whole numbers or floats, all finite."""
    if isinstance(X, Tensor):
        X = _as_array(X)
    elif isinstance(X, (list, tuple)):
        images = [_as_array(image) for image in X]
        if len({image.shape for image in images}) > 1:
            raise UserError("images in X must all have the same shape: resize them, or give names of files")
        X = np.stack(images)
    array: npt.NDArray[Any] = check_array(X, ensure_2d=False, allow_nd=True, dtype="numeric", input_name="X")
    if array.dtype.kind == "b":
        return array.astype(np.float32)
    return array


def _white(array: npt.NDArray[Any]) -> float:
    """The value of full brightness, as far as the pixels tell."""
    brightest = float(array.max())
    if array.dtype == np.uint8:
        return 255.0
    if array.dtype.kind != "f" or (array == np.round(array)).all():
        return next((white for white in WHITES if brightest <= white), brightest)
    if array.min() >= 0 and BYTES_FROM <= brightest <= 255:
        return 255.0
    return max(1.0, brightest)


def _stored(array: npt.NDArray[Any], given: InputFormat, *, is_tensor: bool) -> Tensor:
    """(N, channels, height, width) uint8."""
    low, high = float(array.min()), float(array.max())
    if not given.is_float and (low < 0 or high > 255):
        raise UserError(
            f"whole-number pixels must be from 0 to 255, got {low:.0f} to {high:.0f}: scale them, or "
            f"give floats"
        )
    reach = given.high - given.low
    if low < given.low - FAR_OUT * reach or high > given.high + FAR_OUT * reach:
        raise UserError(
            f"pixels reach from {low:.3g} to {high:.3g}, those given to fit from {given.low:.3g} to "
            f"{given.high:.3g}: scale them alike"
        )
    if given.is_float or given.high != 255:
        array = ((array - given.low) / reach).clip(0, 1).astype(np.float32)
    else:
        array = array.astype(np.uint8)
    # Where the shape fits both orders of channels, arrays have them last and tensors first.
    return stored_images(torch.from_numpy(array) if is_tensor else array)


def _warn_if_narrow(array: npt.NDArray[Any], given: InputFormat) -> None:
    """Images of one grey alone say nothing about their scale."""
    low, high = float(array.min()), float(array.max())
    if 0 < high - low < NARROW * (given.brightest - given.darkest):
        warnings.warn(
            f"pixels reach from {low:.3g} to {high:.3g} only, those given to fit from {given.darkest:.3g} to "
            f"{given.brightest:.3g}: unless these images are so dull, scale them alike",
            stacklevel=5,
        )


def _header(path: Path) -> Header:
    try:
        return read_header(path)
    except DecodeError as error:
        raise _unreadable(path, error) from None


def _decoded(paths: Sequence[Path], shape: tuple[int, ...]) -> Tensor:
    channels, height, width = shape
    pixels = np.empty((len(paths), *shape), dtype=np.uint8)
    for row, path in enumerate(paths):
        try:
            pixels[row] = read_pixels(path, (height, width), grey=channels == 1)
        except DecodeError as error:
            raise _unreadable(path, error) from None
    return torch.from_numpy(pixels)


def _unreadable(path: Path, error: DecodeError) -> UserError:
    reason = "there is no such file" if not path.exists() else str(error)
    return UserError(f"'{path}' cannot be used: {reason}; repair it or leave it out of X")
