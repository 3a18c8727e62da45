"""The benchmarks compare what they say they compare; no time is asserted."""

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from manigraph.bench import (
    attention,
    end_to_end,
    graph,
    inference,
    narrow,
    native,
    peak,
    power,
    startup,
    steps,
)
from manigraph.bench.data import random_dataset
from manigraph.bench.settings import TINY, NetworkSetting
from manigraph.bench.turns import Patience, Ratio
from manigraph.catalogue import ALGORITHMS
from manigraph.contract import Batch
from manigraph.data.batches import BatchConfig
from manigraph.functional import class_centres
from manigraph.native import convolution as native_convolution
from manigraph.native import library
from tests.helpers import copied, gradients_of

QUICK = 0.02


def silent(_: str) -> None:
    """Nobody listens."""


@pytest.fixture(autouse=True)
def _own_random_numbers() -> Iterator[None]:
    with torch.random.fork_rng():
        yield


@pytest.mark.parametrize(
    ("run", "pairs", "target"),
    [
        (power.run_power_benchmark, {(power.BACKWARD, power.OURS)}, "≥ 1.15"),
        (narrow.run_narrow_benchmark, {("pi_vat", narrow.PLAIN)}, "≤ 0.75"),
        (inference.run_inference_benchmark, {(inference.BARE, inference.FULL)}, "≥ 0.97"),
        (graph.run_graph_benchmark, {(graph.WRITTEN_OUT, graph.OURS)}, "≥ 50"),
        (
            end_to_end.run_end_to_end_benchmark,
            {(usual, end_to_end.OURS) for usual in (end_to_end.USUAL, end_to_end.PLAIN, end_to_end.SAME)},
            "≥ 1.5",
        ),
    ],
)
def test_ratios_with_their_targets(
    run: Callable[[float, Callable[[str], None]], list[Ratio]], pairs: set[tuple[str, str]], target: str
) -> None:
    before = torch.get_rng_state()
    told: list[str] = []
    ratios = run(QUICK, told.append)
    assert {(ratio.what, ratio.versus) for ratio in ratios} == pairs
    assert {ratio.target for ratio in ratios} - {""} == {target}
    assert all(ratio.low <= ratio.ratio <= ratio.high for ratio in ratios)
    assert told
    assert torch.equal(torch.get_rng_state(), before)


# Steps


def test_a_step_either_way_is_the_same_and_only_one_is_in_c() -> None:
    setting = NetworkSetting(width=1 / 8, labelled=4, unlabelled=8, side=16)
    weights = []
    for name in (native.TORCH, native.OURS):
        torch.manual_seed(0)
        job = setting.job("pi_vat")
        with patch.object(native_convolution, "convolution", wraps=native_convolution.convolution) as used:
            native.contenders(job)[name]()
        assert (used.call_count > 0) == (name == native.OURS and library() is not None)
        weights.append(torch.cat([p.detach().flatten() for p in job.trainer.algorithm.parameters()]))
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-5)


def test_what_the_inner_loops_bring_is_measured_for_both_methods() -> None:
    ratios = native.run_native_benchmark(QUICK, silent)
    assert [ratio.setting.partition(",")[0] for ratio in ratios] == list(native.ALGORITHMS)
    assert {(ratio.what, ratio.versus) for ratio in ratios} == {(native.OURS, native.TORCH)}


def test_steps_have_the_targets_of_the_graph() -> None:
    targets = {setting.name: str(setting.target) for setting in steps.SETTINGS if setting.target}
    assert targets == {
        "digits recipe": "≤ 1.3",
        "CNN-13 at width 1/4, 32 + 128 images of 32x32": "≤ 1.15",
        "CNN-13 at width 1, 32 + 128 images of 32x32": "≤ 1.05",
        "CNN-13 at width 1, 32 + 128 images of 32x32, 100 classes": "≤ 1.1",
    }
    pair, others = (setting.algorithms for setting in steps.SETTINGS[:2])
    assert {*pair, *others} == set(ALGORITHMS)


@pytest.mark.parametrize("network", [None, TINY])
def test_the_graph_is_on_when_it_is_timed(network: NetworkSetting | None) -> None:
    job = steps.StepSetting(network, steps.SETTINGS[0].target).job("manifold_graph")
    job.trainer.train_step(next(job.batches))
    assert bool(job.trainer.algorithm.model.graph_is_on)


