"""Where the cells of a grid are computed: in processes here, on a Ray cluster, or as jobs of SLURM.

An engine calls one function for each of many things, several at a time, and gives the answers as they come.
All machines must see the same folders. The function never raises, so an error is one of the engine itself.
"""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from manigraph.errors import UserError

Thing = TypeVar("Thing")
Answer = TypeVar("Answer")

EngineName = Literal["local", "ray", "slurm"]


class Engine(Protocol):
    """Many calls of one function."""

    @property
    def threads(self) -> int:
        """Threads of each call, on a CPU."""
        ...

    def outcomes(self, function: Callable[[Thing], Answer], things: Sequence[Thing]) -> Iterator[Answer]:
        """The answers, as they come; may end early if somebody asks to stop."""
        ...


@dataclass(frozen=True)
class LocalEngine:
    """Processes of this machine, which share its cores."""

    jobs: int
    threads: int = 1

    def outcomes(self, function: Callable[[Thing], Answer], things: Sequence[Thing]) -> Iterator[Answer]:
        pool = ProcessPoolExecutor(min(self.jobs, len(things)) or 1, mp_context=get_context("spawn"))
        try:
            with _termination_as_interrupt():
                for future in as_completed([pool.submit(function, thing) for thing in things]):
                    yield future.result()
        except BaseException:
            # What is being computed writes a checkpoint and ends; after Ctrl-C it was told already.
            for process in list((pool._processes or {}).values()):
                process.terminate()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """SIGTERM raises as Ctrl-C does, so that other processes can be told."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass(frozen=True)
class RayEngine:
    """Tasks of a Ray cluster: the one that RAY_ADDRESS names, else one of this machine alone."""

    jobs: int
    threads: int = 1

    def outcomes(self, function: Callable[[Thing], Answer], things: Sequence[Thing]) -> Iterator[Answer]:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError:
            raise UserError("--engine ray needs Ray: pip install 'manigraph[ray]'") from None
        address = os.environ.get("RAY_ADDRESS")
        here: dict[str, Any] = {"_node_ip_address": "127.0.0.1", "num_cpus": self.jobs * (self.threads)}
        ray.init(address=address, include_dashboard=False, log_to_driver=False, **({} if address else here))
        try:
            remote = ray.remote(num_cpus=self.threads, max_retries=0)(_call)
            waiting = [remote.remote(function, thing) for thing in things]
            while waiting:
                done, waiting = ray.wait(waiting, num_returns=1)
                yield ray.get(done[0])
        finally:
            ray.shutdown()


def _call(function: Callable[[Thing], Answer], thing: Thing) -> Answer:
    return function(thing)


@dataclass(frozen=True)
class SlurmEngine:
    """An array of SLURM jobs, by submitit; its scripts and logs are in `folder`."""

    jobs: int
    folder: Path
    threads: int = 1
    hours: float = 24.0
    """Time limit of each job."""
    partition: str = ""
    cluster: Literal["slurm", "local"] = "slurm"
    """`local`: the same jobs as processes of this machine, to try it out."""

    def outcomes(self, function: Callable[[Thing], Answer], things: Sequence[Thing]) -> Iterator[Answer]:
        try:
            import submitit
        except ImportError:
            raise UserError("--engine slurm needs submitit: pip install 'manigraph[slurm]'") from None
        try:
            executor = submitit.AutoExecutor(folder=self.folder, cluster=self.cluster)
        except RuntimeError as error:  # there is no SLURM
            raise UserError(f"--engine slurm cannot be used here: {error}") from None
        executor.update_parameters(
            name="manigraph", timeout_min=round(60 * self.hours), cpus_per_task=self.threads
        )
        if self.cluster == "slurm":
            executor.update_parameters(slurm_array_parallelism=self.jobs)
            if self.partition:
                executor.update_parameters(slurm_partition=self.partition)
        jobs = executor.map_array(function, list(things))
        for job in submitit.helpers.as_completed(jobs):
            yield job.result()


def engine_named(
    name: EngineName, *, jobs: int, threads: int, folder: Path, hours: float, partition: str
) -> Engine:
    """The engine that the command line asks for."""
    if name == "ray":
        return RayEngine(jobs, threads)
    if name == "slurm":
        return SlurmEngine(jobs, folder / "slurm", threads, hours, partition)
    return LocalEngine(jobs, threads)
