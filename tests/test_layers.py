"""The architecture, held by tests."""

import subprocess
import sys
import tomllib
from pathlib import Path

from manigraph.catalogue import ALGORITHMS

ROOT = Path(__file__).parent.parent


def test_import_contracts_are_kept() -> None:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_every_algorithm_is_in_the_independence_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (independent,) = (c["modules"] for c in contracts if c["type"] == "independence")
    modules = {entry.location.partition(":")[0] for entry in ALGORITHMS.entries.values()}
    assert modules <= set(independent)


def test_listing_and_help_do_not_import_torch() -> None:
    script = (
        "import sys; from manigraph.cli.main import main; "
        "codes = [main(['--help']), main(['list']), main(['train', '--help'])]; "
        "assert codes == [0, 0, 0], codes; "
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
