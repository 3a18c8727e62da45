"""Pixels to network input; fitted on training images, stored with the run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from manigraph.errors import UserError

MAX_WHITENED_SIZE = 5000
"""Values of an image up to which it is whitened: the matrices grow with the square."""

CHUNK = 2048
"""Images that are converted to float at a time while fitting."""


@dataclass(frozen=True)
class PreprocessingConfig:
    """How pixels become network input."""

    kind: Literal["standardise", "zca", "pca"] = "standardise"
    """Mean 0 and deviation 1 for each channel, or whitening of all pixels together (as for CIFAR in the
    paper), or, for vectors, the directions in which standardised ones vary most first (pca)."""
    mean: tuple[float, ...] = ()
    """Means of the channels for pixels from 0 to 1; by default measured on the training images."""
    std: tuple[float, ...] = ()
    """Deviations likewise."""
    zca_regulariser: float = 1e-9
    """Added to each eigenvalue of the covariance of pixels from 0 to 1. Rounding to 8 bits alone gives
    eigenvalues of 1.3e-6, so this changes nothing but what never varies."""

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std):
            raise ValueError(f"mean and std go together, got {len(self.mean)} and {len(self.std)} figures")
        if self.mean and self.kind != "standardise":
            raise ValueError(f"mean and std are for kind standardise; {self.kind} measures its own")
        if any(value <= 0 for value in self.std) or self.zca_regulariser < 0:
            raise ValueError("std must be positive and zca_regulariser at least 0")


class Preprocessing(Protocol):
    """Stored images to network input."""

    @property
    def is_pixelwise(self) -> bool:
        """Whether it treats every pixel alike, so that it may come after shifts; if not, it is costly too."""
        ...

    def __call__(self, images: Tensor) -> Tensor:
        """(B, ...) stored images to float network input of the same shape."""
        ...

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What a run keeps: values for JSON and tensors."""
        ...


@dataclass(frozen=True)
class Standardise:
    """(x - mean) / std per channel (or per entry of a vector), in units of the stored images."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    is_pixelwise = True

    @classmethod
    def fit(cls, images: Tensor, indices: Tensor | None = None) -> "Standardise":
        """Mean and standard deviation of each channel over the training images, in float64."""
        mean, std = (_byte_moments if images.dtype == torch.uint8 else _moments)(images, indices)
        # A channel that never varies carries nothing; dividing by 1 keeps it at 0.
        std = torch.where(std > 0, std, torch.ones_like(std))
        return cls(tuple(mean.tolist()), tuple(std.tolist()))

    def __call__(self, images: Tensor) -> Tensor:
        shape = (1, -1) + (1,) * (images.ndim - 2)
        mean, std = (figures.to(images.device).view(shape) for figures in self._figures)
        # In place: fresh memory for every step in between would take longer than the arithmetic.
        return images.to(torch.float32, copy=True).sub_(mean).div_(std)

    @cached_property
    def _figures(self) -> tuple[Tensor, Tensor]:
        return torch.tensor(self.mean), torch.tensor(self.std)

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {"kind": "standardise", "mean": list(self.mean), "std": list(self.std)}, {}


def _byte_moments(images: Tensor, indices: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each channel of bytes, exactly, by counting how often each value occurs."""
    counts = torch.zeros(images.shape[1], 256, dtype=torch.double)
    for chunk in _chunks(images, indices):
        for channel in range(images.shape[1]):
            counts[channel] += chunk[:, channel].flatten().bincount(minlength=256)
    values = torch.arange(256, dtype=torch.double)
    share = counts / counts.sum(dim=1, keepdim=True)
    mean = share @ values
    return mean, (share * (values - mean.unsqueeze(1)) ** 2).sum(dim=1).sqrt()


