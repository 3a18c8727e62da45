"""One folder per run, never overwritten."""

import fcntl
import json
import re
import stat
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

MAJOR, MINOR = 2, 2
FORMAT_VERSION = f"{MAJOR}.{MINOR}"
"""Of the files below: major and minor. Whoever reads 2.1 reads 2.0 and 2.9 too: a higher minor only adds what
need not be read, another major means something else by the same names.

| version | what changed |
|---|---|
| 2.0 | written as the number 2 |
| 2.1 | `data.json` has `white`, how bright images are stored, and `image_shape`, for features of images |
| 2.2 | `data.json` has `encoder`, the name and the digest of the network that computed features |
"""

LARGEST_JSON = {"split.json": 1 << 30, "check.json": 1 << 30, "config.json": 1 << 20}
"""Bytes that are read of files that grow with the data, and of one that every reader goes through."""
LARGEST_OTHER_JSON = 16 << 20

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
    | `provenance.json` | format version, the run's id, command, commit, versions, machine |
    | `data.json` | data set, class names, shape and brightness of an image, digest of all images |
    | `split.json` | indices of labelled, unlabelled, validation and test images; their digest |
    | `check.json` | what the look at the data before training found |
    | `preprocessing.json`, `.safetensors` | how pixels become network input |
    | `metrics.jsonl` | one line per logged step: loss, terms, rates, images per second, signs of health |
    | `evaluations.jsonl` | one line per evaluation; `final` marks those of the weights that count |
    | `selection.json` | which weights count: the last, or the best on validation (or, marked so, on test) |
    | `predictions.safetensors` | index, class and logits of every test image |
    | `model.safetensors` | the weights |
    | `choices.json` | own images: what was chosen for them, and why |
    | `verdict.json` | whether the unlabelled images helped, against the control |
    | `analysis.json`, `.safetensors` | what a report shows of images and prototypes |
    | `report.html` | the report |
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
        record = run.read_json("provenance.json")
        version = _version(record.get("format"))
        if version is None:
            raise UserError(f"'{path / 'provenance.json'}' is damaged: it does not say the format of the run")
        if version[0] != MAJOR:
            later = " or a later one" if version[0] > MAJOR else ""
            raise UserError(
                f"'{path}' was written in run format {'.'.join(map(str, version))}, this version reads "
                f"{MAJOR}.x: use {_writer(record)}{later}"
            )
        return run

    @property
    def newer_writer(self) -> str:
        """The version that wrote this run if it may have written more than this one knows, else nothing."""
        record = self.read_json("provenance.json")
        version = _version(record.get("format"))
        return _writer(record) if version is not None and version > (MAJOR, MINOR) else ""

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
        lock = self.path / ".lock"
        if not lock.is_file():  # a pipe would never open
            return False
        with lock.open("rb") as file:
            return not _locked(file, fcntl.LOCK_SH)

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
            check_file(path, LARGEST_JSON.get(name, LARGEST_OTHER_JSON))
            value = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"the run directory '{self.path}' is incomplete: {name} is missing") from None
        except (ValueError, RecursionError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"'{path}' is damaged: it is not valid JSON") from None
        except OSError as error:
            raise UserError(f"'{path}' cannot be read: {error.strerror}") from None
        if not isinstance(value, dict):
            raise UserError(f"'{path}' is damaged: it does not hold a JSON object")
        return value

    def read_lines(self, name: str) -> list[dict[str, Any]]:
        """All whole lines of a `.jsonl` file; none if there is no such file."""
        return read_lines(self.path / name)


def check_file(path: Path, largest: int | None = None) -> None:
    """Refuse what is there but no plain file of a reasonable size, before it is opened.

    A directory that was passed on may hold a pipe, which would never end, or a link to a device.

    Raises:
        FileNotFoundError: There is nothing.
        UserError: It cannot be read.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"'{path}' cannot be opened: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"'{path}' is damaged: it is not a file")
    if largest is not None and status.st_size > largest:
        raise UserError(f"'{path}' is damaged: it is larger than {largest >> 20} MB")


def _version(stored: Any) -> tuple[int, int] | None:
    """Major and minor; None if it is no version."""
    if type(stored) is int and 0 <= stored < 10**9:
        return stored, 0
    if isinstance(stored, str) and re.fullmatch(r"[0-9]{1,9}\.[0-9]{1,9}", stored):
        major, minor = stored.split(".")
        return int(major), int(minor)
    return None


def _writer(record: dict[str, Any]) -> str:
    """The program that wrote a run."""
    packages = record.get("packages")
    version = packages.get("manigraph") if isinstance(packages, dict) else None
    return f"manigraph {version}" if isinstance(version, str) else "the version of manigraph that wrote it"


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
