"""Where the cells of a grid are computed: in processes here, on a Ray cluster, or as jobs of SLURM.

An engine calls one function for each of many things, several at a time, and gives the answers as they come.
All machines must see the same folders. The function never raises, but whatever computes it may die: the thing
is then lost and the others go on. Ctrl-C and SIGTERM are passed on, and what was being computed may still
write its checkpoint.
"""

import importlib
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

from manigraph.errors import Interrupted, UserError
from manigraph.training.stopping import SIGNALS, StopRequest, stop_requests

Thing = TypeVar("Thing")
Answer = TypeVar("Answer")

EngineName = Literal["local", "ray", "slurm"]

LOOK_EVERY = 0.25
"""Seconds between two looks at whether somebody asked to stop."""


@dataclass(frozen=True)
class Lost(Generic[Thing]):
    """Something without an answer, because what computed it is gone."""

    thing: Thing
    reason: str


class Engine(Protocol):
    """Many calls of one function."""

    @property
    def jobs(self) -> int | None:
        """Calls at the same time; None means as many as there is room for."""
        ...

    @property
    def threads(self) -> int:
        """Threads of each call, on a CPU."""
        ...

    @property
    def gpus(self) -> int:
        """Of this machine, if all calls share it, else of each call."""
        ...

    def outcomes(
        self, function: Callable[[Thing], Answer], things: Sequence[Thing]
    ) -> Generator[Answer | Lost[Thing], None, None]:
        """The answers, as they come; raises `Interrupted` after the last one if somebody asked to stop."""
        ...


# Processes of this machine


@dataclass(frozen=True)
class LocalEngine:
    """Processes of this machine, which share its cores, or its GPUs."""

    jobs: int
    threads: int = 1
    gpus: int = 0
    """How many this machine has; each process sees one of them."""

    def outcomes(
        self, function: Callable[[Thing], Answer], things: Sequence[Thing]
    ) -> Generator[Answer | Lost[Thing], None, None]:
        waiting = deque(things)
        busy: list[_Worker[Thing, Answer]] = []
        with stop_requests() as stop, _ended_in_the_end(busy):
            for place in range(min(self.jobs, len(things))):
                busy.append(_Worker(function, place % self.gpus if self.gpus else None))
                busy[-1].ask(waiting.popleft())
            told = False
            while busy:
                if stop and not told:
                    told = True
                    for worker in busy:
                        worker.process.terminate()
                ready = wait([worker.pipe for worker in busy], timeout=LOOK_EVERY)
                for worker in [worker for worker in busy if worker.pipe in ready]:
                    answer = worker.answer()
                    if not (isinstance(answer, Lost) and stop):
                        yield answer
                    if waiting and not stop:
                        worker.ask(waiting.popleft())
                    else:
                        busy.remove(worker)
                        worker.end()
        _raise_if_asked(stop)


class _Worker(Generic[Thing, Answer]):
    """A process that answers one question after the other, and a new one if it died."""

    def __init__(self, function: Callable[[Thing], Answer], gpu: int | None) -> None:
        self._function = function
        self._gpu = gpu
        self._start()

    def _start(self) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(self._function, theirs, self._gpu))
        with _signals_held():
            self.process.start()
        theirs.close()  # so that the pipe ends with the process

    def ask(self, thing: Thing) -> None:
        self._thing = thing
        if not self.process.is_alive():
            self.end()
            self._start()
        with suppress(BrokenPipeError):  # it died this very moment: `answer` will say so
            self.pipe.send(thing)

    def answer(self) -> Answer | Lost[Thing]:
        try:
            answer: Answer = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            return Lost(self._thing, _how_it_ended(self.process.exitcode))
        return answer

    def end(self) -> None:
        self.pipe.close()
        self.process.join()


@contextmanager
def _ended_in_the_end(workers: "list[_Worker[Thing, Answer]]") -> Iterator[None]:
    """No process is left: those that compute something are asked to stop, after a second Ctrl-C killed."""
    try:
        yield
    except KeyboardInterrupt:
        for worker in workers:
            worker.process.kill()
        raise
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.end()


