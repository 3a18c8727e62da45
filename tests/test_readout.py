"""Labels along a graph over a run's features: against scikit-learn by hand, and where there is no answer."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F
from scipy import sparse
from sklearn.semi_supervised import LabelPropagation, LabelSpreading

from manigraph.build import load_dataset
from manigraph.catalogue import ALGORITHMS, RECIPES
from manigraph.cli.main import main
from manigraph.config import BackboneConfig, Config
from manigraph.data.sources.arrays import from_arrays
from manigraph.data.sources.base import Dataset
from manigraph.engine import evaluate_run, load, train
from manigraph.errors import UserError
from manigraph.experiments.grid import Cell, ResultsFile, measure
from manigraph.experiments.tables import Row, Table, label_columns
from manigraph.nn import Classifier
from manigraph.readout import ReadOutMethod, graph_model, read_out, spread_labels
from manigraph.runs import RunDirectory
from manigraph.training.loop import TrainingConfig
from tests.helpers import normal, tiny_backbone

Array = npt.NDArray[np.float64]
METHODS: tuple[ReadOutMethod, ...] = ("label_propagation", "label_spreading")
both_methods = pytest.mark.parametrize("method", METHODS)


def quick(algorithm: str = "pi_vat", steps: int = 8, **changes: Any) -> Config[Any]:
    config = replace(
        RECIPES.get("digits")(algorithm),
        backbone=BackboneConfig("small_cnn", width=0.25),
        training=TrainingConfig(steps=steps, log_every=4),
    )
    return replace(config, **changes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    config = quick()
    config = replace(config, data=replace(config.data, validation=100))
    return train(config, tmp_path_factory.mktemp("runs"))[0]


def features_by_hand(run: RunDirectory, indices: list[int]) -> Array:
    """Of length 1, image by image."""
    loaded = load(run)
    images = loaded.preprocessing(load_dataset(loaded.config.data).images)
    model: Any = loaded.model.eval()
    with torch.no_grad():
        features = model.backbone(images[indices]).double()
    return np.stack([row / np.sqrt((row**2).sum()) for row in features.numpy()])


# Against scikit-learn


def nearest(images: Array, image: Array, number: int) -> list[int]:
    distances = ((images - image) ** 2).sum(axis=1)
    return sorted(range(len(images)), key=lambda i: float(distances[i]))[:number]


def joined(images: Array, neighbours: int) -> Array:
    """1 where one of two images is among the nearest of the other, itself included."""
    matrix = np.zeros((len(images), len(images)))
    for i, image in enumerate(images):
        for j in nearest(images, image, neighbours):
            matrix[i, j] = matrix[j, i] = 1.0
    return matrix


def spread_by_hand(method: ReadOutMethod, images: Array, known: Any, neighbours: int) -> Array:
    """scikit-learn's answer for the images in the graph."""
    matrix = sparse.csr_matrix(joined(images, neighbours))
    settings: dict[str, Any] = {"kernel": lambda _, __: matrix, "max_iter": 10_000, "tol": 1e-6}
    spreading = method == "label_spreading"
    model = LabelSpreading(alpha=0.99, **settings) if spreading else LabelPropagation(**settings)
    distributions: Array = model.fit(images, known).label_distributions_
    return distributions


@both_methods
@pytest.mark.parametrize("part", ["test", "validation"])
@pytest.mark.parametrize("neighbours", [7, 12])
def test_the_answer_is_that_of_scikit_learn(
    method: ReadOutMethod, part: Any, neighbours: int, trained: RunDirectory
) -> None:
    split = trained.read_json("split.json")
    graph = sorted(split["labelled"] + split["unlabelled"])
    classes = load_dataset(load(trained).config.data).classes.numpy()
    known = np.array([classes[i] if i in split["labelled"] else -1 for i in graph])
    features = features_by_hand(trained, graph)
    spread = spread_by_hand(method, features, known, neighbours)
    expected = np.stack(
        [
            np.mean([spread[j] for j in nearest(features, image, neighbours)], axis=0)
            for image in features_by_hand(trained, split[part])
        ]
    )

    answer = read_out(trained, method, part, neighbours=neighbours)
    assert answer.unreached == 0
    np.testing.assert_allclose(answer.probs.numpy(), expected, rtol=1e-9, atol=1e-12)
    wrong = expected.argmax(axis=1) != classes[split[part]]
    assert answer.evaluation.error == pytest.approx(100 * wrong.mean())
    assert answer.evaluation.num_images == len(split[part])
    assert (answer.num_labelled, answer.num_graph) == (20, len(graph))
    assert answer.own_error == evaluate_run(trained, part)[1].error


