"""Images of a run as people look at them."""

import shutil
from dataclasses import replace
from pathlib import Path

from manigraph.catalogue import RECIPES
from manigraph.config import BackboneConfig
from manigraph.data.locations import Locations
from manigraph.engine import dataset_of, train
from manigraph.inference.pictures import pixels_of
from manigraph.inference.predictor import Predictor
from tests.data.pictures import photo_folder


def test_people_see_more_than_the_network(tmp_path: Path) -> None:
    photos, locations = photo_folder(tmp_path / "photos"), Locations(tmp_path, tmp_path / "cache")
    config = RECIPES.get("folder")("pi_model")
    config = replace(
        config,
        data=replace(config.data, path=str(photos), image_size=8, validation=0),
        batch=replace(config.batch, labelled=2, unlabelled=2),
        backbone=BackboneConfig("small_cnn", width=0.25),
        training=replace(config.training, steps=2),
    )
    run, _ = train(config, tmp_path, name="run", locations=locations)
    predictor = Predictor.load(run.path)
    dataset = dataset_of(run, predictor.trained, locations=locations)
    shown = pixels_of(predictor, dataset, locations=locations)
    assert dataset.input_shape == (3, 8, 8)
    assert shown is not None
    assert shown.input_shape == (3, 10, 12)
    # Other files than it was trained on would be shown beside the wrong answers.
    added = tmp_path / "photos" / "cat" / "another.png"
    shutil.copy(next((tmp_path / "photos" / "cat").iterdir()), added)
    assert pixels_of(predictor, dataset, locations=locations) is dataset
    added.unlink()
    # Where the files are gone, what was learned from is all there is.
    (tmp_path / "photos").rename(tmp_path / "moved")
    assert pixels_of(predictor, dataset, locations=locations) is dataset
