"""VAT's power step: the gradient of the images alone, against `backward()` and `zero_grad()`.

Public toolkits find the direction by calling `backward()`, which also computes the gradients of all weights,
and throw those away.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from unittest.mock import patch

import torch
from torch import Tensor

from manigraph.algorithms import parts
from manigraph.bench.settings import TINY, NetworkSetting
from manigraph.bench.turns import Patience, Ratio, Target, Work, ratio_of, take_turns
from manigraph.build import Job
from manigraph.contract import Batch
from manigraph.functional import kl_consistency
from manigraph.functional.adversarial import unit_per_image
from manigraph.recipes.measured import finish

TARGET = Target("at least", 1.15)
OURS = "gradient of the images alone"
BACKWARD = "backward() and zero_grad()"


def power_step_by_backward(job: Job) -> AbstractContextManager[object]:
    """Inside, VAT of this job finds its direction as toolkits do."""

    def by_backward(
        forward: Callable[[Tensor], Tensor],
        images: Tensor,
        target_logits: Tensor,
        *,
        epsilon: float,
        xi: float,
        num_power_iterations: int,
        start: Tensor,
    ) -> Tensor:
        direction = unit_per_image(start)
        for _ in range(num_power_iterations):
            direction.requires_grad_(True)
            kl_consistency(target_logits, forward(images + xi * direction)).backward()
            assert direction.grad is not None
            direction = unit_per_image(direction.grad)
            job.trainer.algorithm.zero_grad()
        return epsilon * direction

    return patch.object(parts, "virtual_adversarial_perturbation", by_backward)


def contenders(ours: Job, by_backward: Job, batch: Batch) -> dict[str, Work]:
    """A step each, on the same batch."""

    def step() -> None:
        ours.trainer.train_step(batch)
        finish(ours.trainer.device)

    def backward_step() -> None:
        with power_step_by_backward(by_backward):
            by_backward.trainer.train_step(batch)
        finish(by_backward.trainer.device)

    return {OURS: step, BACKWARD: backward_step}


def run_power_benchmark(scale: float, tell: Callable[[str], None]) -> list[Ratio]:
    """At the paper's size; below scale 1 with a tiny network."""
    setting = NetworkSetting() if scale >= 1 else TINY
    with torch.random.fork_rng():
        ours, by_backward = setting.job("vat"), setting.job("vat")
        work = contenders(ours, by_backward, next(ours.batches))
        seconds = take_turns(
            work, Patience(most_seconds=240).scaled(scale), lambda n: tell(f"power step: round {n}")
        )
    name = f"a step of VAT, {setting.name}"
    return [ratio_of(seconds, BACKWARD, OURS, setting=name, target=TARGET)]
