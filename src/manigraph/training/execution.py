"""Where and how a run is computed; what it computes does not depend on it, up to rounding."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from manigraph.errors import UserError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Execution:
    """Where and how a run is computed."""

    device: str = "auto"
    """`auto` takes a GPU if there is one; else `cpu`, `cuda`, `cuda:1`."""
    processes: int = 1
    """Processes on this machine, one for each device; torchrun and SLURM set their number themselves."""
    nodes: int = 1
    """Machines that train together."""
    threads: int = 0
    """Threads of each process on a CPU; 0 means as many as torch finds right."""
    keep_memory: bool = True
    """Keep freed memory for the next step instead of giving it back to the system, which costs time."""
    native: bool = True
    """On a CPU, use the inner loops in C that were compiled at installation: faster, and the same up to
    rounding. Without them torch's own operations do the work."""
    checkpoint_minutes: float = 5.0
    """Time between two checkpoints; 0 writes one only when the run is interrupted."""
    recompute: bool = False
    """Keep only the inputs of the backbone's layers and compute the rest again on the way back: less memory,
    more time, the same result."""
    accumulate: int = 1
    """Send a batch through the backbone in this many parts, of which one at a time is in memory. The result
    is that of the whole batch, except that batch norm sees each part alone: with it, prefer `recompute`."""
    compile: bool = False
    """Compile the backbone (torch.compile), which takes a minute; on two CPU cores steps were not faster."""
    deterministic: bool = False
    """Use only algorithms that give the same bits every time, also on a GPU, and say which has none."""
    tensorboard: bool = False
    """Write the metrics for TensorBoard too (needs the extra `tensorboard`)."""

    def __post_init__(self) -> None:
        for name, smallest in {
            "processes": 1, "nodes": 1, "accumulate": 1, "threads": 0, "checkpoint_minutes": 0
        }.items():  # fmt: skip
            if not getattr(self, name) >= smallest:
                raise UserError(f"--{name} must be at least {smallest}, got {getattr(self, name)}")
        if self.compile and (self.recompute or self.accumulate > 1):
            raise UserError(
                "--compile cannot be used together with --recompute or --accumulate: leave one out"
            )


def choose_device(name: str, local_rank: int = 0) -> "torch.device":
    """The device that `name` asks for, or the best there is."""
    import torch  # not before it is needed: the command line reads the options above

    if name == "auto":
        return torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"there is no device '{name}': use auto, cpu, cuda or cuda:1") from None
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        # MPS has no float64, which the prototype losses need, and its random numbers cannot be kept.
        raise UserError(f"devices of type {device.type} are not supported: use --device auto, cpu or cuda")
    available = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = local_rank if device.index is None else device.index
    if index >= available:
        raise UserError(
            f"there is no device '{name}' here ({available} of type cuda): use --device auto or cpu"
        )
    return torch.device("cuda", index)
