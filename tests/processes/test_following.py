"""Two processes compute what one does: each method, in whole steps, over a real connection."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from manigraph.training.processes import Processes
from tests.helpers import Case, all_cases, assert_bitwise_equal
from tests.processes.follow import state, train

CASES = all_cases()
every_method = pytest.mark.parametrize("case", CASES, ids=str)
both_precisions = pytest.mark.parametrize("double", [False, True], ids=["float32", "float64"])


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes left behind, which torchrun started; of the tests that are chosen."""
    folder = tmp_path_factory.mktemp("two")
    names = [item.name for item in request.session.items if item.path == request.path]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    command += ["-m", "tests.processes.follow", str(folder), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@every_method
@both_precisions
def test_two_processes_follow_one(case: Case, double: bool, folder: Path) -> None:
    job, records = train(case, Processes(torch.device("cpu")), double=double)
    one = state(job)
    both = [safetensors.torch.load_file(folder / f"{case}-{double}-{rank}") for rank in range(2)]
    assert_bitwise_equal(*both)
    assert both[0].keys() == one.keys()
    tolerance = 1e-11 if double else 1e-5
    for name, value in one.items():
        torch.testing.assert_close(both[0][name], value, rtol=tolerance, atol=tolerance, msg=name)
    losses = json.loads((folder / f"{case}-{double}-0.json").read_text())
    for terms, record in zip(losses, records, strict=True):
        assert terms == pytest.approx(record.terms, rel=tolerance, abs=tolerance)


def test_the_power_step_of_vat_averages_no_gradients(folder: Path) -> None:
    """Two more power iterations send nothing but batch norm's statistics."""
    for rank in range(2):
        traffic = json.loads((folder / f"traffic-{rank}.json").read_text())
        for kind in ("1", "3"):
            assert sum(traffic[kind]["averaged"]) == traffic[kind]["parameters"], "each gradient once"
        more = len(traffic["3"]["sent"]) - len(traffic["1"]["sent"])
        layers, passes = 4, 2
        assert more == passes * layers * 2, "forward and backward"
        assert max(traffic["3"]["sent"]) <= 2 * 32 * 10, "two numbers for each channel, or logits"


def test_no_thread_of_gloo_is_left_when_the_interpreter_ends(folder: Path) -> None:
    """One that lets go of a tensor then would abort the process."""
    for rank in range(2):
        names = json.loads((folder / f"threads-{rank}.json").read_text())
        assert not [name for name in names if "gloo" in name]
