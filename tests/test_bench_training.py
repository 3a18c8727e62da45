"""The benchmarks of recipes, of the loop and of compiling measure what they say; no time is asserted."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from manigraph.bench import loop as bench_loop
from manigraph.bench import recipes as bench_recipes
from manigraph.bench.data import random_dataset
from manigraph.bench.loop import (
    CompileSetting,
    LoopSetting,
    backbone_passes,
    compile_timing,
    graph_passes,
    time_loop,
)
from manigraph.bench.recipes import (
    Images,
    Iteration,
    Trial,
    first_step_after_warmup,
    hundred_classes,
    images_for,
    measurements,
    reduced_config,
    tried_recipes,
    try_recipe,
)
from manigraph.build import build
from manigraph.catalogue import RECIPES
from manigraph.cli.main import main
from manigraph.config import Config
from manigraph.data.locations import Locations
from manigraph.data.split import draw_split
from manigraph.errors import UserError
from manigraph.recipes.measured import Measured, add_measured, calibration_seconds, read_measured
from manigraph.training.loop import Trainer, TrainingConfig
from tests.helpers import copied, recorded_inputs

TINY = 0.02

NOISE = Images(random_dataset(3000, side=8), "noise", stand_in=True)


@pytest.fixture(autouse=True)
def _own_random_numbers() -> Iterator[None]:
    with torch.random.fork_rng():
        yield


@pytest.fixture(autouse=True)
def _no_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer than all the rest of a trial, and has a test of its own."""
    monkeypatch.setattr(bench_recipes, "calibration_seconds", lambda passes: 0.1 / passes)


def tiny(recipe: str, algorithm: str) -> Config[Any]:
    config = reduced_config(RECIPES.get(recipe)(algorithm), TINY)
    return replace(config, data=replace(config.data, labels=500, validation=100))


def trial(
    recipe: str = "svhn", algorithm: str = "manifold_graph", scale: float = 0.4, images: Images = NOISE
) -> Trial:
    return try_recipe(recipe, tiny(recipe, algorithm), images, scale=scale, tell=lambda text: None)


# Recipes


def test_every_recipe_but_own_images_is_tried() -> None:
    own = {"folder", "folder_features", "folder_fine_tuned"}
    assert set(tried_recipes()) == set(RECIPES) - own - {"cifar10_features"}


@pytest.mark.parametrize(
    ("recipe", "algorithm", "expected"),
    [
        ("svhn", "pi_vat", 0),
        ("svhn", "manifold_graph", 2000),
        ("svhn_small", "manifold_graph", 22),  # 2 / 282 of 3,000 is 21.3
        ("digits", "manifold_graph", 100),
    ],
)
def test_the_graph_comes_in_after_the_warm_up(recipe: str, algorithm: str, expected: int) -> None:
    assert first_step_after_warmup(RECIPES.get(recipe)(algorithm)) == expected


def test_a_trial_makes_first_steps_and_steps_with_the_graph() -> None:
    found = trial(scale=1.0)
    assert found.problems == ()
    assert [i.step for i in found.iterations] == [0, 1, 2, 3, 4, 2000, 2001, 2002]
    assert ["anchor" in i.terms for i in found.iterations] == [False] * 5 + [True] * 3
    # The paper's rates: from 2e-4 in 2,000 steps to 2e-3, then in 120,000 to 2e-2; momentum falls then.
    for done in found.iterations:
        expected = 2e-4 + 1.8e-3 * done.step / 2000
        if done.step >= 2000:
            expected = 2e-3 + 1.8e-2 * (done.step - 2000) / 120_000
        assert done.learning_rate == pytest.approx(expected)
        assert done.momentum == pytest.approx(0.95 - 0.1 * max(0, done.step - 2000) / 120_000)
        assert sum(done.terms.values()) == pytest.approx(done.loss, rel=1e-5)
    assert found.seconds_per_step > 0
    assert found.calibration_seconds == 0.02  # five passes; a quick look takes one
    assert found.steps == 282_000
    assert found.digest == NOISE.dataset.digest
    assert found.stand_in
    assert found.peak_mib is None or found.peak_mib > 50


