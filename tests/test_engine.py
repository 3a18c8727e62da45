"""Whole runs in this process: what is trained, kept, chosen and refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import safetensors.torch
import torch

from manigraph.build import build, load_dataset
from manigraph.catalogue import RECIPES
from manigraph.config import BackboneConfig, Config, with_options
from manigraph.data.augmentation import AugmentationConfig
from manigraph.data.batches import BatchConfig
from manigraph.data.check import check_brightness
from manigraph.data.locations import Locations
from manigraph.data.preprocessing import PreprocessingConfig
from manigraph.data.sources.arrays import from_arrays
from manigraph.engine import evaluate_run, load, train
from manigraph.errors import UserError
from manigraph.recipes.automatic import control_of
from manigraph.runs import RunDirectory
from manigraph.session import clean_images
from manigraph.training.loop import TrainingConfig
from manigraph.training.selection import SelectionRule
from tests.data.pictures import photo_folder, picture, write_files
from tests.helpers import assert_bitwise_equal


def quick(algorithm: str = "pi_vat", steps: int = 6, **changes: Any) -> Config[Any]:
    config = RECIPES.get("digits")(algorithm)
    config = replace(
        config,
        backbone=BackboneConfig("small_cnn", width=0.25),
        training=TrainingConfig(steps=steps, log_every=2),
    )
    return replace(config, **changes)


def own_images(tmp_path: Path, **changes: Any) -> Config[Any]:
    """A configuration for a folder of photographs."""
    root = photo_folder(tmp_path / "photos", per_class=12, unlabelled=20)
    config = quick(**changes)
    data = replace(config.data, name="folder", path=str(root), labels=None, validation=None)
    return replace(config, data=data, augmentation=AugmentationConfig(translation=1))


@pytest.fixture
def locations(tmp_path: Path) -> Locations:
    return Locations(data=tmp_path / "data", cache=tmp_path / "cache")


def weights(run: RunDirectory) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(run.path / "model.safetensors")


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_whole_run_with_the_graph_off_is_a_run_of_pi_vat(dropout: float) -> None:
    """Same split, weights, batches, noise and dropout masks, so the same weights after some steps."""
    trained = []
    for algorithm in ("pi_vat", "manifold_graph"):
        config = quick(algorithm, backbone=BackboneConfig("small_cnn", width=0.25, dropout=dropout))
        if algorithm == "manifold_graph":
            config = replace(config, method=replace(config.method, warmup_fraction=1.0))
        job = build(config)
        for _ in range(5):
            job.trainer.train_step(next(job.batches))
        trained.append(job.trainer.algorithm.state_dict())
    pi_vat, graph_off = trained
    assert_bitwise_equal(pi_vat, {name: graph_off[name] for name in pi_vat})


def test_the_seed_decides_the_first_weights_the_batches_and_the_split() -> None:
    jobs = [build(quick(seed=seed)) for seed in (0, 0, 1)]
    first, again, other = ([p.detach() for p in job.trainer.algorithm.parameters()] for job in jobs)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True) if a.ndim > 1)
    batches = [next(job.batches).labelled["image"] for job in jobs]
    assert torch.equal(batches[0], batches[1])
    assert not torch.equal(batches[0], batches[2])
    assert jobs[0].split.digest == jobs[1].split.digest != jobs[2].split.digest


def test_validation_and_test_images_are_never_in_a_batch() -> None:
    """Every image drawn over two rounds of the stream is one that the split gives for training."""
    config = quick()
    config = replace(config, data=replace(config.data, validation=300))
    job = build(config)
    drawn: set[int] = set()
    for _ in range(20):
        next(job.batches)
        drawn |= set(job.batches.state_dict()["unlabelled"].tolist())
    assert drawn <= set(job.split.unlabelled.tolist())
    assert len(drawn) > 800


def test_own_images_are_trained_on_and_evaluated_again(tmp_path: Path, locations: Locations) -> None:
    config = own_images(tmp_path)
    run, evaluations = train(config, tmp_path / "runs", locations=locations)
    assert run.path.name == "photos-all-pi_vat-seed0"
    assert set(evaluations) == {"validation", "test"}
    data = run.read_json("data.json")
    assert data["class_names"] == ["cat", "dog"]
    assert data["input_shape"] == [3, 10, 12]
    sizes = {name: len(run.read_json("split.json")[name]) for name in ("labelled", "validation", "test")}
    assert sizes == {"labelled": 20, "validation": 4, "test": 4}
    assert run.read_json("check.json")["can_train"]
    _, again = evaluate_run(run, "test", locations=locations)
    assert again.error == evaluations["test"].error
    assert again.calibration_error == pytest.approx(evaluations["test"].calibration_error, rel=1e-4)
    # Prediction needs the run alone.
    assert load(run).class_names == ("cat", "dog")


def test_changed_images_are_noticed_by_evaluate(tmp_path: Path, locations: Locations) -> None:
    config = own_images(tmp_path)
    run, _ = train(config, tmp_path / "runs", locations=locations)
    write_files(tmp_path / "photos", [("test/cat/0.png", picture(12345))])
    with pytest.raises(UserError, match="photos holds other images now than when"):
        evaluate_run(run, "test", locations=locations)


def test_data_that_would_make_training_wrong_is_refused_before_a_run_is_made(
    tmp_path: Path, locations: Locations
) -> None:
    config = own_images(tmp_path)
    copy = (tmp_path / "photos" / "cat" / "0.png").read_bytes()
    write_files(tmp_path / "photos", [("test/dog/copy.png", copy), ("cat/00.png", copy)])
    with pytest.raises(UserError, match="1 of 5 test images are exact copies of labelled ones; remove them"):
        train(config, tmp_path / "runs", locations=locations)
    assert not (tmp_path / "runs").exists()


def test_only_supervised_training_needs_no_unlabelled_images(tmp_path: Path, locations: Locations) -> None:
    for algorithm in ("supervised", "pi_vat"):
        config = own_images(tmp_path / algorithm, algorithm=algorithm)
        config = replace(config, method=quick(algorithm).method)
        for file in (tmp_path / algorithm / "photos" / "unlabelled").iterdir():
            file.unlink()
        if algorithm == "supervised":
            train(config, tmp_path / "runs", locations=locations)
        else:
            with pytest.raises(UserError, match="there are no unlabelled images to learn from"):
                train(config, tmp_path / "runs", locations=locations)
            pooled = replace(config, data=replace(config.data, labelled_in_pool=True))
            train(pooled, tmp_path / "runs", locations=locations)


def test_labelled_images_join_the_unlabelled_ones_only_if_asked() -> None:
    for pooled in (False, True):
        config = quick()
        config = replace(config, data=replace(config.data, labelled_in_pool=pooled))
        job = build(config)
        drawn = job.batches.state_dict()
        next(job.batches)
        drawn = job.batches.state_dict()
        pool = torch.cat([drawn["unlabelled"], job.split.labelled]).unique()
        waiting = set(drawn["unlabelled"].tolist())
        assert bool(waiting & set(job.split.labelled.tolist())) == pooled
        assert len(pool) <= len(job.split.unlabelled) + len(job.split.labelled)


def test_a_stored_split_is_used_again_with_another_seed(tmp_path: Path) -> None:
    first, _ = train(quick(seed=3), tmp_path)
    config = quick(seed=4)
    split = str(first.path / "split.json")
    again, _ = train(replace(config, data=replace(config.data, split=split)), tmp_path)
    assert again.read_json("split.json") == first.read_json("split.json")
    other, _ = train(config, tmp_path)
    assert other.read_json("split.json") != first.read_json("split.json")


def test_whitening_is_kept_with_the_run(tmp_path: Path) -> None:
    run, evaluations = train(quick(preprocessing=PreprocessingConfig(kind="zca")), tmp_path)
    assert (run.path / "preprocessing.safetensors").is_file()
    _, again = evaluate_run(run, "test")
    assert again.error == evaluations["test"].error
    (run.path / "preprocessing.safetensors").unlink()
    with pytest.raises(UserError, match=r"preprocessing.json' is damaged"):
        evaluate_run(run, "test")


def test_preprocessing_never_sees_validation_or_test_images() -> None:
    config = quick()
    config = replace(config, data=replace(config.data, validation=200))
    dataset = load_dataset(config.data)
    clean = build(config, dataset=dataset)
    poisoned = dataset.images.clone()
    hidden = torch.cat([clean.split.validation, clean.split.test])
    poisoned[hidden] = (poisoned[hidden] + 100) * (1 + hidden.view(-1, 1, 1, 1) % 2).to(torch.uint8)
    other = build(config, dataset=replace(dataset, images=poisoned))
    assert other.split.digest == clean.split.digest
    assert other.preprocessing == clean.preprocessing


# Which weights count


def selecting(
    rule: SelectionRule, tmp_path: Path
) -> tuple[RunDirectory, dict[Any, Any], list[dict[str, Any]]]:
    """A run whose learning rate ruins it at the end, so that the best weights are not the last."""
    config = quick("supervised", steps=12)
    config = replace(
        config,
        data=replace(config.data, validation=200),
        training=replace(config.training, evaluate_every=3, select=rule),
        schedule=replace(config.schedule, max_learning_rate=1.0),
    )
    run, evaluations = train(config, tmp_path)
    return run, evaluations, run.read_lines("evaluations.jsonl")


@pytest.mark.parametrize("rule", ["last", "validation", "test"])
def test_the_weights_that_count_are_the_last_or_the_best(rule: SelectionRule, tmp_path: Path) -> None:
    run, evaluations, lines = selecting(rule, tmp_path)
    part = "test" if rule == "test" else "validation"
    on_the_way = [line for line in lines if not line["final"]]
    assert [line["step"] for line in on_the_way] == [3, 6, 9, 12]
    assert {line["part"] for line in on_the_way} == {part}
    errors = [line["error"] for line in on_the_way]
    assert len(set(errors)) > 1
    expected = errors[-1] if rule == "last" else min(errors)
    assert evaluations[part].error == expected
    step = 12 if rule == "last" else 3 * (errors.index(min(errors)) + 1)
    assert run.read_json("selection.json") == {"rule": rule, "step": step}
    assert {line["step"] for line in lines if line["final"]} == {step}
    _, again = evaluate_run(run, part)  # type: ignore[arg-type]
    assert again.error == expected


def test_test_images_are_not_looked_at_on_the_way(tmp_path: Path) -> None:
    rules: tuple[SelectionRule, ...] = ("last", "validation")
    for rule in rules:
        _, _, lines = selecting(rule, tmp_path)
        assert [line["part"] for line in lines if not line["final"]] == ["validation"] * 4


def test_choosing_needs_images_to_choose_on(tmp_path: Path) -> None:
    config = quick(training=TrainingConfig(steps=4, evaluate_every=2, select="validation"))
    with pytest.raises(UserError, match=r"training\.evaluate_every needs validation images"):
        train(config, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
    with pytest.raises(ValueError, match="above 0 to select the best weights"):
        TrainingConfig(select="validation")


def test_a_run_says_of_itself_how_it_was_chosen(tmp_path: Path) -> None:
    run, _, _ = selecting("test", tmp_path)
    assert json.loads((run.path / "config.json").read_text())["training"]["select"] == "test"


def test_shifts_larger_than_the_image_are_refused(tmp_path: Path) -> None:
    config = quick(augmentation=AugmentationConfig(translation=8))
    with pytest.raises(UserError, match="would shift images of 8x8 pixels out of sight"):
        train(config, tmp_path)


def test_digits_say_what_white_is() -> None:
    """Strong views are made of the pixels as they are stored, here from 0 to 16."""
    job = build(quick("fixmatch"))
    assert job.images.white == job.dataset.images.max() == 16


@pytest.mark.parametrize("labelled_in_pool", [False, True])
def test_there_is_room_for_what_is_remembered_of_each_image(labelled_in_pool: bool) -> None:
    config = quick("temporal_ensembling")
    job = build(replace(config, data=replace(config.data, labelled_in_pool=labelled_in_pool)))
    number = len(job.split.unlabelled) + labelled_in_pool * len(job.split.labelled)
    assert len(job.trainer.algorithm.get_buffer("ensemble.count")) == number
    batches = [next(job.batches) for _ in range(20)]
    assert max(int(batch.positions.max()) for batch in batches if batch.positions is not None) < number


def test_a_method_that_predicts_with_an_average_gets_no_second_one() -> None:
    decays = {name: RECIPES.get("digits")(name).training.ema_decay for name in ("mean_teacher", "pi_vat")}
    assert decays["mean_teacher"] == 0 < decays["pi_vat"]


@pytest.mark.parametrize(
    ("algorithm", "settings", "expected"),
    [
        ("fixmatch", {}, False),
        ("fixmatch", {"target_decay": 0.99}, True),
        ("manifold_graph", {"comparison": "fixmatch"}, False),
        ("manifold_graph", {"comparison": "fixmatch", "target_decay": 0.99}, True),
        ("manifold_graph", {"comparison": "mean_teacher"}, True),
    ],
)
def test_the_control_of_a_method_with_a_teacher_has_an_average_too(
    algorithm: str, settings: dict[str, Any], expected: bool
) -> None:
    config = RECIPES.get("digits")(algorithm)
    config = replace(
        config,
        method=replace(config.method, **settings),
        training=replace(config.training, ema_decay=0.0),
    )
    assert (control_of(config).training.ema_decay > 0) == expected


@pytest.mark.parametrize(
    ("algorithm", "options"), [("fixmatch", []), ("supervised", ["--batch.labelled_view", "strong"])]
)
def test_strong_views_and_whitening_do_not_go_together(
    algorithm: str, options: list[str], tmp_path: Path
) -> None:
    zca = ["--preprocessing.kind", "zca"]
    config = with_options(RECIPES.get("digits")(algorithm), [*zca, *options], program="test")
    with pytest.raises(UserError, match=r"use --preprocessing\.kind standardise"):
        train(config, tmp_path)


def test_the_photograph_recipes_standardise_where_views_are_strong() -> None:
    assert RECIPES.get("cifar10_small")("fixmatch").preprocessing.kind == "standardise"
    assert RECIPES.get("cifar10_small")("mixmatch").preprocessing.kind == "zca"


def test_dark_images_are_told_where_views_are_strong() -> None:
    pixels = np.random.default_rng(0).integers(0, 17, (60, 8, 8), dtype=np.uint8)
    classes = np.arange(60) % 3
    dark, told = from_arrays(pixels, classes), from_arrays(pixels, classes, white=16)
    assert [finding.kind for finding in check_brightness(dark)] == ["dark_images"]
    assert check_brightness(told) == []


@pytest.mark.parametrize(
    ("algorithm", "view", "images"),
    [("pi_model", "weak", 10), ("pi_model", "strong", 6), ("supervised", "strong", 4)],
)
def test_statistics_of_an_average_are_of_clean_images_where_there_are_some(
    algorithm: str, view: Literal["weak", "strong"], images: int
) -> None:
    config = quick(algorithm, batch=BatchConfig(labelled=4, unlabelled=6, labelled_view=view))
    assert {len(batch) for batch in clean_images(build(config))} == {images}


@pytest.mark.parametrize(("at_labels", "labels", "decay"), [(0, 80, 0.01), (20, 20, 0.01), (20, 80, 0.005)])
def test_weight_decay_follows_the_number_of_labels_if_it_is_to(
    at_labels: int, labels: int, decay: float
) -> None:
    training = TrainingConfig(steps=2, weight_decay=0.01, decay_at_labels=at_labels)
    config = quick("supervised", training=training)
    job = build(replace(config, data=replace(config.data, labels=labels)))
    assert job.trainer.optimizer.param_groups[0]["weight_decay"] == pytest.approx(decay)


def test_no_negative_number_of_labels() -> None:
    with pytest.raises(ValueError, match="decay_at_labels must be at least 0, got -1"):
        TrainingConfig(decay_at_labels=-1)
