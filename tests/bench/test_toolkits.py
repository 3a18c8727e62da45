"""Steps of public toolkits are real training steps, and nothing of their stubs is left behind.

The toolkits are looked for in the folder that MANIGRAPH_TOOLKITS names, or in this environment.
"""

import importlib
import importlib.util
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from manigraph.bench import toolkits
from manigraph.bench.toolkits import (
    METHODS,
    QUICK,
    TOOLKITS,
    Comparable,
    Images,
    Step,
    Toolkit,
    importable,
    our_job,
    run_toolkits_benchmark,
    their_step,
    toolkits_problem,
)
from manigraph.bench.turns import Patience
from manigraph.errors import UserError
from manigraph.nn import Classifier

TINY = replace(QUICK, labelled=4, unlabelled=8, side=8)
L, U = TINY.labelled, TINY.unlabelled

PASSES = {
    ("semilearn", "vat"): [L, U, U, U],
    ("semilearn", "pi_model"): [L, U, U],
    ("semilearn", "fixmatch"): [L + 2 * U],
    ("semilearn", "mean_teacher"): [L, U, U],  # the teacher is the network with other weights
    ("LAMDA-SSL", "vat"): [L, U, U, U],
    ("LAMDA-SSL", "pi_model"): [L, U, U],
    ("LAMDA-SSL", "fixmatch"): [L + 2 * U],
    ("ModSSC", "vat"): [L, U, U, U],
    ("ModSSC", "pi_model"): [L, U, U],
    ("ModSSC", "fixmatch"): [L, U, U],
    ("ModSSC", "mean_teacher"): [L, U],  # the teacher is another network
}
"""Images in each pass through the network, in the order of the toolkit's code."""


@pytest.fixture(autouse=True)
def _own_random_numbers() -> Iterator[None]:
    with torch.random.fork_rng():
        yield


def _weights(network: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()]).clone()


# With the toolkits