@both_methods
def test_transductive_images_are_part_of_the_graph_without_their_labels(
    method: ReadOutMethod, trained: RunDirectory
) -> None:
    split = trained.read_json("split.json")
    graph = sorted(split["labelled"] + split["unlabelled"]) + split["test"]
    classes = load_dataset(load(trained).config.data).classes.numpy()
    known = np.array([classes[i] if i in split["labelled"] else -1 for i in graph])
    spread = spread_by_hand(method, features_by_hand(trained, graph), known, 7)
    answer = read_out(trained, method, transductive=True)
    expected = spread[-len(split["test"]) :]
    np.testing.assert_allclose(answer.probs.numpy(), expected, rtol=1e-9, atol=1e-12)
    assert answer.num_graph == len(graph) - len(split["test"])


def test_of_manifold_graph_the_refined_features_count(tmp_path: Path) -> None:
    config = quick("manifold_graph")
    config = replace(config, method=replace(config.method, warmup_fraction=0.0))
    run, _ = train(config, tmp_path)
    answer = read_out(run, "label_spreading")
    model: Any = load(run).model.eval()
    assert model.prototype_embeddings is not None
    assert answer.own_error == evaluate_run(run, "test")[1].error
    split = run.read_json("split.json")
    loaded = load(run)
    images = loaded.preprocessing(load_dataset(config.data).images)[split["test"]]
    with torch.no_grad():
        raw = model.backbone(images)
        refined = model.graph.refine_images(raw, model.prototype_embeddings, model.messages)
        torch.testing.assert_close(model.final_features(images), refined)
        torch.testing.assert_close(model(images), model.linear(refined))
    assert not torch.allclose(raw, refined)


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "manifold_graph"])
def test_every_method_can_be_read_out(algorithm: str) -> None:
    """What counts are the features of the model that predicts, in evaluation mode."""
    method: Any = ALGORITHMS.get(algorithm)
    torch.manual_seed(0)
    built = method(method.Config(), tiny_backbone(), 3)
    model: Any = built.inference_model().eval()
    images = normal(4, 1, 8, 8, dtype=torch.float32)
    with torch.no_grad():
        features = model.final_features(images)
        logits = model(images)
    assert len(features) == 4
    if isinstance(model, Classifier):
        torch.testing.assert_close(model.linear(features), logits)
    else:
        networks = list(model.views)
        parts = features.chunk(len(networks), dim=1)
        for network, part in zip(networks, parts, strict=True):
            torch.testing.assert_close(part, F.normalize(network.backbone(images)))


# Labels that spread


def circles(num: int, *centres: tuple[float, float]) -> Array:
    """`num` points around each centre."""
    random = np.random.default_rng(0)
    return np.concatenate([random.normal(centre, 0.1, (num, 2)) for centre in centres])


@both_methods
@pytest.mark.parametrize("transductive", [False, True])
def test_groups_that_lie_apart_are_told_apart_by_one_label_each(
    method: ReadOutMethod, transductive: bool
) -> None:
    features = circles(30, (0, 0), (5, 0), (0, 5))
    known = np.full(90, -1)
    known[[0, 30, 60]] = [2, 0, 1]
    asked = circles(5, (0, 0), (5, 0), (0, 5)) + 0.01
    spread = spread_labels(
        graph_model(method), features, known, asked, num_classes=3, transductive=transductive
    )
    assert spread.probs.argmax(axis=1).tolist() == [2] * 5 + [0] * 5 + [1] * 5
    assert spread.reached.all()
    assert spread.graph_reached.all()
    np.testing.assert_allclose(spread.probs.sum(axis=1), 1.0)


def naive_reached(images: Array, known: Any, neighbours: int) -> list[bool]:
    """Whether a path leads to a labelled image."""
    matrix = joined(images, neighbours)
    reached = [bool(label != -1) for label in known]
    for _ in images:
        reached = [any(reached[j] for j in np.flatnonzero(row)) for row in matrix]
    return reached


