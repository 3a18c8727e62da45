"""Engines give what the function gives, lose no more than what died, and stop when they are asked to."""

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from manigraph.errors import Interrupted, UserError
from manigraph.experiments.engines import (
    Engine,
    LocalEngine,
    Lost,
    RayEngine,
    SlurmEngine,
    available_cores,
    engine_named,
)
from tests.experiments.calls import (
    PATIENCE,
    ask_when,
    calls_beside,
    cut_off_once,
    double,
    double_or_die,
    is_alive,
    meet,
    prepare_until_told,
    train_until_told,
    wait_until,
)
from tests.experiments.listening import addresses_listened_on

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is an extra: pip install 'manigraph[ray]'"
)


def jobs_here(folder: Path, **settings: Any) -> SlurmEngine:
    """What SLURM would get, as processes of this machine."""
    return SlurmEngine(folder / "jobs", cluster="local", **settings)


def outcomes(engine: Engine, function: Callable[[Any], Any], things: Sequence[Any]) -> list[Any]:
    return list(engine.outcomes(function, things))


def started(engine: str, call: str, *things: object, **variables: str) -> "subprocess.Popen[str]":
    """An engine in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.experiments.drive", engine, call, *map(str, things)],
        env={**environment, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def marks(folder: Path, count: int) -> list[Path]:
    folder.mkdir(exist_ok=True)
    return [folder / f"{number}.mark" for number in range(count)]


def written(paths: Sequence[Path]) -> bool:
    return all(path.exists() and path.read_text() for path in paths)


def all_ended(paths: Sequence[Path]) -> bool:
    return not any(is_alive(int(path.read_text())) for path in paths)


# Processes of this machine


def test_local_answers_are_those_of_the_function() -> None:
    assert sorted(outcomes(LocalEngine(2), double, [3, 1, 2, 4, 5])) == [2, 4, 6, 8, 10]
    assert outcomes(LocalEngine(2), double, []) == []


def test_a_process_that_is_killed_loses_one_thing_only() -> None:
    found = outcomes(LocalEngine(1), double_or_die, [1, 2, 3, 4])
    assert found == [2, Lost(2, "its process was killed; if memory ran out, use fewer --jobs"), 6, 8]


def test_as_many_calls_as_there_are_jobs(tmp_path: Path) -> None:
    assert set(outcomes(LocalEngine(2), meet, marks(tmp_path / "two", 2))) == {""}
    assert max(outcomes(LocalEngine(2), calls_beside, marks(tmp_path / "many", 6))) <= 2


@pytest.mark.parametrize(("visible", "seen"), [(None, {"0", "1"}), ("4,GPU-7", {"4", "GPU-7"})])
def test_each_process_sees_one_gpu(
    visible: str | None, seen: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert set(outcomes(LocalEngine(2, gpus=2), meet, marks(tmp_path / "two", 2))) == seen


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_request_to_stop_reaches_what_is_being_computed(
    number: signal.Signals, code: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    three = marks(tmp_path / "marks", 3)
    ask_when(lambda: written(three[:2]), os.getpid, number)
    found: list[str] = []
    with pytest.raises(Interrupted) as stop:
        found.extend(LocalEngine(2).outcomes(train_until_told, three))  # type: ignore[arg-type]
    assert stop.value.exit_code == code
    assert found == ["told", "told"]
    assert not three[2].exists(), "nothing is begun any more"
    assert all(path.with_suffix(".checkpoint").exists() for path in three[:2])
    assert all_ended(three[:2])
    assert capfd.readouterr() == ("", "")


def test_what_hears_no_signals_ends_without_a_word(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    two = marks(tmp_path / "marks", 2)
    ask_when(lambda: written(two), os.getpid, signal.SIGTERM)
    with pytest.raises(Interrupted):
        outcomes(LocalEngine(2), prepare_until_told, two)
    assert all_ended(two)
    assert capfd.readouterr() == ("", "")


def test_a_caller_that_stops_listening_leaves_no_process(tmp_path: Path) -> None:
    two = marks(tmp_path / "marks", 2)
    engine = LocalEngine(3).outcomes(_first_at_once, [None, *two])
    assert next(engine) == "at once"
    wait_until(lambda: written(two), "both calls")
    engine.close()
    assert all(path.with_suffix(".checkpoint").exists() for path in two)
    assert all_ended(two)


def _first_at_once(mark: Path | None) -> str:
    return "at once" if mark is None else train_until_told(mark)


@pytest.mark.parametrize("moment", ["importing", "preparing"])
def test_ctrl_c_of_a_terminal_reaches_all_processes_and_none_complains(moment: str, tmp_path: Path) -> None:
    two = marks(tmp_path / "marks", 2)
    importing = tmp_path / "importing"
    call = "prepare_until_told_after_import"
    with started("LocalEngine(2)", call, *two, IMPORTING=str(importing)) as process:
        wait_until(importing.exists if moment == "importing" else lambda: written(two), moment)
        os.killpg(process.pid, signal.SIGINT)
        assert process.communicate(timeout=PATIENCE) == ("stopped with 130\n", "")


def test_a_second_ctrl_c_ends_everything_at_once(tmp_path: Path) -> None:
    two = marks(tmp_path / "marks", 2)
    with started("LocalEngine(2)", "finish_whatever_is_told", *two) as process:
        wait_until(lambda: written(two), "both calls")
        process.send_signal(signal.SIGINT)
        wait_until(lambda: all(path.with_suffix(".told").exists() for path in two), "both to be told")
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=PATIENCE) == ("ended at once\n", "")
    assert all_ended(two)


@pytest.mark.parametrize("call", ["train_until_told", "prepare_until_told"])
def test_orphans_end_by_themselves(call: str, tmp_path: Path) -> None:
    two = marks(tmp_path / "marks", 2)
    with started("LocalEngine(2)", call, *two) as process:
        wait_until(lambda: written(two), "both calls")
        process.kill()
        # Which ends with the last process that could write there.
        assert process.communicate(timeout=PATIENCE) == ("", "")
    wait_until(lambda: all_ended(two), "the end of both processes")
    kept = [path.with_suffix(".checkpoint").exists() for path in two]
    assert kept == [call == "train_until_told"] * 2


def test_cores_are_shared_among_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    assert available_cores() == 8
    for jobs, threads, expected in (
        (None, 0, LocalEngine(8, 1)),
        (3, 0, LocalEngine(3, 2)),
        (None, 4, LocalEngine(2, 4)),
        (3, 5, LocalEngine(3, 5)),
        (20, 0, LocalEngine(20, 1)),
    ):
        assert engine_named("local", folder=Path(), jobs=jobs, threads=threads) == expected


# SLURM


def test_jobs_give_the_answers_of_the_function(tmp_path: Path) -> None:
    assert sorted(outcomes(jobs_here(tmp_path), double, [3, 1, 2])) == [2, 4, 6]
    assert outcomes(jobs_here(tmp_path), double, []) == []


def test_a_job_that_dies_loses_one_thing_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from submitit.core.core import Job

    monkeypatch.setattr(Job, "_results_timeout_s", 1)  # how long a slow file system is waited for
    found = outcomes(jobs_here(tmp_path), double_or_die, [1, 2, 3])
    (lost,) = [outcome for outcome in found if isinstance(outcome, Lost)]
    assert lost.thing == 2
    assert "ended without a result" in lost.reason
    assert Path(lost.reason.rpartition("see ")[2]).exists()
    assert sorted(outcome for outcome in found if outcome is not lost) == [2, 6]


def test_a_job_that_is_cut_off_is_called_again(tmp_path: Path) -> None:
    """SIGUSR2 is what SLURM sends before the time limit and for other jobs' sake."""
    mark = tmp_path / "mark"
    ask_when(lambda: written([mark]), lambda: int(mark.read_text()), signal.SIGUSR2)
    found = outcomes(jobs_here(tmp_path, hours=1 / 60), cut_off_once, [mark])
    assert found == [f"again, after {mark.read_text()}"]


