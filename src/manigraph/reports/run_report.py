"""Everything the page of one run shows, as plain values: words for its template, numbers for its figures."""

import base64
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from manigraph.reports.drawing import class_colours, hex_colour
from manigraph.reports.facts import Array, FinalError, RunFacts
from manigraph.reports.measures import (
    Predictions,
    calibration_error,
    class_rows,
    confident_mistakes,
    confusion,
    reliability,
)
from manigraph.reports.sprites import sprite

MOST_MISTAKES = 24
MOST_POINTS_OF_CURVES = 600
MOST_EDGES = 500_000
"""Cells of one matrix for which a page has room; beyond, some rows are drawn, or means of classes."""
TWIN = 0.99
"""From this cosine on two prototypes of a class are as good as one."""
UNUSED = 0.1
"""A prototype that gets less than this share of an equal weight is hardly used."""

TERM_TITLES = {
    "classification": "labelled images",
    "consistency": "consistency",
    "entropy": "entropy",
    "balance": "balance",
    "anchor": "anchor",
    "divergence": "divergence",
    "prototypes": "prototypes",
}
HEALTH_TITLES = {
    "largest_class": "largest predicted class",
    "own_class_attention": "attention to the own class",
    "attention_entropy": "entropy of attention",
    "prototype_similarity": "likeness of prototypes",
    "pseudo_label_agreement": "agreement with the nearest centre",
}


@dataclass(frozen=True)
class PaperFigure:
    """What the paper has for the same data set, labels and method, in per cent."""

    mean: float
    deviation: float


def run_page(
    facts: RunFacts, paper: PaperFigure | None = None, control: RunFacts | None = None
) -> dict[str, Any]:
    """What the template of a run is given; `figures` is for the page's script."""
    names = facts.class_names
    shown = _shown_predictions(facts)
    tables = _prediction_tables(facts, names)
    page: dict[str, Any] = {
        "kind": "run",
        "title": _title(facts),
        "name": facts.name,
        "headline": _headline(facts, paper, control),
        "class_names": list(names),
        "has_map": shown is not None,
        "map_images": 0 if shown is None else len(shown.index),
        "part_images": facts.analysis.get("images_of_part", 0),
        "edges": _edges_in_words(facts),
        "gallery": _gallery(facts, names),
        "tables": tables,
        "mistakes": _mistakes(facts, shown, names),
        "data": _data(facts),
        "settings": _settings(facts),
        "warnings": [
            {"step": line.get("step"), "text": str(line.get("warning", ""))} for line in facts.warnings
        ],
    }
    figures: dict[str, Any] = {
        "classes": list(names),
        "colours": [hex_colour(colour) for colour in class_colours(max(1, len(names)))],
        "curves": curves_of(facts),
    }
    if shown is not None:
        figures["map"] = _map(facts, shown)
        if "thumbnails" in facts.arrays:
            figures["thumbnails"] = sprite(facts.arrays["thumbnails"])
    edges = _edges(facts)
    if edges is not None:
        figures["edges"] = edges
    if tables is not None:
        figures["confusion"] = {"counts": tables["counts"], "part": tables["part"]}
        figures["reliability"] = tables["reliability"]
    if "gallery_thumbnails" in facts.arrays:
        flat = facts.arrays["gallery_thumbnails"]
        figures["gallery_thumbnails"] = sprite(flat.reshape(-1, *flat.shape[2:]))
    page["figures"] = figures
    return page


# The headline


def _title(facts: RunFacts) -> str:
    labels = "" if facts.num_labelled is None else f", {facts.num_labelled:,} labels"
    return f"{facts.algorithm} on {facts.dataset}{labels}"


def _headline(facts: RunFacts, paper: PaperFigure | None, control: RunFacts | None) -> dict[str, Any]:
    errors = [error for part in ("test", "validation") if (error := facts.final_error(part)) is not None]
    main = errors[0] if errors else None
    headline: dict[str, Any] = {
        "algorithm": facts.algorithm,
        "dataset": facts.dataset,
        "labels": facts.num_labelled,
        "seed": facts.seed,
        "state": facts.state,
        "reason": facts.reason,
        "steps": facts.steps,
        "last_step": facts.last_step,
        "errors": [_error_in_words(error, facts.selection.get("rule")) for error in errors],
        "selected": _selected(facts),
        "verdict": _verdict(facts),
        "paper": None if paper is None else {"mean": paper.mean, "deviation": paper.deviation},
        "control": None,
        "on_the_way": None if main is not None else _last_evaluation(facts),
    }
    if control is not None and main is not None:
        beside = control.final_error(main.part)
        headline["control"] = None if beside is None else _error_in_words(beside)
    return headline


