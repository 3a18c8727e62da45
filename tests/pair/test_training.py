"""A run with its control in real folders and processes: what is written, and going on after a stop."""

import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from PIL import Image

from manigraph.build import load_dataset
from manigraph.config import Config, DataConfig, from_dict
from manigraph.data.locations import Locations
from manigraph.engine import resume, train
from manigraph.errors import Interrupted, UserError
from manigraph.nn.efficientnet_lite import PACKAGE
from manigraph.pair.choice import choose_for, sets_features, shows_photographs
from manigraph.pair.speed import facts_about, measured_speed
from manigraph.pair.training import (
    CHOICES_FILE,
    Order,
    control_run,
    final_evaluations,
    main_run,
    planned_control,
    resume_both,
    train_both,
)
from manigraph.pair.verdict import VERDICT_FILE, compare, part_to_count
from manigraph.recipes.automatic import control_of
from manigraph.recipes.reasons import Reason
from manigraph.recipes.small import folder
from manigraph.runs import RunDirectory
from manigraph.session import Silence
from manigraph.training.execution import Execution, choose_device
from manigraph.training.loop import StepRecord
from manigraph.training.processes import Processes
from tests.data.pictures import photo_folder, picture, write_files
from tests.helpers import assert_bitwise_equal

STEPS, CONTROL_STEPS = 6, 10


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("pair")
    photo_folder(place / "photos", per_class=20, unlabelled=40, test=4)
    return place


@pytest.fixture(scope="module")
def locations(place: Path) -> Locations:
    return Locations(place, place / "cache")


@pytest.fixture(scope="module")
def order(place: Path) -> Order:
    config = folder("manifold_graph")
    config = replace(
        config,
        data=replace(config.data, path=str(place / "photos")),
        backbone=replace(config.backbone, name="small_cnn", width=0.25),
        batch=replace(config.batch, labelled=8, unlabelled=8),
        training=replace(config.training, steps=STEPS, log_every=2),
    )
    return Order(config, control_of(config, CONTROL_STEPS), [Reason("steps", "6", "for a test")], 4.5)


@pytest.fixture(scope="module")
def finished(order: Order, place: Path, locations: Locations) -> Path:
    return train_both(order, place / "runs", name="whole", locations=locations).run.path


def weights(run: Path) -> dict[str, Any]:
    return safetensors.torch.load_file(run / "model.safetensors")


def test_both_runs_are_complete_and_share_their_split(finished: Path, order: Order) -> None:
    run, control = RunDirectory.open(finished), RunDirectory.open(finished.with_name("whole-control"))
    assert run.status().state == control.status().state == "finished"
    assert run.read_json("split.json") == control.read_json("split.json")
    assert from_dict(control.read_json("config.json"), source="") == order.control
    assert from_dict(run.read_json("config.json"), source="") == order.config
    choices = run.read_json(CHOICES_FILE)
    assert choices["choices"] == [{"what": "steps", "value": "6", "why": "for a test"}]
    assert planned_control(run) == (order.control, 4.5)
    assert control.read_json(CHOICES_FILE) == {"control_of": {"name": "whole", "id": run.id}}
    assert control_run(run) == control
    assert main_run(control.path) == run


def test_the_verdict_counts_what_the_runs_themselves_measured(finished: Path, locations: Locations) -> None:
    run, control = RunDirectory.open(finished), RunDirectory.open(finished.with_name("whole-control"))
    verdict = run.read_json(VERDICT_FILE)
    assert verdict == json.loads(json.dumps(compare(run, control, locations=locations).as_dict()))
    assert (verdict["part"], verdict["num_images"]) == ("validation", 8)
    for name, directory in (("with_unlabelled", run), ("control", control)):
        assert verdict[name]["run"] == directory.path.name
        assert verdict[name]["error"] == final_evaluations(directory)["validation"].error


