"""A run directory with everything in it, made up in a moment: the same numbers everywhere."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from manigraph.runs.directory import FORMAT_VERSION

Arrays = dict[str, npt.NDArray[Any]]


def make_run(
    folder: Path,
    name: str = "blobs-20-manifold_graph-seed0",
    *,
    class_names: tuple[str, ...] = ("cat", "dog", "fox"),
    images: int = 60,
    per_class: int = 4,
    seed: int = 0,
    algorithm: str = "manifold_graph",
    labels: int = 20,
    state: str = "finished",
    reason: str = "",
    error: float | None = None,
    with_analysis: bool = True,
    steps: int = 40,
) -> Path:
    """Write it and return its path; a run that is not finished has no final evaluation."""
    path = folder / name
    path.mkdir(parents=True)
    random = np.random.default_rng(seed)
    C, P = len(class_names), len(class_names) * per_class
    classes = np.sort(random.integers(0, C, images))
    logits = random.normal(size=(images, C)).astype(np.float32)
    logits[np.arange(images), classes] += 1.5
    _json(path, "provenance", {
        "format": FORMAT_VERSION, "id": "0" * 32, "command": ["manigraph", "train", "blobs"],
        "time": "2026-01-02T03:04:05+00:00", "commit": "c0ffee", "python": "3.11.7",
        "packages": {"manigraph": "0.0.0", "torch": "0.0"},
        "machine": {"system": "Linux", "processor": "a processor", "cores": 2},
    })  # fmt: skip
    _json(path, "config", {
        "algorithm": algorithm, "seed": seed, "method": {"epsilon": 0.5, "comparison": "pi_vat"},
        "data": {"name": "blobs", "path": "", "labels": labels}, "training": {"steps": steps},
    })  # fmt: skip
    _json(path, "status", {"state": state, "reason": reason})
    _json(path, "data", {"name": "blobs", "class_names": list(class_names), "input_shape": [1, 8, 8]})
    _json(path, "split", {"digest": f"split {labels} {seed}", "validation": list(range(images))})
    _json(path, "check", {
        "parts": {"labelled": labels, "unlabelled": 200, "validation": images, "test": images},
        "classes": [{"name": name, "images": 50 + 10 * number, "labelled": 5, "unlabelled": 40,
                     "validation": 3, "test": 2} for number, name in enumerate(class_names)],
        "findings": [{"severity": "note", "message": "all is well", "suggestion": "go on", "examples": []}],
    })  # fmt: skip
    last = steps if state == "finished" else steps // 2
    _lines(path, "metrics", [_record(step, steps) for step in range(2, last + 1, 2)])
    evaluations = [
        _evaluation("validation", step, 60.0 - step, images, C, final=False)
        for step in range(10, last + 1, 10)
    ]
    if state == "finished":
        wrong = 100 * float((logits.argmax(axis=1) != classes).mean())
        for part in ("validation", "test"):
            evaluations.append(
                _evaluation(part, steps, wrong if error is None else error, images, C, final=True)
            )
        _json(path, "selection", {"rule": "last", "step": steps})
        _arrays(path, "predictions", {"index": np.arange(images), "class": classes, "logits": logits})
    _lines(path, "evaluations", evaluations)
    if with_analysis and state == "finished":
        _arrays(path, "analysis", analysis_arrays(random, classes, logits, per_class))
        _json(path, "analysis", {
            "part": "validation", "images_of_part": images, "class_names": list(class_names),
            "without_graph": None, "nodes": "prototypes", "gallery_images": 200,
            "summary": {"images": images, "error": 20.0, "error_before": 30.0, "image_own_class": 0.6,
                        "image_own_class_by_chance": 1 / C, "prototype_own_class": 0.8,
                        "prototype_own_class_by_chance": (per_class - 1) / (P - 1), "image_share": 0.1},
        })  # fmt: skip
    return path


def analysis_arrays(
    random: np.random.Generator, classes: npt.NDArray[Any], logits: npt.NDArray[Any], per_class: int
) -> Arrays:
    N, C = logits.shape
    P = C * per_class
    rows = _rows(random.random((N, P)))
    return {
        "index": np.arange(N) + 100,
        "class": classes,
        "logits": logits,
        "logits_before": np.roll(logits, 1, axis=1),
        "places_before": random.normal(size=(N, 2)),
        "places_after": random.normal(size=(N, 2)) + classes[:, None],
        "thumbnails": random.integers(0, 256, (N, 1, 8, 8)).astype(np.uint8),
        "node_class": np.repeat(np.arange(C), per_class),
        "node_places_before": random.normal(size=(P, 2)),
        "node_places_after": random.normal(size=(P, 2)),
        "attention_rows": np.arange(N),
        "attention": rows,
        "attention_by_class": rows.reshape(N, C, per_class).sum(axis=2),
        "attention_among": _rows(random.random((P, P))),
        "node_usage": np.linspace(0.01, 2, P).astype(np.float32) / P,
        "node_twin": np.linspace(0.5, 1, P).astype(np.float32),
        "gallery_index": random.integers(0, 200, (P, 3)),
        "gallery_label": random.integers(-1, C, (P, 3)),
        "gallery_similarity": np.sort(random.random((P, 3)).astype(np.float32))[:, ::-1].copy(),
        "gallery_thumbnails": random.integers(0, 256, (P, 3, 1, 8, 8)).astype(np.uint8),
    }


def _rows(weights: npt.NDArray[Any]) -> npt.NDArray[Any]:
    shares: npt.NDArray[Any] = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    return shares


def _record(step: int, steps: int) -> dict[str, Any]:
    return {
        "step": step,
        "loss": 2 / step,
        "terms": {"classification": 1.5 / step, "consistency": 0.5 / step, "entropy": 0.0},
        "learning_rate": 0.1 * step / steps,
        "momentum": 0.9,
        "images_per_second": 100.0,
        "health": {"largest_class": 0.2, "attention_entropy": 0.5},
    }


def _evaluation(part: str, step: int, error: float, images: int, C: int, *, final: bool) -> dict[str, Any]:
    errors = [error] * C
    return {"part": part, "step": step, "final": final, "num_images": images, "error": error,
            "class_errors": errors, "calibration_error": 5.0}  # fmt: skip


def _json(path: Path, name: str, value: Any) -> None:
    (path / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")


def _lines(path: Path, name: str, lines: list[dict[str, Any]]) -> None:
    (path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def _arrays(path: Path, name: str, arrays: Arrays) -> None:
    safetensors.numpy.save_file(arrays, path / f"{name}.safetensors")
