import json
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from manigraph.build import load_dataset, split_dataset
from manigraph.catalogue import RECIPES
from manigraph.data import prepared
from manigraph.data.augmentation import Padding, shift_and_flip
from manigraph.data.locations import Locations
from manigraph.data.prepared import PreparedImages
from manigraph.data.preprocessing import (
    ZCA,
    Preprocessing,
    PreprocessingConfig,
    Standardise,
    fit_preprocessing,
    preprocessing_from_state,
)
from manigraph.errors import UserError
from tests.helpers import seeded
from tests.reference import preprocessing as reference


def natural_images(count: int = 600, channels: int = 3, size: int = 4) -> Tensor:
    """Noise blurred so that neighbouring pixels and channels go together, as in photographs."""
    noise = torch.randn(count, channels, size + 2, size + 2, generator=seeded())
    blurred = (
        torch.nn.functional.avg_pool2d(noise, 3, stride=1)
        + 0.5 * noise.mean(dim=1, keepdim=True)[:, :, 1:-1, 1:-1]
    )
    return (128 + 60 * blurred).clamp(0, 255).to(torch.uint8)


def covariance(images: Tensor) -> Tensor:
    flat = images.flatten(1).double()
    centred = flat - flat.mean(dim=0)
    return centred.T @ centred / len(flat)


