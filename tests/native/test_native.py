"""That the inner loops in C are there where they can be, for both kinds of processors, and only if wanted."""

import os
import platform
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from manigraph.native import compiling, library, loaded_library, native, use_native
from manigraph.training.execution import Execution
from manigraph.training.processes import start_processes

ROOT = Path(__file__).parents[2]
SOURCES = sorted(compiling.FOLDER.glob("*.[ch]"))


can_compile = pytest.mark.skipif(
    shutil.which("cc") is None or not sys.platform.startswith("linux") or platform.machine() != "x86_64",
    reason="no C compiler here, or another kind of machine",
)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    for source in SOURCES:
        shutil.copy(source, tmp_path)
    return tmp_path


@can_compile
def test_they_are_there_where_there_is_a_compiler() -> None:
    """Else all their tests would be skipped, and nobody would notice."""
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("another kind of processor")
    assert loaded_library() is not None
    assert library() is not None


def test_libraries_of_other_sources_are_not_used(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an update of the code alone: their functions may have other arguments."""
    if library() is None:
        pytest.skip("manigraph.native was not compiled for this machine: no C compiler at install")
    compiling.compile_all(sources)
    monkeypatch.setattr(compiling, "FOLDER", sources)
    monkeypatch.setattr(compiling, "digest", partial(compiling.digest, sources))
    loaded_library.cache_clear()
    try:
        assert loaded_library() is not None
        with (sources / "product.h").open("a") as header:
            header.write("/* new */\n")
        loaded_library.cache_clear()
        with pytest.warns(UserWarning, match="compiled from other sources: install manigraph again"):
            assert loaded_library() is None
        loaded_library.cache_clear()
        monkeypatch.setattr(compiling, "FOLDER", sources / "damaged")
        compiling.FOLDER.mkdir()
        for name in compiling.VARIANTS:
            (compiling.FOLDER / name).write_text("something else")
        with pytest.warns(UserWarning, match="cannot be loaded"):
            assert loaded_library() is None
    finally:
        loaded_library.cache_clear()


@pytest.mark.parametrize(
    "file",
    [
        "tests/nn/test_convolution.py",
        "tests/nn/test_normalised_activation.py",
        "tests/native/test_prototype_classification.py",
        "tests/native/test_triplets.py",
    ],
)
def test_both_kinds_of_processors(file: str) -> None:
    """Processors with AVX-512 can do what those with AVX2 only do."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or loaded_library() is None:
        pytest.skip("no processor with AVX-512, or no C compiler at install")
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "avx2"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout
    assert "skipped" not in answer.stdout


def test_switched_off_for_a_while_or_for_good() -> None:
    present = library()
    with native(False):
        assert library() is None
        with native(True):
            assert library() is present
        assert library() is None
    assert library() is present
    try:
        start_processes(Execution(device="cpu", native=False, keep_memory=False))
        assert library() is None
        start_processes(Execution(device="cpu", keep_memory=False))
        assert library() is present
    finally:
        use_native(True)


@can_compile
@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        ("no-such-compiler", "there is no C compiler"),
        ("", "there is no C compiler"),
        ("false", "the C compiler failed"),
    ],
)
def test_without_a_compiler_there_is_a_reason(
    sources: Path, compiler: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", compiler)
    with pytest.raises(compiling.NotCompiledError, match=reason):
        compiling.compile_all(sources)
    assert {file.suffix for file in sources.iterdir()} == {".c", ".h"}


@can_compile
def test_a_source_that_cannot_be_compiled_leaves_what_was_there(sources: Path) -> None:
    (sources / "avx512.so").write_text("as before")
    (sources / "broken.c").write_text("int f(void) { return missing; }")
    with pytest.raises(compiling.NotCompiledError, match="missing"):
        compiling.compile_all(sources)
    assert (sources / "avx512.so").read_text() == "as before"
    assert not list(sources.glob("*.o")) + list(sources.glob("*.part"))
