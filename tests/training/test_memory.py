"""Freed memory stays with the process, seen from the system's side."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, resource, sys, threading
import torch
from manigraph.training.memory import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def work(times=3):
    for _ in range(times):
        torch.ones(50 << 18)  # 50 MiB, more than the C library keeps by itself

kept = keep_freed_memory() if sys.argv[1] == "kept" else False
work(20)  # until there is room for their alignment, too
before = faults()
work()
here = faults() - before
thread = threading.Thread(target=work)  # whose memory is managed apart, and is smaller
thread.start()
thread.join()
print(json.dumps({"kept": kept, "faults": here}))
"""


def measured(how: str) -> dict[str, int]:
    run = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    result: dict[str, int] = json.loads(run.stdout)
    return result


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the GNU C library is Linux's")
def test_memory_is_handed_out_anew_only_without_it() -> None:
    usual, kept = measured("usual"), measured("kept")
    if not kept["kept"]:
        pytest.skip("another C library than GNU's")
    pages = 3 * 50 * 256
    assert usual["faults"] > pages / 600  # at least one for every huge page of 2 MiB
    assert kept["faults"] < usual["faults"] / 4


TRAINING = """
import hashlib, json, sys
from dataclasses import replace
from manigraph.build import build
from manigraph.catalogue import RECIPES
from manigraph.training.execution import Execution
from manigraph.training.memory import keep_freed_memory

kept = keep_freed_memory() if sys.argv[1] == "kept" else False
job = build(RECIPES.get("digits")("pi_vat"), execution=Execution(device="cpu"))
for _ in range(3):
    job.trainer.train_step(next(job.batches))
digest = hashlib.sha256()
for value in job.trainer.algorithm.state_dict().values():
    digest.update(value.numpy().tobytes())
print(json.dumps({"kept": kept, "weights": digest.hexdigest()}))
"""


def test_training_gives_the_same_bits_with_and_without() -> None:
    answers = [
        json.loads(subprocess.check_output([sys.executable, "-c", TRAINING, how]))
        for how in ("usual", "kept")
    ]
    assert answers[0]["kept"] is False
    assert answers[0]["weights"] == answers[1]["weights"]
