"""Runs on pretrained features, from the command line to predictions; the outsiders beside them."""

from pathlib import Path

import pytest
import torch

from manigraph.build import load_dataset, split_dataset
from manigraph.catalogue import RECIPES
from manigraph.cli.main import main
from manigraph.config import DataConfig
from manigraph.data.features import encoder
from manigraph.data.locations import CACHE_VARIABLE, Locations
from manigraph.engine import evaluate_run, load
from manigraph.experiments.outsiders import logistic_regression
from manigraph.runs import RunDirectory
from tests.data.pictures import photo_folder

ROOT = Path(__file__).parent.parent


def test_a_run_on_features_predicts_new_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    photos = photo_folder(tmp_path / "photos", per_class=4, unlabelled=6, test=4)
    options = ["--data.path", str(photos), "--algorithm", "pi_vat", "--training.steps", "3"]
    batch = ["--batch.labelled", "2", "--batch.unlabelled", "2"]
    assert main(["train", "folder_features", *options, *batch, "--runs", str(tmp_path / "runs")]) == 0

    (path,) = (tmp_path / "runs").iterdir()
    run = RunDirectory.open(path)
    assert run.read_json("config.json")["data"]["features"] == "efficientnet_lite0"
    trained, evaluation = evaluate_run(run, "test", locations=Locations.default())
    assert trained.input_shape == (1280,)
    assert trained.image_shape == (3, 10, 12)

    images = load_dataset(DataConfig(name="folder", path=str(photos)))
    new = images.images[images.test]
    with torch.no_grad():
        logits = load(run).model(trained.preprocessing(encoder(trained.config.data.features)(new)))
    wrong = (logits.argmax(dim=1) != images.classes[images.test]).float().mean()
    assert evaluation.error == pytest.approx(100 * float(wrong))


def test_recipes_on_features() -> None:
    for name in ("cifar10_features", "folder_features"):
        for algorithm in ("manifold_graph", "pi_vat", "mean_teacher", "fast_swa"):
            config = RECIPES.get(name)(algorithm)
            assert config.data.features == "efficientnet_lite0"
    assert RECIPES.get("folder")("pi_vat").data.features == ""


@pytest.mark.parametrize("labels", [10, 100])
def test_logistic_regression(labels: int) -> None:
    """On digits, whose images are small enough to be vectors; with one label of each class too."""
    config = DataConfig(name="digits", labels=labels, stratify="equal", validation=0)
    dataset = load_dataset(config)
    error = logistic_regression(dataset, split_dataset(config, dataset, 0))
    assert 5 < error < {10: 50, 100: 15}[labels]
