"""What a run says about images, against its own evaluation and the equations."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from manigraph.build import load_dataset
from manigraph.engine import train
from manigraph.inference.predictor import Predictor
from manigraph.runs import RunDirectory
from tests.inference.conftest import VARIANTS, K, quick

every_variant = pytest.mark.parametrize("variant", VARIANTS)


def some_images(predictor: Predictor) -> torch.Tensor:
    return load_dataset(predictor.trained.config.data).images[:40]


@every_variant
def test_answers_are_those_of_the_model(variant: str, run_of: Callable[[str], RunDirectory]) -> None:
    predictor = Predictor.load(run_of(variant).path)
    images = some_images(predictor)
    answers = predictor(images)
    inputs = predictor.trained.preprocessing(images)
    with torch.no_grad():
        torch.testing.assert_close(answers.logits, predictor.trained.model(inputs))
        torch.testing.assert_close(answers.features, predictor.model.backbone(inputs))
        torch.testing.assert_close(answers.final_features, predictor.model.final_features(inputs))
        before = predictor.model.linear(answers.features)
    torch.testing.assert_close(answers.logits_without_graph, before)
    assert not torch.allclose(answers.logits, before)
    torch.testing.assert_close(answers.probabilities.sum(dim=1), torch.ones(len(images)))
    assert torch.equal(answers.predicted, answers.probabilities.argmax(dim=1))


@every_variant
def test_attention_is_a_softmax_of_embeddings(variant: str, run_of: Callable[[str], RunDirectory]) -> None:
    predictor = Predictor.load(run_of(variant).path)
    answers, nodes, graph = predictor(some_images(predictor)), predictor.nodes, predictor.model.graph
    assert nodes is not None
    assert answers.attention is not None
    assert predictor.node_classes.tolist() == [c for c in range(10) for _ in range(K)]
    with torch.no_grad():
        image, node = graph.embedding(answers.features)[7], graph.embedding(nodes.prototypes)
    heads = [(graph.scale * node[:, h] @ image[h]).softmax(dim=0) for h in range(graph.num_heads)]
    torch.testing.assert_close(answers.attention[7], torch.stack(heads).mean(dim=0))


@pytest.mark.parametrize("algorithm", ["pi_vat", "deep_cotraining", "manifold_graph"])
def test_runs_without_a_graph(algorithm: str, tmp_path: Path) -> None:
    method = {"warmup_fraction": 1.0} if algorithm == "manifold_graph" else {}
    run, _ = train(quick(algorithm, **method), tmp_path)
    predictor = Predictor.load(run.path)
    images = some_images(predictor)
    answers = predictor(images)
    with torch.no_grad():
        logits = predictor.trained.model(predictor.trained.preprocessing(images))
    torch.testing.assert_close(answers.logits, logits)
    assert predictor.nodes is None
    assert len(predictor.node_classes) == 0
    assert answers.attention is None
    assert answers.logits_without_graph is None
    assert torch.equal(answers.features, answers.final_features)


def test_a_run_knows_how_bright_its_images_are(run_of: Callable[[str], RunDirectory]) -> None:
    assert Predictor.load(run_of("shared").path).trained.white == 16
