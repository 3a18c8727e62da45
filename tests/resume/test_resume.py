"""A run that is interrupted, by whatever and wherever, ends as one that never was."""

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from manigraph.catalogue import ALGORITHMS
from manigraph.config import Config
from manigraph.engine import evaluate_run, resume, train
from manigraph.errors import Interrupted, UserError
from manigraph.native import library, use_native
from manigraph.runs import RunDirectory
from manigraph.training.checkpoint import Checkpoints
from manigraph.training.execution import Execution
from tests.helpers import assert_bitwise_equal
from tests.resume.training import (
    KEEP_OFTEN,
    STEPS,
    Listening,
    Process,
    begun,
    config,
    go_on,
    go_on_and_die,
    lines,
)

ALONE = Execution(threads=1, checkpoint_minutes=0)


def weights(run: RunDirectory) -> dict[str, Tensor]:
    return safetensors.torch.load_file(run.path / "model.safetensors")


def assert_same_run(found: RunDirectory, expected: RunDirectory) -> None:
    """Weights, predictions and every line of every file that a person or a report reads."""
    assert found.status().state == "finished"
    assert_bitwise_equal(weights(found), weights(expected))
    for name in ("metrics.jsonl", "evaluations.jsonl", "warnings.jsonl"):
        assert lines(found, name) == lines(expected, name), name
    for name in ("selection.json", "split.json", "preprocessing.json", "config.json", "data.json"):
        assert found.read_json(name) == expected.read_json(name), name
    predictions = [safetensors.torch.load_file(r.path / "predictions.safetensors") for r in (found, expected)]
    assert_bitwise_equal(*predictions)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    run, _ = train(config(), tmp_path_factory.mktemp("never"), execution=ALONE)
    assert len(run.read_lines("metrics.jsonl")) == STEPS / 3
    assert not (run.path / "checkpoints").exists()
    return run


def stop_at(step: int, number: signal.Signals = signal.SIGTERM) -> Listening:
    """Somebody who asks this very process to stop when it has come to a step."""
    return Listening(lambda done: os.kill(os.getpid(), number) if done == step else None)


def interrupted(folder: Path, step: int, configuration: Config[Any] | None = None) -> RunDirectory:
    """A run that was stopped at a step."""
    configuration = config() if configuration is None else configuration
    with pytest.raises(Interrupted):
        train(configuration, folder, execution=ALONE, observer=stop_at(step))
    return RunDirectory(folder / configuration.run_name)


# Killed


def test_a_run_that_is_killed_25_times_ends_as_one_that_never_was(
    tmp_path: Path, uninterrupted: RunDirectory
) -> None:
    """15 times at any moment, 10 times inside the writing of files."""
    moments = random.Random(4)
    reached: list[int] = []

    def step() -> int:
        run = begun(tmp_path)
        kept = [] if run is None else Checkpoints(run.path / "checkpoints", run.id).steps()
        return kept[-1] if kept else 0

    for kill in range(25):
        before = step()

        def has_moved(before: int = before) -> bool:
            return step() > before

        if kill % 5 in (1, 3):
            # Some calls belong to taking the run up again, about eight to each checkpoint.
            process = Process(go_on_and_die, tmp_path, config(), moments.randrange(1, 40))
        else:
            process = Process(go_on, tmp_path, config())
            if kill % 5 == 0:
                process.kill_after(moments.uniform(0, 1.5))
            else:
                process.kill_after(moments.uniform(0, 0.05), since=has_moved)
        assert process.exit_code() == -signal.SIGKILL
        run = begun(tmp_path)
        if run is not None:
            assert run.status().state == "interrupted"
        reached.append(step())
    assert reached == sorted(reached), "what was kept stays"
    assert len(set(reached)) > 10
    assert Process(go_on, tmp_path, config()).exit_code() == 0
    assert run is not None
    assert_same_run(run, uninterrupted)


def test_killed_before_the_first_checkpoint_it_begins_again(
    tmp_path: Path, uninterrupted: RunDirectory
) -> None:
    run = interrupted(tmp_path, 9)
    shutil.rmtree(run.path / "checkpoints")
    listening = Listening()
    resume(run.path, execution=ALONE, observer=listening)
    assert listening.first_step == 0
    assert_same_run(run, uninterrupted)


