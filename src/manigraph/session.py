"""One process's work on one run: from the first step, or a checkpoint, to the end."""

import os
import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from manigraph.algorithms.base import Algorithm
from manigraph.build import Job
from manigraph.errors import DiskFullError, Interrupted, NonFiniteLossError, UserError
from manigraph.native import library
from manigraph.nn import trained_state
from manigraph.runs import RunDirectory, machine, packages, provenance, remove_leftovers, write_bytes
from manigraph.runs.directory import State
from manigraph.runs.files import DISK_IS_FULL
from manigraph.training.checkpoint import Checkpoints, Snapshot, prefixed, tensor_bytes
from manigraph.training.collapse import CollapseWatch
from manigraph.training.estimate import Estimate, estimate_run
from manigraph.training.evaluation import Evaluation, evaluate, predict_logits
from manigraph.training.execution import Execution
from manigraph.training.loop import StepRecord
from manigraph.training.processes import watched
from manigraph.training.selection import Part, Selection, part_looked_at
from manigraph.training.stopping import StopRequest, stop_requests
from manigraph.training.tensorboard import TensorBoardLog

PARTS: tuple[Part, ...] = ("validation", "test")

STATISTICS_BATCHES = 20
"""Batches over which batch norm's statistics are measured for a plain average of weights."""


class Observer(Protocol):
    """Is told what happens, for people to see."""

    def start(self, run: RunDirectory, job: Job, estimate: Estimate | None, first_step: int) -> None:
        """All is built, and the run goes on after `first_step`."""
        return

    def step(self, record: StepRecord) -> None:
        """A record of metrics."""
        return

    def evaluation(self, part: str, step: int, evaluation: Evaluation) -> None:
        """An evaluation on the way."""
        return

    def warning(self, text: str) -> None:
        """Something that a person should know now."""
        return

    def finish(self) -> None:
        """The last step is done."""
        return


class Silence(Observer):
    """Tells nobody."""


class _StopError(Exception):
    """Somebody asked to stop, and the state is one to go on from."""


