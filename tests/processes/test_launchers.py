"""Several processes as a person starts them: Fabric's launcher, torchrun, SLURM; and how they end."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import safetensors.torch
import torch

from manigraph.runs import RunDirectory
from tests.helpers import assert_bitwise_equal

TRAIN = ["train", "digits", "--backbone.width", "0.25", "--device", "cpu", "--threads", "1"]
SHORT = ["--training.steps", "12", "--training.log_every", "4", "--schedule.max_learning_rate", "0.01"]
LONG = ["--training.steps", "100000", "--training.log_every", "1"]
RUN = "digits-20-manifold_graph-seed0"

TWO_BY_TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
TWO_BY_TORCHRUN += ["--rdzv-endpoint", "127.0.0.1:0", "-m", "manigraph"]


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "MASTER_PORT": free_port(), "MASTER_ADDR": "127.0.0.1", **changes}


@contextmanager
def started(command: list[str], cwd: Path, **changes: str) -> Iterator[subprocess.Popen[str]]:
    """A command, of which nothing is left in the end."""
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=cwd,
        env=environment(MARK=str(cwd), **changes),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        for number, _ in marked(cwd):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        process.communicate()


def marked(cwd: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """All living processes that were started there, with their variables; torchrun gives them new groups."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            items = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            variables = dict(item.split("=", 1) for item in items if "=" in item)
            if entry.name.isdecimal() and variables.get("MARK") == str(cwd):
                yield int(entry.name), variables


def ended(process: subprocess.Popen[str], code: int) -> tuple[str, str]:
    out, complaint = process.communicate(timeout=120)
    assert process.returncode == code, out + complaint
    return out, complaint


def check_run(folder: Path, out: str) -> dict[str, torch.Tensor]:
    """One run, told once; its weights."""
    assert [path.name for path in (folder / "runs").iterdir()] == [RUN]
    assert out.count("run directory:") == 1
    assert out.count("step 12/12") == 1
    run = RunDirectory.open(folder / "runs" / RUN)
    assert run.status().state == "finished"
    assert [line["step"] for line in run.read_lines("metrics.jsonl")] == [4, 8, 12]
    assert len(run.read_lines("evaluations.jsonl")) == 1
    return safetensors.torch.load_file(run.path / "model.safetensors")