def _error_in_words(error: FinalError, rule: Any = None) -> dict[str, Any]:
    return {
        "part": error.part,
        "chose_weights": error.part == rule,
        "error": error.error,
        "low": error.interval.low,
        "high": error.interval.high,
        "images": error.num_images,
        "calibration": error.calibration_error,
    }


def _last_evaluation(facts: RunFacts) -> dict[str, Any] | None:
    lines = [line for line in facts.evaluations if not line.get("final")]
    return (
        {"part": lines[-1]["part"], "step": lines[-1]["step"], "error": lines[-1]["error"]} if lines else None
    )


def _selected(facts: RunFacts) -> str:
    rule, step = facts.selection.get("rule"), facts.selection.get("step")
    if rule is None:
        return ""
    if rule == "last":
        return "The weights of the last step; nothing was selected."
    if rule == "test":
        return f"The weights of step {step:,}, the best on the test images themselves: too good to be true."
    return f"The weights of step {step:,}, the best on {rule} images."


def _verdict(facts: RunFacts) -> str:
    sentence = facts.verdict.get("sentence") or facts.verdict.get("verdict") or ""
    return str(sentence)


# The map


def _shown_predictions(facts: RunFacts) -> Predictions | None:
    """Of the images that have a place on the map."""
    arrays = facts.arrays
    if not {"index", "class", "logits"} <= arrays.keys():
        return None
    return Predictions.of(facts.analysis["part"], arrays["index"], arrays["class"], arrays["logits"])


def _map(facts: RunFacts, shown: Predictions) -> dict[str, Any]:
    arrays = facts.arrays
    found: dict[str, Any] = {
        "part": shown.part,
        "index": packed(shown.index.astype(np.int32)),
        "class": packed(shown.classes.astype(np.int16)),
        "predicted": packed(shown.predicted.astype(np.int16)),
        "confidence": packed(shown.confidence.astype(np.float32)),
        "before": packed(unit_square(arrays["places_before"], arrays.get("node_places_before"))[0]),
    }
    if "places_after" in arrays:
        before = Predictions.of(shown.part, shown.index, shown.classes, arrays["logits_before"])
        places, nodes = unit_square(arrays["places_after"], arrays["node_places_after"])
        _, nodes_before = unit_square(arrays["places_before"], arrays["node_places_before"])
        found |= {
            "predicted_before": packed(before.predicted.astype(np.int16)),
            "confidence_before": packed(before.confidence.astype(np.float32)),
            "after": packed(places),
            "nodes": {
                "kind": facts.analysis.get("nodes", "prototypes"),
                "class": packed(arrays["node_class"].astype(np.int16)),
                "before": packed(nodes_before),
                "after": packed(nodes),
            },
        }
    return found


def unit_square(places: Array, nodes: Array | None) -> tuple[Array, Array]:
    """Places in a square from 0 to 1, in the proportions they have."""
    both = places if nodes is None else np.concatenate([places, nodes])
    low, high = both.min(axis=0), both.max(axis=0)
    size = max(float((high - low).max()), 1e-12)
    centre = (low + high) / 2
    moved = ((both - centre) / size + 0.5).astype(np.float32)
    return moved[: len(places)], moved[len(places) :]


def packed(array: Array) -> dict[str, Any]:
    """Numbers as bytes (little endian) in base 64, for the page's script."""
    kind = array.dtype.newbyteorder("<")
    data = np.ascontiguousarray(array, dtype=kind).tobytes()
    return {"type": array.dtype.name, "data": base64.b64encode(data).decode("ascii")}


# The edges


def _edges(facts: RunFacts) -> dict[str, Any] | None:
    arrays = facts.arrays
    if "attention" not in arrays:
        return None
    chosen = _drawn_rows(facts)
    rows, nodes = arrays["attention_rows"][chosen], arrays["node_class"]
    found: dict[str, Any] = {
        "images": _matrix(arrays["attention"][chosen], arrays["class"][rows], nodes),
        "image_index": packed(arrays["index"][rows].astype(np.int32)),
        "by_class": _matrix(_means(arrays["attention_by_class"], arrays["class"]), None, None),
    }
    among = arrays.get("attention_among")
    if among is not None and among.size <= MOST_EDGES:
        found["among"] = _matrix(among, nodes, nodes)
    elif among is not None:
        C = arrays["attention_by_class"].shape[1]
        found["among_by_class"] = _matrix(
            _means(among.reshape(len(among), C, -1).sum(axis=2), nodes), None, None
        )
    return found


