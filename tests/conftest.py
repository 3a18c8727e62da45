"""Shapes and types of the package are checked while its tests run, and the tests use one thread."""

import os

# Two workers run the tests side by side, and each starts processes: with a thread for every core in each of
# them, threads would wait for one another. Must come before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A map takes longer than most of the trainings here; tests of the report ask for it.
os.environ.setdefault("MANIGRAPH_REPORT", "False")

import torch
from hypothesis import settings
from jaxtyping import install_import_hook

# Must come before the first import of the package: annotations are turned into checks on import.
install_import_hook(["manigraph.functional", "manigraph.nn"], "beartype.beartype")

torch.set_num_threads(1)

settings.register_profile("repeatable", deadline=None, derandomize=True, database=None, max_examples=60)
settings.load_profile("repeatable")
