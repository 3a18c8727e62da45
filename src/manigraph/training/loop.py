"""The training loop: batches in, an algorithm and an optimiser stepped. It knows no method."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from manigraph.algorithms.base import Algorithm
from manigraph.contract import Batch, StepContext
from manigraph.errors import NonFiniteLossError
from manigraph.training.schedule import SuperConvergence
from manigraph.training.selection import SelectionRule


@dataclass(frozen=True)
class TrainingConfig:
    """The optimiser and the length of the run."""

    steps: int = 282_000
    """Number of updates."""
    weight_decay: float = 2e-4
    """L2 penalty on all weights."""
    ema_decay: float = 0.0
    """Predict with an exponential average of the weights; 0 means with the weights themselves."""
    max_gradient_norm: float = 0.0
    """Shorten longer gradients (over all weights) to this length; 0 means never."""
    log_every: int = 20
    """Steps between two lines of metrics."""
    evaluate_every: int = 0
    """Steps between two measurements of the error on validation images; 0 means at the end only."""
    select: SelectionRule = "last"
    """Keep the last weights, or those with the lowest error on validation images. `test` chooses on the test
    images; the run and every table that shows it are marked as such."""

    def __post_init__(self) -> None:
        if self.steps < 1 or self.log_every < 1:
            raise ValueError(
                f"training takes at least 1 step and logs every 1 or more, got {self.steps} and "
                f"{self.log_every}"
            )
        if self.evaluate_every < 0 or (self.select != "last" and self.evaluate_every == 0):
            raise ValueError(
                f"evaluate_every must be at least 0, and above 0 to select the best weights, got "
                f"{self.evaluate_every}"
            )
        if not 0 <= self.ema_decay < 1 or self.max_gradient_norm < 0 or self.weight_decay < 0:
            raise ValueError(
                f"ema_decay must be from 0 to below 1, max_gradient_norm and weight_decay at least 0, got "
                f"{self.ema_decay}, {self.max_gradient_norm} and {self.weight_decay}"
            )


@dataclass(frozen=True)
class StepRecord:
    """One line of metrics."""

    step: int
    loss: float
    terms: dict[str, float]
    learning_rate: float
    momentum: float
    images_per_second: float = 0.0
    """Labelled and unlabelled images, over the steps since the last record; evaluation does not count."""
    health: dict[str, float] = field(default_factory=dict)
    """Signs of whether the method works, at this step."""


class Trainer:
    """An algorithm with its optimiser, schedule and average, stepped by `run`."""

    def __init__(
        self,
        algorithm: Algorithm[Any],
        schedule: SuperConvergence,
        config: TrainingConfig,
        generator: torch.Generator,
    ) -> None:
        self.algorithm = algorithm
        self.schedule = schedule
        self.config = config
        self.generator = generator
        self.step = 0
        self.optimizer = torch.optim.SGD(
            (p for p in algorithm.parameters() if p.requires_grad),
            lr=schedule.max_learning_rate,
            momentum=schedule.max_momentum,
            nesterov=True,
            weight_decay=config.weight_decay,
        )
        self.average = (
            AveragedModel(algorithm, multi_avg_fn=get_ema_multi_avg_fn(config.ema_decay), use_buffers=False)
            if config.ema_decay > 0
            else None
        )

    def run(
        self,
        batches: Iterator[Batch],
        on_step: Callable[[StepRecord], None],
        on_evaluate: Callable[[], None] = lambda: None,
    ) -> None:
        """Train to the last step.

        Now and then `on_step` is called with a record, and `on_evaluate` when it is time to evaluate.
        """
        self.algorithm.train()
        every = self.config.evaluate_every
        while self.step < self.config.steps:
            record = self.train_step(next(batches))
            if record is not None:
                on_step(record)
            if every and (self.step % every == 0 or self.step == self.config.steps):
                on_evaluate()

    def train_step(self, batch: Batch) -> StepRecord | None:
        """One update. Nothing is changed if the loss or a gradient is not finite."""
        config = self.config
        before = [buffer.clone() for buffer in self.algorithm.buffers()]
        rates = self.schedule.apply(self.optimizer, self.step / config.steps)
        context = StepContext(self.step, config.steps, self.generator)
        output = self.algorithm.training_step(batch, context)
        loss = output.loss
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        parameters = [p for p in self.algorithm.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if not torch.isfinite(norm) or not torch.isfinite(loss):
            # A bad batch has already gone into the running statistics of batch norm.
            for buffer, value in zip(self.algorithm.buffers(), before, strict=True):
                buffer.copy_(value)
            terms = ", ".join(f"{name} {value.item():.3g}" for name, value in output.terms.items())
            raise NonFiniteLossError(
                f"training stopped before step {self.step}: the loss or its gradient is not finite "
                f"({terms}); the weights before this update are kept. Try a lower "
                f"schedule.max_learning_rate"
            )
        if config.max_gradient_norm > 0:
            nn.utils.clip_grads_with_norm_(parameters, config.max_gradient_norm, norm)
        self.optimizer.step()
        self.algorithm.after_step(context)
        if self.average is not None:
            self.average.update_parameters(self.algorithm)
        self.step += 1
        if self.step % config.log_every and self.step != config.steps:
            return None
        return StepRecord(
            step=self.step,
            loss=loss.item(),
            terms={name: value.item() for name, value in output.terms.items()},
            learning_rate=rates.learning_rate,
            momentum=rates.momentum,
        )

    def evaluated_algorithm(self) -> Algorithm[Any]:
        """The algorithm with the weights that count: the averaged ones if there is an average."""
        if self.average is None:
            return self.algorithm
        averaged = self.average.module
        assert isinstance(averaged, Algorithm)
        return averaged

    def inference_model(self) -> nn.Module:
        """The module whose predictions count."""
        return self.evaluated_algorithm().inference_model()
