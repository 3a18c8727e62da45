"""Shapes and types of the package are checked while its tests run, and the tests use one thread."""

import torch
from hypothesis import settings
from jaxtyping import install_import_hook

# Must come before the first import of the package: annotations are turned into checks on import.
install_import_hook(["manigraph.functional", "manigraph.nn"], "beartype.beartype")

torch.set_num_threads(1)

settings.register_profile("repeatable", deadline=None, derandomize=True, database=None, max_examples=60)
settings.load_profile("repeatable")
