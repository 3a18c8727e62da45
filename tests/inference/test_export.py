"""Exported models against the runs they come from."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from manigraph.build import build_algorithm
from manigraph.catalogue import ALGORITHMS, BACKBONES
from manigraph.config import BackboneConfig
from manigraph.data.features import as_bytes
from manigraph.data.preprocessing import ZCA, PreprocessingConfig, Standardise
from manigraph.data.sources.arrays import from_arrays
from manigraph.engine import train
from manigraph.errors import UserError
from manigraph.inference import export
from manigraph.inference.export import Deployed, export_run, images_of_files, images_of_run
from manigraph.inference.predictor import Predictor
from manigraph.nn import load_trained_state
from manigraph.runs import RunDirectory
from manigraph.trained import TrainedRun
from tests.inference.conftest import quick
from tests.inference.pictures import digits, save_digits
from tests.runs.test_passed_on import FORMAT_2

Array = Any
LITE0 = "efficientnet_lite0"


def session_of(folder: Path) -> Any:
    return onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])


def some_bytes(count: int) -> Tensor:
    """Test images of digits as decoders give them."""
    dataset = digits()
    return as_bytes(dataset.images[dataset.test[:count]], dataset.white)


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor.load(FORMAT_2)


@pytest.fixture(scope="module")
def exported(predictor: Predictor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "model"
    export_run(predictor, folder, some_bytes(100))
    return folder


# What is inside


def test_any_number_of_images_gives_the_runs_answers(predictor: Predictor, exported: Path) -> None:
    session = session_of(exported)
    dataset = digits()
    for count in (1, 7, 500):
        indices = dataset.test[:count]
        images = some_bytes(count).permute(0, 2, 3, 1).numpy()
        probabilities, logits = session.run(["probabilities", "logits"], {"images": images})
        answers = predictor(dataset.images[indices])
        np.testing.assert_allclose(probabilities, answers.probabilities.numpy(), atol=1e-5)
        np.testing.assert_allclose(logits, answers.logits.numpy(), atol=1e-4)
    (answered,) = (session.get_inputs()[0],)
    assert answered.shape == ["batch", 8, 8, 1]
    assert answered.type == "tensor(uint8)"
    assert [output.shape for output in session.get_outputs()] == [["batch", 10], ["batch", 10]]


def test_torch_export_gives_the_runs_answers(predictor: Predictor, exported: Path) -> None:
    facts = {"manigraph.json": ""}
    program = torch.export.load(exported / "model.pt2", extra_files=facts)
    images = some_bytes(33)
    probabilities, _ = program.module()(images.permute(0, 2, 3, 1).contiguous())
    dataset = digits()
    expected = predictor(dataset.images[dataset.test[:33]]).probabilities
    torch.testing.assert_close(probabilities, expected, atol=1e-5, rtol=0)
    assert json.loads(facts["manigraph.json"])["class_names"] == [str(number) for number in range(10)]


def test_the_file_says_what_it_is(predictor: Predictor, exported: Path) -> None:
    facts = session_of(exported).get_modelmeta().custom_metadata_map
    assert {key: json.loads(value) for key, value in facts.items()} == {
        "class_names": [str(number) for number in range(10)],
        "shape": [8, 8, 1],
        "layout": "images, height, width, channels",
        "input": "uint8 from 0 to 255",
        "algorithm": "manifold_graph",
        "views": False,
        "run": predictor.run.id,
        "format": "2.2",
        "manigraph": "0.1.0",
    }


def test_prototypes_are_inside_and_their_generator_is_not(predictor: Predictor, exported: Path) -> None:
    trained = predictor.trained
    algorithm = build_algorithm(trained.config, trained.input_shape, 10)
    load_trained_state(algorithm, load_file(FORMAT_2 / "model.safetensors"))
    generator = dict(algorithm.model.nodes.named_parameters())  # type: ignore[union-attr]
    assert len(generator) == 6
    model = onnx.load(exported / "model.onnx")
    constants = [numpy_helper.to_array(tensor) for tensor in model.graph.initializer]
    program = torch.export.load(exported / "model.pt2")
    kept = [tensor.numpy() for tensor in (*program.state_dict.values(), *program.constants.values())]
    for tensors in (constants, kept):
        assert any(_holds(tensor, predictor.model.prototype_embeddings) for tensor in tensors)
        for name, weights in generator.items():
            assert not any(_holds(tensor, weights) for tensor in tensors), name


def _holds(constant: Array, tensor: Tensor) -> bool:
    """The same numbers, in whatever order."""
    values = np.sort(tensor.detach().numpy().ravel())
    return bool(constant.size == values.size and np.allclose(np.sort(constant.ravel()), values, atol=1e-6))


def test_no_folder_of_this_machine_is_named(exported: Path) -> None:
    here = [str(Path(__file__).parents[2]), str(Path(torch.__file__).parents[1]), str(exported.parent)]
    for file in exported.iterdir():
        content = file.read_bytes()
        assert [place for place in here if place.encode() in content] == []
    graph = onnx.load(exported / "model.onnx").graph
    assert not any(part.metadata_props for part in (graph, *graph.node, *graph.input, *graph.output))


# Every method, every kind of preprocessing


def check(predictor: Predictor, folder: Path, images: Tensor) -> export.Exported:
    found = export_run(predictor, folder, images)
    assert found.differences.keys() == {"model.onnx", "model.pt2"}
    assert max(found.differences.values()) <= 1e-5
    return found


def untrained(algorithm: str = "supervised", backbone: str = "small_cnn", **method: Any) -> Predictor:
    """A run that was never trained; its networks are those of one that was."""
    config = replace(quick(algorithm, **method), backbone=BackboneConfig(backbone, width=0.125))
    torch.manual_seed(0)
    model = build_algorithm(config, (1, 8, 8), 10).eval().inference_model()
    preprocessing = Standardise((8.0,), (5.0,))
    trained = TrainedRun(config, tuple("0123456789"), (1, 8, 8), preprocessing, model, white=16.0)
    return Predictor(RunDirectory(FORMAT_2), trained)


METHODS = ("supervised", "deep_cotraining", "manifold_graph")
"""One for each kind of model that predicts; the graph of the last was never on."""


@pytest.mark.parametrize("algorithm", METHODS)
def test_every_kind_of_model_can_be_exported(algorithm: str, tmp_path: Path) -> None:
    check(untrained(algorithm), tmp_path / "export", some_bytes(20))


def test_these_are_all_kinds_of_models_there_are() -> None:
    kinds = {type(untrained(algorithm).model) for algorithm in METHODS}
    assert {type(untrained(algorithm).model) for algorithm in ALGORITHMS} == kinds


@pytest.mark.parametrize("backbone", sorted({*BACKBONES} - {"small_cnn"}))
def test_every_backbone_can_be_exported(backbone: str, tmp_path: Path) -> None:
    check(untrained(backbone=backbone), tmp_path / "export", some_bytes(20))


@pytest.mark.parametrize("variant", ["per_image", "labelled_images"])
def test_every_graph_can_be_exported(
    variant: str, run_of: Callable[[str], RunDirectory], tmp_path: Path
) -> None:
    check(Predictor.load(run_of(variant).path), tmp_path / "export", some_bytes(20))


def test_whitening_is_inside(tmp_path: Path) -> None:
    config = replace(quick("pi_vat"), preprocessing=PreprocessingConfig("zca"))
    run, _ = train(config, tmp_path, name="run")
    predictor = Predictor.load(run.path)
    assert isinstance(predictor.trained.preprocessing, ZCA)
    check(predictor, tmp_path / "export", images_of_run(predictor))


def test_coloured_images_keep_their_channels_apart(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (120, 9, 8, 3), dtype=np.uint8)
    classes = generator.integers(0, 3, 120)
    images[..., 0] //= (1 + classes[:, None, None]).astype(np.uint8)
    config = replace(quick("supervised"), data=replace(quick("supervised").data, labels=60, validation=0))
    dataset = from_arrays(images[20:], classes[20:], test_images=images[:20], test_classes=classes[:20])
    run, _ = train(config, tmp_path, name="run", dataset=dataset)
    found = check(Predictor.load(run.path), tmp_path / "export", dataset.images[-20:])
    assert found.shape == (9, 8, 3)
    answers = Predictor.load(run.path)(dataset.images[-20:])
    (by_onnx,) = session_of(found.folder).run(["logits"], {"images": images[:20]})
    np.testing.assert_allclose(by_onnx, answers.logits.numpy(), atol=1e-4)


def test_vectors_go_in_as_they_are(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(100, 12)).astype(np.float32)
    classes = (vectors[:, 0] > 0).astype(int)
    config = replace(
        quick("manifold_graph", warmup_fraction=0.0, prototypes_per_class=2),
        data=replace(quick("supervised").data, labels=40, validation=0),
        backbone=BackboneConfig("mlp", width=0.1),
        augmentation=replace(quick("supervised").augmentation, translation=0),
    )
    dataset = from_arrays(vectors[9:], classes[9:], test_images=vectors[:9], test_classes=classes[:9])
    run, _ = train(config, tmp_path, name="run", dataset=dataset)
    found = check(Predictor.load(run.path), tmp_path / "export", dataset.images[-9:])
    assert sorted(found.sizes) == ["model.onnx", "model.pt2"]
    (by_onnx,) = session_of(found.folder).run(["logits"], {"vectors": vectors})
    np.testing.assert_allclose(by_onnx, Predictor.load(run.path)(torch.from_numpy(vectors)).logits, atol=1e-4)


# Comparing


class _Wrong(Deployed):
    """Rounds off what the run computes."""

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        probabilities, logits = super().forward(images)
        return (100 * probabilities).round() / 100, logits


def test_what_differs_is_not_written(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "Deployed", _Wrong)
    with pytest.raises(UserError, match=r"on 20 images a probability differs by .* nothing was written"):
        export_run(predictor, tmp_path / "export", some_bytes(20))
    assert list(tmp_path.iterdir()) == []


def test_the_runs_own_test_images_are_compared_on(run_of: Callable[[str], RunDirectory]) -> None:
    run = run_of("shared")
    images = images_of_run(Predictor.load(run.path))
    dataset = digits()
    wanted = dataset.images[torch.tensor(run.read_json("split.json")["test"][:256])]
    assert torch.equal(images, as_bytes(wanted, 16))


def test_images_can_be_given(predictor: Predictor, tmp_path: Path) -> None:
    save_digits(tmp_path / "some", digits().test[:5].sort().values)
    images = images_of_files(predictor, [str(tmp_path / "some")])
    assert torch.equal(images, as_bytes(digits().images[digits().test[:5].sort().values], 16))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="there are no images in"):
        images_of_files(predictor, [str(tmp_path / "empty")])
    with pytest.raises(UserError, match="nowhere' cannot be read: there is no such file"):
        images_of_files(predictor, [str(tmp_path / "nowhere")])


def test_without_any_images_the_way_out_is_named(predictor: Predictor) -> None:
    with pytest.raises(UserError, match=r"split.json is missing"):
        images_of_run(predictor)


def test_an_existing_folder_is_kept(predictor: Predictor, tmp_path: Path) -> None:
    (tmp_path / "export").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="exists: name another folder"):
        export_run(predictor, tmp_path / "export", some_bytes(3))
    with pytest.raises(UserError, match="make it first"):
        export_run(predictor, tmp_path / "no" / "export", some_bytes(3))


# The example that serves it

FORBID = """
import sys
class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "manigraph"):
            raise AssertionError(f"{name} was imported")
