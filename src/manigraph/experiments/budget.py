"""What a step costs in network passes, so that methods can be compared at an equal budget.

The unit is one image forward through the backbone. The multiplications of all convolutions are counted while
a real step and its backward pass run: a forward pass without gradient costs 1, one with its backward pass
nearly 3 (the first layer's images need no gradient), VAT's power step 2, since only the gradient of images
is asked for. The linear layer, the graph and the losses are no convolutions and do not count.
"""

from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from manigraph.build import build
from manigraph.config import Config
from manigraph.training.execution import Execution

_CONVOLUTIONS = (torch.ops.aten.convolution, torch.ops.aten.convolution_backward)


class _Multiplications(TorchDispatchMode):
    """Counts those of convolutions, forward and backward."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count: int = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        operation = function._overloadpacket
        if operation in _CONVOLUTIONS:
            self.count += flop_registry[operation](*args, **(kwargs or {}), out_val=result)
        return result


def passes_of_a_step(config: Config[Any]) -> float:
    """Network passes of one training step in the second half of a run, when all terms are on."""
    with torch.random.fork_rng():
        job = build(replace(config, seed=0), execution=Execution(device="cpu"))
        trainer = job.trainer
        trainer.train_step(next(job.batches))  # fills memories
        trainer.step = config.training.steps * 3 // 4
        batch = next(job.batches)
        with _Multiplications() as one_image, torch.no_grad():
            trainer.algorithm.model.backbone.eval()(batch.labelled["image"][:1])
        trainer.algorithm.train()
        with _Multiplications() as whole_step:
            trainer.train_step(batch)
    if one_image.count == 0:
        raise ValueError("passes are counted in convolutions, and this network has none")
    passes: float = whole_step.count / one_image.count
    return passes


def steps_for(config: Config[Any], passes: float) -> int:
    """How many steps a budget of network passes is enough for."""
    return max(1, round(passes / passes_of_a_step(config)))