def test_jobs_are_cancelled_when_somebody_asks_to_stop(tmp_path: Path) -> None:
    two = marks(tmp_path / "marks", 2)
    engine = f"SlurmEngine(Path({str(tmp_path)!r}), cluster='local')"
    with started(engine, "train_until_told", *two) as process:
        wait_until(lambda: written(two), "both jobs")
        process.terminate()
        out, _ = process.communicate(timeout=PATIENCE)
    assert out == "stopped with 143\n"
    wait_until(lambda: all_ended(two), "the end of both jobs")


SBATCH = """#!{python}
import os, re, shutil, subprocess, sys
script = open(sys.argv[1]).read()
shutil.copy(sys.argv[1], {copy!r})
last = int(re.search(r"--array=0-(\\d+)", script).group(1))
(command,) = [line for line in script.splitlines() if line.startswith("srun")]
for number in range(last + 1):
    task = dict(os.environ, SLURM_JOB_ID="7", SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID=str(number),
                SLURM_NTASKS="1", SLURM_PROCID="0", SLURM_LOCALID="0", SUBMITIT_EXECUTOR="slurm")
    subprocess.Popen(command[command.index({python!r}):], shell=True, env=task,
                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print("Submitted batch job 7")
"""


def test_what_is_asked_of_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real job scripts; what takes SLURM's place starts their commands with its variables."""
    (tmp_path / "bin").mkdir()
    for name, text in (
        ("sbatch", SBATCH.format(python=sys.executable, copy=str(tmp_path / "script.sh"))),
        ("srun", "#!/bin/sh\n"),
        ("sacct", "#!/bin/sh\necho 'JobID|State|NodeList'\necho '7_0|RUNNING|a'\necho '7_1|RUNNING|a'\n"),
    ):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    engine = engine_named("slurm", folder=tmp_path, jobs=1, threads=4, gpus=1, hours=1.5, partition="long")
    assert sorted(outcomes(engine, double, [1, 2])) == [2, 4]
    script = (tmp_path / "script.sh").read_text()
    for line in ("array=0-1%1", "cpus-per-task=4", "gpus-per-node=1", "time=90", "partition=long"):
        assert f"#SBATCH --{line}\n" in script


