"""What lean steps share: the update, and the few lines that most of them need."""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from manigraph.contract import Batch
from manigraph.training.loop import Trainer

Step = Callable[[Batch], None]


class Update:
    """SGD with the rates of the schedule; it counts the steps."""

    def __init__(self, modules: nn.Module, trainer: Trainer) -> None:
        self.parameters: list[Tensor] = [p for p in modules.parameters() if p.requires_grad]
        assert isinstance(trainer.optimizer, torch.optim.SGD), "lean steps know no other"
        self.optimizer = torch.optim.SGD(self.parameters)
        # The settings, and the momentum if there is some, which must not be shared.
        self.optimizer.load_state_dict(copy.deepcopy(trainer.optimizer.state_dict()))
        self.generator = torch.Generator(trainer.device)
        self.generator.set_state(trainer.generator.get_state())
        self.rates = trainer.schedule.at
        self.max_norm = trainer.config.max_gradient_norm
        self.swa_fraction, self.swa_every = trainer.config.swa_fraction, trainer.config.swa_every
        self.average: list[Tensor] = []
        self.step, self.steps = trainer.step, trainer.config.steps

    @property
    def progress(self) -> float:
        """Share of the run that lies behind this step."""
        return self.step / self.steps

    def __call__(self, loss: Tensor, inputs: list[Tensor] | None = None) -> None:
        """Descend; `inputs` are the leaves that get a gradient, by default all."""
        (group,) = self.optimizer.param_groups
        group["lr"], group["momentum"] = self.rates(self.progress)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward(inputs=inputs)
        if self.max_norm:
            nn.utils.clip_grad_norm_(self.parameters, self.max_norm)
        self.optimizer.step()
        self.step += 1


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """The layers whose running statistics move."""
    return [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]


@contextmanager
def still(norms: list[_BatchNorm]) -> Iterator[None]:
    """Passes that move no running statistics."""
    for layer in norms:
        layer.track_running_stats = False
    yield
    for layer in norms:
        layer.track_running_stats = True


def ramp_up(progress: float, fraction: float) -> float:
    """exp(-5 (1 - t)²)."""
    return math.exp(-5 * (1 - min(1.0, progress / fraction)) ** 2)


def kl(target_log_probs: Tensor, logits: Tensor) -> Tensor:
    """Mean over images."""
    return F.kl_div(F.log_softmax(logits, dim=1), target_log_probs, reduction="batchmean", log_target=True)


def squared_error(target_probs: Tensor, logits: Tensor) -> Tensor:
    """Sum over classes, mean over images."""
    return (target_probs - logits.softmax(dim=1)).square().sum(dim=1).mean()


def entropy(log_probs: Tensor) -> Tensor:
    """Mean over images."""
    return -(log_probs.exp() * log_probs).sum(dim=1).mean()


def first_probe(images: Tensor, xi: float, generator: torch.Generator) -> Tensor:
    """VAT: images moved by ξ into a random direction."""
    noise = torch.randn(images.shape, generator=generator, dtype=images.dtype, device=images.device)
    return images.add(F.normalize(noise.flatten(1)).view_as(images), alpha=xi).requires_grad_(True)


def away_from(target_log_probs: Tensor, logits: Tensor, probe: Tensor) -> Tensor:
    """VAT: the direction of length 1 in which the prediction leaves the target."""
    distance = -(target_log_probs.exp() * F.log_softmax(logits, dim=1)).sum()
    (gradient,) = torch.autograd.grad(distance, probe)
    return F.normalize(gradient.flatten(1)).view_as(gradient)


def partners_and_share(
    images: Tensor, count: int, alpha: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Whom each of `count` images is mixed with, and its own share: the larger part of Beta(α, α)."""
    partners = torch.randperm(count, generator=generator, device=images.device)
    u, v = torch.rand(2, count, generator=generator, dtype=images.dtype, device=images.device)
    w = u ** (1 / alpha)
    other = (1 - w) * torch.cos(2 * math.pi * v).square()
    return partners, 0.5 + 0.5 * (other / (w + other)).sqrt()