def test_which_images_are_counted(finished: Path, tmp_path: Path) -> None:
    def part(validation: int, test: int, rule: str = "last") -> str:
        split = {"validation": list(range(validation)), "test": list(range(test))}
        run = RunDirectory(tmp_path)
        run.write_json("split.json", split)
        run.write_json("data.json", {"num_images": 20})
        run.write_json("config.json", {"training": {"select": rule}})
        return part_to_count(run)

    assert part(10, 4) == part(10, 0) == part(10, 10) == "validation"
    assert part(10, 11) == part(0, 3) == "test"
    # Rather those on which no weights were chosen, and if there are no others, these.
    assert part(10, 4, "validation") == part(0, 4, "test") == "test"
    assert part(10, 11, "test") == part(10, 0, "validation") == "validation"
    with pytest.raises(UserError, match="holds no images out"):
        part(0, 0)


def test_runs_of_different_splits_are_not_compared(
    finished: Path, order: Order, tmp_path: Path, locations: Locations
) -> None:
    assert order.control is not None
    other, _ = train(replace(order.control, seed=5), tmp_path, locations=locations)
    with pytest.raises(UserError, match="have different splits: train both again"):
        compare(RunDirectory.open(finished), other, locations=locations)


def test_a_split_that_points_beyond_the_images_is_one_sentence(
    finished: Path, tmp_path: Path, locations: Locations
) -> None:
    run = RunDirectory.open(Path(shutil.copytree(finished, tmp_path / finished.name)))
    control = RunDirectory.open(finished.with_name("whole-control"))
    split = run.read_json("split.json")
    run.write_json("split.json", split | {"unlabelled": [*split["unlabelled"], 10**9]})
    with pytest.raises(UserError, match=r"split\.json' is damaged: unlabelled is no list of places"):
        compare(run, control, locations=locations)


class Stopper(Silence):
    """Ends this process's training at some record of some run, as a person with Ctrl-C would."""

    def __init__(self, run: str, step: int) -> None:
        self.run, self.at, self.now = run, step, ""

    def start(self, run: RunDirectory, *_: Any) -> None:
        self.now = run.path.name

    def step(self, record: StepRecord) -> None:
        if self.now == self.run and record.step == self.at:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("stopped", ["run", "run-control"])
