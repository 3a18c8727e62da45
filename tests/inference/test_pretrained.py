"""What comes after training on features of photographs that are not square."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from manigraph.build import load_dataset
from manigraph.catalogue import RECIPES
from manigraph.data.features import encoder
from manigraph.data.locations import CACHE_VARIABLE, Locations
from manigraph.engine import dataset_of, load, train
from manigraph.errors import UserError
from manigraph.inference.export import Deployed, images_of_run
from manigraph.inference.files import intake_of
from manigraph.inference.pictures import pixels_of
from manigraph.inference.predictor import Predictor
from manigraph.runs import RunDirectory
from tests.data.pictures import picture, write_files
from tests.helpers import assert_bitwise_equal
from tests.inference.conftest import quick
from tests.runs.test_passed_on import Value, change

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
        backbone=replace(config.backbone, dropout=0.5),
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


# The network that computes features


def test_a_run_remembers_the_network_and_refuses_another(
    predictor: Predictor, place: Path, tmp_path: Path
) -> None:
    network = encoder("efficientnet_lite0")
    known = {"name": network.name, "digest": network.digest}
    assert predictor.run.read_json("data.json")["encoder"] == known
    assert predictor.trained.encoder == (network.name, network.digest)
    assert intake_of(predictor.trained).shape == (3, HEIGHT, WIDTH)
    run = shutil.copytree(place / "run", tmp_path / "run")
    for other in ({**known, "digest": "0" * 64}, {**known, "name": "efficientnet_lite0:mirrored"}):
        change(run / "data.json", "encoder", to=other)
        for use in (lambda p: intake_of(p.trained), Deployed):
            with pytest.raises(UserError, match="other weights here than when the run was trained: use the"):
                use(Predictor.load(run))


def test_looking_at_the_network_draws_no_random_numbers_of_the_run(place: Path, tmp_path: Path) -> None:
    """The same vectors, given as they are: without a network to remember."""
    locations, first = Locations(place, place / "cache"), RunDirectory.open(place / "run")
    config = load(first).config
    dataset = load_dataset(config.data, locations)
    assert config.backbone.dropout == 0.5
    plain = replace(config, data=replace(config.data, features=""))
    second, _ = train(plain, tmp_path, dataset=dataset)
    assert_bitwise_equal(*(load_file(run.path / "model.safetensors") for run in (first, second)))


@pytest.mark.parametrize("stored", [..., None])
def test_a_run_of_before_is_read_without_comparing(
    stored: Value, place: Path, tmp_path: Path, predictor: Predictor
) -> None:
    run = shutil.copytree(place / "run", tmp_path / "run")
    change(run / "data.json", "encoder", to=stored)
    change(run / "provenance.json", "format", to="2.1")
    assert intake_of(Predictor.load(run).trained).shape == intake_of(predictor.trained).shape


@pytest.mark.parametrize("stored", [1, "efficientnet_lite0", {}, {"name": 1, "digest": "0"}, {"name": "x"}])
def test_what_names_no_network_is_damaged(stored: Value, place: Path, tmp_path: Path) -> None:
    run = shutil.copytree(place / "run", tmp_path / "run")
    change(run / "data.json", "encoder", to=stored)
    with pytest.raises(UserError, match=r"data\.json' is damaged: encoder does not say"):
        Predictor.load(run)


def test_runs_on_pixels_name_none(tmp_path: Path) -> None:
    run, _ = train(quick("supervised"), tmp_path, name="run")
    assert run.read_json("data.json")["encoder"] is None
    assert load(run).encoder is None