@both_methods
@pytest.mark.parametrize("transductive", [False, True])
@pytest.mark.parametrize("neighbours", [3, 12])
def test_where_no_label_comes_to_there_is_no_answer(
    method: ReadOutMethod, transductive: bool, neighbours: int
) -> None:
    features = circles(20, (0, 0), (5, 0))
    known = np.full(40, -1)
    known[0] = 1
    asked = circles(4, (0, 0), (5, 0)) + 0.02
    model = graph_model(method, neighbours)
    spread = spread_labels(
        model, features, known, asked, num_classes=3, neighbours=neighbours, transductive=transductive
    )
    if transductive:
        everything = np.concatenate([features, asked])
        reached = naive_reached(everything, np.concatenate([known, np.full(8, -1)]), neighbours)
        expected, of_asked = reached[:40], reached[40:]
    else:
        expected = naive_reached(features, known, neighbours)
        of_asked = [any(expected[j] for j in nearest(features, image, neighbours)) for image in asked]
    assert not any(expected[20:])
    assert 1 < sum(expected) <= 20
    assert spread.graph_reached.tolist() == expected
    assert spread.reached.tolist() == of_asked
    assert spread.probs.tolist() == [[0, float(answered), 0] for answered in of_asked]


@both_methods
def test_labels_that_still_move_are_told(method: ReadOutMethod, monkeypatch: pytest.MonkeyPatch) -> None:
    features = circles(20, (0, 0), (5, 0))
    known = np.array([0, *[-1] * 19, 1, *[-1] * 19])
    settled = spread_labels(graph_model(method), features, known, features, num_classes=2)
    monkeypatch.setattr("manigraph.readout.MAX_ITERATIONS", 2)
    moving = spread_labels(graph_model(method), features, known, features, num_classes=2)
    assert settled.converged
    assert not moving.converged


# Runs on arrays, and what can be missing


def two_groups(num: int = 40, *, num_unlabelled: int = 30) -> Dataset:
    """Dark and bright images of two classes, of which a few have a label, and a test image of each kind."""
    random = np.random.default_rng(0)
    classes = np.arange(num) % 2
    brightness = np.array([40, 200])[classes][:, None, None]
    images = (brightness + random.integers(0, 30, (num, 8, 8))).astype(np.uint8)
    told = classes.copy()
    told[num - num_unlabelled :] = -1
    return from_arrays(
        images,
        told,
        test_images=images[:10] + 1,
        test_classes=classes[:10],
    )


def train_on(dataset: Dataset, runs: Path, algorithm: str = "pi_model") -> RunDirectory:
    config = quick(algorithm, steps=30)
    data = replace(config.data, name="digits", labels=None, validation=0)
    return train(replace(config, data=data), runs, dataset=dataset)[0]


@both_methods
def test_features_that_lie_apart_give_no_error(method: ReadOutMethod, tmp_path: Path) -> None:
    dataset = two_groups()
    run = train_on(dataset, tmp_path)
    answer = read_out(run, method, dataset=dataset)
    assert answer.evaluation.error == 0
    assert list(answer.evaluation.class_errors) == [0, 0]
    assert not answer.classes_without_label
    with pytest.raises(UserError, match="was trained on arrays in memory: evaluate it from Python"):
        read_out(run, method)
    with pytest.raises(UserError, match="arrays holds other images now than when"):
        read_out(run, method, dataset=two_groups(42))


@both_methods
def test_a_run_without_unlabelled_images_takes_the_nearest_labelled_ones(
    method: ReadOutMethod, tmp_path: Path
) -> None:
    dataset = two_groups(num_unlabelled=0)
    run = train_on(dataset, tmp_path, "supervised")
    answer = read_out(run, method, dataset=dataset)
    assert answer.num_labelled == answer.num_graph == 40
    assert answer.evaluation.error == 0


def test_images_that_no_label_comes_to_keep_the_class_of_the_model(tmp_path: Path) -> None:
    """Only dark images have labels, and a bright one has bright neighbours enough."""
    dataset = two_groups()
    run = train_on(dataset, tmp_path)
    split = run.read_json("split.json")
    dark = [i for i in split["labelled"] if dataset.classes[i] == 0]
    moved = [i for i in split["labelled"] if i not in dark]
    changed = {**split, "labelled": dark, "unlabelled": split["unlabelled"] + moved}
    (run.path / "split.json").write_text(json.dumps(changed))
    answer = read_out(run, "label_spreading", neighbours=12, dataset=dataset)
    assert answer.classes_without_label == ("1",)
    assert answer.unreached == 5
    assert answer.graph_unreached == 20
    assert answer.probs.isfinite().all()
    _, own = evaluate_run(run, "test", dataset=dataset)
    assert answer.evaluation.class_errors[0] == 0
    assert answer.evaluation.class_errors[1] == own.class_errors[1]


# Errors, and the command