def test_a_method_without_a_graph_makes_first_steps_only() -> None:
    found = trial(algorithm="pi_vat")
    assert [i.step for i in found.iterations] == [0, 1]
    assert found.problems == ()


def test_a_run_that_begins_with_small_images_is_tried_with_both_sizes() -> None:
    images = Images(random_dataset(3000, side=16), "noise", stand_in=True)
    found = trial("svhn_30min", scale=1.0, images=images)
    assert found.problems == ()
    # The graph comes in after a fifth of 11,000 steps, whole images after six tenths.
    assert [i.step for i in found.iterations] == [0, 1, 2, 3, 4, 2200, 2201, 2202, 6600, 6601, 6602]


def test_time_of_a_step_is_the_mean_of_small_and_whole_images() -> None:
    training = TrainingConfig(steps=1000, half_size_fraction=0.6)
    seconds = {0: 9.0, 1: 0.5, 200: 7.0, 201: 1.0, 202: 1.0, 600: 8.0, 601: 5.0, 602: 5.0}
    iterations = [Iteration(step, time, 1.0, {}, 0.1, 0.9) for step, time in seconds.items()]
    # 0.6 · 1 s + 0.4 · 5 s; the first of each kind pays for kernels, those before the warm-up do not count.
    assert bench_recipes._seconds_per_step(iterations, training, later=200) == pytest.approx(2.6)
    # Broken off before whole images: what there is.
    assert bench_recipes._seconds_per_step(iterations[:5], training, later=200) == pytest.approx(1.0)
    assert bench_recipes._seconds_per_step([], training, later=200) == 0
    whole = replace(training, half_size_fraction=0.0)
    assert bench_recipes._seconds_per_step(iterations[:2], whole, later=0) == 0.5


def test_a_trial_counts_the_parameters_of_the_method() -> None:
    config = tiny("svhn", "manifold_graph")
    algorithm = build(config, dataset=NOISE.dataset).trainer.algorithm
    assert trial().parameters == sum(p.numel() for p in algorithm.parameters())


