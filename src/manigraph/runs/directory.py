"""One folder per run, never overwritten."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from manigraph.errors import UserError
from manigraph.runs.files import write_json
from manigraph.runs.provenance import provenance

FORMAT_VERSION = 2

State = Literal["running", "finished", "interrupted", "failed"]


@dataclass(frozen=True)
class RunDirectory:
    """The files of one run.

    | file | content |
    |---|---|
    | `config.json` | the resolved configuration |
    | `provenance.json` | command, commit, versions, machine |
    | `data.json` | data set, class names, shape of an image, digest of all images |
    | `split.json` | indices of labelled, unlabelled, validation and test images; their digest |
    | `check.json` | what the look at the data before training found |
    | `preprocessing.json`, `.safetensors` | how pixels become network input |
    | `metrics.jsonl` | one line per logged step: loss, terms, learning rate, momentum |
    | `evaluations.jsonl` | one line per evaluation; `final` marks those of the weights that count |
    | `selection.json` | which weights count: the last, or the best on validation (or, marked so, on test) |
    | `predictions.safetensors` | index, class and logits of every test image |
    | `model.safetensors` | the weights |
    | `status.json` | running, finished, interrupted or failed, and why |
    """

    path: Path

    @classmethod
    def create(cls, root: Path, name: str) -> "RunDirectory":
        """A new folder `root/name`, or `name-2`, `name-3`, … if that is taken."""
        if Path(name).name != name:
            raise UserError(f"a run's name cannot hold a path, got '{name}': use --runs for the folder")
        if root.exists() and not root.is_dir():
            raise UserError(f"'{root}' is a file: runs need a folder")
        root.mkdir(parents=True, exist_ok=True)
        number = 1
        while True:
            path = root / (name if number == 1 else f"{name}-{number}")
            try:
                path.mkdir()
            except FileExistsError:
                number += 1
                continue
            run = cls(path)
            write_json(path / "provenance.json", {"format": FORMAT_VERSION, **provenance()})
            run.set_status("running")
            return run

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        """An existing run, checked to be one."""
        run = cls(path)
        if not path.is_dir():
            raise UserError(f"there is no run directory at '{path}'")
        if not (path / "config.json").is_file():
            raise UserError(f"'{path}' is not a run directory: it has no config.json")
        version = run.read_json("provenance.json").get("format")
        if version != FORMAT_VERSION:
            raise UserError(
                f"'{path}' was written in run format {version}, this version reads {FORMAT_VERSION}: "
                f"use the manigraph version named in its provenance.json"
            )
        return run

    def set_status(self, state: State, reason: str = "") -> None:
        """Say in `status.json` how the run stands."""
        write_json(self.path / "status.json", {"state": state, "reason": reason})

    def write_json(self, name: str, value: Any) -> None:
        """Write one of the run's JSON files, atomically."""
        write_json(self.path / name, value)

    def read_json(self, name: str) -> dict[str, Any]:
        """Read one of the run's JSON files."""
        path = self.path / name
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"the run directory '{self.path}' is incomplete: {name} is missing") from None
        except ValueError:
            raise UserError(f"'{path}' is damaged: it is not valid JSON") from None
        if not isinstance(value, dict):
            raise UserError(f"'{path}' is damaged: it does not hold a JSON object")
        return value

    def append_line(self, name: str, value: dict[str, Any]) -> None:
        """Add one line to a `.jsonl` file."""
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(value) + "\n")

    def read_lines(self, name: str) -> list[dict[str, Any]]:
        """All whole lines of a `.jsonl` file; none if there is no such file."""
        path = self.path / name
        if not path.is_file():
            return []
        # A process that was killed may have left half a line at the end.
        *whole, _ = path.read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in whole]
