"""How the inner loops are compiled; used when the package is built, so it needs nothing but a C compiler."""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
VARIANTS = {
    "avx512.so": ["-march=skylake-avx512", "-mprefer-vector-width=512", "-DLANES=16"],
    "avx2.so": ["-march=haswell", "-DLANES=8"],
}
FLAGS = [
    "-std=c11", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast",
    "-fopenmp", "-fPIC", "-Wall",
]  # fmt: skip


def digest(folder: Path = FOLDER) -> str:
    """Of all sources and how they are compiled; a library knows that of those it was made from."""
    found = hashlib.sha256(repr((FLAGS, VARIANTS)).encode())
    for source in sorted(folder.glob("*.[ch]")):
        found.update(source.read_bytes())
    return found.hexdigest()


class NotCompiledError(Exception):
    """Why there are no compiled inner loops."""


def compile_all(folder: Path = FOLDER) -> list[Path]:
    """A shared library for each kind of processor, from all sources in the folder.

    Raises:
        NotCompiledError: There is no compiler, it failed, or nobody has tried it on such a machine.
    """
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        raise NotCompiledError("inner loops in C are for Linux on x86-64 only")
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if not compiler or shutil.which(compiler[0]) is None:
        raise NotCompiledError("there is no C compiler")
    try:
        return [_compile(compiler, folder, name) for name in VARIANTS]
    except subprocess.CalledProcessError as error:
        raise NotCompiledError(f"the C compiler failed: {error.stderr.strip()}") from None
    except OSError as error:
        raise NotCompiledError(f"the C compiler could not be run: {error}") from None


def _compile(compiler: list[str], folder: Path, name: str) -> Path:
    """One library, put into its place only when it is whole."""
    part = folder / f"{name}.{os.getpid()}.part"
    knows = f'-DSOURCES="{digest(folder)}"'
    objects = [part.with_name(f"{part.name}.{source.stem}.o") for source in sorted(folder.glob("*.c"))]
    try:
        for source, made in zip(sorted(folder.glob("*.c")), objects, strict=True):
            _run([*compiler, *FLAGS, *VARIANTS[name], knows, "-c", str(source), "-o", str(made)])
        # Not linked with an OpenMP library: torch has loaded its own by then, and its threads are to be used.
        _run([*compiler, "-shared", *map(str, objects), "-o", str(part)])
        return part.replace(folder / name)
    finally:
        for leftover in (part, *objects):
            leftover.unlink(missing_ok=True)


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
