"""Train a run and its control one after the other, and say which is better; go on after a kill.

| file | in | content |
|---|---|---|
| `choices.json` | the run | what was chosen and why, and the configuration of the control |
| `choices.json` | the control | the name and id of the run it belongs to |
| `verdict.json` | the run | errors of both, their intervals, the test, what to check |

The control's folder is the run's with `-control` behind its name.
"""

import glob
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from manigraph.build import load_dataset, split_dataset
from manigraph.config import Config, as_dict, from_dict
from manigraph.data.cache import Progress, silent
from manigraph.data.locations import Locations
from manigraph.engine import resume, train
from manigraph.errors import UserError
from manigraph.pair.verdict import VERDICT_FILE, Verdict, compare
from manigraph.recipes.reasons import Reason
from manigraph.runs import RunDirectory
from manigraph.training.evaluation import Evaluation
from manigraph.training.processes import Processes
from manigraph.training.selection import Part

CHOICES_FILE = "choices.json"

Stage = Callable[[str, float], None]
"""Is told what begins, and how many seconds other work will take after it."""


@dataclass(frozen=True)
class Order:
    """What is to be trained."""

    config: Config[Any]
    control: Config[Any] | None = None
    reasons: Sequence[Reason] = ()
    control_seconds: float = 0.0
    """What the control will take, as far as it is known."""

    def notes(self) -> dict[str, Any]:
        """What the run's directory must hold so that another process can go on; nothing for a plain run."""
        if self.control is None and not self.reasons:
            return {}
        return {
            CHOICES_FILE: {
                "choices": [asdict(reason) for reason in self.reasons],
                "control": None if self.control is None else as_dict(self.control),
                "control_seconds": self.control_seconds,
            }
        }


@dataclass(frozen=True)
class Outcome:
    """What there is in the end."""

    run: RunDirectory
    control: RunDirectory | None
    verdict: Verdict | None
    """In the first of several processes, if there is a control."""


def train_both(
    order: Order,
    runs: Path,
    *,
    name: str | None = None,
    locations: Locations | None = None,
    stage: Stage = lambda what, later: None,
    **how: Any,
) -> Outcome:
    """Train the run and, if there is one, the control; then compare them.

    Args:
        order: What to train.
        runs: Folder that holds run directories.
        name: Name of the run's; by default made from the configuration.
        locations: Where data sets and decoded pixels are.
        stage: Is told what begins.
        how: For `engine.train`: progress, execution, processes, observer, estimate.
    """
    if order.control is not None:
        stage("1 of 2, with unlabelled images", order.control_seconds)
    run, _ = train(order.config, runs, name=name, locations=locations, notes=order.notes(), **how)
    return _go_on(run, order.control, locations=locations, stage=stage, **how)


def holds_images_out(
    config: Config[Any],
    processes: Processes,
    *,
    locations: Locations | None = None,
    progress: Progress = silent,
) -> bool:
    """Whether images are left on which a run and its control can be compared.

    Args:
        config: Of the run.
        processes: All processes of the training.
        locations: Where data sets and decoded pixels are.
        progress: Called while data is read.
    """
    if config.data.validation and not config.data.split:
        return True
    with processes.one_after_the_other():
        dataset = load_dataset(config.data, locations, progress)
    try:
        split = split_dataset(config.data, dataset, config.seed)
    except UserError:
        return True  # training says what is wrong, with all else that is
    return len(split.validation) + len(split.test) > 0


def resume_both(
    path: Path,
    *,
    locations: Locations | None = None,
    stage: Stage = lambda what, later: None,
    **how: Any,
) -> Outcome:
    """Go on with a run, its control and the verdict, whichever of them is not finished.

    Args:
        path: The run's directory or the control's.
        locations: Where data sets and decoded pixels are.
        stage: Is told what begins.
        how: For `engine.resume`: progress, execution, processes, observer, estimate.
    """
    run = main_run(path)
    control, seconds = planned_control(run)
    if control is None or run.status().state != "finished":
        if control is not None:
            stage("1 of 2, with unlabelled images", seconds)
        resume(run.path, locations=locations, **how)
    elif (run.path / VERDICT_FILE).is_file():
        raise UserError(f"the run '{run.path}' and its control are finished: there is nothing to go on with")
    return _go_on(run, control, locations=locations, stage=stage, **how)