def test_settings_have_their_classes_and_prototypes() -> None:
    model: Any = (
        NetworkSetting(width=1 / 16, side=8, classes=100).job("manifold_graph").trainer.algorithm.model
    )
    assert model.num_classes == 100
    assert len(model.class_nodes().prototypes) == 2000


# The power step


def test_a_power_step_by_backward_gives_the_same_step() -> None:
    ours, other = TINY.job("vat"), TINY.job("vat")
    batch = next(ours.batches)
    state = torch.get_rng_state()
    work = power.contenders(ours, other, batch)
    for step in work.values():
        torch.set_rng_state(state)  # dropout
        step()
    for mine, theirs in zip(
        ours.trainer.algorithm.parameters(), other.trainer.algorithm.parameters(), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_a_power_step_by_backward_computes_the_gradients_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    job = TINY.job("vat")
    seen = []
    zero_grad = job.trainer.algorithm.zero_grad

    def noticed(set_to_none: bool = True) -> None:
        seen.append(all(p.grad is not None for p in job.trainer.algorithm.parameters()))
        zero_grad(set_to_none)

    monkeypatch.setattr(job.trainer.algorithm, "zero_grad", noticed)
    power.contenders(TINY.job("vat"), job, next(job.batches))[power.BACKWARD]()
    assert seen == [True]


# Graphs


def test_written_out_is_the_same_loss_with_the_same_gradients() -> None:
    case = graph.graph_case(4, prototypes_per_class=3)
    model = case.method.model
    ours = graph.our_loss(case)
    written_out = graph.written_out_graphs(case, len(case.features)) + graph.written_out_losses(case)
    torch.testing.assert_close(ours, written_out, rtol=1e-5, atol=1e-6)
    expected = gradients_of(model, written_out)
    for name, gradient in gradients_of(model, ours).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-3, atol=1e-5)
    (mine,) = torch.autograd.grad(ours, case.features, retain_graph=True)
    (theirs,) = torch.autograd.grad(written_out, case.features)
    torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-6)


def test_a_few_graphs_are_scaled_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {graph.OURS: [2.0], "graphs": [3.0], "losses": [4.0]}
    monkeypatch.setattr(graph, "take_turns", lambda *_: times)
    ratio = graph.time_written_out(3, 4, Patience(), lambda _: None)
    assert ratio.ratio == (40 * 3.0 + 4.0) / 2.0


def test_growth_is_measured_in_a_process_of_its_own() -> None:
    told: list[str] = []
    growths = graph.run_growth_benchmark(QUICK, told.append)
    assert [(g.classes, g.prototypes) for g in growths] == [(10, 200), (32, 640)]
    assert all(g.milliseconds > 0 and g.extra_mib > 0 and g.repeats >= 1 for g in growths)
    assert told == ["10 classes", "32 classes"]


# Attention to a few classes


def test_all_classes_considered_is_attention_to_all() -> None:
    figures = attention.measure_nearest(12, 12, 8.0, Patience().scaled(QUICK), per_class=3)
    assert figures.prototypes == 36
    assert figures.lost_weight == figures.error == 0
    assert figures.time_ratio > 0


def test_what_is_left_out_is_the_attention_to_other_classes() -> None:
    torch.manual_seed(0)
    images, prototypes = torch.randn(7, 6), torch.randn(12, 6)
    centres = class_centres(prototypes, 4)
    context = attention.nearest_classes_context(images, prototypes, centres, 2)
    for image, heard in zip(images, context, strict=True):
        nearest = sorted(range(4), key=lambda c: -float(image @ centres[c]))[:2]
        chosen = torch.cat([prototypes[3 * c : 3 * c + 3] for c in nearest])
        assert torch.allclose(heard, torch.softmax(chosen @ image, dim=0) @ chosen, atol=1e-6)


def test_the_fewer_classes_the_more_is_lost_and_the_sharper_the_less() -> None:
    few, more, sharp = (
        attention.measure_nearest(30, considered, sharpness, Patience().scaled(QUICK))
        for considered, sharpness in ((2, 8.0), (10, 8.0), (2, 24.0))
    )
    assert few.lost_weight > more.lost_weight > 0
    assert few.error > more.error > 0
    assert few.lost_weight > sharp.lost_weight
    assert sharp.own_class_weight > few.own_class_weight


# Layouts, data, prediction, limits


@pytest.mark.parametrize("setting", narrow.SETTINGS, ids=lambda setting: setting.name)
def test_there_is_a_lean_step_for_every_narrow_network(setting: narrow.NarrowSetting) -> None:
    narrow.work_of(narrow.PLAIN, setting.make_job())