@pytest.mark.parametrize("neighbours", [0, 1, 1198])
def test_neighbours_that_are_not_there_are_refused(neighbours: int, trained: RunDirectory) -> None:
    with pytest.raises(UserError, match=rf"from 2 to the 1197 images of the graph, got {neighbours}"):
        read_out(trained, "label_spreading", neighbours=neighbours)


def test_a_part_without_images_is_told(tmp_path: Path) -> None:
    run, _ = train(quick(), tmp_path)
    with pytest.raises(UserError, match="has no validation images"):
        read_out(run, "label_spreading", "validation")


def test_a_model_without_features_is_told(trained: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(load(trained), model=torch.nn.Identity())
    monkeypatch.setattr("manigraph.readout.load", lambda run: other)
    with pytest.raises(UserError, match="the model of pi_vat says nothing of its features"):
        read_out(trained, "label_spreading")


def test_the_command_says_what_it_did(trained: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    answer = read_out(trained, "label_propagation", neighbours=5)
    assert main(["evaluate", str(trained.path), "--read-out", "label_propagation", "--neighbours", "5"]) == 0
    shown = capsys.readouterr().out
    assert f"test error {answer.evaluation.error:.2f} % of 500 images" in shown
    assert (
        "label propagation over 1197 training images (20 labelled) with 5 neighbours; evaluated images are "
        "not in the graph" in shown
    )
    assert f"the run's own model: error {answer.own_error:.2f} %" in shown

    arguments = ["--read_out", "label_spreading", "--transductive", "--part", "validation", "--json"]
    assert main(["evaluate", str(trained.path), *arguments]) == 0
    values = json.loads(capsys.readouterr().out)
    expected = read_out(trained, "label_spreading", "validation", transductive=True)
    assert values["error"] == expected.evaluation.error
    assert values["read_out"] == json.loads(json.dumps(expected.facts()))
    assert values["read_out"]["own_error"] == expected.own_error
    assert values["read_out"]["neighbours"] == 7


def test_the_command_tells_where_no_label_comes_to(
    trained: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With two neighbours, one of which is the image itself, most images are cut off."""
    assert main(["evaluate", str(trained.path), "--read_out", "label_spreading", "--neighbours", "2"]) == 0
    answer = read_out(trained, "label_spreading", neighbours=2)
    assert answer.unreached > 0
    shown = capsys.readouterr().out
    assert f"no label comes to {answer.graph_unreached} of the training images" in shown
    assert f"nor to {answer.unreached} of the evaluated ones, which keep the class" in shown


def test_without_a_read_out_nothing_changes(
    trained: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(trained.path), "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {
        "num_images",
        "error",
        "class_errors",
        "calibration_error",
        "selected_on",
    }
    for option in (["--neighbours", "5"], ["--transductive"]):
        assert main(["evaluate", str(trained.path), *option]) == 2
        message = capsys.readouterr().err
        assert f"{option[0]} is about the graph of a read-out: add --read_out label_spreading" in message
    assert main(["evaluate", str(trained.path), "--read_out", "spreading"]) == 2


# In tables


QUICK = ("--training.steps", "6", "--backbone.width", "0.25", "--data.validation", "100")


def test_a_row_can_be_read_out(tmp_path: Path) -> None:
    row = Row("Π-VAT, label spreading", "pi_vat", QUICK, read_out="label_spreading")
    table = Table("", label_columns("digits", 20), (row,), seeds=(0,))
    cell = table.cell(row, table.columns[0], 0)
    plain, result = measure(replace(cell, read_out=""), tmp_path), measure(cell, tmp_path)
    run = RunDirectory.open(next(path for path in tmp_path.iterdir() if path.is_dir()))
    for part, error in (("test", result.test_error), ("validation", result.validation_error)):
        assert error == read_out(run, "label_spreading", part).evaluation.error  # type: ignore[arg-type]
    assert plain.test_error == read_out(run, "label_spreading").own_error
    results = ResultsFile(tmp_path / "results.json")
    for measured in (plain, result):
        results.add(measured)
    again = ResultsFile(tmp_path / "results.json")
    assert again.find(cell) == result
    assert again.find(replace(cell, read_out="")) == plain


def test_a_cell_without_a_read_out_is_the_cell_it_was() -> None:
    cell = Cell("digits", "pi_vat", 20, 0)
    measured = ResultsFile(Path(__file__).parents[1] / "results" / "digits.json").find(cell)
    assert measured is not None
    assert replace(cell, read_out="label_spreading").digest() != cell.digest()