def test_standardised_images_have_mean_0_and_deviation_1() -> None:
    x = torch.randint(0, 256, (50, 3, 8, 8), dtype=torch.uint8, generator=seeded())
    y = Standardise.fit(x)(x)
    assert torch.allclose(y.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-5)
    assert torch.allclose(y.std(dim=(0, 2, 3), correction=0), torch.ones(3), atol=1e-5)


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_figures_in_pieces_equal_those_of_the_whole(offset: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for vectors with a mean far above their deviation, where squares lose digits."""
    monkeypatch.setattr("manigraph.data.preprocessing.CHUNK", 7)
    x = torch.randn(100, 5, generator=seeded(), dtype=torch.float64) + offset
    chosen = torch.arange(3, 90)
    fitted = Standardise.fit(x, chosen)
    assert fitted.mean == pytest.approx(x[chosen].mean(dim=0).tolist(), rel=1e-9)
    assert fitted.std == pytest.approx(x[chosen].std(dim=0, correction=0).tolist(), rel=1e-6)


def test_a_constant_channel_becomes_0() -> None:
    x = torch.full((5, 1, 8, 8), 7, dtype=torch.uint8)
    assert torch.equal(Standardise.fit(x)(x), torch.zeros(5, 1, 8, 8))


def test_given_figures_are_for_pixels_from_0_to_1() -> None:
    config = PreprocessingConfig(mean=(0.4, 0.5, 0.6), std=(0.1, 0.2, 0.25))
    x = natural_images()
    y = fit_preprocessing(config, x, torch.arange(len(x)))(x)
    by_hand = (x.double() / 255 - torch.tensor([0.4, 0.5, 0.6]).view(1, 3, 1, 1)) / torch.tensor(
        [0.1, 0.2, 0.25]
    ).view(1, 3, 1, 1)
    assert torch.allclose(y.double(), by_hand, atol=1e-5)


def test_the_number_of_figures_must_be_that_of_channels() -> None:
    config = PreprocessingConfig(mean=(0.5,), std=(0.2,))
    with pytest.raises(UserError, match="has 1 figures but the images have 3 channels"):
        fit_preprocessing(config, natural_images(), torch.arange(10))


@pytest.mark.parametrize(
    "settings",
    [
        {"mean": (0.5,)},
        {"mean": (0.5,), "std": (0.0,)},
        {"kind": "zca", "mean": (0.5,), "std": (0.1,)},
        {"zca_regulariser": -1.0},
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"mean|std|zca"):
        PreprocessingConfig(**settings)  # type: ignore[arg-type]


def test_whitened_images_have_the_identity_as_covariance() -> None:
    x = natural_images()
    assert float((covariance(x.double() / 255) - torch.eye(48)).abs().max()) > 0.5
    y = ZCA.fit(x, regulariser=1e-8)(x)
    assert float((covariance(y) - torch.eye(48)).abs().max()) < 1e-3


@pytest.mark.parametrize("regulariser", [1e-8, 1e-2])
def test_whitening_equals_the_reference(regulariser: float) -> None:
    x = natural_images()
    fitted_on, others = torch.arange(400), torch.arange(400, 600)
    y = ZCA.fit(x, fitted_on, regulariser=regulariser)(x[others])
    flat = x.flatten(1).double().numpy() / 255
    expected = reference.zca(flat[fitted_on.numpy()], flat[others.numpy()], regulariser)
    assert torch.allclose(y.flatten(1).double(), torch.from_numpy(expected), atol=1e-4)


def test_whitening_is_fitted_on_the_images_it_is_given_only() -> None:
    x = natural_images()
    poisoned = x.clone()
    poisoned[400:] = 255 - poisoned[400:]
    first, second = (ZCA.fit(images, torch.arange(400), regulariser=1e-6) for images in (x, poisoned))
    assert torch.equal(first.matrix, second.matrix)


@pytest.mark.parametrize("kind", ["standardise", "zca"])
def test_figures_are_measured_on_the_training_images_only(kind: str) -> None:
    x = natural_images()
    poisoned = x.clone()
    poisoned[400:] = 255 - poisoned[400:] // 2
    config = PreprocessingConfig(kind=kind)  # type: ignore[arg-type]
    first, second = (fit_preprocessing(config, images, torch.arange(400)) for images in (x, poisoned))
    assert torch.equal(first(x), second(x))


def test_whitening_does_not_blow_up_pixels_that_never_vary() -> None:
    x = natural_images()
    x[:, :, 0, 0] = 9
    y = ZCA.fit(x, regulariser=0.0)(x)
    assert torch.isfinite(y).all()
    assert float(y[:, :, 0, 0].abs().max()) < 1e-3


def test_images_too_large_to_whiten_are_refused() -> None:
    with pytest.raises(UserError, match="at most 5,000 values, these have 12,288: choose a smaller"):
        fit_preprocessing(
            PreprocessingConfig(kind="zca"), torch.zeros(3, 3, 64, 64, dtype=torch.uint8), torch.arange(3)
        )


def test_whitening_looks_like_the_image() -> None:
    """Of all whitenings ZCA is the one nearest to the image: its matrix is symmetric and positive."""
    matrix = ZCA.fit(natural_images(), regulariser=1e-6).matrix
    assert torch.allclose(matrix, matrix.T, atol=1e-4)
    assert float(torch.linalg.eigvalsh(matrix.double()).min()) > 0


@pytest.mark.parametrize(
    "fitted", [Standardise.fit(natural_images()), ZCA.fit(natural_images(), regulariser=1e-6)]
)
def test_what_a_run_keeps_gives_the_same_preprocessing(fitted: Preprocessing) -> None:
    values, tensors = fitted.state()
    again = preprocessing_from_state(json.loads(json.dumps(values)), tensors)
    x = natural_images()
    assert torch.equal(again(x), fitted(x))


@pytest.mark.parametrize("memory", [0, 1 << 30])
@pytest.mark.parametrize("kind", ["standardise", "zca"])
def test_prepared_images_are_the_preprocessed_ones(
    kind: str, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they are computed at once or when they are taken."""
    monkeypatch.setattr(prepared, "MEMORY_FOR_PREPARED", memory)
    x = natural_images(count=1500)
    config = PreprocessingConfig(kind=kind)  # type: ignore[arg-type]
    fitted = fit_preprocessing(config, x, torch.arange(1000))
    prepared_images = PreparedImages(x, fitted)
    stored = prepared_images.stored(torch.tensor([1400, 3, 3]))
    assert torch.allclose(prepared_images.prepare(stored), fitted(x[[1400, 3, 3]]), atol=1e-5)
    # Whitening mixes pixels, so it must come before a shift; what treats pixels alike may come after.
    assert (stored.dtype == torch.uint8) == (kind == "standardise")


@pytest.mark.parametrize("padding", ["edge", "reflect"])
def test_standardising_a_shifted_image_is_shifting_the_standardised_one(padding: Padding) -> None:
    x = natural_images()
    fitted = Standardise.fit(x)
    shifted = fitted(shift_and_flip(x, 2, seeded(), mirror=True, padding=padding))
    assert torch.equal(shifted, shift_and_flip(fitted(x), 2, seeded(), mirror=True, padding=padding))


@pytest.mark.skipif("MANIGRAPH_DATA" not in os.environ, reason="needs real images: set MANIGRAPH_DATA")
def test_whitened_cifar10_has_the_identity_as_covariance(tmp_path: Path) -> None:
    """All 3,072 pixels of real photographs, with the default regulariser, as the paper's recipe uses it."""
    config = RECIPES.get("cifar10")("pi_vat")
    locations = Locations(data=Path(os.environ["MANIGRAPH_DATA"]), cache=tmp_path)
    dataset = load_dataset(config.data, locations)
    split = split_dataset(config.data, dataset, seed=0)
    seen = torch.cat([split.labelled, split.unlabelled])
    fitted = fit_preprocessing(config.preprocessing, dataset.images, seen)
    images = PreparedImages(dataset.images, fitted)
    whitened = torch.cat([images.stored(part).flatten(1) for part in seen.split(1000)])
    assert float((covariance(whitened) - torch.eye(3072)).abs().max()) < 1e-3