def test_the_plain_step_is_in_the_usual_layout() -> None:
    job = TINY.job("pi_vat")
    seen: list[bool] = []

    def noticed(module: Any, inputs: tuple[Tensor, ...]) -> None:
        weight_is_usual = module.weight.is_contiguous()
        seen.append(weight_is_usual and inputs[0].is_contiguous())

    hook = torch.nn.modules.module.register_module_forward_pre_hook(
        lambda module, inputs: noticed(module, inputs) if isinstance(module, torch.nn.Conv2d) else None
    )
    try:
        narrow.work_of(narrow.PLAIN, job)()
        assert seen
        assert all(seen)
        seen.clear()
        narrow.work_of("pi_vat", job)()
        assert not any(seen[1:4])  # of the first layers, whose kernels are not 1x1
    finally:
        hook.remove()


def test_the_usual_batches_hold_what_the_step_needs() -> None:
    job = TINY.job("pi_vat")
    batches = end_to_end.UsualBatches(
        job, random_dataset(4000, TINY.side), BatchConfig(4, 6), torch.channels_last
    )
    batch: Batch = next(batches)
    assert len(batches.workers) == 2
    assert batch.labelled["image"].shape == (4, 3, TINY.side, TINY.side)
    assert batch.labels.shape == (4,)
    assert batch.labelled["image"].is_contiguous(memory_format=torch.channels_last)
    views = batch.unlabelled
    assert set(views) == {"first", "second"}
    assert views["first"].shape == (6, 3, TINY.side, TINY.side)
    assert not torch.equal(views["first"], views["second"])
    batches.pause()
    batches.close()
    for worker in batches.workers:
        worker.join(timeout=60)
    assert not any(worker.is_alive() for worker in batches.workers)


def test_prediction_goes_through_the_graph() -> None:
    work = inference.contenders(TINY)
    calls: list[str] = []
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda module, *_: calls.append(type(module).__name__)
    )
    try:
        work[inference.FULL]()
        full = list(calls)
        calls.clear()
        work[inference.BARE]()
    finally:
        hook.remove()
    assert "FrozenGraphClassifier" in full
    assert "FrozenGraphClassifier" not in calls
    assert full.count("Linear") > calls.count("Linear") == 1


def test_operations_are_those_of_all_convolutions_and_products() -> None:
    """One convolution by hand: twice in, forward and the gradient of its weight, 2 operations each."""
    job = TINY.job("supervised")
    operations = peak.operations_of_a_step(job)
    with torch.no_grad():
        model = job.trainer.algorithm.model.backbone
        total = 0

        def add(module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            nonlocal total
            if isinstance(module, torch.nn.Conv2d):
                total += output.numel() * module.weight[0].numel()

        hook = torch.nn.modules.module.register_module_forward_hook(add)
        model(next(job.batches).labelled["image"])
        hook.remove()
    first = next(m for m in model.modules() if isinstance(m, torch.nn.Conv2d))
    of_first = 10 * 8 * 8 * first.out_channels * first.weight[0].numel()
    of_linear = 10 * 10 * model.feature_size
    # Forward, gradient of weights, gradient of inputs (which images need not have).
    assert operations == 2 * (3 * total - of_first + 3 * of_linear)


def test_shares_of_the_peak() -> None:
    (share,) = peak.run_peak_benchmark(QUICK, silent)
    assert share.setting == TINY.name
    assert 0 < share.share < 1
    assert share.share == pytest.approx(share.step_gigaflops / share.peak_gigaflops, abs=0.06)


def test_start_is_measured_in_new_processes() -> None:
    ratios = startup.run_startup_benchmark(QUICK, silent)
    assert [(ratio.what, ratio.versus) for ratio in ratios] == [
        ("manigraph --help", "half a second"),
        ("import manigraph", "import torch"),
        ("import manigraph.engine", "import torch"),
    ]
    assert ratios[0].versus_milliseconds == 500


def test_copies_are_not_changed_by_timing() -> None:
    """A quick look at steps leaves the caller's random numbers alone."""
    before = copied({"state": torch.get_rng_state()})
    ratios = steps.run_steps_benchmark(QUICK, silent)
    assert torch.equal(torch.get_rng_state(), before["state"])
    assert {ratio.setting for ratio in ratios} == {"digits recipe", TINY.name}