@pytest.fixture(scope="module")
def weights_by_torchrun(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    folder = tmp_path_factory.mktemp("torchrun")
    with started([*TWO_BY_TORCHRUN, *TRAIN, *SHORT], folder) as process:
        out, _ = ended(process, 0)
    return check_run(folder, out)


def test_torchrun_computes_what_one_process_does(
    weights_by_torchrun: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    with started(["-m", "manigraph", *TRAIN, *SHORT], tmp_path) as process:
        out, _ = ended(process, 0)
    alone = check_run(tmp_path, out)
    for name, value in alone.items():
        torch.testing.assert_close(weights_by_torchrun[name], value, rtol=1e-2, atol=1e-2, msg=name)


def test_fabrics_launcher_does_the_same(weights_by_torchrun: dict[str, torch.Tensor], tmp_path: Path) -> None:
    with started(["-m", "manigraph", *TRAIN, *SHORT, "--processes", "2"], tmp_path) as process:
        out, complaint = ended(process, 0)
    assert complaint == ""
    assert_bitwise_equal(check_run(tmp_path, out), weights_by_torchrun)


LAST_WORDS = """
import atexit, sys
from pathlib import Path

def threads():
    names = {(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()}
    print("threads at exit:", sorted(names))

atexit.register(threads)  # the first to register is the last to be called

from manigraph.cli.main import main

sys.exit(main())
"""


def test_no_thread_of_gloo_outlives_the_interpreter(tmp_path: Path) -> None:
    """One that still holds a tensor then aborts the process, now and then."""
    script = tmp_path / "train.py"
    script.write_text(LAST_WORDS)
    with started([*TWO_BY_TORCHRUN[:-2], str(script), *TRAIN, *SHORT], tmp_path) as process:
        out, _ = ended(process, 0)
    last_words = [line for line in out.splitlines() if "threads at exit" in line]
    assert len(last_words) == 2
    assert "gloo" not in "".join(last_words)


def test_slurm_does_the_same(weights_by_torchrun: dict[str, torch.Tensor], tmp_path: Path) -> None:
    """What `srun -n 2` of SLURM 22.05 puts into the environment of its tasks."""
    slurm = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NAME": "train",
        "SLURM_NTASKS": "2",
        "SLURM_NNODES": "1",
        "SLURM_NODEID": "0",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_NODELIST": "127.0.0.1",
        "MASTER_PORT": free_port(),
    }
    tasks = [{**slurm, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(2)]
    with (
        started(["-m", "manigraph", *TRAIN, *SHORT], tmp_path, **tasks[1]) as second,
        started(["-m", "manigraph", *TRAIN, *SHORT], tmp_path, **tasks[0]) as first,
    ):
        out, _ = ended(first, 0)
        silent, _ = ended(second, 0)
    assert silent == ""
    assert_bitwise_equal(check_run(tmp_path, out), weights_by_torchrun)


# How they end


def ranks_in(cwd: Path) -> dict[int, int]:
    """Process numbers of the trainings, by rank."""
    found = {}
    for number, variables in marked(cwd):
        command = Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")
        if b"train" in command and b"torch.distributed.run" not in command:
            found[int(variables.get("LOCAL_RANK", "0"))] = number
    return found


def wait_for_steps(run: Path, process: subprocess.Popen[str]) -> None:
    while not (run / "metrics.jsonl").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


@pytest.mark.parametrize(
    "command", [["-m", "manigraph", "--processes"], TWO_BY_TORCHRUN], ids=["fabric", "torchrun"]
)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_dies_stops_the_other_with_a_message(
    command: list[str], victim: int, tmp_path: Path
) -> None:
    by_fabric = command[-1] == "--processes"
    arguments = [*command[:-1], *TRAIN, *LONG, "--processes", "2"] if by_fabric else [*command, *TRAIN, *LONG]
    run = tmp_path / "runs" / RUN
    with started(arguments, tmp_path) as process:
        wait_for_steps(run, process)
        ranks = ranks_in(tmp_path)
        assert ranks.keys() == {0, 1}
        os.kill(ranks[victim], signal.SIGKILL)
        began = time.monotonic()
        complaint = process.communicate(timeout=120)[1]
        assert process.returncode != 0
        assert time.monotonic() - began < 60, "within a minute"
        assert not list(marked(tmp_path))
    status = RunDirectory(run).status()
    if victim == 1:
        assert status.state == "failed"
        assert "another of its processes is gone" in status.reason
    else:
        assert status.state == "interrupted"
        assert "ended without a word" in status.reason
    assert re.search(r"manigraph.*: training stopped because another of its processes is gone", complaint)


def test_a_request_to_one_process_stops_all_and_any_number_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "runs" / RUN
    length = ["--training.steps", "400", "--training.log_every", "1"]
    with started(["-m", "manigraph", *TRAIN, *length, "--processes", "2"], tmp_path) as process:
        wait_for_steps(run, process)
        os.kill(ranks_in(tmp_path)[1], signal.SIGTERM)
        _, complaint = ended(process, 143)
    assert re.fullmatch(
        r"manigraph: stopped at step \d+ of 400; to go on from step \d+: manigraph train --resume \S+\n",
        complaint,
    )
    assert json.loads((run / "status.json").read_text())["state"] == "interrupted"
    with started(
        ["-m", "manigraph", "train", "--resume", f"runs/{RUN}", "--processes", "1"], tmp_path
    ) as process:
        out, _ = ended(process, 0)
    assert "processes 2 then, 1 now" in out
    lines = RunDirectory(run).read_lines("metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 401))


def test_batches_that_cannot_be_divided_are_refused(tmp_path: Path) -> None:
    with started(["-m", "manigraph", *TRAIN, *SHORT, "--processes", "3"], tmp_path) as process:
        _, complaint = ended(process, 2)
    assert complaint == (
        "manigraph: batch.labelled 32 cannot be divided among 3 parts (3 processes times --accumulate): use "
        "--batch.labelled 30\n"
    )
    assert not (tmp_path / "runs").exists()
