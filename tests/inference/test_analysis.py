"""What is kept for a report, against loops over images and nodes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

from manigraph.build import load_dataset
from manigraph.config import BackboneConfig, DataConfig
from manigraph.data.sources.arrays import from_arrays
from manigraph.engine import train
from manigraph.inference import analysis
from manigraph.inference.analysis import analyse, part_to_show, thumbnails, write_analysis
from manigraph.inference.predictor import Predictor
from manigraph.reports.facts import RunFacts
from manigraph.reports.html import render
from manigraph.reports.run_report import run_page
from manigraph.runs import RunDirectory
from tests.inference.conftest import VALIDATION, K, quick


def test_the_map_has_every_validation_image_once(run_of: Callable[[str], RunDirectory]) -> None:
    run = run_of("per_image")
    values, tensors = analyse(run)
    assert values["part"] == "validation"
    assert sorted(tensors["index"].tolist()) == sorted(run.read_json("split.json")["validation"])
    dataset = load_dataset(Predictor.load(run.path).trained.config.data)
    assert torch.equal(tensors["class"], dataset.classes[tensors["index"]])
    assert tensors["places_before"].shape == tensors["places_after"].shape == (VALIDATION, 2)
    assert tensors["node_places_before"].shape == (10 * K, 2)


def test_rows_sum_to_one_and_are_those_of_the_graph(
    run_of: Callable[[str], RunDirectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analysis, "MOST_ROWS", 20)
    run = run_of("per_image")
    _, tensors = analyse(run)
    predictor = Predictor.load(run.path)
    dataset = load_dataset(predictor.trained.config.data)
    answers = predictor(dataset.images[tensors["index"]])
    assert answers.attention is not None
    torch.testing.assert_close(tensors["attention"], answers.attention[tensors["attention_rows"]])
    torch.testing.assert_close(tensors["attention"].sum(dim=1), torch.ones(20))
    torch.testing.assert_close(tensors["attention_by_class"].sum(dim=1), torch.ones(VALIDATION))
    torch.testing.assert_close(tensors["attention_among"].sum(dim=1), torch.ones(10 * K))
    of_class_2 = answers.attention[:, 2 * K : 3 * K].sum(dim=1)
    torch.testing.assert_close(tensors["attention_by_class"][:, 2], of_class_2)


def test_the_gallery_has_the_nearest_images(
    run_of: Callable[[str], RunDirectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analysis, "MOST_TRAINING_IMAGES", 150)
    monkeypatch.setattr(analysis, "BATCH", 64)
    run = run_of("per_image")
    values, tensors = analyse(run)
    assert values["gallery_images"] == 150
    predictor = Predictor.load(run.path)
    dataset, split = load_dataset(predictor.trained.config.data), run.read_json("split.json")
    looked_at = (split["labelled"] + split["unlabelled"])[:150]
    answers, nodes = predictor(dataset.images[looked_at]), predictor.nodes
    assert nodes is not None
    assert answers.attention is not None
    for node in range(10 * K):
        cosines = [float(F.cosine_similarity(f, nodes.prototypes[node], dim=0)) for f in answers.features]
        order = sorted(range(150), key=lambda i: -cosines[i])[:3]
        expected = torch.tensor([cosines[i] for i in order])
        torch.testing.assert_close(tensors["gallery_similarity"][node], expected)
        found = tensors["gallery_index"][node].tolist()
        assert [cosines[looked_at.index(i)] for i in found] == pytest.approx(expected.tolist(), abs=1e-5)
        for index, label in zip(found, tensors["gallery_label"][node].tolist(), strict=True):
            known = index in split["labelled"]
            assert label == (int(dataset.classes[index]) if known else -1)
    torch.testing.assert_close(tensors["node_usage"], answers.attention.mean(dim=0))
    mine = [p for p in range(K) if p != 1]
    twin = max(float(F.cosine_similarity(nodes.prototypes[1], nodes.prototypes[p], dim=0)) for p in mine)
    assert float(tensors["node_twin"][1]) == pytest.approx(twin, abs=1e-5)
    assert tensors["gallery_thumbnails"].shape == (10 * K, 3, 1, 8, 8)


def test_it_is_written_beside_the_run(run_of: Callable[[str], RunDirectory]) -> None:
    run = run_of("shared")
    write_analysis(run)
    stored = safetensors.torch.load_file(run.path / "analysis.safetensors")
    assert torch.equal(stored["index"], analyse(run)[1]["index"])
    assert run.read_json("analysis.json")["summary"]["images"] == VALIDATION


def test_a_method_without_graph_has_a_map_alone(tmp_path: Path) -> None:
    run, _ = train(quick("supervised"), tmp_path)
    values, tensors = analyse(run)
    assert values["without_graph"] == "supervised has no graph"
    assert "places_after" not in tensors
    assert "attention" not in tensors
    assert tensors["places_before"].shape == (VALIDATION, 2)


def test_digits_are_as_bright_as_other_images() -> None:
    images = torch.tensor([[[[0, 8], [16, 16]]]], dtype=torch.uint8)
    assert thumbnails(images, 16.0).flatten().tolist() == [0, 128, 255, 255]


def test_large_images_become_small_ones() -> None:
    images = torch.zeros(2, 3, 100, 130, dtype=torch.uint8)
    images[1, 0] = 200
    small = thumbnails(images, 255.0)
    assert max(small.shape[2:]) <= 48
    assert small[1, 0].unique().tolist() == [200]


def test_ready_made_vectors_have_a_map_without_pictures(tmp_path: Path) -> None:
    digits = load_digits()
    labels = np.where(np.arange(400) < 100, digits.target[:400], -1)
    dataset = from_arrays(digits.data[:400].astype(np.float32), labels)
    config = quick("manifold_graph", warmup_fraction=0.0, prototypes_per_class=K)
    config = replace(config, backbone=BackboneConfig("head"), data=DataConfig("arrays", validation=40))
    run, _ = train(config, tmp_path, dataset=dataset)
    values, tensors = analyse(run, dataset=dataset)
    assert values["summary"]["images"] == len(tensors["places_after"]) == 40
    assert "thumbnails" not in tensors
    assert tensors["gallery_index"].shape == (10 * K, 3)
    write_analysis(run, dataset=dataset)
    assert 'id="gallery"' in render(run_page(RunFacts.read(run.path)))


def test_which_images_are_shown() -> None:
    def part(validation: int, test: int) -> str | None:
        return part_to_show({"validation": list(range(validation)), "test": list(range(test))})

    assert part(1000, 10_000) == "validation"
    assert part(50, 10_000) == "validation"
    assert part(9, 150) == "test"  # own images with few labels
    assert part(9, 0) == "validation"
    assert part(9, 5) == "validation"
    assert part(0, 5) == "test"
    assert part(0, 0) is None