def test_a_trial_notices_weights_that_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    init = Trainer.__init__

    def forgetful(self: Trainer, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        (group,) = self.optimizer.param_groups
        group["params"] = group["params"][1:]

    monkeypatch.setattr(Trainer, "__init__", forgetful)
    (problem,) = trial(algorithm="pi_vat").problems
    assert problem == "these weights did not move: model.backbone.blocks.0.weight"


def test_a_trial_notices_a_momentum_that_the_optimiser_never_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Trainer.train_step

    def without_momentum(self: Trainer, batch: Any) -> Any:
        record = step(self, batch)
        self.optimizer.param_groups[0]["momentum"] = 0.9
        return record

    monkeypatch.setattr(Trainer, "train_step", without_momentum)
    problems = trial(algorithm="pi_vat").problems
    assert len(problems) == 2
    assert "step 0 was made with learning rate 0.0002 and momentum 0.9, the schedule says" in problems[0]


def test_a_trial_notices_a_graph_that_stays_off() -> None:
    config = tiny("svhn", "manifold_graph")
    never = replace(config, method=replace(config.method, warmup_fraction=2.0))
    with pytest.raises(StopIteration):
        first_step_after_warmup(never)
    found = trial()
    assert bench_recipes._missing_terms(found.iterations, 2000) == []
    assert "has no term that the warm-up had not" in bench_recipes._missing_terms(found.iterations[:2], 1)[0]


def test_a_trial_notices_a_loss_that_is_not_finite() -> None:
    config = tiny("svhn", "pi_vat")
    wild = replace(config, schedule=replace(config.schedule, max_learning_rate=1e30))
    found = try_recipe("svhn", wild, NOISE, scale=1.0, tell=lambda text: None)
    assert any("not finite" in problem for problem in found.problems)
    assert len(found.iterations) < 5
    assert measurements([found], {"machine": {}, "commit": None, "time": ""}) == {}


def test_below_scale_one_the_network_is_narrower_and_the_batch_is_not() -> None:
    config = RECIPES.get("cifar10")("pi_vat")
    small, whole = reduced_config(config, 0.1), reduced_config(config, 3.0)
    assert (small.backbone.width, whole.backbone.width) == (0.1, 1.0)
    assert small.batch == config.batch
    assert replace(whole, training=config.training) == config


def test_ten_classes_stand_in_for_a_hundred() -> None:
    ten = random_dataset(2000, side=8)
    ten = replace(ten, train=torch.arange(1500), test=torch.arange(1500, 2000), name="cifar10")
    images = hundred_classes(ten)
    dataset = images.dataset
    assert images.stand_in
    assert images.what.startswith("stand-in: 2,000 images of cifar10 with each class cut into ten")
    assert "cifar100 is not on this machine" in images.what
    assert dataset.num_classes == len(dataset.class_names) == 100
    assert torch.equal(dataset.classes // 10, ten.classes)
    assert dataset.classes[dataset.train].bincount().tolist() == [15] * 100
    assert dataset.classes[dataset.test].bincount().tolist() == [5] * 100
    assert torch.equal(dataset.images, ten.images)
    split = draw_split(dataset, num_labels=500, num_validation=100, seed=0)
    assert dataset.classes[split.labelled].bincount().tolist() == [5] * 100


def test_images_that_are_missing_are_replaced_by_noise_of_their_shape(tmp_path: Path) -> None:
    nowhere = Locations(data=tmp_path, cache=tmp_path / "cache")
    whole = images_for("fashion_mnist", nowhere, reduced=False, needed=100)
    assert whole.dataset.input_shape == (1, 28, 28) or not whole.stand_in  # Debian has a package of it
    small = images_for("svhn", nowhere, reduced=False, needed=100, image_size=16)
    assert small.dataset.input_shape == (3, 16, 16)
    reduced = images_for("cifar100", nowhere, reduced=True, needed=2500)
    assert reduced.what == "stand-in: noise of 16x16, because cifar100 is not on this machine"
    assert (reduced.dataset.input_shape, reduced.dataset.num_classes) == ((3, 16, 16), 100)
    assert len(reduced.dataset.images) >= 2500


def test_images_that_are_damaged_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "cifar10").mkdir()
    with pytest.raises(UserError, match="no files of cifar10"):
        images_for("cifar10", Locations(tmp_path, tmp_path / "cache"), reduced=True, needed=100)


def test_the_command_tries_recipes_in_processes_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MANIGRAPH_DATA", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    output = tmp_path / "bench.json"
    arguments = ["--recipes", "svhn_small", "--scale", "0.1", "--output", str(output)]
    assert main(["bench", "--sections", "recipes", *arguments]) == 0
    printed = capsys.readouterr()
    assert "all well" in printed.out
    assert "svhn_small was tried on a stand-in: noise of 16x16" in printed.out
    assert "svhn_small, pi_vat: images" in printed.err
    record = json.loads(output.read_text())
    assert record["origins"]["recipes"]["machine"]["cores"]
    assert [(t["recipe"], t["algorithm"]) for t in record["recipes"]] == [
        ("svhn_small", "pi_vat"),
        ("svhn_small", "manifold_graph"),
    ]
    for found in record["recipes"]:
        assert {field.name for field in dataclasses.fields(Trial)} == found.keys()
        assert found["problems"] == []
        assert found["threads"] == 1


def test_a_recipe_that_cannot_be_tried_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANIGRAPH_DATA", str(tmp_path))
    (tmp_path / "svhn").mkdir()
    with pytest.raises(UserError, match=r"recipe svhn with pi_vat could not be tried: .*no files of svhn"):
        bench_recipes.try_in_process("svhn", "pi_vat", TINY, lambda text: None)


def test_a_problem_ends_the_command_with_code_1_after_the_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = replace(trial(algorithm="pi_vat"), problems=("these weights did not move: all",))
    monkeypatch.setattr(bench_recipes, "try_in_process", lambda *_: bad)
    arguments = ["--recipes", "svhn", "--output", str(tmp_path / "bench.json")]
    measured = tmp_path / "measured.json"
    assert main(["bench", "--sections", "recipes", *arguments, "--measured", str(measured)]) == 1
    assert "svhn, pi_vat: these weights did not move: all" in capsys.readouterr().out
    assert json.loads((tmp_path / "bench.json").read_text())["recipes"][0]["problems"]
    assert read_measured(measured) == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--recipes", "svnh"], "unknown recipe 'svnh': did you mean 'svhn'?"),
        (["--recipes", "folder"], "depends on your own images"),
        (["--measured", "m.json", "--scale", "0.5"], "--measured takes figures of whole networks"),
        (["--measured", "nowhere/m.json"], "the folder of 'nowhere/m.json' does not exist"),
    ],
)
def test_what_would_be_in_vain_is_refused_at_once(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--sections", "recipes", *arguments]) == 2
    assert message in capsys.readouterr().err


# What is measured once and told on other machines


def figures(seconds: float = 2.0, calibration: float = 0.1) -> Measured:
    machine = {"system": "Linux", "processor": "slow", "cores": 2}
    return Measured(1000, seconds, calibration, "noise", machine, "abc", "2026-01-01")


def test_measurements_are_added_to_those_of_other_recipes(tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    add_measured(path, {"svhn": {"pi_vat": figures(1.0), "manifold_graph": figures(2.0)}})
    add_measured(path, {"svhn": {"pi_vat": figures(3.0)}, "digits": {"pi_vat": figures(4.0)}})
    assert read_measured(path) == {
        "svhn": {"pi_vat": figures(3.0), "manifold_graph": figures(2.0)},
        "digits": {"pi_vat": figures(4.0)},
    }
    assert read_measured(tmp_path / "none.json") == {}


def test_the_committed_measurements_can_be_read_and_are_of_recipes() -> None:
    for recipe, known in read_measured().items():
        assert recipe in RECIPES
        for algorithm, found in known.items():
            assert algorithm in bench_recipes.ALGORITHMS_TRIED
            assert found.seconds_per_step > 0
            assert found.calibration_seconds > 0


def test_time_here_is_in_proportion_to_the_calibration() -> None:
    # 500 steps of 2 s on a machine whose pass takes 0.1 s; here one takes 0.3 s.
    assert figures().seconds_here(500, calibration_here=0.3) == pytest.approx(3000.0)


def test_a_trial_becomes_a_measurement() -> None:
    found = trial(algorithm="pi_vat")
    machine = {"processor": "x", "cores": 2}
    table = measurements([found], {"machine": machine, "commit": "abc", "time": "now"})
    expected = Measured(
        found.parameters,
        found.seconds_per_step,
        found.calibration_seconds,
        "noise",
        machine,
        "abc",
        "now",
    )
    assert table == {"svhn": {"pi_vat": expected}}


def test_calibration_leaves_random_numbers_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    assert calibration_seconds(torch.device("cpu"), passes=1) > 0
    assert torch.equal(torch.rand(2), expected)


# The loop against bare passes

SMALL = {
    algorithm: LoopSetting(algorithm, width=0.02, unlabelled=8, rounds=2, side=8)
    for algorithm in ("pi_vat", "manifold_graph")
}


@pytest.mark.parametrize("algorithm", SMALL)
def test_the_loop_is_timed_against_the_passes(algorithm: str) -> None:
    rounds = 0

    def on_round() -> None:
        nonlocal rounds
        rounds += 1

    timing = time_loop(SMALL[algorithm], 4, on_round)
    assert rounds == 6
    assert timing.setting == "CNN-13 at width 0.02, 32 + 8 images of 8x8"
    assert min(dataclasses.astuple(timing)[2:]) > 0
    parts = timing.data_milliseconds + timing.optimizer_milliseconds
    assert parts < 2 * timing.milliseconds
    assert timing.low <= timing.high


def test_one_step_in_twenty_is_logged() -> None:
    plain = {"loop": 3.0, "passes": 2.0, "data": 0.1, "optimizer": 0.1}
    slower = {**plain, "loop": 3.2}
    logged = {**plain, "loop": 5.0, "record": 0.2}
    timing = bench_loop._loop_timing(SMALL["pi_vat"], [plain, logged, plain, slower])
    assert timing.ratio == pytest.approx((19 * 1.5 + 2.5) / 20)
    assert (timing.low, timing.high) == (1.5, 1.6)
    assert timing.logged_ratio == 2.5
    assert timing.record_milliseconds == 200
    assert timing.bare_milliseconds == 2000


@pytest.mark.parametrize("algorithm", SMALL)
def test_bare_passes_are_those_of_the_step(algorithm: str) -> None:
    """The same images go through the backbone as in training, and every weight gets a gradient."""
    setting = SMALL[algorithm]
    job = build(bench_loop._config(setting, 10), dataset=bench_loop._images(setting))
    batch = next(job.batches)
    model: Any = job.trainer.algorithm.model
    with recorded_inputs(model.backbone) as in_training:
        job.trainer.train_step(batch)
    kinds = [backbone_passes, graph_passes] if algorithm == "manifold_graph" else [backbone_passes]
    for make_passes in kinds:
        passes = make_passes(model, batch)
        weights = copied(dict(model.named_parameters()))
        with recorded_inputs(model.backbone) as seen:
            passes()
        assert [len(images) for images in seen] == [len(images) for images in in_training] == [40, 8, 8]
        torch.testing.assert_close(seen[0], in_training[0])
        used: nn.Module = model.backbone if make_passes is backbone_passes else model
        assert all(p.grad is not None and p.grad.any() for p in used.parameters())
        # Nothing is updated, and a second call does not add to the gradients of the first.
        for name, weight in model.named_parameters():
            assert torch.equal(weight, weights[name])
        first = model.linear.bias.grad.clone()
        passes()
        torch.testing.assert_close(model.linear.bias.grad, first)


def test_the_loop_command_leaves_out_the_papers_width_in_a_quick_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = replace(SMALL["pi_vat"], width=0.03, only_whole=True)
    monkeypatch.setattr(bench_loop, "LOOP_SETTINGS", (*SMALL.values(), whole))
    output = tmp_path / "bench.json"
    assert main(["bench", "--sections", "loop", "--scale", "0.5", "--output", str(output)]) == 0
    assert "The whole loop against bare passes" in capsys.readouterr().out
    timings = json.loads(output.read_text())["loop"]
    assert [t["algorithm"] for t in timings] == ["pi_vat", "manifold_graph"]


# Compiling


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(0.75, 320), (1.0, None), (1.2, None)],  # 40 s / (0.5 s · 0.25) = 320 steps
)
def test_steps_after_which_compiling_pays(ratio: float, expected: int | None) -> None:
    timing = compile_timing("x", eager=0.5, compiled=0.5 * ratio, ratio=ratio, compiling=40.0)
    assert timing.pays_after_steps == expected
    assert timing.compile_seconds == 40.0


