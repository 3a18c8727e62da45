"""Where and how a run is computed, and what of it must not change the result."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from manigraph.build import build
from manigraph.config import Config
from manigraph.engine import train
from manigraph.errors import UserError
from manigraph.training.execution import Execution, choose_device
from manigraph.training.processes import start_processes
from tests.resume.training import config

ALONE = Execution(threads=1, checkpoint_minutes=0, device="cpu")


def weights(configuration: Config[Any], execution: Execution, steps: int = 4) -> dict[str, Tensor]:
    with torch.random.fork_rng():
        job = build(configuration, execution=execution)
        for _ in range(steps):
            job.trainer.train_step(next(job.batches))
    return job.trainer.algorithm.state_dict()


def test_the_device_is_found_or_its_absence_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")
    for name in ("cuda", "cuda:1"):
        with pytest.raises(UserError, match=f"there is no device '{name}' here .*use --device auto or cpu"):
            choose_device(name)
    with pytest.raises(UserError, match="there is no device 'gpu'"):
        choose_device("gpu")
    with pytest.raises(UserError, match="devices of type mps are not supported"):
        choose_device("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto", local_rank=1) == torch.device("cuda", 1)
    assert choose_device("cuda", local_rank=1) == torch.device("cuda", 1)
    assert choose_device("cuda:0", local_rank=1) == torch.device("cuda", 0)
    with pytest.raises(UserError, match="2 of type cuda"):
        choose_device("cuda:2")


@pytest.mark.parametrize(
    "change", [{"processes": 0}, {"accumulate": 0}, {"threads": -1}, {"checkpoint_minutes": -1}]
)
def test_impossible_settings_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        Execution(**change)


def test_compiling_and_recomputing_do_not_go_together() -> None:
    with pytest.raises(ValueError, match="--compile cannot be used together"):
        Execution(compile=True, recompute=True)


def test_recomputing_gives_the_same_run() -> None:
    plain = weights(config(), ALONE)
    thrifty = weights(config(), dataclasses.replace(ALONE, recompute=True))
    assert all(torch.equal(plain[name], thrifty[name]) for name in plain)


def test_a_batch_in_parts_trains(tmp_path: Path) -> None:
    run, evaluations = train(
        config("pi_vat", steps=12), tmp_path, execution=dataclasses.replace(ALONE, accumulate=4)
    )
    assert run.status().state == "finished"
    assert evaluations["test"].error < 95


def test_deterministic_algorithms_are_asked_for_and_enough(tmp_path: Path) -> None:
    """In a process of its own, since it stays switched on."""
    script = (
        "import torch; from manigraph.cli.main import main; code = main(); "
        "assert torch.are_deterministic_algorithms_enabled(); raise SystemExit(code)"
    )
    arguments = ["train", "digits", "--deterministic", "--training.steps", "4", "--backbone.width", "0.25"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments, "--method.warmup_fraction", "0"],
        cwd=tmp_path, capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_plain_process_is_alone() -> None:
    processes = start_processes(ALONE)
    assert (processes.shard.rank, processes.shard.size, processes.is_first) == (0, 1, True)
    assert processes.any(True)
    assert not processes.any(False)
    assert processes.mean({"a": 2.0}) == {"a": 2.0}
    assert processes.first_says("x") == "x"


@pytest.mark.parametrize(
    ("variables", "execution", "complaint"),
    [
        ({"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "4"}, ALONE, "left no sensible number"),
        (
            {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"},
            dataclasses.replace(ALONE, processes=3),
            "the launcher started 2 on each of 2 nodes",
        ),
        ({"SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_NUM_NODES": "2"}, ALONE, "3 tasks on 2 nodes"),
        ({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "2"}, ALONE, "nothing starts them: put srun before"),
    ],
    ids=["torchrun-half", "torchrun-other", "slurm-uneven", "slurm-without-srun"],
)
def test_launchers_that_make_no_sense_are_told(
    variables: dict[str, str], execution: Execution, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=complaint):
        start_processes(execution)


def test_a_compiled_backbone_takes_the_same_steps(tmp_path: Path) -> None:
    """As a command, since torch's compiler warns of itself."""
    trained = []
    for option in ([], ["--compile"]):
        arguments = ["train", "digits", "--algorithm", "supervised", "--training.steps", "3", "--seed", "1"]
        arguments += ["--backbone.width", "0.25", "--schedule.max_learning_rate", "0.01", "--threads", "1"]
        done = subprocess.run(
            [sys.executable, "-m", "manigraph", *arguments, *option],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        path = done.stdout.partition("run directory: ")[2].strip()
        trained.append(safetensors.torch.load_file(tmp_path / path / "model.safetensors"))
    eager, compiled = trained
    assert eager.keys() == compiled.keys()
    for name, value in eager.items():
        torch.testing.assert_close(compiled[name], value, rtol=1e-3, atol=1e-4, msg=name)


def test_without_a_compiler_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UserError, match=r"--compile needs a C\+\+ compiler"):
        build(config("supervised"), execution=dataclasses.replace(ALONE, compile=True))