sys.meta_path.insert(0, Forbidden())
"""


def test_the_example_needs_neither_torch_nor_manigraph_and_answers_the_same(
    predictor: Predictor, exported: Path, tmp_path: Path
) -> None:
    paths = save_digits(tmp_path / "a", digits().test[:6])
    paths += save_digits(tmp_path / "b", digits().test[:2], ending="gif")
    with Image.open(paths[0]) as image:
        image.resize((200, 150)).convert("RGB").save(tmp_path / "large.jpg")
        turned = Image.Exif()
        turned[0x0112] = 6
        image.resize((70, 50)).save(tmp_path / "turned.jpg", exif=turned)
        clear = image.convert("LA").resize((20, 30))
        clear.putalpha(90)
        clear.save(tmp_path / "clear.png")
    paths += [tmp_path / name for name in ("large.jpg", "turned.jpg", "clear.png")]
    (tmp_path / "sitecustomize.py").write_text(FORBID)
    result = subprocess.run(
        [sys.executable, exported / "serve.py", *paths],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    answers = list(predictor.predict_files(paths))
    said = [line.split() for line in result.stdout.splitlines()]
    assert [row[:2] for row in said] == [[str(answer.path), answer.class_name] for answer in answers]
    np.testing.assert_allclose(
        [float(row[2]) for row in said], [answer.probability for answer in answers], atol=2e-6
    )


def test_the_forbidding_works(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(FORBID)
    result = subprocess.run(
        [sys.executable, "-c", "import torch"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "torch was imported" in result.stderr


def test_preprocessing_can_still_be_used_afterwards(predictor: Predictor, exported: Path) -> None:
    """Nothing that was made while tracing stays behind."""
    assert isinstance(predictor.trained.preprocessing, Standardise)
    assert predictor(digits().images[:2]).logits.isfinite().all()


def test_a_pretrained_network_is_inside(tmp_path: Path) -> None:
    """Its conversion takes long, so only what would be converted is looked at."""
    plain = untrained("supervised")
    config = replace(plain.trained.config, data=replace(plain.trained.config.data, features=LITE0))
    config = replace(config, backbone=BackboneConfig("head"))
    model = build_algorithm(config, (1280,), 10).eval().inference_model()
    preprocessing = Standardise((0.2,) * 1280, (0.4,) * 1280)
    trained = TrainedRun(config, tuple("0123456789"), (1280,), preprocessing, model, 255.0, (1, 8, 8))
    predictor = Predictor(RunDirectory(FORMAT_2), trained)
    deployed = Deployed(predictor)
    paths = save_digits(tmp_path, range(3))
    probabilities, _ = deployed(images_of_files(predictor, [str(tmp_path)]).permute(0, 2, 3, 1))
    answers = list(predictor.predict_files(paths))
    expected = torch.tensor([answer.probabilities for answer in answers])
    torch.testing.assert_close(probabilities, expected, atol=1e-5, rtol=0)
    names = [name for name, _ in deployed.named_parameters()]
    assert any(name.startswith("encoding_network") for name in names)