# Asked to stop


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_request_to_stop_is_heeded_after_the_step(
    number: signal.Signals, code: int, tmp_path: Path, uninterrupted: RunDirectory
) -> None:
    with pytest.raises(Interrupted, match=r"stopped at step 30 of 90; .*manigraph train --resume") as stop:
        train(config(), tmp_path, execution=ALONE, observer=stop_at(30, number))
    assert stop.value.exit_code == code
    run = RunDirectory(tmp_path / config().run_name)
    assert run.status() == ("interrupted", f"{number.name} at step 30 of 90")
    listening = Listening()
    resume(run.path, execution=ALONE, observer=listening)
    assert listening.first_step == 30
    assert [warning for warning in listening.warnings if "attend" not in warning] == []  # its health is poor
    assert_same_run(run, uninterrupted)
    assert [line["step"] for line in run.read_lines("resumes.jsonl")] == [30]


def interrupted_in_evaluation(folder: Path) -> RunDirectory:
    """Asked to stop while the first evaluation, at step 7, is being made."""
    from manigraph import session
    from manigraph.training.evaluation import predict_logits as real

    def asked_in_between(*arguments: Any, **named: Any) -> Tensor:
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "predict_logits", asked_in_between)
        with pytest.raises(Interrupted, match="stopped at step 7 of 90"):
            train(config(), folder, execution=ALONE)
    return RunDirectory(folder / config().run_name)


def test_stopped_during_an_evaluation_the_evaluation_is_made_later(
    tmp_path: Path, uninterrupted: RunDirectory
) -> None:
    run = interrupted_in_evaluation(tmp_path)
    assert run.read_lines("evaluations.jsonl") == []
    resume(run.path, execution=ALONE)
    assert_same_run(run, uninterrupted)


def test_stopped_during_the_last_evaluation_only_that_is_left(
    tmp_path: Path, uninterrupted: RunDirectory
) -> None:
    run = interrupted(tmp_path, STEPS)
    listening = Listening()
    resume(run.path, execution=ALONE, observer=listening)
    assert listening.first_step == STEPS
    assert_same_run(run, uninterrupted)


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "manifold_graph"])
def test_every_method_goes_on_exactly(algorithm: str, tmp_path: Path) -> None:
    # So few unlabelled images that all have come by the time the run is stopped: what is remembered of them
    # matters afterwards.
    configuration = config(algorithm, steps=24)
    few = dataclasses.replace(configuration.data, validation=1000)
    configuration = dataclasses.replace(configuration, data=few)
    whole, _ = train(configuration, tmp_path / "whole", execution=ALONE)
    run = interrupted(tmp_path, 12, configuration)
    resume(run.path, execution=ALONE)
    assert_same_run(run, whole)


@pytest.mark.parametrize(
    "changes",
    [
        {"ema_decay": 0.0, "swa_fraction": 0.5},
        {"ema_decay": 0.0, "swa_fraction": 0.5, "swa_every": 0.2},
        {"muon_turn": 0.3},
        {"ema_decay": 0.0, "precision": "float16"},
        {"precision": "bfloat16", "max_gradient_norm": 1.0},
    ],
    ids=str,
)
def test_averages_and_precisions_go_on_exactly(changes: dict[str, Any], tmp_path: Path) -> None:
    configuration = config("pi_vat", steps=24, **changes)
    whole, _ = train(configuration, tmp_path / "whole", execution=ALONE)
    run = interrupted(tmp_path, 15, configuration)
    resume(run.path, execution=ALONE)
    assert_same_run(run, whole)


def test_labelled_images_as_nodes_go_on_exactly(tmp_path: Path) -> None:
    configuration = config(steps=24)
    method = dataclasses.replace(configuration.method, nodes="labelled_images")
    configuration = dataclasses.replace(configuration, method=method)
    whole, _ = train(configuration, tmp_path / "whole", execution=ALONE)
    run = interrupted(tmp_path, 15, configuration)
    resume(run.path, execution=ALONE)
    assert_same_run(run, whole)


def test_a_thread_that_hears_no_signals_can_train(tmp_path: Path) -> None:
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(train(config("supervised", steps=3), tmp_path)))
    thread.start()
    thread.join()
    assert done


def test_an_estimate_leaves_no_trace(tmp_path: Path, uninterrupted: RunDirectory) -> None:
    listening = Listening()
    run, _ = train(config(), tmp_path, execution=ALONE, observer=listening, estimate=True)
    assert_same_run(run, uninterrupted)
    assert listening.estimate.parameters > 10_000
    assert listening.estimate.seconds > STEPS * listening.estimate.seconds_per_step > 0
    assert listening.estimate.peak_bytes > 100 << 20


# Refused


def test_a_finished_run_is_not_gone_on_with(uninterrupted: RunDirectory) -> None:
    before = {path: path.read_bytes() for path in uninterrupted.path.iterdir() if path.is_file()}
    with pytest.raises(UserError, match="is finished: there is nothing to go on with"):
        resume(uninterrupted.path)
    assert before == {path: path.read_bytes() for path in uninterrupted.path.iterdir() if path.is_file()}


