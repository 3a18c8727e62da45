"""An explanation against the equations and naive loops."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from manigraph.build import load_dataset
from manigraph.data.sources.base import Dataset
from manigraph.engine import indices_of, train
from manigraph.inference import many
from manigraph.inference.explain import PARTS, explain, training_images
from manigraph.inference.pictures import picture_of
from manigraph.inference.predictor import Predictor
from manigraph.runs import RunDirectory
from tests.inference.conftest import VARIANTS, K, quick
from tests.inference.pictures import save_digits

RunOf = Callable[[str], RunDirectory]


def predictor_and_data(run: RunDirectory) -> tuple[Predictor, Dataset]:
    predictor = Predictor.load(run.path)
    dataset = training_images(predictor)
    assert isinstance(dataset, Dataset)
    return predictor, dataset


def features_of(predictor: Predictor, image: torch.Tensor) -> torch.Tensor:
    return predictor(image[None]).features[0].double()


def naive_nearest(
    features: dict[int, torch.Tensor], place: torch.Tensor, indices: list[int], k: int
) -> list[tuple[int, float]]:
    """One image after the other, cosine by its formula."""
    found = []
    for index in indices:
        f, p = features[index], place.double()
        cosine = float((f * p).sum()) / math.sqrt(float((f * f).sum()) * float((p * p).sum()))
        found.append((index, cosine))
    return sorted(found, key=lambda pair: -pair[1])[:k]


def assert_nearest(said: list[dict[str, Any]], expected: list[tuple[int, float]]) -> None:
    np.testing.assert_allclose([image["cosine"] for image in said], [c for _, c in expected], atol=2e-6)
    assert [image["index"] for image in said] == [index for index, _ in expected]


def test_the_nearest_images_are_the_nearest(run_of: RunOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "AT_ONCE", 64)  # so that they come in several parts
    predictor, dataset = predictor_and_data(run_of("per_image"))
    nodes = predictor.nodes
    assert nodes is not None
    index = int(indices_of(predictor.run, "test")[3])
    facts = explain(predictor, dataset.images[index], dataset, index=index, neighbours=4).facts
    place = features_of(predictor, dataset.images[index])
    for part in PARTS:
        indices = indices_of(predictor.run, part).tolist()
        features = {i: features_of(predictor, dataset.images[i]) for i in indices}
        assert_nearest(facts["nearest"][part], naive_nearest(features, place, indices, 4))
        for prototype in facts["prototypes"]:
            expected = naive_nearest(features, nodes.prototypes[prototype["number"]], indices, 4)
            assert_nearest(prototype["nearest"][part], expected)
    for image in facts["nearest"]["labelled"]:
        assert image["class"] == str(int(dataset.classes[image["index"]]))
    for image in facts["nearest"]["unlabelled"]:
        assert image["class"] is None  # digits knows it, the run does not
        assert image["predicted"] == str(int(predictor(dataset.images[image["index"]][None]).predicted))


@pytest.mark.parametrize("variant", VARIANTS)
def test_shares_are_those_of_the_graph(variant: str, run_of: RunOf) -> None:
    predictor, dataset = predictor_and_data(run_of(variant))
    image = dataset.images[5]
    answers = predictor(image[None])
    assert answers.attention is not None
    facts = explain(predictor, image, dataset, prototypes=4).facts
    weights = facts["graph"]["attention"]
    assert facts["without_graph"] is None
    assert facts["graph"]["per_class"] == K
    assert facts["graph"]["nodes"] == ("labelled images" if variant == "labelled_images" else "prototypes")
    np.testing.assert_allclose(weights, answers.attention[0], atol=1e-6)
    assert sum(weights) == pytest.approx(1, abs=1e-4)
    for key in ("probability", "probability_without_graph", "attention"):
        assert sum(entry[key] for entry in facts["classes"]) == pytest.approx(1, abs=1e-4)
    for number, entry in enumerate(facts["classes"]):
        assert entry["attention"] == pytest.approx(sum(weights[K * number : K * (number + 1)]), abs=1e-5)
    heard = [prototype["attention"] for prototype in facts["prototypes"]]
    assert heard == sorted(weights, reverse=True)[:4]
    for prototype in facts["prototypes"]:
        assert weights[prototype["number"]] == prototype["attention"]
        assert prototype["class"] == str(prototype["number"] // K)
        assert prototype["number_in_class"] == prototype["number"] % K + 1


def test_prototypes_have_the_numbers_that_predict_says(run_of: RunOf, tmp_path: Path) -> None:
    predictor, dataset = predictor_and_data(run_of("per_image"))
    paths = save_digits(tmp_path, range(6))
    for index, answer in enumerate(predictor.predict_files(paths, nearest=4)):
        said = explain(predictor, dataset.images[index], dataset, prototypes=4, neighbours=1).facts
        assert [(node.class_name, node.number) for node in answer.nearest] == [
            (prototype["class"], prototype["number_in_class"]) for prototype in said["prototypes"]
        ]


def test_without_the_graph_means_the_linear_layer_on_raw_features(run_of: RunOf) -> None:
    predictor, dataset = predictor_and_data(run_of("per_image"))
    image = dataset.images[9]
    facts = explain(predictor, image, dataset).facts
    with torch.no_grad():
        features = predictor.model.backbone(predictor.trained.preprocessing(image[None]))[0]
        linear = predictor.model.linear
        raw = (linear.weight @ features + linear.bias).softmax(dim=0)
    said = [entry["probability_without_graph"] for entry in facts["classes"]]
    np.testing.assert_allclose(said, raw, atol=1e-6)
    assert facts["predicted_without_graph"]["class"] == str(int(raw.argmax()))
    assert facts["predicted"]["class"] == str(int(predictor(image[None]).predicted))


@pytest.mark.parametrize("index_is_known", [True, False])
@pytest.mark.parametrize("part", ["labelled", "unlabelled"])
def test_an_image_is_not_its_own_neighbour(part: Any, index_is_known: bool, run_of: RunOf) -> None:
    predictor, dataset = predictor_and_data(run_of("shared"))
    indices = indices_of(predictor.run, part)
    index = int(indices[2])
    facts = explain(
        predictor, dataset.images[index], dataset, index=index if index_is_known else None, neighbours=3
    ).facts
    place = features_of(predictor, dataset.images[index])
    answers = predictor(dataset.images[indices])
    features = {int(i): f.double() for i, f in zip(indices, answers.features, strict=True)}
    others = [i for i in features if i != index]
    assert_nearest(facts["nearest"][part], naive_nearest(features, place, others, 3))
    assert facts["image"]["training_part"] == part
    assert facts["image"]["class"] == (str(int(dataset.classes[index])) if index_is_known else None)


def test_more_neighbours_than_there_are_images(run_of: RunOf) -> None:
    predictor, dataset = predictor_and_data(run_of("shared"))
    labelled = indices_of(predictor.run, "labelled")
    facts = explain(predictor, dataset.images[int(labelled[0])], dataset, neighbours=50, prototypes=99).facts
    assert len(facts["nearest"]["labelled"]) == len(labelled) - 1
    assert len(facts["nearest"]["unlabelled"]) == 50
    assert len(facts["prototypes"]) == 10 * K


@pytest.mark.parametrize("algorithm", ["pi_vat", "manifold_graph"])
def test_runs_without_a_graph_name_near_images(algorithm: str, tmp_path: Path) -> None:
    method = {"warmup_fraction": 1.0} if algorithm == "manifold_graph" else {}
    predictor, dataset = predictor_and_data(train(quick(algorithm, **method), tmp_path)[0])
    facts = explain(predictor, dataset.images[0], dataset).facts
    reasons = {"pi_vat": "pi_vat has no graph", "manifold_graph": "the run ended before its graph was on"}
    assert facts["without_graph"] == reasons[algorithm]
    assert facts["graph"] is None
    assert facts["prototypes"] == []
    assert facts["predicted_without_graph"] is None
    assert len(facts["nearest"]["labelled"]) == 5


def test_without_training_images_all_else_is_there(run_of: RunOf, tmp_path: Path) -> None:
    predictor, dataset = predictor_and_data(run_of("shared"))
    image = dataset.images[0]
    whole = explain(predictor, image, dataset).facts
    alone = explain(predictor, image, "they are gone")
    assert alone.facts["without_training_images"] == "they are gone"
    assert alone.facts["nearest"] is None
    assert alone.pictures == {}
    for key in ("predicted", "predicted_without_graph", "classes", "graph"):
        assert alone.facts[key] == whole[key]
    for prototype, known in zip(alone.facts["prototypes"], whole["prototypes"], strict=True):
        assert prototype == known | {"nearest": None}
    # images in memory are at hand if they are given, and the same ones
    in_memory, _ = train(quick("manifold_graph"), tmp_path, dataset=dataset)
    predictor = Predictor.load(in_memory.path)
    assert "arrays in memory" in str(training_images(predictor))
    assert training_images(predictor, dataset=dataset) is dataset
    other = replace(dataset, images=255 - dataset.images)
    assert "other images" in str(training_images(predictor, dataset=other))


def test_pictures_are_as_bright_as_the_images(run_of: RunOf) -> None:
    predictor, dataset = predictor_and_data(run_of("shared"))
    explanation = explain(predictor, dataset.images[0], dataset)
    assert explanation.picture is not None
    original = dataset.images[0, 0].double() * 255 / 16
    np.testing.assert_allclose(explanation.picture, original, atol=0.5)
    named = {i["index"] for part in explanation.facts["nearest"].values() for i in part}
    assert named <= set(explanation.pictures)
    colour = torch.arange(48, dtype=torch.uint8).view(3, 4, 4)
    assert picture_of(colour)[1, 2].tolist() == [6, 22, 38]
    assert load_dataset(predictor.trained.config.data).white == 16
