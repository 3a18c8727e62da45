"""Where a result comes from: versions, commit, machine, command."""

import importlib.metadata
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

PACKAGES = ("manigraph", "torch", "numpy", "scikit-learn", "safetensors")


def provenance() -> dict[str, Any]:
    """A record of this process for `provenance.json`."""
    return {
        "command": ["manigraph", *sys.argv[1:]],
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": packages(),
        "machine": machine(),
    }


def packages() -> dict[str, str | None]:
    """Versions of what decides a result."""
    return {name: _version(name) for name in PACKAGES}


def machine() -> dict[str, Any]:
    """What kind of machine this is; no host name, so that results can be passed on."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the source tree, with `+changes` if it is not clean; None outside a checkout."""
    here = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", str(here)).strip()
        return git("rev-parse", "HEAD").strip() + ("+changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