def test_without_slurm_or_submitit_there_is_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    engine = engine_named("slurm", folder=tmp_path)
    with pytest.raises(UserError, match="finds no srun here: run the command on a machine of the cluster"):
        outcomes(engine, double, [1])
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UserError, match=r"needs submitit: pip install 'manigraph\[slurm\]'"):
        outcomes(engine, double, [1])


# Ray


@needs_ray
def test_ray_gives_the_answers_of_the_function_and_loses_one_thing_only() -> None:
    with started("RayEngine(jobs=1)", "double_or_die", 1, 2, 3) as process:
        out, complaint = process.communicate(timeout=PATIENCE)
    assert (process.returncode, complaint) == (0, "")
    first, lost, third = (line for line in out.splitlines() if "(raylet)" not in line)  # which says it too
    assert (first, third) == ("2", "6")
    assert lost.startswith("Lost(thing=2, reason='its Ray worker is gone: ")


@needs_ray
def test_ray_stays_on_this_machine_and_stops_when_asked(tmp_path: Path) -> None:
    three = marks(tmp_path / "marks", 3)
    with started("RayEngine(jobs=2)", "train_until_told", *three) as process:
        wait_until(lambda: written(three[:2]), "both tasks")
        assert addresses_listened_on(process.pid) == {"127.0.0.1"}
        process.terminate()
        out, complaint = process.communicate(timeout=PATIENCE)
    assert (process.returncode, complaint) == (0, "")
    assert out.splitlines()[-1] == "stopped with 143"
    assert not three[2].exists(), "nothing is begun any more"
    assert all(path.with_suffix(".checkpoint").exists() for path in three[:2])
    wait_until(lambda: all_ended(three[:2]), "the end of both tasks")


@needs_ray
@pytest.mark.parametrize(
    ("address", "reason"), [("127.0.0.1:1", "Connection refused"), ("nonsense", "Invalid address format")]
)
def test_a_ray_cluster_that_is_not_there(address: str, reason: str) -> None:
    with started("RayEngine()", "double", 1, RAY_ADDRESS=address) as process:
        _, complaint = process.communicate(timeout=PATIENCE)
    assert f"there is no Ray cluster at RAY_ADDRESS '{address}'" in complaint
    assert reason in complaint
    assert "unset RAY_ADDRESS to use this machine alone" in complaint.splitlines()[-1]


def test_without_ray_there_is_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"needs Ray: pip install 'manigraph\[ray\]'"):
        outcomes(RayEngine(), double, [1])