def _moments(images: Tensor, indices: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each entry of vectors, in two passes."""
    count = len(images) if indices is None else len(indices)
    total = sum(chunk.double().sum(dim=0) for chunk in _chunks(images, indices))
    mean = torch.as_tensor(total) / count
    squares = sum(((chunk.double() - mean) ** 2).sum(dim=0) for chunk in _chunks(images, indices))
    return mean, (torch.as_tensor(squares) / count).sqrt()


@dataclass(frozen=True, eq=False)
class ZCA:
    """W (x / scale - mean): pixels made uncorrelated with variance 1, as near to the image as can be.

    With the covariance of the training images U diag(λ) Uᵀ, W = U diag(1 / √(λ + regulariser)) Uᵀ.
    """

    mean: Tensor
    """(D,) float32."""
    matrix: Tensor
    """(D, D) float32, symmetric."""
    scale: float
    is_pixelwise = False

    @classmethod
    def fit(cls, images: Tensor, indices: Tensor | None = None, *, regulariser: float) -> "ZCA":
        """Whitening of the training images; sums and eigenvectors in float64."""
        size, scale = images[0].numel(), full_scale(images)
        total, products = torch.zeros(size).double(), torch.zeros(size, size).double()
        count = 0
        for chunk in _chunks(images, indices):
            values = chunk.flatten(1).double() / scale - 0.5  # the shift keeps the squares small
            total += values.sum(dim=0)
            products.addmm_(values.T, values)
            count += len(values)
        mean = total / count
        covariance = products / count - torch.outer(mean, mean)
        eigenvalues, vectors = torch.linalg.eigh(covariance)
        # Directions in which the images never vary have eigenvalue 0 up to rounding: leave them at 0
        # rather than blow up noise.
        varies = eigenvalues > eigenvalues[-1] * size * torch.finfo(torch.float64).eps
        gains = torch.where(varies, (eigenvalues.clamp_min(0) + regulariser).rsqrt(), 0.0)
        return cls((mean + 0.5).float(), ((vectors * gains) @ vectors.T).float(), scale)

    def __call__(self, images: Tensor) -> Tensor:
        flat = (
            images.flatten(1).to(torch.float32, copy=True).div_(self.scale).sub_(self.mean.to(images.device))
        )
        return (flat @ self.matrix.to(images.device)).view(images.shape)

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {"kind": "zca", "scale": self.scale}, {"mean": self.mean, "matrix": self.matrix}


@dataclass(frozen=True, eq=False)
class PrincipalAxes:
    """Vᵀ (x - mean) / std: standardised vectors turned so that their entries go from most to least varying.

    Lengths and distances stay as they are, so the first entries are the best short form of the vectors
    (the backbone `leading` takes them).
    """

    mean: Tensor
    """(D,) float32."""
    matrix: Tensor
    """(D, D) float32: the principal axes of standardised vectors in its columns, each row divided by std."""
    is_pixelwise = False

    @classmethod
    def fit(cls, vectors: Tensor, indices: Tensor | None = None) -> "PrincipalAxes":
        """The axes of the training vectors; sums and eigenvectors in float64."""
        mean, std = _moments(vectors, indices)
        std = torch.where(std > 0, std, torch.ones_like(std))
        products = torch.zeros(len(mean), len(mean), dtype=torch.double)
        for chunk in _chunks(vectors, indices):
            values = (chunk.double() - mean) / std
            products.addmm_(values.T, values)
        _, axes = torch.linalg.eigh(products)
        # In the order in which it is stored, so that a run that is taken up again rounds as before.
        return cls(mean.float(), (axes.flip(1) / std.unsqueeze(1)).float().contiguous())

    def __call__(self, images: Tensor) -> Tensor:
        centred = images.to(torch.float32, copy=True).sub_(self.mean.to(images.device))
        return centred @ self.matrix.to(images.device)

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {"kind": "pca"}, {"mean": self.mean, "matrix": self.matrix}


def fit_preprocessing(config: PreprocessingConfig, images: Tensor, indices: Tensor) -> Preprocessing:
    """What `config` asks for, measured on the images at `indices` where it is not given."""
    if config.kind == "zca":
        if images[0].numel() > MAX_WHITENED_SIZE:
            raise UserError(
                f"whitening takes images of at most {MAX_WHITENED_SIZE:,} values, these have "
                f"{images[0].numel():,}: choose a smaller data.image_size, or preprocessing.kind standardise"
            )
        return ZCA.fit(images, indices, regulariser=config.zca_regulariser)
    if config.kind == "pca":
        if images.ndim != 2 or images.shape[1] > MAX_WHITENED_SIZE:
            raise UserError(
                f"preprocessing.kind pca is for vectors of at most {MAX_WHITENED_SIZE:,} values, as those of "
                f"data.features are, got {tuple(images.shape[1:])}: use preprocessing.kind standardise"
            )
        return PrincipalAxes.fit(images, indices)
    if not config.mean:
        return Standardise.fit(images, indices)
    if len(config.mean) != images.shape[1]:
        raise UserError(
            f"preprocessing.mean has {len(config.mean)} figures but the images have {images.shape[1]} "
            f"channels: give one for each"
        )
    scale = full_scale(images)
    return Standardise(
        mean=tuple(scale * value for value in config.mean), std=tuple(scale * value for value in config.std)
    )


def preprocessing_from_state(values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Preprocessing:
    """The opposite of `state`; KeyError or TypeError if something is missing."""
    if values["kind"] == "zca":
        return ZCA(tensors["mean"], tensors["matrix"], float(values["scale"]))
    if values["kind"] == "pca":
        return PrincipalAxes(tensors["mean"], tensors["matrix"])
    return Standardise(_figures(values["mean"]), _figures(values["std"]))


def _figures(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def full_scale(images: Tensor) -> float:
    """The stored value that figures for pixels from 0 to 1 call 1."""
    return 255.0 if images.dtype == torch.uint8 else 1.0


def _chunks(images: Tensor, indices: Tensor | None) -> Iterator[Tensor]:
    if indices is None:
        yield from images.split(CHUNK)
    else:
        # In the order of the file, in which mapped pages are read fastest.
        for part in indices.sort().values.split(CHUNK):
            yield images.index_select(0, part)