def _go_on(
    run: RunDirectory,
    control: Config[Any] | None,
    *,
    locations: Locations | None,
    stage: Stage,
    **how: Any,
) -> Outcome:
    """The control, from wherever it is, and the verdict."""
    if control is None:
        return Outcome(run, None, None)
    stage("2 of 2, the control: labelled images alone", 0.0)
    found = control_run(run)
    processes = how.get("processes")
    if processes is not None:  # all must find the same, while the first may be making one already
        path = processes.first_says("" if found is None else str(found.path))
        found = RunDirectory(Path(path)) if path else None
    if found is None:
        notes = {CHOICES_FILE: {"control_of": {"name": run.path.name, "id": run.id}}}
        name = f"{run.path.name}-control"
        found, _ = train(control, run.path.parent, name=name, locations=locations, notes=notes, **how)
    elif found.status().state != "finished":
        resume(found.path, locations=locations, **how)
    if processes is not None and not processes.is_first:
        return Outcome(run, found, None)
    verdict = compare(run, found, locations=locations, progress=how.get("progress", silent))
    run.write_json(VERDICT_FILE, verdict.as_dict())
    return Outcome(run, found, verdict)


def main_run(path: Path) -> RunDirectory:
    """The run at `path`, or the one whose control is there."""
    if path.name in ("", ".."):  # inside the run: the folder that a control goes to is not in the path
        path = path.resolve()
    run = RunDirectory.open(path)
    other = _control_of(run)
    if other is None:
        return run
    main = path.parent / other["name"]
    if (main / "config.json").is_file() and RunDirectory.open(main).id == other["id"]:
        return RunDirectory.open(main)
    return run


def planned_control(run: RunDirectory) -> tuple[Config[Any] | None, float]:
    """The configuration of a run's control, and how many seconds it was expected to take."""
    choices = _choices(run)
    values = choices.get("control")
    if values is None:
        return None, 0.0
    path, seconds = run.path / CHOICES_FILE, choices.get("control_seconds", 0.0)
    if not isinstance(values, dict) or type(seconds) not in (int, float):
        raise UserError(f"'{path}' is damaged: it does not say the settings of a control")
    return from_dict(values, source=str(path)), float(seconds)


def control_run(run: RunDirectory) -> RunDirectory | None:
    """The control that was begun for a run."""
    for path in sorted(run.path.parent.glob(f"{glob.escape(run.path.name)}-control*")):
        if (path / "config.json").is_file():
            control = RunDirectory(path)
            other = _control_of(control)
            if other is not None and other["id"] == run.id:
                return control
    return None


def final_evaluations(run: RunDirectory) -> dict[Part, Evaluation]:
    """The errors of a finished run's weights."""
    names = {field.name for field in fields(Evaluation)}
    return {
        line["part"]: Evaluation(**{name: line[name] for name in names})
        for line in run.read_lines("evaluations.jsonl")
        if line["final"]
    }


def _control_of(run: RunDirectory) -> dict[str, str] | None:
    """The name and the id of the run to which a control belongs; None if this is no control."""
    other = _choices(run).get("control_of")
    if other is None:
        return None
    name, id_ = (other.get(key) if isinstance(other, dict) else None for key in ("name", "id"))
    if not isinstance(name, str) or not isinstance(id_, str) or Path(name).name != name:
        path = run.path / CHOICES_FILE
        raise UserError(f"'{path}' is damaged: control_of does not say the name and the id of a run")
    return {"name": name, "id": id_}


def _choices(run: RunDirectory) -> Mapping[str, Any]:
    return run.read_json(CHOICES_FILE) if (run.path / CHOICES_FILE).is_file() else {}
