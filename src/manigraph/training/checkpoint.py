"""Checkpoints: all that is needed to go on with a run as if it had never stopped.

A checkpoint is a pair of files. `step-N.safetensors` holds the tensors; `step-N.json` the plain values, the
id of the run, and the checksums of both. The JSON is written last and is what makes the checkpoint exist: a
process that dies before leaves the one before as the newest. The last two are kept. Nothing is unpickled.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from manigraph.errors import UserError
from manigraph.runs import remove_leftovers, write_bytes, write_json

FORMAT_VERSION = 1
KEPT = 2


@dataclass(frozen=True)
class Snapshot:
    """The state of a run between two steps."""

    tensors: Mapping[str, Tensor]
    values: Mapping[str, Any]
    """Whatever JSON can hold."""

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors whose names begin with `name.`, without it."""
        prefix = f"{name}."
        return {
            key.removeprefix(prefix): value for key, value in self.tensors.items() if key.startswith(prefix)
        }


def prefixed(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under names that begin with `name.`."""
    return {f"{name}.{key}": value for key, value in tensors.items()}


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors in the form of a safetensors file."""
    return safetensors.torch.save({k: v.detach().cpu().contiguous() for k, v in tensors.items()})


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, run_id: str) -> None:
        self.folder = folder
        self.run_id = run_id

    def write(self, step: int, snapshot: Snapshot, before_commit: Callable[[], None] = lambda: None) -> None:
        """Write a checkpoint, then delete all but the last two.

        `before_commit` is called when the tensors are on the disk and the checkpoint does not exist yet.
        """
        self.folder.mkdir(exist_ok=True)
        content = tensor_bytes(snapshot.tensors)
        tensors_path = self._tensors(step)
        write_bytes(tensors_path, content)
        before_commit()
        value = {
            "format": FORMAT_VERSION,
            "run": self.run_id,
            "step": step,
            "tensors_sha256": hashlib.sha256(content).hexdigest(),
            "values": dict(snapshot.values),
        }
        write_json(self._values(step), {**value, "sha256": _digest(value)})
        for old in self.steps()[:-KEPT]:
            self._values(old).unlink()
        self._remove_uncommitted()

    def steps(self) -> list[int]:
        """Steps of which there is a checkpoint, in their order."""
        numbers = (path.stem.removeprefix("step-") for path in self.folder.glob("step-*.json"))
        return sorted(int(number) for number in numbers if number.isdecimal())

    def read(self) -> Snapshot | None:
        """The newest checkpoint; None if there is none. A damaged or foreign one is refused."""
        steps = self.steps()
        if not steps:
            return None
        newest = steps[-1]
        try:
            value = json.loads(self._values(newest).read_bytes())
            content = self._tensors(newest).read_bytes()
            checksum = value.pop("sha256")
            whole = checksum == _digest(value)
            tensors_whole = value["tensors_sha256"] == hashlib.sha256(content).hexdigest()
        except (ValueError, KeyError, TypeError, AttributeError, FileNotFoundError):
            whole = tensors_whole = False
        if not whole or not tensors_whole:
            raise UserError(
                f"the checkpoint '{self._values(newest)}' is damaged (checksums do not agree): "
                f"{self._way_out(steps)}"
            )
        if value["format"] != FORMAT_VERSION:
            raise UserError(
                f"the checkpoint '{self._values(newest)}' has format {value['format']}, this version of "
                f"manigraph reads {FORMAT_VERSION}: resume with the version named in provenance.json"
            )
        if value["run"] != self.run_id:
            raise UserError(
                f"the checkpoint '{self._values(newest)}' belongs to another run: {self._way_out(steps)}"
            )
        return Snapshot(safetensors.torch.load(content), value["values"])

    def clean(self) -> None:
        """Delete what a killed process left half written."""
        if self.folder.is_dir():
            remove_leftovers(self.folder)
            self._remove_uncommitted()

    def _remove_uncommitted(self) -> None:
        known = {self._tensors(step) for step in self.steps()}
        for path in self.folder.glob("step-*.safetensors"):
            if path not in known:
                path.unlink()

    def _way_out(self, steps: list[int]) -> str:
        newest = self._values(steps[-1]).name
        if len(steps) > 1:
            return f"delete {newest} to go on from step {steps[-2]}"
        return f"delete {newest} to begin this run again at step 0"

    def _tensors(self, step: int) -> Path:
        return self.folder / f"step-{step:09d}.safetensors"

    def _values(self, step: int) -> Path:
        return self.folder / f"step-{step:09d}.json"


def _digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
