"""All processes of one training, seen from one of them.

Fabric starts them (or finds those that torchrun or SLURM started), joins them into a group and wraps the
method for gradient averaging (DDP). Batches, random numbers and batch norm are made such that N processes
follow one: see `manigraph.sharding`.
"""

import atexit
import gc
import inspect
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from manigraph.algorithms.base import Algorithm
from manigraph.contract import Batch, StepContext, StepOutput
from manigraph.errors import ProcessLostError, UserError
from manigraph.native import use_native
from manigraph.sharding import ALONE, Shard
from manigraph.training.execution import Execution, choose_device
from manigraph.training.memory import keep_freed_memory

Step = Callable[[Batch, StepContext], StepOutput]

LOST_AFTER = timedelta(minutes=30)
"""A process that answers nothing for so long counts as lost; one that dies is noticed at once."""


class Processes:
    """One process alone."""

    def __init__(self, device: torch.device, shard: Shard = ALONE) -> None:
        self.device = device
        self.shard = shard

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and speaks to people."""
        return self.shard.rank == 0

    def wrap(self, algorithm: Algorithm[Any]) -> Step:
        """The method's step, whose gradients are averaged over all processes in the backward pass."""
        return algorithm.training_step

    def any(self, flag: bool) -> bool:
        """Whether the flag is up in any process; all get the same answer."""
        return flag

    def mean(self, values: Mapping[str, float]) -> dict[str, float]:
        """Each value's mean over all processes."""
        return dict(values)

    def first_says(self, text: str) -> str:
        """What the first process passes here, in all of them."""
        return text

    @contextmanager
    def one_after_the_other(self) -> Iterator[None]:
        """The first process goes through this alone; then all others, which find what it left behind."""
        yield


class _StepModule(nn.Module):
    """A method's step as a forward pass, which is what DDP watches over."""

    def __init__(self, algorithm: Algorithm[Any]) -> None:
        super().__init__()
        self.algorithm = algorithm
        self.health: Callable[[], Mapping[str, float]] = dict

    def forward(self, batch: Batch, context: StepContext) -> dict[str, Tensor]:
        output = self.algorithm.training_step(batch, context)
        self.health = output.health
        return dict(output.terms)


class FabricProcesses(Processes):
    """One of several processes, joined by Fabric."""

    def __init__(self, fabric: Any) -> None:
        super().__init__(fabric.device, Shard(fabric.global_rank, fabric.world_size))
        self.fabric = fabric
        self.parallel: DistributedDataParallel | None = None
        """The method's step as DDP sees it."""
        # Flags and names travel beside the device's own traffic.
        self._group = torch.distributed.new_group(backend="gloo", timeout=LOST_AFTER)

    def wrap(self, algorithm: Algorithm[Any]) -> Step:
        module = _StepModule(algorithm)
        # The strategy itself: Fabric's own wrapper takes batches and answers apart to convert them.
        self.parallel = self.fabric.strategy.setup_module(module)

        def step(batch: Batch, context: StepContext) -> StepOutput:
            assert self.parallel is not None
            terms = self.parallel(batch, context)
            return StepOutput(terms, module.health)

        return step

    def any(self, flag: bool) -> bool:
        raised = torch.tensor([float(flag)])
        with _connected():
            torch.distributed.all_reduce(raised, group=self._group)
        return bool(raised.item() > 0)

    def mean(self, values: Mapping[str, float]) -> dict[str, float]:
        total = torch.tensor(list(values.values()), dtype=torch.float64)
        with _connected():
            torch.distributed.all_reduce(total, group=self._group)
        return dict(zip(values, (total / self.shard.size).tolist(), strict=True))

    def first_says(self, text: str) -> str:
        content = text.encode()
        length = torch.tensor([len(content) if self.is_first else 0])
        with _connected():
            torch.distributed.broadcast(length, 0, group=self._group)
        buffer = torch.zeros(int(length), dtype=torch.uint8)
        if self.is_first:
            buffer.copy_(torch.tensor(list(content), dtype=torch.uint8))
        with _connected():
            torch.distributed.broadcast(buffer, 0, group=self._group)
        return bytes(buffer.tolist()).decode()

    def leave(self) -> None:
        """End the connections, and gloo's threads with them, while the interpreter still lives.

        A thread that lets go of a tensor after that aborts the process, at random and after all is done
        (pytorch/pytorch issue 190489). Threads end with the last reference to their group: DDP has one.
        """
        self.parallel = None
        del self._group
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        gc.collect()

    @contextmanager
    def one_after_the_other(self) -> Iterator[None]:
        if not self.is_first:
            self.any(False)
        yield
        if self.is_first:
            self.any(False)