def test_only_the_backbone_of_one_of_two_jobs_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measurement itself, without the minute that a real compilation takes."""
    jobs = []
    compiled: list[nn.Module] = []
    monkeypatch.setattr(bench_loop, "compile_backbone", compiled.append)

    def make_job() -> Any:
        setting = SMALL["manifold_graph"]
        jobs.append(build(bench_loop._config(setting, 10), dataset=bench_loop._images(setting)))
        return jobs[-1]

    timing = bench_loop.time_compiled(CompileSetting("tiny", make_job, 1), 2, lambda: None)
    assert compiled == [jobs[1].trainer.algorithm.model.backbone]
    assert [job.trainer.step for job in jobs] == [5, 5]
    assert timing.ratio > 0
    assert timing.compile_seconds >= 0


def test_without_a_compiler_there_is_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "manigraph", "bench", "--sections", "compile", "--output", "b.json"]
    environment = {**os.environ, "CXX": "/no/such/compiler", "OMP_NUM_THREADS": "1", "COLUMNS": "400"}
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("torch cannot compile here, so nothing is measured; it needs a C++ compiler")
    assert lines[1:] == ["written to b.json"]
    (only,) = json.loads((tmp_path / "b.json").read_text())["compile"]
    assert only["reason"] == lines[0]