@contextmanager
def _signals_held() -> Iterator[None]:
    """A process that is started in here hears no signal before it lets them through itself.

    Ctrl-C in a terminal reaches all processes, also one that has hardly begun and would die with a traceback.
    """
    resource_tracker.ensure_running()  # when it starts, it lets signals through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(function: Callable[[Thing], Answer], pipe: "Connection[Answer, Thing]", gpu: int | None) -> None:
    """What a worker does: answer until nobody asks any more."""
    if gpu is not None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[gpu] if visible else str(gpu)

    def leave(*_: Any) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this process decides
    signal.signal(signal.SIGTERM, leave)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            pipe.send(function(pipe.recv()))


def _end_with_parent() -> None:
    """Nobody waits for the answers of an orphan: it writes a checkpoint, if it trains, and ends."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _how_it_ended(code: int | None) -> str:
    if code == -signal.SIGKILL:
        return "its process was killed; if memory ran out, use fewer --jobs"
    if code is not None and code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with code {code}"


def _raise_if_asked(stop: StopRequest) -> None:
    if stop.signal is not None:
        raise Interrupted("stopped", 128 + stop.signal)


def available_cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# Ray


@dataclass(frozen=True)
class RayEngine:
    """Tasks of a Ray cluster: the one that RAY_ADDRESS names, else one of this machine alone."""

    jobs: int | None = None
    threads: int = 1
    gpus: int = 0
    """Of each task."""

    def outcomes(
        self, function: Callable[[Thing], Answer], things: Sequence[Thing]
    ) -> Generator[Answer | Lost[Thing], None, None]:
        ray = self._cluster()
        try:
            with stop_requests() as stop:
                yield from self._tasks(ray, stop, function, deque(things))
        finally:
            ray.shutdown()
        _raise_if_asked(stop)

    def _cluster(self) -> Any:
        """Ray's module, connected."""
        address = os.environ.get("RAY_ADDRESS") or "local"
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if address == "local":
            # Without this it would listen to other machines too; Ray reads it when it is imported.
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError:
            raise UserError("--engine ray needs Ray: pip install 'manigraph[ray]'") from None
        alone: dict[str, Any] = {
            "num_cpus": self.threads * self.jobs if self.jobs else max(self.threads, available_cores()),
            "object_store_memory": 100 << 20,  # answers are small
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
        }
        try:
            _check_somebody_listens(address)
            ray.init(
                address, log_to_driver=False, logging_level="ERROR", **(alone if address == "local" else {})
            )
        except (OSError, RuntimeError, ValueError) as error:
            raise UserError(
                f"there is no Ray cluster at RAY_ADDRESS '{address}' ({_first_line(error)}): start one with "
                f"`ray start --head`, or unset RAY_ADDRESS to use this machine alone"
            ) from None
        for name, wanted, option in (("CPU", self.threads, "threads"), ("GPU", self.gpus, "gpus")):
            most = max((node["Resources"].get(name, 0) for node in ray.nodes() if node["Alive"]), default=0)
            if wanted > most:
                ray.shutdown()
                raise UserError(
                    f"no machine of the Ray cluster has {wanted} {name}s for a run: use --{option} {most:g}"
                )
        return ray

    def _tasks(
        self,
        ray: Any,
        stop: StopRequest,
        function: Callable[[Thing], Answer],
        waiting: "deque[Thing]",
    ) -> Generator[Answer | Lost[Thing], None, None]:
        remote = ray.remote(num_cpus=self.threads, num_gpus=self.gpus, max_retries=0)(_call)
        variables = {name: value for name, value in os.environ.items() if name.startswith("MANIGRAPH_")}
        running: dict[Any, Thing] = {}
        told = False
        while waiting or running:
            if stop and not told:
                told = True
                waiting.clear()
                for task in running:
                    ray.cancel(task, force=False)  # it hears Ctrl-C
            while waiting and (self.jobs is None or len(running) < self.jobs):
                thing = waiting.popleft()
                running[remote.remote(function, thing, variables)] = thing
            done, _ = ray.wait(list(running), num_returns=1, timeout=LOOK_EVERY)
            for task in done:
                thing = running.pop(task)
                try:
                    yield ray.get(task)
                except ray.exceptions.RayError as error:
                    if not stop:
                        yield Lost(thing, f"its Ray worker is gone: {_first_line(error)}")


