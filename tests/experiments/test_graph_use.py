"""What the graph of a trained run does."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from manigraph.build import build
from manigraph.catalogue import RECIPES
from manigraph.config import BackboneConfig
from manigraph.contract import StepContext
from manigraph.engine import load, train
from manigraph.errors import UserError
from manigraph.experiments import graph_use as experiment
from manigraph.experiments.graph_use import gradient_norms, graph_use, main, table
from manigraph.functional import class_centres
from manigraph.nn import FrozenGraphClassifier
from manigraph.nn.memory import trained_state
from manigraph.runs import RunDirectory
from manigraph.trained import trained_algorithm
from manigraph.training.evaluation import predict_logits
from manigraph.training.loop import TrainingConfig


def trained(folder: Path, algorithm: str = "manifold_graph", steps: int = 30) -> RunDirectory:
    config = RECIPES.get("digits")(algorithm)
    changes = {"balance_weight": 0.0} if algorithm == "manifold_graph" else {}
    config = replace(
        config,
        method=replace(config.method, **changes),
        backbone=BackboneConfig("small_cnn", width=0.25),
        training=TrainingConfig(steps=steps, ema_decay=0.5),
    )
    return train(config, folder)[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return trained(tmp_path_factory.mktemp("runs"))


def test_errors_are_those_with_and_without_the_graph(run: RunDirectory) -> None:
    use = graph_use(run)
    job = build(RECIPES.get("digits")("manifold_graph"))
    test, classes = job.dataset.test, job.dataset.classes[job.dataset.test]
    model = load(run).model
    assert isinstance(model, FrozenGraphClassifier)
    assert model.nodes is not None
    features = predict_logits(model.backbone, job.images, test)
    answers = predict_logits(model, job.images, test).argmax(dim=1)
    centres = class_centres(model.nodes.prototypes, 10)
    nearest = torch.nn.functional.cosine_similarity(features[:, None], centres, dim=2).argmax(dim=1)

    def error(predicted: torch.Tensor) -> float:
        return 100 * (predicted != classes).double().mean().item()

    assert use.error == pytest.approx(error(answers), abs=0.006)
    assert use.error_before == pytest.approx(error(model.linear(features).argmax(dim=1)), abs=0.006)
    assert use.error_of_centres == pytest.approx(error(nearest), abs=0.006)
    assert use.agreement == pytest.approx((nearest == answers).double().mean().item(), abs=6e-5)
    refined = model.graph.refine_images(features, model.nodes.embeddings, model.nodes.messages)
    change = (refined - features).norm(dim=1) / features.norm(dim=1)
    assert use.change == pytest.approx(change.mean().item(), abs=6e-5)


def test_gradients_are_of_the_trained_weights_and_of_the_backbone(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "BATCHES", 1)
    found = gradient_norms(run)
    config = load(run).config
    with torch.random.fork_rng():
        job = build(config)
        algorithm = job.trainer.algorithm
        untrained = float(next(algorithm.model.backbone.parameters()).detach().norm())
        state = trained_state(trained_algorithm(run, config, (1, 8, 8), 10))
        algorithm.load_state_dict(state, strict=False)
        assert float(next(algorithm.model.backbone.parameters()).detach().norm()) != untrained
        algorithm.train()
        context = StepContext(29, 30, job.trainer.generator)
        terms = algorithm.training_step(next(job.batches), context).terms
    assert found.keys() == terms.keys()
    for name, term in terms.items():
        algorithm.zero_grad()
        if term.requires_grad:
            term.backward(retain_graph=True)
        squares = [p.grad.square().sum() for p in algorithm.model.backbone.parameters() if p.grad is not None]
        assert found[name] == pytest.approx(float(sum(squares)) ** 0.5, rel=1e-4), name
    assert found["balance"] == 0
    assert found["classification"] > 0 < found["consistency"]


def test_runs_without_a_graph_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no graph: name runs of manifold_graph"):
        graph_use(trained(tmp_path, "supervised", steps=2))


def test_the_command_writes_and_shows_what_it_found(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "BATCHES", 1)
    file = tmp_path / "new" / "results.json"
    main([str(run.path), "--results", str(file)])
    (stored,) = json.loads(file.read_text(encoding="utf-8"))["results"]
    use = experiment.GraphUse(**stored)
    assert table([use]) in capsys.readouterr().out
    assert use.run == run.path.name
