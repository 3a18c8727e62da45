"""Runs that are asked about several views of each image: by all commands, and in tables."""

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnxruntime
import pytest
import torch

from manigraph.build import load_dataset
from manigraph.cli.main import main
from manigraph.data.augmentation import AugmentationConfig
from manigraph.data.features import as_bytes
from manigraph.engine import evaluate_run, indices_of, train
from manigraph.experiments.grid import Cell, measure
from manigraph.inference.export import export_run, facts_of
from manigraph.inference.predictor import Predictor
from manigraph.nn.views import AveragedViews
from manigraph.runs import RunDirectory
from tests.inference.conftest import quick
from tests.inference.pictures import digits, save_digits


def without_views(folder: Path) -> RunDirectory:
    config = replace(quick("supervised"), augmentation=AugmentationConfig(translation=0, rotation=10.0))
    return train(config, folder)[0]


@pytest.fixture
def run(run_of: Callable[[str], RunDirectory]) -> RunDirectory:
    return run_of("shared")


def test_evaluation_is_that_of_the_mean(run: RunDirectory) -> None:
    trained, evaluation = evaluate_run(run, "test", views=True)
    dataset, indices = load_dataset(trained.config.data), indices_of(run, "test")
    model = trained.over_views().eval()
    assert (model.shift, model.mirror, model.padding) == (True, False, "edge")
    with torch.no_grad():
        predicted = model(trained.preprocessing(dataset.images[indices])).argmax(dim=1)
    wrong = (predicted != dataset.classes[indices]).double().mean()
    assert evaluation.error == pytest.approx(100 * wrong.item())
    assert evaluation != evaluate_run(run, "test")[1]


def test_views_are_of_the_kinds_that_the_run_was_trained_on(run: RunDirectory) -> None:
    trained, _ = evaluate_run(run, "test")
    for augmentation, expected in (
        (AugmentationConfig(translation=2, padding="reflect"), (True, False, "reflect")),
        (AugmentationConfig(translation=0, flip=True), (False, True, "edge")),
        (AugmentationConfig(translation=2, flip=True), (True, True, "edge")),
    ):
        other = replace(trained, config=replace(trained.config, augmentation=augmentation)).over_views()
        assert (other.shift, other.mirror, other.padding) == expected


def test_only_the_logits_are_averaged(run: RunDirectory) -> None:
    one, several = Predictor.load(run.path), Predictor.load(run.path, views=True)
    images = load_dataset(one.trained.config.data).images[:20]
    with torch.no_grad():
        expected = one.trained.over_views()(one.trained.preprocessing(images))
    answers, of_one = several(images), one(images)
    torch.testing.assert_close(answers.logits, expected)
    assert not torch.allclose(answers.probabilities, of_one.probabilities, atol=1e-3)
    for name in ("features", "final_features", "logits_without_graph", "attention"):
        assert torch.equal(getattr(answers, name), getattr(of_one, name))


def test_a_run_without_a_graph_averages_too(tmp_path: Path) -> None:
    run, _ = train(quick("pi_vat"), tmp_path)
    predictor = Predictor.load(run.path, views=True)
    images = load_dataset(predictor.trained.config.data).images[:20]
    with torch.no_grad():
        expected = predictor.trained.over_views()(predictor.trained.preprocessing(images))
    torch.testing.assert_close(predictor(images).logits, expected)


def test_the_views_are_exported(run: RunDirectory, tmp_path: Path) -> None:
    predictor = Predictor.load(run.path, views=True)
    images = (torch.rand(30, 1, 8, 8) * 255).byte()
    found = export_run(predictor, tmp_path / "export", images)
    assert max(found.differences.values()) <= 1e-5
    assert facts_of(predictor, (8, 8, 1))["views"] is True
    assert facts_of(Predictor.load(run.path), (8, 8, 1))["views"] is False


def test_commands_have_the_option(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(run.path), "--views", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["error"], said["views"]) == (evaluate_run(run, "test", views=True)[1].error, True)
    (image,) = save_digits(tmp_path / "images", range(1))
    assert main(["predict", str(run.path), str(image), "--views"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    (expected,) = Predictor.load(run.path, views=True).predict_files([image])
    assert float(row["probability"]) == pytest.approx(expected.probability, abs=1e-3)
    assert main(["export", str(run.path), "--views", "--output", str(tmp_path / "export")]) == 0
    session = onnxruntime.InferenceSession(tmp_path / "export" / "model.onnx")
    pixels = digits().images[:20]
    asked = as_bytes(pixels, digits().white).permute(0, 2, 3, 1).contiguous().numpy()
    (probabilities,) = session.run(["probabilities"], {session.get_inputs()[0].name: asked})
    averaged = Predictor.load(run.path, views=True)(pixels).probabilities
    assert probabilities == pytest.approx(averaged.numpy(), abs=2e-3)
    assert probabilities != pytest.approx(Predictor.load(run.path)(pixels).probabilities.numpy(), abs=2e-3)


def test_the_option_is_refused_where_it_means_nothing(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(run.path), "--views", "--read_out", "label_spreading"]) == 2
    assert "two ways to answer: leave one of them out" in capsys.readouterr().err
    assert main(["evaluate", str(without_views(tmp_path).path), "--views"]) == 2
    assert "neither shifted nor mirrored" in capsys.readouterr().err


def test_an_image_of_one_pixel_can_be_mirrored() -> None:
    views = AveragedViews(torch.nn.Flatten(), shift=False, mirror=True, padding="reflect")
    assert views(torch.randn(2, 3, 1, 1)).shape == (2, 3)


def test_a_cell_can_ask_the_run_of_another_cell(tmp_path: Path) -> None:
    options = ("--training.steps", "6", "--backbone.width", "0.25", "--data.validation", "100")
    cell = Cell("digits", "pi_vat", 20, 0, options)
    plain, result = measure(cell, tmp_path), measure(replace(cell, read_out="views"), tmp_path)
    (folder,) = tmp_path.iterdir()
    run = RunDirectory.open(folder)
    for part, error in (("test", result.test_error), ("validation", result.validation_error)):
        assert error == evaluate_run(run, part, views=True)[1].error  # type: ignore[arg-type]
    assert result.calibration_error != plain.calibration_error
    assert result.digest != plain.digest
    assert plain.cpu_seconds is not None
    assert result.cpu_seconds is None, "it was not trained again"
