"""State that training alone needs."""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn


class Memory(nn.Module):
    """What a method remembers while it trains: in every checkpoint, but not in the trained model's file."""

    is_written_between_steps: ClassVar[bool] = False
    """Written in `after_step` alone, so that a step which fails has not touched it."""


def buffers_changed_in_steps(module: nn.Module) -> list[Tensor]:
    """All buffers that a training step itself may change, in place: one that is assigned anew is another."""
    return [
        buffer
        for child in module.modules()
        if not (isinstance(child, Memory) and child.is_written_between_steps)
        for buffer in child.buffers(recurse=False)
    ]


def trained_state(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers without those of memories."""
    remembered = _remembered(module)
    return {name: value for name, value in module.state_dict().items() if name not in remembered}


def load_trained_state(module: nn.Module, state: Mapping[str, Tensor], *, assign: bool = False) -> None:
    """The opposite of `trained_state`; memories stay as they are, and what a file has of some is not read.

    Args:
        module: Of the same kind.
        state: All of its trained state.
        assign: Put these tensors in the place of the module's own, as if it has none yet (device `meta`).

    Raises:
        RuntimeError: Something is missing, or does not belong here.
    """
    memories = tuple(f"{name}." for name, child in module.named_modules() if isinstance(child, Memory))
    known = {name: value for name, value in state.items() if not name.startswith(memories)}
    remembered = module.state_dict(keep_vars=True)
    kept = {name: remembered[name] for name in _remembered(module)}
    module.load_state_dict({**kept, **known}, assign=assign)


def _remembered(module: nn.Module) -> set[str]:
    """Names of everything in memories."""
    return {
        f"{name}.{inner}"
        for name, child in module.named_modules()
        if isinstance(child, Memory)
        for inner in child.state_dict()
    }