def _call(function: Callable[[Thing], Answer], thing: Thing, variables: Mapping[str, str]) -> Answer:
    os.environ.update(variables)  # where data sets are
    return function(thing)


def _check_somebody_listens(address: str) -> None:
    """Ray itself would try for ten minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


# SLURM


@dataclass(frozen=True)
class SlurmEngine:
    """An array of SLURM jobs, by submitit; its scripts and logs are in `folder`.

    A job that comes to its time limit, or has to make room for others, is put into the queue again.
    """

    folder: Path
    jobs: int | None = None
    threads: int = 1
    gpus: int = 0
    """Of each job."""
    hours: float = 24.0
    """Time limit of each job."""
    partition: str = ""
    cluster: Literal["slurm", "local"] = "slurm"
    """`local`: the same jobs as processes of this machine, to try it out."""

    def outcomes(
        self, function: Callable[[Thing], Answer], things: Sequence[Thing]
    ) -> Generator[Answer | Lost[Thing], None, None]:
        executor = self._executor()
        with stop_requests() as stop:  # jobs may run before all of them are submitted
            submitted = executor.map_array(_Requeued(function), list(things)) if things else []
            running = dict(zip(submitted, things, strict=True))
            try:
                while running and not stop:
                    for job in [job for job in running if job.done()]:
                        yield _outcome(job, running.pop(job))
                    time.sleep(LOOK_EVERY)
            finally:
                for job in running:
                    job.cancel(check=False)  # it writes its checkpoint by itself
        _raise_if_asked(stop)

    def _executor(self) -> Any:
        try:
            import submitit
        except ImportError:
            raise UserError("--engine slurm needs submitit: pip install 'manigraph[slurm]'") from None
        try:
            executor = submitit.AutoExecutor(
                folder=self.folder, cluster=self.cluster, slurm_max_num_timeout=MOST_REQUEUES
            )
        except RuntimeError:
            raise UserError(
                "--engine slurm finds no srun here: run the command on a machine of the cluster, or use "
                "--engine local"
            ) from None
        executor.update_parameters(
            name="manigraph",
            timeout_min=max(1, round(60 * self.hours)),
            cpus_per_task=self.threads,
            gpus_per_node=self.gpus or None,
            slurm_array_parallelism=self.jobs,
            slurm_partition=self.partition or None,
        )
        return executor


MOST_REQUEUES = 100


@dataclass(frozen=True)
class _Requeued(Generic[Thing, Answer]):
    """A function that submitit calls again with the same thing after a job was cut off."""

    function: Callable[[Thing], Answer]

    def __call__(self, thing: Thing) -> Answer:
        return self.function(thing)

    def checkpoint(self, thing: Thing) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, thing)


def _outcome(job: Any, thing: Thing) -> Any:
    from submitit.core.utils import FailedJobError, UncompletedJobError

    try:
        return job.result()
    except (FailedJobError, UncompletedJobError):
        reason = f"its job {job.job_id} ended without a result ({job.state}): see {job.paths.stderr}"
        return Lost(thing, reason)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def engine_named(
    name: EngineName,
    *,
    folder: Path,
    jobs: int | None = None,
    threads: int = 0,
    gpus: int = 0,
    hours: float = 24.0,
    partition: str = "",
) -> Engine:
    """The engine that the command line asks for.

    Args:
        name: Which.
        folder: For scripts and logs.
        jobs: Calls at the same time; None means as many as there is room for.
        threads: Of each call; 0 shares the cores of this machine among the jobs, elsewhere it means 1.
        gpus: Of each call, elsewhere; here each takes one if there are any.
        hours: Time limit of a SLURM job.
        partition: Where SLURM puts the jobs.
    """
    if name == "ray":
        return RayEngine(jobs, threads or 1, gpus)
    if name == "slurm":
        return SlurmEngine(folder / "slurm", jobs, threads or 1, gpus, hours, partition)
    from torch import cuda

    here = cuda.device_count() if cuda.is_available() else 0
    jobs = jobs or here or max(1, available_cores() // (threads or 1))
    return LocalEngine(jobs, threads or max(1, available_cores() // jobs), here)
