"""The data behind the figures of a run, against loops over nodes and images."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from manigraph.build import load_dataset
from manigraph.engine import evaluate_run, load, train
from manigraph.errors import UserError
from manigraph.inference import manifold
from manigraph.inference.manifold import ManifoldView, figure_data, manifold_view, own_class_share
from manigraph.inference.tsne import map_of
from manigraph.runs import RunDirectory
from tests.helpers import normal
from tests.inference.conftest import VALIDATION, VARIANTS, K, quick

Array = npt.NDArray[np.float64]

every_variant = pytest.mark.parametrize("variant", VARIANTS)


def images_of(run: RunDirectory, view: ManifoldView) -> Tensor:
    loaded = load(run)
    return loaded.preprocessing(load_dataset(loaded.config.data).images)[view.indices]


# Images


@pytest.mark.parametrize("part", ["validation", "test"])
def test_every_image_is_there_once_sorted_by_class(part: Any, run_of: Callable[[str], RunDirectory]) -> None:
    run = run_of("per_image")
    view = manifold_view(run, part)
    split = run.read_json("split.json")[part]
    assert sorted(view.indices.tolist()) == sorted(split)
    classes = load_dataset(load(run).config.data).classes
    assert view.classes.tolist() == [int(classes[index]) for index in view.indices.tolist()]
    order = list(zip(view.classes.tolist(), view.indices.tolist(), strict=True))
    assert order == sorted(order)
    assert len(set(view.classes.tolist())) == 10


@every_variant
def test_features_and_predictions_are_those_of_the_model(
    variant: str, run_of: Callable[[str], RunDirectory]
) -> None:
    run = run_of(variant)
    view = manifold_view(run)
    assert view.graph is not None
    model: Any = load(run).model.eval()
    images = images_of(run, view)
    with torch.no_grad():
        torch.testing.assert_close(view.features, model.backbone(images))
        torch.testing.assert_close(view.graph.refined, model.final_features(images))
        assert torch.equal(view.predicted, model(images).argmax(dim=1))
        before = model.linear(model.backbone(images)).argmax(dim=1)
    assert view.predicted_before is not None
    assert torch.equal(view.predicted_before, before)
    assert not torch.allclose(view.features, view.graph.refined)
    wrong = 100 * (view.predicted != view.classes).double().mean().item()
    assert wrong == pytest.approx(evaluate_run(run, "validation")[1].error)


# The graph


def nodes_by_hand(run: RunDirectory, view: ManifoldView) -> tuple[list[Array], list[Array], int, float]:
    """Embeddings of prototypes and images, (H, E) each, from prototypes and features."""
    model: Any = load(run).model
    weight, bias = (p.detach().double().numpy() for p in (model.graph.embed.weight, model.graph.embed.bias))
    heads = model.graph.num_heads
    assert view.graph is not None

    def embedding(features: Tensor) -> list[Array]:
        linear = [weight @ row + bias for row in features.double().numpy()]
        return [np.where(row > 0, row, 0.1 * row).reshape(heads, -1) for row in linear]

    return embedding(view.graph.prototypes), embedding(view.features), heads, model.graph.scale


def softmax(scores: dict[Any, float]) -> dict[Any, float]:
    highest = max(scores.values())
    exponentials = {key: math.exp(score - highest) for key, score in scores.items()}
    total = sum(exponentials.values())
    return {key: value / total for key, value in exponentials.items()}


@every_variant
def test_attention_is_that_of_the_graph_of_each_image_written_out(
    variant: str, run_of: Callable[[str], RunDirectory]
) -> None:
    run = run_of(variant)
    view = manifold_view(run)
    graph = view.graph
    assert graph is not None
    prototypes, images, H, scale = nodes_by_hand(run, view)
    P = 10 * K
    image_rows, shares = np.zeros((VALIDATION, P)), []
    among = np.zeros((P, P))
    for h in range(H):
        for b, image in enumerate(images):
            # The image's row: all other nodes of its graph are prototypes.
            row = softmax({p: scale * float(image[h] @ prototypes[p][h]) for p in range(P)})
            for p in range(P):
                image_rows[b, p] += row[p] / H
            # The prototypes' rows: all other prototypes, and the image.
            for p in range(P):
                scores: dict[Any, float] = {
                    q: scale * float(prototypes[p][h] @ prototypes[q][h]) for q in range(P) if q != p
                }
                shares.append(
                    softmax({**scores, "image": scale * float(prototypes[p][h] @ image[h])})["image"]
                )
        for p in range(P):
            row = softmax({q: scale * float(prototypes[p][h] @ prototypes[q][h]) for q in range(P) if q != p})
            for q, weight in row.items():
                among[p, q] += weight / H
    np.testing.assert_allclose(graph.image_attention.numpy(), image_rows, rtol=1e-3, atol=1e-6)
    if variant == "none":
        assert graph.prototype_attention is None
    else:
        assert graph.prototype_attention is not None
        np.testing.assert_allclose(graph.prototype_attention.numpy(), among, rtol=1e-3, atol=1e-6)
    expected = np.mean(shares) if VARIANTS[variant]["prototype_update"] == "per_image" else 0.0
    assert graph.image_share == pytest.approx(float(expected), rel=1e-3)


@every_variant
def test_rows_sum_to_one_and_no_node_hears_itself(
    variant: str, run_of: Callable[[str], RunDirectory]
) -> None:
    graph = manifold_view(run_of(variant)).graph
    assert graph is not None
    assert graph.image_attention.shape == (VALIDATION, 10 * K)
    torch.testing.assert_close(graph.image_attention.sum(dim=1), torch.ones(VALIDATION))
    assert graph.classes.tolist() == [c for c in range(10) for _ in range(K)]
    if graph.prototype_attention is not None:
        torch.testing.assert_close(graph.prototype_attention.sum(dim=1), torch.ones(10 * K))
        assert not graph.prototype_attention.diagonal().any()


@every_variant
def test_prototypes_are_those_that_the_model_predicts_with(
    variant: str, run_of: Callable[[str], RunDirectory]
) -> None:
    run = run_of(variant)
    view = manifold_view(run)
    assert view.graph is not None
    model: Any = load(run).model.eval()
    embeddings = model.graph.embedding(view.graph.prototypes)
    torch.testing.assert_close(embeddings, model.prototype_embeddings)
    kind = "labelled images" if variant == "labelled_images" else "prototypes"
    assert view.graph.nodes == kind


@every_variant
@pytest.mark.parametrize("at_once", [1, 7 * 10 * K * 32, 1 << 22])
def test_refined_prototypes_are_the_mean_over_all_graphs(
    variant: str, at_once: int, run_of: Callable[[str], RunDirectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifold, "VALUES_AT_ONCE", at_once)
    run = run_of(variant)
    view = manifold_view(run)
    graph = view.graph
    assert graph is not None
    model: Any = load(run).model.eval()
    total = torch.zeros_like(graph.prototypes)
    with torch.no_grad():
        for feature in view.features:
            alone = model.graph.refine_prototypes(
                graph.prototypes, model.prototype_embeddings, feature.unsqueeze(0)
            )
            total += alone.squeeze(0)
    torch.testing.assert_close(graph.refined_prototypes, total / VALIDATION)
    assert torch.allclose(graph.refined_prototypes, graph.prototypes, atol=1e-5) == (variant == "none")


def test_share_of_the_own_class_by_hand() -> None:
    weights = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3]])
    # Row of class 0: 0.5 + 0.3; row of class 1: 0.3.
    assert own_class_share(weights, torch.tensor([0, 1]), torch.tensor([0, 0, 1])) == pytest.approx(0.55)


# All of it, as plain values


@every_variant
def test_the_data_behind_the_figures(variant: str, run_of: Callable[[str], RunDirectory]) -> None:
    run = run_of(variant)
    view, data = manifold_view(run), figure_data(manifold_view(run))
    assert view.graph is not None
    assert data["images"]["index"] == view.indices.tolist()
    assert data["images"]["class"] == view.classes.tolist()
    assert data["nodes"]["class"] == view.graph.classes.tolist()
    for side in ("before", "after"):
        assert np.array(data["images"][side]).shape == (VALIDATION, 2)
        assert np.array(data["nodes"][side]).shape == (10 * K, 2)
    np.testing.assert_allclose(data["adjacency"]["images"], view.graph.image_attention.numpy(), atol=1e-5)
    summary = data["summary"]
    assert summary["images"] == VALIDATION
    assert summary["error"] == evaluate_run(run, "validation")[1].error
    own = [
        sum(w for w, c in zip(row, data["nodes"]["class"], strict=True) if c == image)
        for row, image in zip(data["adjacency"]["images"], data["images"]["class"], strict=True)
    ]
    assert summary["image_own_class"] == pytest.approx(np.mean(own), abs=1e-4)
    assert summary["image_own_class_by_chance"] == 0.1
    assert summary["prototype_own_class_by_chance"] == pytest.approx(2 / 29)
    if variant == "none":
        assert data["adjacency"]["prototypes"] is summary["prototype_own_class"] is None
    else:
        among = np.array(data["adjacency"]["prototypes"]).reshape(10, K, 10, K)
        within = [among[c, :, c].sum() / K for c in range(10)]
        assert summary["prototype_own_class"] == pytest.approx(np.mean(within), abs=1e-4)


def test_maps_are_of_the_features_before_and_after_the_graph(
    run_of: Callable[[str], RunDirectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Array] = []

    def noted(points: Array) -> Array:
        seen.append(points)
        return points[:, :2]

    monkeypatch.setattr(manifold, "map_of", noted)
    view = manifold_view(run_of("per_image"))
    data = figure_data(view)
    graph = view.graph
    assert graph is not None
    before, after = seen
    np.testing.assert_array_equal(before, torch.cat([view.features, graph.prototypes]).double())
    np.testing.assert_array_equal(after, torch.cat([graph.refined, graph.refined_prototypes]).double())
    np.testing.assert_allclose(data["images"]["before"], view.features[:, :2], atol=1e-3)
    np.testing.assert_allclose(data["nodes"]["before"], graph.prototypes[:, :2], atol=1e-3)
    np.testing.assert_allclose(data["images"]["after"], graph.refined[:, :2], atol=1e-3)
    np.testing.assert_allclose(data["nodes"]["after"], graph.refined_prototypes[:, :2], atol=1e-3)


# Without a graph, without images


@pytest.mark.parametrize("algorithm", ["pi_vat", "deep_cotraining"])
def test_a_method_without_a_graph_has_a_map_only(algorithm: str, tmp_path: Path) -> None:
    run, _ = train(quick(algorithm), tmp_path)
    view = manifold_view(run)
    assert view.graph is None
    assert view.predicted_before is None
    model: Any = load(run).model.eval()
    with torch.no_grad():
        torch.testing.assert_close(view.features, model.final_features(images_of(run, view)))
    data = figure_data(view)
    assert data["nodes"] is data["adjacency"] is None
    assert data["without_graph"] == f"{algorithm} has no graph"
    assert np.array(data["images"]["before"]).shape == (VALIDATION, 2)
    assert set(data["summary"]) == {"images", "error"}


def test_a_graph_that_was_never_on_is_none(tmp_path: Path) -> None:
    run, _ = train(quick("manifold_graph", warmup_fraction=1.0), tmp_path)
    data = figure_data(manifold_view(run))
    assert data["nodes"] is data["adjacency"] is None
    assert data["without_graph"] == "the run ended before its graph was on"


def test_without_validation_images_the_way_out_is_named(tmp_path: Path) -> None:
    config = quick("supervised")
    run, _ = train(replace(config, data=replace(config.data, validation=0)), tmp_path)
    with pytest.raises(UserError, match="has no validation images: use --part test"):
        manifold_view(run)
    assert len(manifold_view(run, "test").indices) == 500


def test_random_numbers_stay_as_they_were(run_of: Callable[[str], RunDirectory]) -> None:
    run = run_of("per_image")
    before = torch.get_rng_state()
    figure_data(manifold_view(run))
    assert torch.equal(torch.get_rng_state(), before)


# Maps


def test_what_is_near_by_angle_is_near_on_the_map_and_maps_repeat() -> None:
    directions = normal(3, 8, seed=1)
    classes = torch.arange(3).repeat_interleave(25)
    # By distance, short ones of all classes would be neighbours.
    lengths = 10 ** torch.linspace(-3, 1, 25, dtype=torch.float64).repeat(3)[:, None]
    points = (lengths * (directions[classes] + 0.05 * normal(75, 8, seed=3))).numpy()
    places = map_of(points)
    assert places.shape == (75, 2)
    np.testing.assert_array_equal(places, map_of(points))
    distances = np.linalg.norm(places[:, None] - places, axis=2)
    np.fill_diagonal(distances, np.inf)
    nearest = distances.argsort(axis=1)[:, :20]
    assert (classes.numpy()[nearest] == classes.numpy()[:, None]).all()


def test_few_points_have_a_map_and_too_few_none(caplog: pytest.LogCaptureFixture) -> None:
    assert map_of(normal(5, 4).numpy()).shape == (5, 2)
    assert not caplog.records  # no complaint about the perplexity
    with pytest.raises(UserError, match="at least 4 points, got 3"):
        map_of(normal(3, 4).numpy())