@pytest.fixture
def _installed() -> Iterator[None]:
    folder = os.environ.get("MANIGRAPH_TOOLKITS")
    path = None if folder is None else Path(folder)
    problem = toolkits_problem(path)
    if problem is not None:
        pytest.skip(f"MANIGRAPH_TOOLKITS names no folder with the toolkits: {problem}")
    with importable(path):
        yield


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize(("distribution", "algorithm"), PASSES)
def test_a_step_of_a_toolkit_trains_our_network(
    distribution: str, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolkit = next(toolkit for toolkit in TOOLKITS if toolkit.distribution == distribution)
    job = our_job(algorithm, TINY, entropy_weight=0.0)
    step = their_step(toolkit, algorithm, job, next(job.batches))
    losses: list[float] = []
    backward: Any = Tensor.backward

    def recorded(loss: Tensor) -> None:
        losses.append(loss.item())
        backward(loss)

    monkeypatch.setattr(Tensor, "backward", recorded)
    sizes: list[int] = []
    step.network.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    ours, before = _weights(job.trainer.algorithm.model), _weights(step.network)

    assert torch.equal(before, ours)  # the same first weights
    for _ in range(2):
        sizes.clear()
        step.take()
        after = _weights(step.network)
        assert sizes == PASSES[distribution, algorithm]
        assert torch.isfinite(after).all()
        assert not torch.equal(after, before)
        before = after
    assert len(losses) >= 2
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[-1] > 0
    assert torch.equal(_weights(job.trainer.algorithm.model), ours)  # a copy was trained


@pytest.mark.usefixtures("_installed")
def test_a_step_of_a_toolkit_follows_the_unlabelled_images_too() -> None:
    """A step on other unlabelled images leads elsewhere."""
    for toolkit in TOOLKITS:
        for algorithm in sorted(set(toolkit.methods) - {"fixmatch"}):  # whose threshold nothing reaches yet
            job = our_job(algorithm, TINY, entropy_weight=0.0)
            batch = next(job.batches)
            views = {name: -view for name, view in batch.unlabelled.items()}
            results = []
            for seen in (batch, replace(batch, unlabelled=views)):
                step = their_step(toolkit, algorithm, job, seen)
                torch.manual_seed(0)
                step.take()
                results.append(_weights(step.network))
            assert not torch.equal(*results), (toolkit.distribution, algorithm)


def test_every_method_of_every_toolkit_is_tried_above() -> None:
    assert set(PASSES) == {(toolkit.distribution, name) for toolkit in TOOLKITS for name in toolkit.methods}


# Without them


def _fake_step(algorithm: str, model: Classifier, images: Images) -> Step:
    fake = importlib.import_module("fake_toolkit")
    assert images.weak.is_contiguous()
    assert next(p for p in model.parameters() if p.ndim == 4).is_contiguous()
    return Step(model, lambda: fake.STEPS.append(algorithm))


FAKE = Toolkit(
    "fake-toolkit",
    "1.0",
    "fake_toolkit",
    _fake_step,
    {"vat": Comparable(at_least=1e9, entropy_weight=0.06), "pi_model": Comparable(at_least=0.0)},
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a toolkit that imports what is not there."""
    package = tmp_path / "fake_toolkit"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import torchvision.transforms as transforms\n"
        "from timm.models.layers import DropPath, trunc_normal_\n"
        "from torchvision import datasets\n"
        "class Crop(transforms.RandomCrop):\n"
        "    mode = transforms.InterpolationMode.NEAREST\n"
        "CROP, DATA = Crop(32, padding=4), datasets.CIFAR10\n"
        "STEPS = []\n"
    )
    information = tmp_path / "fake_toolkit-1.1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-toolkit\nVersion: 1.1\n")
    monkeypatch.setattr(toolkits, "TOOLKITS", (FAKE,))
    return tmp_path


def test_missing_toolkits_are_named_with_the_way_to_install_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolkits, "TOOLKITS", (FAKE, replace(FAKE, distribution="other")))
    assert toolkits_problem(tmp_path) == (
        f"there is no fake-toolkit and no other in '{tmp_path}': install them with `pip install --no-deps "
        f"--target {tmp_path} fake-toolkit==1.0 other==1.0` and name that folder with --toolkits"
    )
    with pytest.raises(UserError, match=r"no fake-toolkit and no other in this environment: .* FOLDER"):
        run_toolkits_benchmark(None, 0.01, lambda _: None)


def test_toolkits_that_are_there_are_no_problem(folder: Path) -> None:
    assert toolkits_problem(folder) is None


def test_nothing_is_left_of_toolkits_and_stubs(folder: Path) -> None:
    path, finders, cuda = [*sys.path], [*sys.meta_path], Tensor.cuda
    image = torch.zeros(1)
    with importable(folder):
        fake = importlib.import_module("fake_toolkit")
        assert fake.Crop.mode == "NEAREST"
        assert "torchvision.transforms" in sys.modules
        assert image.cuda(0) is image

    assert (sys.path, sys.meta_path) == (path, finders)
    assert Tensor.cuda is cuda
    left = {name.partition(".")[0] for name in sys.modules}
    assert not left & {"fake_toolkit", "timm"}
    assert not isinstance(sys.modules.get("torchvision"), toolkits._StubModule)


def test_all_is_as_before_after_an_error_too(folder: Path) -> None:
    path, finders = [*sys.path], [*sys.meta_path]
    (folder / "fake_toolkit" / "broken.py").write_text("1 / 0")

    def fails() -> None:
        with importable(folder):
            importlib.import_module("fake_toolkit.broken")

    with pytest.raises(ZeroDivisionError):
        fails()
    assert (sys.path, sys.meta_path) == (path, finders)
    assert "fake_toolkit" not in sys.modules


def test_stubs_have_no_say_over_other_modules() -> None:
    with importable(None):
        assert importlib.util.find_spec("no_such_module") is None
        assert importlib.util.find_spec("timm_of_another_name") is None


def test_the_same_weights_and_images_with_and_without_the_entropy_term() -> None:
    jobs = [our_job("vat", TINY, entropy_weight) for entropy_weight in (0.0, 0.06)]
    weights = [_weights(job.trainer.algorithm.model) for job in jobs]
    images = [next(job.batches).unlabelled["image"] for job in jobs]
    assert torch.equal(*weights)
    assert torch.equal(*images)
    assert images[0].shape == (U, 3, 8, 8)


def test_every_method_is_measured_against_ours_with_the_toolkits_own_target(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolkits, "QUICK", TINY)
    monkeypatch.setattr(toolkits, "PATIENCE", Patience(least_rounds=100, most_rounds=200))
    monkeypatch.setattr(toolkits, "METHODS", {name: METHODS[name] for name in FAKE.methods})
    told: list[str] = []
    ratios = run_toolkits_benchmark(folder, 0.01, told.append)

    assert [(r.setting.partition(",")[0], r.what, r.versus, r.target, r.reached) for r in ratios] == [
        ("VAT", "fake-toolkit 1.1", "manigraph with entropy weight 0.06", "≥ 1e+09", False),
        ("Π-model", "fake-toolkit 1.1", "manigraph", "≥ 0", True),
    ]
    assert all(r.setting.endswith("CNN-13 at width 0.0625, 4 + 8 images of 8x8") for r in ratios)
    assert all(r.ratio < 1 for r in ratios)  # their step does nothing
    assert "VAT: building" in told
    assert "Π-model: round 1" in told