class Session:
    """Trains, evaluates and keeps all of it in the run directory; of several processes, the first writes."""

    def __init__(self, run: RunDirectory, job: Job, execution: Execution, observer: Observer) -> None:
        self.run = run
        self.job = job
        self.trainer = job.trainer
        self.config = job.trainer.config
        self.execution = execution
        self.observer = observer
        self.processes = job.trainer.processes
        self.writes = self.processes.is_first
        self.selection = Selection(self.config.select)
        labels = job.dataset.classes[job.split.labelled].bincount()
        self.collapse = CollapseWatch(largest_share=float(labels.max() / labels.sum()))
        self.checkpoints = Checkpoints(run.path / "checkpoints", run.id)
        self.metrics = run.journal("metrics.jsonl")
        self.evaluations = run.journal("evaluations.jsonl")
        self.warnings = run.journal("warnings.jsonl")
        self.journals = (self.metrics, self.evaluations, self.warnings)
        self.tensorboard: TensorBoardLog | None = None
        self.stop = StopRequest()
        self._kept_step = 0
        """Where a resumed run would go on now."""
        self._kept_at = time.monotonic()

    # The course of a run

    def carry_out(
        self, snapshot: Snapshot | None, *, taken_up: bool, wants_estimate: bool
    ) -> dict[Part, Evaluation]:
        """Train to the end; whatever happens, the run says how it stands.

        Args:
            snapshot: Where to go on; None means at the first step.
            taken_up: Whether another process began this run.
            wants_estimate: Measure a few steps first, to say what the run will take.
        """
        with ExitStack() as stack:
            if self.writes:
                stack.enter_context(self.run.held())
            if taken_up:
                self._check_newest(snapshot)
                self._take_up(snapshot)
            self.stop = stack.enter_context(stop_requests())
            try:
                if self.execution.tensorboard and self.writes:
                    log = TensorBoardLog(self.run.path / "tensorboard", first_step=self.trainer.step)
                    self.tensorboard = stack.enter_context(log)
                try:
                    with watched(self.processes, self._say_failed):
                        evaluations = self._train(wants_estimate)
                except _StopError:
                    raise self._interrupted() from None
            except Interrupted:
                raise
            except KeyboardInterrupt:
                self._set_status("interrupted", f"stopped at once during step {self.trainer.step}")
                raise
            except OSError as error:
                if error.errno not in DISK_IS_FULL:
                    self._say_failed(f"{type(error).__name__}: {error}")
                    raise
                reason = f"the disk is full: make room, then go on with `{resume_command(self.run)}`"
                self._say_failed(reason)
                raise DiskFullError(reason) from error
            except NonFiniteLossError as error:
                self._say_failed(str(error))
                self._save_weights(self._evaluated_algorithm())
                raise
            except BaseException as error:
                self._say_failed(f"{type(error).__name__}: {error}")
                raise
            self._set_status("finished")
        return evaluations

    def _train(self, wants_estimate: bool) -> dict[Part, Evaluation]:
        estimate = self._estimate() if wants_estimate else None
        self.observer.start(self.run, self.job, estimate, self.trainer.step)
        self._kept_at = time.monotonic()
        self.trainer.run(self.job.batches, self._log_step, self._evaluate_on_the_way, self._between_steps)
        self.observer.finish()
        return self._conclude()

    def _log_step(self, record: StepRecord) -> None:
        warning = self.collapse.see(record.health, record.step / self.config.steps)
        if self.writes:
            self.metrics.append(asdict(record))
        if self.tensorboard is not None:
            self.tensorboard.step(record)
        self.observer.step(record)
        if warning is not None:
            self._warn(warning)

    def _warn(self, text: str) -> None:
        if self.writes:
            self.warnings.append({"step": self.trainer.step, "warning": text})
        self.observer.warning(text)

    def _evaluate_on_the_way(self) -> None:
        algorithm = self._evaluated_algorithm()
        part = part_looked_at(self.selection.rule)
        evaluation, _ = self._measure(algorithm.inference_model(), part)
        self._record(part, self.trainer.step, evaluation, final=False)
        if self.selection.rule != "last":
            self.selection.consider(self.trainer.step, evaluation.error, algorithm)
        self.observer.evaluation(part, self.trainer.step, evaluation)

    def _between_steps(self) -> None:
        if self.processes.any(bool(self.stop)):
            raise _StopError
        seconds = 60 * self.execution.checkpoint_minutes
        is_due = seconds > 0 and time.monotonic() - self._kept_at >= seconds
        if is_due and self._kept_step != self.trainer.step:
            self._keep()

    def _conclude(self) -> dict[Part, Evaluation]:
        """Evaluate the weights that count, then save them and the predictions on the test images."""
        algorithm = self.selection.chosen(self._evaluated_algorithm())
        step = self.trainer.step if self.selection.step is None else self.selection.step
        model = algorithm.inference_model()
        parts = [part for part in PARTS if len(self._indices(part))]
        measured = {part: self._measure(model, part) for part in parts}
        for part, (evaluation, logits) in measured.items():
            self._record(part, step, evaluation, final=True)
            if part == "test":
                indices = self._indices(part)
                tensors = {"index": indices, "class": self.job.dataset.classes[indices], "logits": logits}
                self._save("predictions.safetensors", tensors)
        self._save_weights(algorithm)
        if self.writes:
            self.run.write_json("selection.json", {"rule": self.selection.rule, "step": step})
            for journal in self.journals:
                journal.sync()
        return {part: evaluation for part, (evaluation, _) in measured.items()}

    # Evaluation

    def _indices(self, part: Part) -> Tensor:
        indices: Tensor = getattr(self.job.split, part)
        return indices

    def _evaluated_algorithm(self) -> Algorithm[Any]:
        self.trainer.refresh_statistics(self._clean_images())
        return self.trainer.evaluated_algorithm()

    def _clean_images(self) -> Iterator[Tensor]:
        """The same images every time: the place in the stream of batches stays the same."""
        place = self.job.batches.state_dict()
        yield from clean_images(self.job)
        self.job.batches.load_state_dict(place)

    def _measure(self, model: nn.Module, part: Part) -> tuple[Evaluation, Tensor]:
        indices = self._indices(part)
        logits = predict_logits(
            model, self.job.images, indices, shard=self.processes.shard, before_batch=self._stop_if_alone
        )
        return evaluate(logits, self.job.dataset.classes[indices]), logits

    def _stop_if_alone(self) -> None:
        # Several processes must agree on when to stop, and do so between steps.
        if self.stop and self.processes.shard.size == 1:
            raise _StopError

    def _record(self, part: Part, step: int, evaluation: Evaluation, *, final: bool) -> None:
        if self.writes:
            self.evaluations.append({"part": part, "step": step, "final": final, **asdict(evaluation)})
        if self.tensorboard is not None and not final:
            self.tensorboard.evaluation(part, step, evaluation)

    def _estimate(self) -> Estimate | None:
        on_the_way = part_looked_at(self.selection.rule)
        every, steps_left = self.config.evaluate_every, self.config.steps - self.trainer.step
        evaluated = sum(len(self._indices(part)) for part in PARTS)
        if every:
            evaluated += -(-steps_left // every) * len(self._indices(on_the_way))
        some = self._indices("validation" if len(self._indices("validation")) else "test")[:256]

        def evaluate_some() -> int:
            if len(some):
                model = self.trainer.evaluated_algorithm().inference_model()
                predict_logits(model, self.job.images, some, shard=self.processes.shard)
            return len(some)

        try:
            return estimate_run(self.trainer, self.job.batches, evaluate_some, evaluated)
        except NonFiniteLossError:
            return None  # the run itself will tell

    # What is kept

    def _snapshot(self) -> Snapshot:
        training, selection = self.trainer.snapshot(), self.selection.snapshot()
        tensors = {
            **prefixed("training", training.tensors),
            **prefixed("selection", selection.tensors),
            **prefixed("batches", self.job.batches.state_dict()),
        }
        values = {
            "training": dict(training.values),
            "selection": dict(selection.values),
            "collapse": self.collapse.state_dict(),
            "computed_with": self._computed_with(),
        }
        return Snapshot(tensors, values)

    def _computed_with(self) -> dict[str, Any]:
        """What decides the last bits of a result."""
        return {
            "torch": packages()["torch"],
            "processor": machine()["processor"],
            "device": self.trainer.device.type,
            "threads": torch.get_num_threads(),
            "processes": self.processes.shard.size,
            "native": self.trainer.device.type == "cpu" and library() is not None,
            "accumulate": self.execution.accumulate,
            "compile": self.execution.compile,
            "deterministic": self.execution.deterministic,
        }

    def _check_newest(self, snapshot: Snapshot | None) -> None:
        """Nobody may have gone on with the run while this process was being built."""
        if self.writes:
            known = 0 if snapshot is None else snapshot.values["training"]["step"]
            newest = (self.checkpoints.steps() or [0])[-1]
            if newest != known or self.run.status().state == "finished":
                raise UserError(f"the run '{self.run.path}' went on meanwhile: resume it again")

    def _take_up(self, snapshot: Snapshot | None) -> None:
        """Go to where the snapshot was taken, and drop what was written after it."""
        if snapshot is not None:
            self.trainer.restore(Snapshot(snapshot.part("training"), snapshot.values["training"]))
            self.selection.restore(Snapshot(snapshot.part("selection"), snapshot.values["selection"]))
            self.job.batches.load_state_dict(snapshot.part("batches"))
            self.collapse.load_state_dict(snapshot.values["collapse"])
            self._kept_step = self.trainer.step
            now, then = self._computed_with(), snapshot.values["computed_with"]
            then = {"native": False, **then}  # older runs know nothing of it
            changed = [name for name in now if now[name] != then.get(name)]
            if changed:
                what = "; ".join(f"{name} {then.get(name)} then, {now[name]} now" for name in changed)
                self.observer.warning(f"the run goes on, but its last bits may come out otherwise ({what})")
        step = self.trainer.step
        if self.writes:
            remove_leftovers(self.run.path)
            self.checkpoints.clean()
            for journal in (self.metrics, self.warnings):
                journal.keep(lambda line: line["step"] <= step)
            evaluated = self.trainer.evaluated_at
            self.evaluations.keep(lambda line: line["step"] <= evaluated and not line["final"])
            resumes = self.run.journal("resumes.jsonl")
            resumes.keep(lambda line: True)
            resumes.append({"step": step, **provenance()})
            self._set_status("running")

    def _keep(self) -> None:
        """Write a checkpoint; where there is no room for it, the one before stays the newest.

        One that is there already is not touched: a second one of the same step could only lose it.
        """
        if not self.writes or self._kept_step == self.trainer.step:
            return

        def sync_journals() -> None:
            for journal in self.journals:
                journal.sync()

        try:
            self.checkpoints.write(self.trainer.step, self._snapshot(), sync_journals)
            self._kept_step = self.trainer.step
        except OSError as error:
            if error.errno not in DISK_IS_FULL:
                raise
            self.observer.warning(
                f"the disk is full: no checkpoint could be written at step {self.trainer.step}, the last one "
                f"is of step {self._kept_step}; make room"
            )
        self._kept_at = time.monotonic()

    def _interrupted(self) -> Interrupted:
        number = self.stop.signal or signal.SIGTERM
        step = self.trainer.step
        self._keep()
        self._set_status("interrupted", f"{number.name} at step {step} of {self.config.steps}")
        try:
            self._save_weights(self._evaluated_algorithm())
        except OSError as error:
            if error.errno not in DISK_IS_FULL:
                raise
        if self.processes.shard.size > 1:
            # Whoever leaves first counts as lost, and whatever started the processes ends the others.
            self._kept_step = int(self.processes.first_says(str(self._kept_step)))
        where = f"step {step}" if self._kept_step == step else f"step {self._kept_step}, the last checkpoint"
        message = f"stopped at step {step} of {self.config.steps}; to go on from {where}:"
        return Interrupted(f"{message} {resume_command(self.run)}", 128 + number)

    def _say_failed(self, reason: str) -> None:
        self._set_status("failed", reason)

    def _set_status(self, state: State, reason: str = "") -> None:
        if self.writes:
            self.run.set_status(state, reason)

    def _save_weights(self, algorithm: Algorithm[Any]) -> None:
        self._save("model.safetensors", trained_state(algorithm))

    def _save(self, name: str, tensors: dict[str, Tensor]) -> None:
        if self.writes:
            write_bytes(self.run.path / name, tensor_bytes(tensors))


def clean_images(job: Job) -> Iterator[Tensor]:
    """Some batches of images as in the clean pass of a step, to measure batch norm's statistics on."""
    request = job.trainer.algorithm.data_request()
    clean = next((name for name, kind in request.unlabelled.items() if kind != "strong"), None)
    for _ in range(STATISTICS_BATCHES):
        batch = next(job.batches)
        images = []
        if clean is None or job.batches.labelled_view == "weak":
            images.append(next(iter(batch.labelled.values())))
        if clean is not None:
            images.append(batch.unlabelled[clean])
        yield torch.cat(images)


def resume_command(run: RunDirectory) -> str:
    """What to type to go on with a run."""
    return f"manigraph train --resume {shlex.quote(os.fspath(run.path))}"
