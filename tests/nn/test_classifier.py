"""Predictions: the same alone or in any batch, and the same from the frozen model."""

import pytest
import torch
from torch import Tensor, nn

from manigraph.nn import (
    Classifier,
    GraphClassifier,
    LabelledImageNodes,
    ManifoldGraph,
    PrototypeGenerator,
)
from manigraph.nn.manifold_graph import PrototypeUpdate
from tests.helpers import (
    assert_bitwise_equal,
    batch_norm_layers,
    copied,
    normal,
    recorded_inputs,
    running_statistics,
    seeded,
    tiny_backbone,
)

NUM_CLASSES = 3
IMAGES = normal(9, 1, 8, 8, seed=4).float()


def graph_classifier(
    nodes: str, *, graph_is_on: bool = True, prototype_update: PrototypeUpdate = "per_image"
) -> GraphClassifier:
    """In training mode, with dropout, and with running statistics of some images."""
    torch.manual_seed(0)
    backbone = tiny_backbone(dropout=None)
    linear = nn.Linear(backbone.feature_size, NUM_CLASSES)
    graph = ManifoldGraph(backbone.feature_size, num_heads=2, prototype_update=prototype_update)
    model: GraphClassifier
    if nodes == "generated":
        model = GraphClassifier(
            backbone, linear, PrototypeGenerator(NUM_CLASSES, 4, backbone.feature_size), graph
        )
    else:
        images = LabelledImageNodes(NUM_CLASSES, 4, backbone.input_shape)
        images.draw(normal(12, 1, 8, 8, seed=2).float())
        model = GraphClassifier(backbone, linear, images, graph)
    model.graph_is_on.fill_(graph_is_on)
    model.features(normal(20, 1, 8, 8, seed=3).float())
    return model


MODELS = [
    pytest.param("generated", True, id="generated"),
    pytest.param("labelled_images", True, id="labelled_images"),
    pytest.param("generated", False, id="graph off"),
]


def plain_classifier() -> Classifier:
    torch.manual_seed(0)
    backbone = tiny_backbone(dropout=None)
    model = Classifier(backbone, nn.Linear(backbone.feature_size, NUM_CLASSES))
    model(normal(20, 1, 8, 8, seed=3).float())
    return model


def assert_same_prediction(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(found.argmax(dim=1), expected.argmax(dim=1))


def assert_batch_does_not_matter(model: nn.Module) -> None:
    model.eval()
    with torch.no_grad():
        together = model(IMAGES)
        for number in range(len(IMAGES)):
            assert_same_prediction(model(IMAGES[number : number + 1]), together[number : number + 1])
        order = torch.randperm(len(IMAGES), generator=seeded())
        assert_same_prediction(model(IMAGES[order]), together[order])
        in_company = torch.cat([100 * normal(5, 1, 8, 8).float(), IMAGES])
        assert_same_prediction(model(in_company)[5:], together)


@pytest.mark.parametrize(("nodes", "graph_is_on"), MODELS)
def test_prediction_does_not_depend_on_the_batch(nodes: str, graph_is_on: bool) -> None:
    model = graph_classifier(nodes, graph_is_on=graph_is_on)
    assert_batch_does_not_matter(model)
    assert_batch_does_not_matter(model.frozen())


def test_prediction_of_the_plain_classifier_does_not_depend_on_the_batch() -> None:
    assert_batch_does_not_matter(plain_classifier())


@pytest.mark.parametrize(("nodes", "graph_is_on"), MODELS)
def test_frozen_model_predicts_the_same(nodes: str, graph_is_on: bool) -> None:
    model = graph_classifier(nodes, graph_is_on=graph_is_on)
    frozen = model.frozen().eval()
    model.eval()
    with torch.no_grad():
        assert torch.equal(frozen(IMAGES), model(IMAGES))


@pytest.mark.parametrize("nodes", ["generated", "labelled_images"])
def test_graph_on_and_off_differ(nodes: str) -> None:
    with torch.no_grad():
        on = graph_classifier(nodes).eval()(IMAGES)
        off = graph_classifier(nodes, graph_is_on=False).eval()(IMAGES)
    assert not torch.allclose(on, off, atol=1e-3)


def test_frozen_model_carries_p_times_d_numbers_and_no_generator() -> None:
    model = graph_classifier("generated")
    frozen = model.frozen()
    state = frozen.state_dict()
    assert state["prototype_embeddings"].numel() == 12 * model.backbone.feature_size
    assert state["messages"].numel() == model.graph.num_heads * 12 * model.backbone.feature_size
    assert not any("nodes" in name for name in state)
    assert (
        "prototype_embeddings" not in graph_classifier("generated", graph_is_on=False).frozen().state_dict()
    )


def test_frozen_model_does_not_encode_labelled_images_again() -> None:
    frozen = graph_classifier("labelled_images").frozen().eval()
    with recorded_inputs(frozen.backbone) as seen, torch.no_grad():
        frozen(IMAGES)
    assert [len(images) for images in seen] == [len(IMAGES)]


@pytest.mark.parametrize("nodes", ["generated", "labelled_images"])
@pytest.mark.parametrize("training", [True, False])
def test_freezing_changes_nothing_in_the_model(nodes: str, training: bool) -> None:
    model = graph_classifier(nodes)
    model.train(training)
    before = copied(model.state_dict())
    model.frozen()
    assert_bitwise_equal(model.state_dict(), before)
    assert all(module.training is training for module in model.modules())


@pytest.mark.parametrize("training", [True, False])
def test_frozen_model_is_in_the_mode_of_its_model(training: bool) -> None:
    # It shares its layers with the model, so code that restores `frozen.training` after a prediction
    # must not put the layers of a model in evaluation mode back into training mode.
    model = graph_classifier("generated")
    model.train(training)
    assert model.frozen().training is training


def test_labelled_images_as_nodes_move_no_running_statistics() -> None:
    # Nor those of a teacher, which predicts in training mode.
    found, expected = graph_classifier("labelled_images"), graph_classifier("labelled_images")
    with recorded_inputs(found.backbone) as seen:
        found(IMAGES)
    expected.features(IMAGES)
    assert len(seen) == 2, "the nodes and the images"
    assert_bitwise_equal(running_statistics(found), running_statistics(expected))


def test_state_says_whether_the_graph_is_on() -> None:
    model, fresh = graph_classifier("generated"), graph_classifier("generated", graph_is_on=False)
    fresh.load_state_dict(model.state_dict())
    assert bool(fresh.graph_is_on)


@pytest.mark.parametrize(("prototype_update", "graphs"), [("per_image", 9), ("shared", 1), ("none", 1)])
def test_prototype_logits(prototype_update: PrototypeUpdate, graphs: int) -> None:
    model = graph_classifier("generated", prototype_update=prototype_update)
    logits = model.prototype_logits(model.class_nodes(), model.features(IMAGES))
    assert logits.shape == (graphs, 12, NUM_CLASSES)


def test_without_nodes_features_are_classified_raw() -> None:
    model = graph_classifier("generated")
    features = normal(4, model.backbone.feature_size).float()
    assert torch.equal(model.classify(features, None), model.linear(features))


def test_two_classes_at_least() -> None:
    with pytest.raises(ValueError, match="a classifier needs at least 2 classes, got 1"):
        Classifier(tiny_backbone(), nn.Linear(4, 1))


def test_the_tiny_backbone_has_batch_norm() -> None:
    # Without it the tests of this file would say nothing about batch statistics.
    assert batch_norm_layers(tiny_backbone())