@dataclass(frozen=True)
class _Cluster:
    """How many processes an outer launcher (torchrun, SLURM) started."""

    per_node: int
    nodes: int
    launcher: Literal["fabric", "torchrun", "slurm"] = "fabric"


def _outer_launcher(execution: Execution) -> _Cluster | None:
    variables = os.environ
    try:
        if "TORCHELASTIC_RUN_ID" in variables:
            per_node = int(variables["LOCAL_WORLD_SIZE"])
            return _Cluster(per_node, int(variables["WORLD_SIZE"]) // per_node, "torchrun")
        # The tasks of srun have these two; a batch script, or the shell of an allocation, has not.
        tasks = int(variables.get("SLURM_STEP_NUM_TASKS", "1"))
        nodes = int(variables.get("SLURM_STEP_NUM_NODES", "1"))
        allotted = int(variables.get("SLURM_NTASKS", "1"))
    except (KeyError, ValueError, ZeroDivisionError):
        raise UserError(
            "torchrun or SLURM left no sensible number of processes in the environment (WORLD_SIZE, "
            "LOCAL_WORLD_SIZE, SLURM_STEP_NUM_TASKS, SLURM_STEP_NUM_NODES)"
        ) from None
    if tasks > 1 and tasks % nodes:
        raise UserError(
            f"srun started {tasks} tasks on {nodes} nodes, but each node needs as many: use --nodes and "
            f"--ntasks-per-node"
        )
    if tasks > 1 and "SLURM_PTY_PORT" not in variables:
        return _Cluster(tasks // nodes, nodes, "slurm")
    is_script = "SLURM_JOB_ID" in variables and "SLURM_STEP_ID" not in variables and not sys.stdin.isatty()
    if allotted > 1 and is_script and execution.processes == 1:
        raise UserError(
            f"SLURM has {allotted} tasks for this script, but nothing starts them: put srun before the "
            f"command, or use --processes"
        )
    return None


def start_processes(execution: Execution) -> Processes:
    """Start the other processes, or join those that torchrun or SLURM started; alone if there are none.

    With Fabric's own launcher this runs the present command once more for each further process.
    """
    if execution.threads:
        torch.set_num_threads(execution.threads)
    if execution.keep_memory:
        keep_freed_memory()
    use_native(execution.native)
    if execution.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    cluster = _outer_launcher(execution)
    if cluster is None:
        cluster = _Cluster(execution.processes, execution.nodes)
    elif execution.processes > 1 and (execution.processes, execution.nodes) != (
        cluster.per_node,
        cluster.nodes,
    ):
        raise UserError(
            f"--processes {execution.processes} --nodes {execution.nodes} but the launcher started "
            f"{cluster.per_node} on each of {cluster.nodes} nodes: leave both options out"
        )
    if cluster.per_node * cluster.nodes == 1:
        return Processes(choose_device(execution.device))
    return _join(execution, cluster)


def _join(execution: Execution, cluster: _Cluster) -> Processes:
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy

    device = choose_device(execution.device)
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"several processes need cpu or cuda devices, not {device.type}: use --device cpu")
    if device.type == "cuda" and cluster.per_node > torch.cuda.device_count():
        raise UserError(
            f"{cluster.per_node} processes need as many GPUs, and there are {torch.cuda.device_count()}: "
            f"lower --processes"
        )
    # How many there are is said in our own words.
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    # Buffers are the same in all processes already. torch 2.13 has a new name for leaving them alone.
    new_name = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    options: dict[str, Any] = {"forward_sync_buffers" if new_name else "broadcast_buffers": False}
    # Until the graph comes in, its parameters take no part in the step.
    strategy = DDPStrategy(find_unused_parameters=True, timeout=LOST_AFTER, **options)
    fabric = Fabric(
        accelerator=device.type,
        devices=cluster.per_node,
        num_nodes=cluster.nodes,
        strategy=strategy,
        plugins=_environment(cluster),
    )
    fabric.launch()
    if execution.threads:
        torch.set_num_threads(execution.threads)
    processes = FabricProcesses(fabric)
    atexit.register(processes.leave)
    return processes


def _environment(cluster: _Cluster) -> Any:
    """What tells Fabric who started the processes.

    Left to itself it takes a batch script for a task of srun, and wants options that srun does not need.
    """
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment
    from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment

    if cluster.launcher == "torchrun":
        return TorchElasticEnvironment()
    variables = os.environ
    if cluster.launcher == "slurm":
        # Of this step, not of the job: several steps of one job may train at once, also on one node.
        first = SLURMEnvironment.resolve_root_node_address(variables["SLURM_STEP_NODELIST"])
        place = int(variables["SLURM_JOB_ID"]) + 101 * int(variables["SLURM_STEP_ID"])
        variables.setdefault("MASTER_ADDR", first)
        variables.setdefault("MASTER_PORT", str(15000 + place % 10000))
        variables["LOCAL_RANK"] = variables["SLURM_LOCALID"]
        variables["NODE_RANK"] = variables["SLURM_NODEID"]
    return LightningEnvironment()


def children_of(processes: Processes) -> Sequence[Any]:
    """The processes that Fabric's own launcher started from this one."""
    if not isinstance(processes, FabricProcesses):
        return ()
    return getattr(processes.fabric.strategy.launcher, "procs", ())


@contextmanager
def watched(processes: Processes, on_loss: Callable[[str], None]) -> Iterator[None]:
    """Notice a process that dies: tell it to `on_loss` and stop, instead of waiting for it for ever.

    Fabric kills all processes a few seconds after one of its own died, without a word; this is earlier.
    """
    children = children_of(processes)
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.2):
            dead = [child for child in children if child.poll() not in (None, 0)]
            if dead:
                # If all are ending anyway, for instance after Ctrl-C, this process says so itself.
                if over.wait(2.0):
                    return
                message = _lost(f"a process ended with code {dead[0].returncode}")
                on_loss(message)
                print(f"manigraph: {message}", file=sys.stderr, flush=True)
                for child in children:
                    child.kill()
                os._exit(1)

    thread = threading.Thread(target=watch, daemon=True, name="watch over the other processes")
    if children:
        thread.start()
    try:
        with _connected() if processes.shard.size > 1 else nullcontext():
            yield
    finally:
        over.set()
        if children:
            thread.join()


@contextmanager
def _connected() -> Iterator[None]:
    """What torch says of a lost connection, in our words."""
    try:
        yield
    except RuntimeError as error:
        if _is_lost_connection(error):
            raise ProcessLostError(_lost("the connection to it is closed")) from error
        raise


def _lost(how: str) -> str:
    return (
        f"training stopped because another of its processes is gone ({how}): see what that one said, then "
        f"resume"
    )


def _is_lost_connection(error: RuntimeError) -> bool:
    if isinstance(error, ProcessLostError):
        return False
    if isinstance(error, torch.distributed.DistError):
        return True
    signs = ("gloo", "Connection closed by peer", "Connection reset by peer", "NCCL", "Broken pipe")
    return any(sign in str(error) for sign in signs)
