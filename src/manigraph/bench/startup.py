"""How long it takes until something happens: `manigraph --help`, and imports against torch's."""

import subprocess
import sys
from collections.abc import Callable

from manigraph.bench.turns import Patience, Ratio, Target, Work, ratio_of, take_turns

HELP = "manigraph --help"
HALF_A_SECOND = "half a second"
TORCH = "import torch"
IMPORTS = ("import manigraph", "import manigraph.engine")
"""The package, and all that training needs."""


def _python(*arguments: str) -> Work:
    def run() -> None:
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)

    return run


def run_startup_benchmark(scale: float, tell: Callable[[str], None]) -> list[Ratio]:
    """Each in a new process; --help is measured against half a second."""
    work = {TORCH: _python("-c", TORCH), HELP: _python("-m", "manigraph", "--help")}
    work |= {statement: _python("-c", statement) for statement in IMPORTS}
    patience = Patience(tolerance=0.03, most_seconds=60).scaled(scale)
    seconds = take_turns(work, patience, lambda rounds: tell(f"start: round {rounds}"))
    seconds[HALF_A_SECOND] = [0.5] * len(seconds[HELP])
    at_most = Target("at most", 1.1)
    return [
        ratio_of(seconds, HELP, HALF_A_SECOND, setting="in a new process", target=Target("at most", 1.0)),
        *(ratio_of(seconds, name, TORCH, setting="in a new process", target=at_most) for name in IMPORTS),
    ]