def test_a_run_that_is_being_trained_is_left_alone(tmp_path: Path) -> None:
    run = interrupted(tmp_path, 9)
    with run.held(), pytest.raises(UserError, match="is being trained by another process"):
        resume(run.path, execution=ALONE)
    resume(run.path, execution=ALONE)


def test_a_new_run_never_takes_the_place_of_an_old_one(tmp_path: Path) -> None:
    first = interrupted(tmp_path, 9)
    kept = weights(first)
    second, _ = train(config(steps=3), tmp_path, execution=ALONE)
    assert second.path != first.path
    assert_bitwise_equal(weights(first), kept)


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path, uninterrupted: RunDirectory) -> None:
    first, second = interrupted(tmp_path / "a", 9), interrupted(tmp_path / "b", 9)
    shutil.rmtree(first.path / "checkpoints")
    shutil.copytree(second.path / "checkpoints", first.path / "checkpoints")
    with pytest.raises(UserError, match="belongs to another run"):
        resume(first.path, execution=ALONE)


def test_other_images_are_noticed(tmp_path: Path) -> None:
    run = interrupted(tmp_path, 9)
    data = run.read_json("data.json")
    run.write_json("data.json", {**data, "digest": "0" * len(data["digest"])})
    with pytest.raises(UserError, match="holds other images now"):
        resume(run.path, execution=ALONE)


def test_another_number_of_threads_is_told(tmp_path: Path) -> None:
    run = interrupted(tmp_path, 9, config(steps=11))
    listening = Listening()
    threads = torch.get_num_threads()
    try:
        resume(run.path, execution=dataclasses.replace(ALONE, threads=2), observer=listening)
    finally:
        torch.set_num_threads(threads)
    assert len(listening.warnings) == 1
    assert "threads 1 then, 2 now" in listening.warnings[0]


def test_other_operations_are_told(tmp_path: Path) -> None:
    if library() is None:
        pytest.skip("manigraph.native was not compiled for this machine: no C compiler at install")
    run = interrupted(tmp_path, 9, config(steps=11))
    listening = Listening()
    try:
        resume(run.path, execution=dataclasses.replace(ALONE, native=False), observer=listening)
    finally:
        use_native(True)
    assert len(listening.warnings) == 1
    assert "native True then, False now" in listening.warnings[0]


def test_a_run_that_went_on_meanwhile_is_not_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else resumes and stops the run between the reading of its checkpoint and the lock."""
    from manigraph import engine

    run = interrupted(tmp_path, 9)
    real = engine.build  # type: ignore[attr-defined]

    def slow(*arguments: Any, **named: Any) -> Any:
        monkeypatch.undo()
        with pytest.raises(Interrupted):
            resume(run.path, execution=ALONE, observer=stop_at(21))
        return real(*arguments, **named)

    monkeypatch.setattr(engine, "build", slow)
    with pytest.raises(UserError, match="went on meanwhile: resume it again"):
        resume(run.path, execution=ALONE)
    resume(run.path, execution=ALONE)
    assert [line["step"] for line in run.read_lines("metrics.jsonl")] == list(range(3, STEPS + 1, 3))


def test_a_checkpoint_is_never_written_twice(tmp_path: Path, uninterrupted: RunDirectory) -> None:
    """Stopped in an evaluation, resumed, stopped at the same step: the one that is there stays."""
    run = interrupted_in_evaluation(tmp_path)
    folder = run.path / "checkpoints"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    listening = Listening()
    listening.evaluation = lambda *_: os.kill(os.getpid(), signal.SIGTERM)  # type: ignore[method-assign]
    with pytest.raises(Interrupted, match="stopped at step 7 of 90; to go on from step 7"):
        resume(run.path, execution=ALONE, observer=listening)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    resume(run.path, execution=ALONE)
    assert_same_run(run, uninterrupted)


def test_without_tensorboard_the_run_says_that_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match="TensorBoard cannot be used"):
        train(config(steps=3), tmp_path, execution=dataclasses.replace(ALONE, tensorboard=True))
    assert RunDirectory(tmp_path / config().run_name).status().state == "failed"


def test_half_precision_is_evaluated_as_the_loaded_model_will_be(tmp_path: Path) -> None:
    run, evaluations = train(config("pi_vat", steps=9, precision="bfloat16"), tmp_path, execution=ALONE)
    _, again = evaluate_run(run, "test")
    assert again == evaluations["test"]


def test_an_interrupted_average_has_its_own_statistics(tmp_path: Path) -> None:
    """20 batches after the average began, whatever the run itself has seen; nodes move none of them."""
    configuration = config(steps=24, ema_decay=0.0, swa_fraction=0.5)
    method = dataclasses.replace(configuration.method, nodes="labelled_images")
    run = interrupted(tmp_path, 15, dataclasses.replace(configuration, method=method))
    counts = [value for name, value in weights(run).items() if name.endswith("num_batches_tracked")]
    assert {int(count) for count in counts} == {20}


# The disk is full

ON_A_SMALL_DISK = """
import sys
from contextlib import suppress
from pathlib import Path
import torch
torch.set_num_threads(1)
from manigraph.engine import evaluate_run, resume, train
from manigraph.errors import DiskFullError
from tests.resume.training import KEEP_OFTEN, Listening, config
runs, frees = Path(sys.argv[1]), sys.argv[2] == "frees"
ballast = runs / "ballast"