def _drawn_rows(facts: RunFacts) -> Array:
    """Rows of images for which a page has room, evenly spread."""
    count, nodes = facts.arrays["attention"].shape
    most = max(1, min(count, MOST_EDGES // nodes))
    return np.linspace(0, count - 1, most).round().astype(int)


def _matrix(weights: Array, rows: Array | None, columns: Array | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "shape": list(weights.shape),
        "weights": packed(weights.astype(np.float16 if weights.size > 200_000 else np.float32)),
    }
    if rows is not None and columns is not None:
        found |= {
            "row_class": packed(rows.astype(np.int16)),
            "column_class": packed(columns.astype(np.int16)),
        }
    return found


def _means(by_class: Array, classes: Array) -> Array:
    """(C, C): the mean row of each class; 0 for a class that has none."""
    C = by_class.shape[1]
    means = np.zeros((C, C), dtype=np.float32)
    for c in np.unique(classes):
        means[c] = by_class[classes == c].mean(axis=0)
    return means


def _edges_in_words(facts: RunFacts) -> dict[str, Any] | None:
    if not facts.analysis:
        return None
    summary = facts.analysis.get("summary", {})
    if "image_own_class" not in summary:
        return {"without": facts.analysis.get("without_graph")}
    return {
        "without": None,
        "kind": facts.analysis.get("nodes", "prototypes"),
        "images": summary["image_own_class"],
        "images_by_chance": summary["image_own_class_by_chance"],
        "among": summary["prototype_own_class"],
        "among_by_chance": summary["prototype_own_class_by_chance"],
        "error": summary["error"],
        "error_before": summary["error_before"],
        "rows": len(_drawn_rows(facts)),
        "of": summary["images"],
        "part": facts.analysis["part"],
    }


# The gallery


def _gallery(facts: RunFacts, names: Sequence[str]) -> dict[str, Any] | None:
    arrays = facts.arrays
    if "gallery_index" not in arrays:
        return None
    P = len(arrays["node_class"])
    classes: list[dict[str, Any]] = []
    per_class = P // len(names)
    for c, name in enumerate(names):
        prototypes = []
        for node in range(c * per_class, (c + 1) * per_class):
            usage = float(arrays["node_usage"][node]) * P
            nearest = [
                {
                    "tile": node * arrays["gallery_index"].shape[1] + m,
                    "index": int(arrays["gallery_index"][node, m]),
                    "label": _name(names, int(arrays["gallery_label"][node, m])),
                    "is_other": int(arrays["gallery_label"][node, m]) not in (-1, c),
                    "similarity": float(arrays["gallery_similarity"][node, m]),
                }
                for m in range(arrays["gallery_index"].shape[1])
            ]
            prototypes.append(
                {
                    "number": node - c * per_class + 1,
                    "usage": usage,
                    "is_unused": usage < UNUSED,
                    "is_twin": float(arrays["node_twin"][node]) > TWIN,
                    "twin": float(arrays["node_twin"][node]),
                    "nearest": nearest,
                }
            )
        classes.append(
            {
                "name": name,
                "number": c,
                "prototypes": prototypes,
                "unused": sum(prototype["is_unused"] for prototype in prototypes),
                "twins": sum(prototype["is_twin"] for prototype in prototypes),
            }
        )
    return {
        "classes": classes,
        "kind": facts.analysis.get("nodes", "prototypes"),
        "images": facts.analysis.get("gallery_images"),
        "has_images": "gallery_thumbnails" in arrays,
        "unused": sum(row["unused"] for row in classes),
        "twins": sum(row["twins"] for row in classes),
        "total": P,
        "most_usage": max(prototype["usage"] for row in classes for prototype in row["prototypes"]),
    }


def _name(names: Sequence[str], number: int) -> str | None:
    return names[number] if 0 <= number < len(names) else None


# Curves


def curves_of(facts: RunFacts) -> dict[str, Any]:
    """All that was logged on the way, as columns; of long runs every n-th record."""
    lines = facts.metrics
    stride = -(-len(lines) // MOST_POINTS_OF_CURVES) if lines else 1
    kept = [line for number, line in enumerate(lines) if (len(lines) - 1 - number) % stride == 0]
    terms = _columns(kept, "terms", TERM_TITLES)
    health = _columns(kept, "health", HEALTH_TITLES)
    steps = [line["step"] for line in kept]
    evaluated: dict[str, dict[str, list[Any]]] = {}
    for line in facts.evaluations:
        column = evaluated.setdefault(str(line["part"]), {"steps": [], "values": []})
        if not line.get("final") or line["step"] not in column["steps"]:
            column["steps"].append(line["step"])
            column["values"].append(_finite(line["error"]))
    return {
        "steps": steps,
        "loss": [_finite(line.get("loss")) for line in kept],
        "terms": {name: column for name, column in terms.items() if any(column)},
        "health": health,
        "rate": {"learning rate": [_finite(line.get("learning_rate")) for line in kept]},
        "momentum": {"momentum": [_finite(line.get("momentum")) for line in kept]},
        # One point is no curve; the headline has it.
        "errors": evaluated if any(len(line["steps"]) > 1 for line in evaluated.values()) else {},
    }


def _columns(
    lines: Sequence[Mapping[str, Any]], part: str, titles: Mapping[str, str]
) -> dict[str, list[float | None]]:
    found = {name: None for line in lines for name in (line.get(part) or {})}
    return {
        titles.get(name, name.replace("_", " ")): [
            _finite((line.get(part) or {}).get(name)) for line in lines
        ]
        for name in found
    }


def _finite(value: Any) -> float | None:
    """Six digits are enough for a curve; what is no number is a gap."""
    if not isinstance(value, int | float) or not np.isfinite(value):
        return None
    return float(f"{value:.6g}")


# Tables about predictions


def _prediction_tables(facts: RunFacts, names: tuple[str, ...]) -> dict[str, Any] | None:
    predictions = _test_predictions(facts) or _shown_predictions(facts)
    if predictions is None or len(predictions.classes) == 0:
        return None
    counts, bins = confusion(predictions), reliability(predictions)
    rows = class_rows(counts, names)
    labelled = {row.get("name"): row.get("labelled") for row in facts.check.get("classes", [])}
    for row in rows:
        row["labelled"] = labelled.get(row["name"])
    return {
        "part": predictions.part,
        "images": len(predictions.classes),
        "counts": counts.tolist(),
        "classes": rows,
        "reliability": bins,
        "calibration_error": calibration_error(bins),
    }


def _test_predictions(facts: RunFacts) -> Predictions | None:
    arrays = facts.predictions
    if not {"index", "class", "logits"} <= arrays.keys():
        return None
    return Predictions.of("test", arrays["index"], arrays["class"], arrays["logits"])


def _mistakes(facts: RunFacts, shown: Predictions | None, names: Sequence[str]) -> dict[str, Any] | None:
    if shown is None:
        return None
    found = [
        {
            "tile": int(position),
            "index": int(shown.index[position]),
            "class": names[int(shown.classes[position])],
            "predicted": names[int(shown.predicted[position])],
            "confidence": 100 * float(shown.confidence[position]),
        }
        for position in confident_mistakes(shown, MOST_MISTAKES)
    ]
    has_images = "thumbnails" in facts.arrays
    return {"rows": found, "part": shown.part, "of": int(shown.wrong.sum()), "has_images": has_images}


# Data and settings


def _data(facts: RunFacts) -> dict[str, Any] | None:
    if not facts.check:
        return None
    classes = facts.check.get("classes", [])
    return {
        "parts": facts.check.get("parts", {}),
        "classes": classes,
        "most_images": max((row.get("images", 0) for row in classes), default=0),
        "shape": " × ".join(str(size) for size in facts.data.get("input_shape", ())),
        "findings": facts.check.get("findings", []),
    }


def _settings(facts: RunFacts) -> dict[str, Any]:
    groups: list[dict[str, Any]] = [{"name": "run", "rows": []}]
    for name, value in facts.config.items():
        if isinstance(value, dict):
            groups.append({"name": name, "rows": [(key, _as_text(entry)) for key, entry in value.items()]})
        else:
            groups[0]["rows"].append((name, _as_text(value)))
    provenance = facts.provenance
    machine = provenance.get("machine", {})
    return {
        "command": shlex.join(facts.command),
        "commit": provenance.get("commit"),
        "time": provenance.get("time"),
        "python": provenance.get("python"),
        "packages": provenance.get("packages", {}),
        "machine": ", ".join(
            str(machine[key]) + (" cores" if key == "cores" else "") for key in machine if machine[key]
        ),
        "groups": groups,
    }


def _as_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return " ".join(_as_text(entry) for entry in value) or "–"
    return "–" if value in (None, "") else str(value)
