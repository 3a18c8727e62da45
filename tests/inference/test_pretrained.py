"""What comes after training on features of photographs that are not square."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from manigraph.catalogue import RECIPES
from manigraph.data.locations import CACHE_VARIABLE, Locations
from manigraph.engine import dataset_of, train
from manigraph.inference.export import images_of_run
from manigraph.inference.pictures import pixels_of
from manigraph.inference.predictor import Predictor
from tests.data.pictures import picture, write_files

HEIGHT, WIDTH = 100, 140


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on features of photographs, and the folder they are in."""
    place = tmp_path_factory.mktemp("photographs")
    names = [f"{c}/{i}.png" for c in ("cat", "dog") for i in range(3)]
    names += [f"unlabelled/{i}.png" for i in range(4)]
    photos = write_files(
        place / "photos", ((name, picture(i, (HEIGHT, WIDTH))) for i, name in enumerate(names))
    )
    config = RECIPES.get("folder_features")("pi_model")
    config = replace(
        config,
        data=replace(config.data, path=str(photos), validation=0),
        batch=replace(config.batch, labelled=2, unlabelled=2),
        training=replace(config.training, steps=2, evaluate_every=0),
    )
    train(config, place, name="run", locations=Locations(place, place / "cache"))
    return place


@pytest.fixture
def predictor(place: Path, monkeypatch: pytest.MonkeyPatch) -> Predictor:
    monkeypatch.setenv(CACHE_VARIABLE, str(place / "cache"))
    return Predictor.load(place / "run")


def test_models_are_compared_on_the_photographs_as_they_were_learned_from(predictor: Predictor) -> None:
    images = images_of_run(predictor)
    assert images.shape == (6, 3, HEIGHT, WIDTH)
    labelled = predictor.run.read_json("split.json")["labelled"]
    dataset = dataset_of(predictor.run, predictor.trained)
    pixels = pixels_of(predictor, dataset)
    assert pixels is not None
    assert pixels.input_shape == (3, HEIGHT, WIDTH)
    assert torch.equal(images, pixels.images[labelled])
