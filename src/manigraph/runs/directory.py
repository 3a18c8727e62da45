"""One folder per run, never overwritten."""

import fcntl
import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from manigraph.errors import UserError
from manigraph.runs.files import DISK_IS_FULL, as_json, write_json
from manigraph.runs.journal import Journal, read_lines
from manigraph.runs.provenance import provenance

FORMAT_VERSION = 2

State = Literal["running", "finished", "interrupted", "failed"]


class Status(NamedTuple):
    """How a run stands, and why."""

    state: State
    reason: str


@dataclass(frozen=True)
class RunDirectory:
    """The files of one run.

    | file | content |
    |---|---|
    | `config.json` | the resolved configuration |
    | `execution.json` | device, processes and the like: what does not decide the result |
    | `provenance.json` | the run's id, command, commit, versions, machine |
    | `data.json` | data set, class names, shape of an image, digest of all images |
    | `split.json` | indices of labelled, unlabelled, validation and test images; their digest |
    | `check.json` | what the look at the data before training found |
    | `preprocessing.json`, `.safetensors` | how pixels become network input |
    | `metrics.jsonl` | one line per logged step: loss, terms, rates, images per second, signs of health |
    | `evaluations.jsonl` | one line per evaluation; `final` marks those of the weights that count |
    | `selection.json` | which weights count: the last, or the best on validation (or, marked so, on test) |
    | `predictions.safetensors` | index, class and logits of every test image |
    | `model.safetensors` | the weights |
    | `checkpoints/` | all that is needed to go on, of the last two times it was written |
    | `resumes.jsonl` | one line for each time the run was taken up again: step, command, commit, machine |
    | `warnings.jsonl` | one line for each sign of trouble: step, what is seen and what to try |
    | `tensorboard/` | the metrics for TensorBoard, if asked for |
    | `status.json` | running, finished, interrupted or failed, and why |
    | `.lock` | held by the process that writes the run |
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
            write_json(
                path / "provenance.json", {"format": FORMAT_VERSION, "id": uuid.uuid4().hex, **provenance()}
            )
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

    @property
    def id(self) -> str:
        """What tells this run from every other."""
        return str(self.read_json("provenance.json").get("id"))

    def set_status(self, state: State, reason: str = "") -> None:
        """Say in `status.json` how the run stands."""
        path, value = self.path / "status.json", {"state": state, "reason": reason}
        try:
            write_json(path, value)
        except OSError as error:
            if error.errno not in DISK_IS_FULL or not path.exists():
                raise
            # No room for another file: the few bytes go where the old ones are.
            with path.open("r+b") as file:
                file.write(as_json(value))
                file.truncate()

    def status(self) -> Status:
        """How the run stands; a run whose process is gone is interrupted, whatever it last said."""
        value = self.read_json("status.json")
        status = Status(value.get("state", "failed"), value.get("reason", ""))
        if status.state == "running" and not self._is_held():
            return Status("interrupted", "its process ended without a word: killed, or the machine stopped")
        return status

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from writing this run; let go when this process ends, however it does."""
        with (self.path / ".lock").open("ab") as file:
            if not _locked(file, fcntl.LOCK_EX):
                raise UserError(
                    f"the run '{self.path}' is being trained by another process: wait for it, or stop it"
                )
            yield

    def _is_held(self) -> bool:
        try:
            with (self.path / ".lock").open("rb") as file:
                return not _locked(file, fcntl.LOCK_SH)
        except FileNotFoundError:
            return False

    def journal(self, name: str) -> Journal:
        """A `.jsonl` file to add lines to."""
        return Journal(self.path / name)

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

    def read_lines(self, name: str) -> list[dict[str, Any]]:
        """All whole lines of a `.jsonl` file; none if there is no such file."""
        return read_lines(self.path / name)


def _locked(file: IO[bytes], kind: int) -> bool:
    """Whether a lock of this kind could be had.

    A process that is killed while it starts another (`git`, say) leaves the lock for some milliseconds to
    that one, which has all its files open until it runs its own program. Hence half a second of patience.
    """
    end = time.monotonic() + 0.5
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        else:
            return True