def on_step(step):
    if step == 15:
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
    if step == 39 and frees:
        ballast.unlink()

listening = Listening(on_step)
try:
    train(config(), runs, execution=KEEP_OFTEN, observer=listening)
    print("finished")
except DiskFullError as error:
    print("error:", error)
    run = runs / config().run_name
    print("status:", (run / "status.json").read_text())
    ballast.unlink()
    listening.on_step = lambda step: None
    resume(run, execution=KEEP_OFTEN, observer=listening)
    print("first step:", listening.first_step)
print("warnings:", len(listening.warnings), listening.warnings[:1])
import shutil
shutil.copytree(runs / config().run_name, sys.argv[3])
"""


def on_a_small_disk(tmp_path: Path, *arguments: str) -> str:
    small = tmp_path / "small"
    small.mkdir()
    script = tmp_path / "script.py"
    script.write_text(ON_A_SMALL_DISK)
    command = (
        f"mount -t tmpfs -o size=4m none {small} && {sys.executable} {script} {small} {' '.join(arguments)}"
    )
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (root, root / "src")))}
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if "unshare failed" in done.stderr or "permission denied" in done.stderr.lower():
        pytest.skip("mounting a small disk is not allowed here")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_disk_that_is_full_for_a_while_costs_nothing(tmp_path: Path, uninterrupted: RunDirectory) -> None:
    told = on_a_small_disk(tmp_path, "frees", str(tmp_path / "run"))
    assert "finished" in told
    assert "the disk is full: no checkpoint could be written at step" in told
    assert_same_run(RunDirectory(tmp_path / "run"), uninterrupted)


def test_a_disk_that_stays_full_ends_the_run_which_can_go_on(
    tmp_path: Path, uninterrupted: RunDirectory
) -> None:
    told = on_a_small_disk(tmp_path, "stays", str(tmp_path / "run"))
    assert "error: the disk is full: make room, then go on with `manigraph train --resume" in told
    assert '"state": "failed"' in told
    assert "the disk is full: make room" in told.partition("status:")[2]
    assert "first step: 14" in told
    assert "no checkpoint could be written at step 15, the last one is of step 14" in told
    assert_same_run(RunDirectory(tmp_path / "run"), uninterrupted)


# As a person types it


def manigraph(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "manigraph", *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_resume_on_the_command_line(tmp_path: Path, uninterrupted: RunDirectory) -> None:
    run = interrupted(tmp_path / "runs", 30)
    path = str(run.path.relative_to(tmp_path))
    other = manigraph("train", "--resume", path, "--training.steps", "95", cwd=tmp_path)
    assert other.returncode == 2
    assert other.stderr == (
        f"manigraph: a run is resumed with the settings it was begun with: training.steps is 90 in '{path}', "
        f"not 95; leave the option out, or begin a new run\n"
    )
    done = manigraph("train", "--resume", path, "--threads", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "resumed at step 30" in done.stdout
    assert_same_run(run, uninterrupted)
    again = manigraph("train", "--resume", path, cwd=tmp_path)
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "is finished" in again.stderr


def test_the_status_of_a_killed_run_is_not_running(tmp_path: Path) -> None:
    run = interrupted(tmp_path, 9)
    run.set_status("running")
    assert run.status().state == "interrupted"
    with run.held():
        assert run.status().state == "running"
    assert json.loads((run.path / "status.json").read_text())["state"] == "running"


def test_checkpoints_are_kept_by_the_clock(tmp_path: Path) -> None:
    run, _ = train(config("supervised", steps=6), tmp_path, execution=KEEP_OFTEN)
    names = sorted(path.name for path in (run.path / "checkpoints").glob("*.json"))
    assert names == ["step-000000005.json", "step-000000006.json"]
