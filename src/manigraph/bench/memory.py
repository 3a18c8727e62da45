"""How much memory a large folder of images takes: measured in processes of their own.

`python -m manigraph.bench.memory FOLDER CACHE mapped|resident` prints one line of JSON.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

STEPS = 30


@dataclass(frozen=True)
class MemoryUse:
    """Training on a folder, in one process."""

    how: str
    images: int
    pixels_mib: float
    """Size of all decoded pixels."""
    own_mib: float
    """Memory of the process itself at the end (anonymous pages), without what it maps from files."""
    before_mib: float
    """The same before any image was read: Python, torch and the rest."""
    peak_mib: float
    """Highest resident memory, with mapped pages of the pixel file, which the system may take back."""
    load_seconds: float
    images_per_second: float
    """In training: one-layer network, so that data is what counts."""


def measure_memory(count: int, on_progress: Callable[[str], None]) -> list[MemoryUse]:
    """Make a folder of `count` PNG files of 32x32 pixels and train on it: new, from the cache, in memory."""
    with tempfile.TemporaryDirectory(prefix="manigraph-bench-") as scratch:
        folder, cache = Path(scratch) / "images", Path(scratch) / "cache"
        on_progress(f"writing {count} files")
        _make_folder(folder, count)
        results = []
        for how in ("mapped, first time", "mapped, from the cache", "all in memory"):
            on_progress(f"training, {how}")
            kind = "resident" if how == "all in memory" else "mapped"
            command = [sys.executable, "-m", __name__, str(folder), str(cache), kind]
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            results.append(MemoryUse(how=how, **json.loads(output.splitlines()[-1])))
        return results


def _make_folder(folder: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    for c in range(10):
        (folder / f"class{c}").mkdir(parents=True)
    (folder / "unlabelled").mkdir()
    for i in range(count):
        image = Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8))
        where = f"class{i % 10}" if i < count // 10 else "unlabelled"
        image.save(folder / where / f"{i}.png", compress_level=1)


def memory_status() -> dict[str, float]:
    """This process's memory in MiB, as Linux tells it: its own, all that is resident, and that at most."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {name: int(fields[name].split()[0]) / 1024 for name in ("RssAnon", "VmRSS", "VmHWM")}


def _train(folder: Path, cache: Path, how: str) -> dict[str, Any]:
    from dataclasses import replace

    import torch

    from manigraph.build import build, load_dataset
    from manigraph.catalogue import RECIPES
    from manigraph.data.locations import Locations

    before = memory_status()["RssAnon"]
    began = time.perf_counter()
    config = RECIPES.get("folder")("pi_model")
    config = replace(
        config,
        data=replace(config.data, path=str(folder)),
        backbone=replace(config.backbone, name="small_cnn", width=0.1),
        training=replace(config.training, steps=STEPS),
    )
    dataset = load_dataset(config.data, Locations(data=folder, cache=cache))
    if how == "resident":
        dataset = replace(dataset, images=dataset.images.clone(memory_format=torch.contiguous_format))
    job = build(config, dataset=dataset)
    loaded = time.perf_counter()
    for _ in range(STEPS):
        job.trainer.train_step(next(job.batches))
    trained = time.perf_counter() - loaded
    status = memory_status()
    images = STEPS * (config.batch.labelled + config.batch.unlabelled)
    return {
        "images": len(dataset.images),
        "pixels_mib": round(dataset.images.numel() / 2**20, 1),
        "own_mib": round(status["RssAnon"], 1),
        "before_mib": round(before, 1),
        "peak_mib": round(status["VmHWM"], 1),
        "load_seconds": round(loaded - began, 1),
        "images_per_second": round(images / trained),
    }


if __name__ == "__main__":
    print(json.dumps(_train(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])))
