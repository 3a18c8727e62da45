"""Contenders in processes of their own: real ones, that take turns."""

import sys
from pathlib import Path

import pytest

from manigraph.bench.workers import in_processes

PROGRAM = """
import sys
from pathlib import Path
from manigraph.bench.workers import serve

name, record = sys.argv[1], Path(sys.argv[2])

def work():
    if name == "breaks":
        raise SystemExit(3)
    with record.open("a") as file:
        file.write(name)

serve(work)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "contender_of_a_test.py").write_text(PROGRAM, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "contender_of_a_test"


def test_each_works_when_it_is_called_and_is_done_when_the_call_returns(module: str, tmp_path: Path) -> None:
    record = tmp_path / "record"
    arguments = {name: (name, str(record)) for name in ("a", "b")}
    with in_processes(module, arguments) as contenders:
        for expected, name in [("a", "a"), ("ab", "b"), ("abb", "b"), ("abba", "a")]:
            contenders[name]()
            assert record.read_text(encoding="utf-8") == expected


def test_one_that_ends_early_is_noticed(module: str, tmp_path: Path) -> None:
    with (
        in_processes(module, {"it": ("breaks", str(tmp_path / "record"))}) as contenders,
        pytest.raises(RuntimeError, match=r"contender_of_a_test breaks .* ended early"),
    ):
        contenders["it"]()


def test_they_end_with_the_measurement(module: str, tmp_path: Path) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("looks into /proc")
    with in_processes(module, {"it": ("it", str(tmp_path / "record"))}):
        assert _running(module)
    assert not _running(module)


def _running(module: str) -> bool:
    lines = (path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())
    return any(module.encode() in line for line in lines)