@pytest.mark.parametrize("resumed", ["run", "run-control"])
def test_whatever_was_stopped_goes_on_and_ends_as_if_it_never_had(
    stopped: str, resumed: str, order: Order, finished: Path, tmp_path: Path, locations: Locations
) -> None:
    with pytest.raises(Interrupted, match=f"manigraph train --resume .*{stopped}"):
        train_both(order, tmp_path, name="run", locations=locations, observer=Stopper(stopped, 4))
    assert (tmp_path / "run-control").exists() == (stopped == "run-control")
    if not (tmp_path / resumed).exists():
        return
    stages: list[tuple[str, float]] = []
    outcome = resume_both(tmp_path / resumed, locations=locations, stage=lambda *what: stages.append(what))
    assert outcome.run.path == tmp_path / "run"
    assert outcome.control is not None
    assert [later for _, later in stages] == ([4.5, 0.0] if stopped == "run" else [0.0])
    for name, original in (("run", finished), ("run-control", finished.with_name("whole-control"))):
        assert_bitwise_equal(weights(tmp_path / name), weights(original))
    verdict, whole = (RunDirectory(path).read_json(VERDICT_FILE) for path in (tmp_path / "run", finished))
    assert verdict["sentence"] == whole["sentence"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run-control"]
    with pytest.raises(UserError, match="and its control are finished: there is nothing to go on with"):
        resume_both(tmp_path / resumed, locations=locations)


def test_a_run_is_gone_on_with_from_inside(
    order: Order, tmp_path: Path, locations: Locations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control goes beside the run, not into it."""
    with pytest.raises(Interrupted):
        train_both(order, tmp_path, name="run", locations=locations, observer=Stopper("run", 4))
    monkeypatch.chdir(tmp_path / "run")
    outcome = resume_both(Path(), locations=locations)
    assert outcome.control is not None
    assert outcome.control.path.resolve() == tmp_path.resolve() / "run-control"
    assert outcome.control.read_json(CHOICES_FILE)["control_of"]["name"] == "run"
    assert outcome.verdict is not None
    assert outcome.verdict.control.run == "run-control"
    assert not [path for path in (tmp_path / "run").iterdir() if "control" in path.name]
    monkeypatch.chdir(tmp_path / "run-control")
    assert main_run(Path()).path == tmp_path.resolve() / "run"


@pytest.mark.parametrize(
    "choices",
    [
        {"control_of": "x"},
        {"control_of": {"name": "run"}},
        {"control_of": {"name": 1, "id": "x"}},
        {"control_of": {"name": "../run", "id": "x"}},
        {"control": "x"},
        {"control": {}, "control_seconds": "long"},
    ],
)
def test_choices_that_say_something_else_are_damaged(
    choices: dict[str, Any], finished: Path, tmp_path: Path, locations: Locations
) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    RunDirectory(run).write_json(CHOICES_FILE, choices)
    with pytest.raises(UserError, match=r"choices\.json' is damaged: (it|control_of) does not say"):
        resume_both(run, locations=locations)


def test_a_lost_verdict_is_made_again_and_nothing_else(
    order: Order, tmp_path: Path, locations: Locations
) -> None:
    run = train_both(order, tmp_path, name="run", locations=locations).run.path
    before = (run / VERDICT_FILE).read_bytes()
    (run / VERDICT_FILE).unlink()
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    resume_both(run, locations=locations)
    assert (run / VERDICT_FILE).read_bytes() == before
    assert {path: path.stat().st_mtime_ns for path in times} == times


def test_a_second_pair_leaves_the_first_alone(order: Order, tmp_path: Path, locations: Locations) -> None:
    first, second = (train_both(order, tmp_path, name="run", locations=locations) for _ in range(2))
    assert first.control is not None
    assert second.control is not None
    names = ["run", "run-2", "run-2-control", "run-control"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert control_run(second.run) == second.control != control_run(first.run)


def test_a_control_whose_run_is_gone_is_a_run_of_its_own(
    order: Order, tmp_path: Path, locations: Locations
) -> None:
    with pytest.raises(Interrupted):
        train_both(order, tmp_path, name="run", locations=locations, observer=Stopper("run-control", 2))
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    outcome = resume_both(tmp_path / "run-control", locations=locations)
    assert (outcome.run.path.name, outcome.verdict) == ("run-control", None)
    assert outcome.run.status().state == "finished"
    # The next run of that name does not take it for its own.
    another = train_both(order, tmp_path, name="run", locations=locations)
    assert another.control is not None
    assert (another.run.path.name, another.control.path.name) == ("run", "run-control-2")


def test_a_plain_run_is_resumed_as_ever(order: Order, tmp_path: Path, locations: Locations) -> None:
    with pytest.raises(Interrupted):
        train_both(Order(order.config), tmp_path, name="run", locations=locations, observer=Stopper("run", 2))
    assert not (tmp_path / "run" / CHOICES_FILE).exists()
    outcome = resume_both(tmp_path / "run", locations=locations)
    assert (outcome.control, outcome.verdict) == (None, None)
    with pytest.raises(UserError, match="is finished: there is nothing to go on with"):
        resume_both(tmp_path / "run", locations=locations)
    with pytest.raises(UserError, match="is finished"):
        resume(tmp_path / "run", locations=locations)


# Facts and speed of real images


def test_facts_are_those_of_the_folder(tmp_path: Path) -> None:
    root = photo_folder(tmp_path / "photos", per_class=6, unlabelled=9, test=4)
    write_files(root, [("dog/copy.png", (root / "dog/1.png").read_bytes())])
    dataset = load_dataset(DataConfig(name="folder", path=str(root)), Locations(root, tmp_path / "cache"))
    facts = facts_about(dataset)
    assert facts.shape == (3, 10, 12)
    assert facts.labels == (6, 7)
    assert facts.holdable == 5 + 5  # each class keeps one; of the dogs two are copies of each other
    assert (facts.unlabelled, facts.validation, facts.test, facts.file_side) == (9, 0, 4, None)


def test_the_size_of_files_is_known_where_images_have_another(tmp_path: Path) -> None:
    names = [f"{c}/{i}.png" for c in ("cat", "dog", "unlabelled") for i in range(3)]
    sizes = [(200, 300), (90, 100), (150, 120)]
    write_files(tmp_path / "photos", ((n, picture(i, sizes[i % 3])) for i, n in enumerate(names)))
    config = DataConfig(name="folder", path=str(tmp_path / "photos"))
    facts = facts_about(load_dataset(config, Locations(tmp_path, tmp_path / "cache")))
    assert (facts.shape, facts.file_side) == ((3, 64, 64), 120)


def test_measuring_a_configuration_leaves_no_trace(
    order: Order, locations: Locations, tmp_path: Path
) -> None:
    dataset = load_dataset(order.config.data, locations)
    processes = Processes(choose_device("cpu"))
    speed = measured_speed(order.config, dataset, Execution(), processes)
    assert speed.control_step > 0
    assert speed.step > 0
    assert speed.evaluation >= 0
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def chosen(order: Order, locations: Locations) -> Order:
    def settle(config: Config[Any]) -> Config[Any]:
        return replace(config, training=replace(config.training, steps=4))

    return choose_for(
        order.config,
        is_own=True,
        minutes=1.0,
        control=True,
        given={"training.steps"},
        settle=settle,
        locations=locations,
        execution=Execution(),
        processes=Processes(choose_device("cpu")),
    )


def test_real_images_get_a_choice_with_reasons(chosen: Order) -> None:
    assert [reason.what for reason in chosen.reasons] == [
        "images", "network", "batch", "validation", "classes", "steps", "control"
    ]  # fmt: skip
    assert chosen.config.backbone.name == "small_cnn"
    assert chosen.control is not None
    assert chosen.control.training.steps == 4
    assert chosen.control_seconds > 0


# A real kill


@pytest.fixture
def background() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def test_a_killed_command_goes_on_with_the_control_and_the_verdict(
    place: Path, tmp_path: Path, background: list[subprocess.Popen[str]]
) -> None:
    environment = {**os.environ, "MANIGRAPH_CACHE": str(place / "cache"), "COLUMNS": "80"}
    environment["MANIGRAPH_REPORT"] = "False"
    command = [sys.executable, "-m", "manigraph", "train"]
    options = ["--training.steps", "40", "--checkpoint_minutes", "1e-6", "--backbone.width", "0.25"]
    options += ["--algorithm", "pi_model", "--batch.labelled", "4", "--batch.unlabelled", "4"]
    options += ["--training.log_every", "5", "--threads", "1", "--name", "run"]
    process = subprocess.Popen(
        [*command, str(place / "photos"), *options],
        cwd=tmp_path, env=environment, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    background.append(process)
    control = tmp_path / "runs" / "run-control"
    while not list(control.glob("checkpoints/*.json")):
        assert process.poll() is None, "ended before it could be killed"
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert RunDirectory.open(control).status().state == "interrupted"
    assert RunDirectory.open(tmp_path / "runs" / "run").status().state == "finished"
    result = subprocess.run(
        [*command, "--resume", "runs/run"],
        cwd=tmp_path, env=environment, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "2 of 2, the control: labelled images alone" in result.stdout
    assert "1 of 2" not in result.stdout
    assert "resumed at step" in result.stdout
    assert "verdict:" in result.stdout
    assert (tmp_path / "runs" / "run" / VERDICT_FILE).is_file()
    again = subprocess.run(
        [*command, "--resume", "runs/run-control"],
        cwd=tmp_path, env=environment, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert again.returncode == 2
    assert again.stderr == (
        "manigraph: the run 'runs/run' and its control are finished: there is nothing to go on with\n"
    )


# Pretrained features


def photographs(root: Path, *, grey: bool = False, side: int = 70) -> Path:
    names = [f"{c}/{i}.png" for c in ("cat", "dog") for i in range(5)]
    names += [f"unlabelled/{i}.png" for i in range(6)]
    for seed, name in enumerate(names):
        image = Image.open(io.BytesIO(picture(seed, (side, side + 9))))
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (image.convert("L") if grey else image).save(path)
    return root


def test_photographs_are_told_by_size_and_colour(tmp_path: Path) -> None:
    assert shows_photographs(photographs(tmp_path / "photos"))
    assert not shows_photographs(photographs(tmp_path / "grey", grey=True))
    assert not shows_photographs(photographs(tmp_path / "small", side=64))
    write_files(tmp_path / "photos", [("cat/broken.png", b"no image")])
    assert shows_photographs(tmp_path / "photos")
    (tmp_path / "empty").mkdir()
    assert not shows_photographs(tmp_path / "empty")


@pytest.mark.parametrize(
    ("name", "sets"),
    [
        ("data.features", True),
        ("data.image_size", True),
        ("backbone.name", True),
        ("augmentation.flip", True),
        ("backbone.width", False),
        ("method.epsilon", False),
    ],
)
def test_who_sets_something_for_pixels_gets_pixels(name: str, sets: bool) -> None:
    assert sets_features({name, "seed"}) == sets


@pytest.mark.skipif(
    importlib.util.find_spec(PACKAGE) is None, reason="the extra `pretrained` is not installed"
)
def test_photographs_are_learned_from_features_where_these_can_be_had(tmp_path: Path) -> None:
    root = photographs(tmp_path / "photos")
    config = folder("manifold_graph")
    config = replace(config, data=replace(config.data, path=str(root)))
    locations = Locations(tmp_path, tmp_path / "cache")

    def settle(config: Config[Any]) -> Config[Any]:
        return replace(config, training=replace(config.training, steps=3))

    order = choose_for(
        config,
        is_own=True,
        minutes=1.0,
        control=True,
        given={"training.steps"},
        settle=settle,
        locations=locations,
        execution=Execution(),
        processes=Processes(choose_device("cpu")),
    )
    assert order.config.data.features == "efficientnet_lite0"
    assert (order.config.backbone.name, order.reasons[0].what) == ("leading", "features")
    outcome = train_both(order, tmp_path / "runs", locations=locations)
    assert outcome.verdict is not None
    assert outcome.verdict.num_images == 3
    assert outcome.control is not None
    assert outcome.control.read_json("config.json")["data"]["features"] == "efficientnet_lite0"


def test_without_the_extra_photographs_are_learned_from_pixels_and_the_way_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("manigraph.pair.choice.PACKAGE", "a_package_that_nobody_has")
    config = folder("manifold_graph")
    config = replace(config, data=replace(config.data, path=str(photographs(tmp_path / "photos"))))

    def settle(config: Config[Any]) -> Config[Any]:
        backbone = replace(config.backbone, width=0.1)
        return replace(config, training=replace(config.training, steps=2), backbone=backbone)

    order = choose_for(
        config,
        is_own=True,
        minutes=1.0,
        control=False,
        given={"training.steps", "backbone.width"},
        settle=settle,
        locations=Locations(tmp_path, tmp_path / "cache"),
        execution=Execution(),
        processes=Processes(choose_device("cpu")),
    )
    assert order.config.data.features == ""
    assert "pip install 'manigraph[pretrained]'" in order.reasons[0].why
