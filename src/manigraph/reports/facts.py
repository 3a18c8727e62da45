"""All that a run directory says about its run, read without torch."""

import contextlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from manigraph.chance import Interval, error_interval
from manigraph.errors import UserError
from manigraph.runs import RunDirectory

Array = npt.NDArray[Any]

ALGORITHM_TITLES = {
    "supervised": "Supervised only",
    "pi_model": "Π-model",
    "vat": "VAT",
    "pi_vat": "Π-VAT",
    "mean_teacher": "Mean Teacher",
    "temporal_ensembling": "Temporal Ensembling",
    "pseudo_label": "Pseudo-Label",
    "sntg": "SNTG",
    "mixup": "MixUp",
    "mixmatch": "MixMatch",
    "fixmatch": "FixMatch",
    "fast_swa": "fast-SWA",
    "deep_cotraining": "Deep Co-Training",
    "memory": "Memory-assisted",
    "compact_clustering": "Compact clustering",
    "manifold_graph": "Manifold Graph",
}


@dataclass(frozen=True)
class FinalError:
    """Of the weights that count."""

    part: str
    error: float
    """In per cent."""
    num_images: int
    calibration_error: float
    class_errors: tuple[float | None, ...]

    @property
    def interval(self) -> Interval:
        """With 95 % confidence, in per cent."""
        low, high = error_interval(round(self.error / 100 * self.num_images), self.num_images)
        return Interval(100 * low, 100 * high)


@dataclass(frozen=True, eq=False)
class RunFacts:
    """One run, as its directory tells it; whatever a run that failed half-way has not written is empty."""

    run: RunDirectory
    config: dict[str, Any]
    provenance: dict[str, Any]
    state: str
    reason: str
    data: dict[str, Any] = field(default_factory=dict)
    check: dict[str, Any] = field(default_factory=dict)
    selection: dict[str, Any] = field(default_factory=dict)
    verdict: dict[str, Any] = field(default_factory=dict)
    analysis: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "RunFacts":
        """A run directory, whole or not."""
        run = RunDirectory.open(path)
        status = run.status()
        parts = ("data", "check", "selection", "verdict", "analysis")
        found = {name: _json_if_there(run, f"{name}.json") for name in parts}
        config, provenance = run.read_json("config.json"), run.read_json("provenance.json")
        return cls(run, config, provenance, status.state, status.reason, **found)

    @property
    def name(self) -> str:
        """Of the run directory."""
        return self.run.path.resolve().name

    @property
    def algorithm(self) -> str:
        """Its title for people."""
        name = str(self.config.get("algorithm", ""))
        title = ALGORITHM_TITLES.get(name, name)
        comparison = _part(self.config, "method").get("comparison", "pi_vat")
        if name == "manifold_graph" and comparison != "pi_vat":
            title += f" on {ALGORITHM_TITLES.get(str(comparison), str(comparison))}"
        return title

    @property
    def dataset(self) -> str:
        """What its images are called."""
        data = _part(self.config, "data")
        path = str(data.get("path") or "")
        name = Path(path).name or path if path else str(data.get("name", ""))
        return f"{name}, features of {data['features']}" if data.get("features") else name

    @property
    def seed(self) -> Any:
        """Of the split, the weights and the batches."""
        return self.config.get("seed")

    @property
    def steps(self) -> int:
        """How many there are to be."""
        return int(_part(self.config, "training").get("steps") or 0)

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """As the data has them."""
        return tuple(str(name) for name in self.data.get("class_names", ()))

    @cached_property
    def num_labelled(self) -> int | None:
        """Images whose labels were used."""
        parts = self.check.get("parts")
        return int(parts["labelled"]) if isinstance(parts, dict) and "labelled" in parts else None

    @cached_property
    def split_digest(self) -> str | None:
        """What tells its split from others; None if it is not written yet."""
        digest = _json_if_there(self.run, "split.json").get("digest")
        return None if digest is None else str(digest)

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """One record for each logged step."""
        return self._lines("metrics.jsonl")

    @cached_property
    def evaluations(self) -> list[dict[str, Any]]:
        """On the way and of the weights that count."""
        return self._lines("evaluations.jsonl")

    @cached_property
    def warnings(self) -> list[dict[str, Any]]:
        """Signs of trouble."""
        return self._lines("warnings.jsonl")

    def _lines(self, name: str) -> list[dict[str, Any]]:
        try:
            return self.run.read_lines(name)
        except ValueError:
            raise UserError(f"'{self.run.path / name}' is damaged: a line is not valid JSON") from None

    @property
    def last_step(self) -> int:
        """The last one that is on record."""
        return int(self.metrics[-1]["step"]) if self.metrics else 0

    def final_error(self, part: str) -> FinalError | None:
        """Of the weights that count, on test or validation images."""
        for line in reversed(self.evaluations):
            if line.get("final") and line.get("part") == part:
                return FinalError(
                    part,
                    float(line["error"]),
                    int(line["num_images"]),
                    float(line["calibration_error"]),
                    tuple(line["class_errors"]),
                )
        return None

    @cached_property
    def predictions(self) -> dict[str, Array]:
        """Index, class and logits of every test image; empty if there are none."""
        return _arrays_if_there(self.run.path / "predictions.safetensors")

    @cached_property
    def arrays(self) -> dict[str, Array]:
        """What `inference.analysis` computed; empty if it did not."""
        return _arrays_if_there(self.run.path / "analysis.safetensors") if self.analysis else {}

    @property
    def command(self) -> list[str]:
        """As it was typed."""
        return [str(part) for part in self.provenance.get("command", [])]


def _part(config: dict[str, Any], name: str) -> dict[str, Any]:
    value = config.get(name)
    return value if isinstance(value, dict) else {}


def _json_if_there(run: RunDirectory, name: str) -> dict[str, Any]:
    return run.read_json(name) if (run.path / name).is_file() else {}


def _arrays_if_there(path: Path) -> dict[str, Array]:
    with contextlib.suppress(FileNotFoundError):
        try:
            return safetensors.numpy.load_file(path)
        except safetensors.SafetensorError as error:
            reason = str(error).splitlines()[0].rstrip(":")
            raise UserError(f"'{path}' is damaged: {reason}") from None
    return {}


def softmax(logits: Array) -> npt.NDArray[np.float64]:
    """Rows of probabilities; what is not finite counts as very small or very large."""
    logits = np.nan_to_num(logits.astype(np.float64), nan=-1e4, posinf=1e4, neginf=-1e4)
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities: npt.NDArray[np.float64] = shifted / shifted.sum(axis=1, keepdims=True)
    return probabilities
