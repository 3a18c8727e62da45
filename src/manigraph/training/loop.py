"""The training loop: batches in, an algorithm and an optimiser stepped. It knows no method."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from manigraph.algorithms.base import Algorithm
from manigraph.contract import NEUTRAL, Batch, StepContext, StepOutput
from manigraph.errors import NonFiniteLossError, UserError
from manigraph.nn import RandomState, buffers_changed_in_steps
from manigraph.training.checkpoint import Snapshot, prefixed
from manigraph.training.muon import Muon
from manigraph.training.processes import Processes
from manigraph.training.schedule import Rates, SuperConvergence
from manigraph.training.selection import SelectionRule

Precision = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class TrainingConfig:
    """The optimiser and the length of the run."""

    steps: int = 282_000
    """Number of updates."""
    weight_decay: float = 2e-4
    """L2 penalty on all weights; with `muon_turn` on all but convolutions."""
    muon_turn: float = field(default=0.0, metadata=NEUTRAL)
    """Above 0, Muon instead of SGD for convolutions: each step turns them by this times the learning rate, in
    radians, along the orthogonalised momentum; they keep their length, and weight decay is for the others."""
    decay_at_labels: int = field(default=0, metadata=NEUTRAL)
    """Number of labels for which `weight_decay` is meant: with a quarter of them it is doubled, with four
    times as many halved, since few labelled images are soon known by heart. 0: the same for any number."""
    ema_decay: float = 0.0
    """Predict with an exponential average of the weights; 0 means with the weights themselves."""
    swa_fraction: float = field(default=0.0, metadata=NEUTRAL)
    """Predict with the plain average of the weights over this last share of the run (SWA); 0 means not."""
    swa_every: float = field(default=0.0, metadata=NEUTRAL)
    """Share of the run between two weights that enter the plain average; 0 means that all steps' do."""
    precision: Precision = field(default="float32", metadata=NEUTRAL)
    """Of the backbone's convolutions and products; losses, the graph and VAT's power step stay float32."""
    half_size_fraction: float = field(default=0.0, metadata=NEUTRAL)
    """Share of the run, from its beginning, in which images are averaged down to half their sides: such steps
    take a quarter to a half of the time. The end of the run is for images as they are."""
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
        if not 0 <= self.muon_turn < math.inf:
            raise ValueError(f"muon_turn must be at least 0 and finite, got {self.muon_turn}")
        if self.decay_at_labels < 0:
            raise ValueError(f"decay_at_labels must be at least 0, got {self.decay_at_labels}")
        if not 0 <= self.half_size_fraction < 1:
            raise ValueError(
                f"half_size_fraction must be from 0 to below 1, got {self.half_size_fraction}: use "
                f"data.image_size to learn from smaller images only"
            )
        if not 0 <= self.swa_fraction <= 1 or (self.swa_fraction > 0 and self.ema_decay > 0):
            raise ValueError(
                f"swa_fraction must be from 0 to 1, and goes with --training.ema_decay 0, got "
                f"{self.swa_fraction} and {self.ema_decay}"
            )
        if self.swa_fraction > 0 and self.half_size_fraction + self.swa_fraction > 1 + 1e-9:  # rounding
            raise ValueError(
                f"weights of small images would be averaged: half_size_fraction and swa_fraction must be at "
                f"most 1 together, got {self.half_size_fraction} and {self.swa_fraction}"
            )
        if not 0 <= self.swa_every <= self.swa_fraction:
            raise ValueError(
                f"swa_every must be from 0 to swa_fraction, or no weights would be averaged, got "
                f"{self.swa_every} and {self.swa_fraction}"
            )

    def for_labels(self, labels: int) -> "TrainingConfig":
        """With the weight decay for so many labelled images, whatever their number was meant to be."""
        if not self.decay_at_labels:
            return self
        decay = self.weight_decay * math.sqrt(self.decay_at_labels / labels)
        return replace(self, weight_decay=decay, decay_at_labels=0)

    @property
    def half_size_steps(self) -> int:
        """Steps with images of half their size, before all others, of which there is at least one."""
        return min(round(self.half_size_fraction * self.steps), self.steps - 1)


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
    """An algorithm with its optimiser, schedule and average, stepped by `run`.

    The algorithm is already where it is to be computed: on its device, and set up for several processes if
    there are some (`build` does both).
    """

    def __init__(
        self,
        algorithm: Algorithm[Any],
        schedule: SuperConvergence,
        config: TrainingConfig,
        generator: torch.Generator,
        processes: Processes | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.schedule = schedule
        self.config = config
        self.generator = generator
        self.device = next(algorithm.parameters()).device
        self.processes = Processes(self.device) if processes is None else processes
        self.step = 0
        self.evaluated_at = 0
        self.optimizer = self._make_optimizer()
        # A gradient in half precision underflows unless the loss is scaled up.
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=config.precision == "float16")
        self.average = self._make_average()
        self._training_step = self.processes.wrap(algorithm)
        self._seconds, self._images = 0.0, 0

    def _make_optimizer(self) -> torch.optim.Optimizer:
        """Over all weights that are trained; the schedule says rate and momentum in each step."""
        parameters = [p for p in self.algorithm.parameters() if p.requires_grad]
        rate, momentum = self.schedule.max_learning_rate, self.schedule.max_momentum
        decay, turn = self.config.weight_decay, self.config.muon_turn
        if turn == 0:
            return torch.optim.SGD(parameters, lr=rate, momentum=momentum, nesterov=True, weight_decay=decay)
        if not any(p.ndim == 4 for p in parameters):
            raise UserError("there are no convolutions to turn: leave out training.muon_turn")
        return Muon(parameters, turn=turn, lr=rate, momentum=momentum, weight_decay=decay)

    def _make_average(self) -> AveragedModel | None:
        """EMA or SWA; buffers, such as batch norm's running statistics, are the newest ones."""
        config = self.config
        if config.ema_decay > 0:
            averaging = get_ema_multi_avg_fn(config.ema_decay)
            return AveragedModel(self.algorithm, multi_avg_fn=averaging, use_buffers=False)
        if config.swa_fraction > 0:
            return AveragedModel(self.algorithm, use_buffers=False)
        return None

    def run(
        self,
        batches: Iterator[Batch],
        on_step: Callable[[StepRecord], None],
        on_evaluate: Callable[[], None] = lambda: None,
        between_steps: Callable[[], None] = lambda: None,
    ) -> None:
        """Train to the last step.

        Now and then `on_step` is called with a record, and `on_evaluate` when it is time to evaluate.
        `between_steps` is called when all that belongs to a step is done: the moment to stop, or to keep
        the state.
        """
        self.algorithm.train()
        while True:
            if self._evaluation_is_due():
                on_evaluate()
                self.evaluated_at = self.step
            between_steps()
            if self.step == self.config.steps:
                return
            began = time.perf_counter()
            batch = next(batches)
            record = self.train_step(batch)
            self._seconds += time.perf_counter() - began
            self._images += self.processes.shard.size * batch.num_images
            if record is not None:
                on_step(replace(record, images_per_second=self._images / self._seconds))
                self._seconds, self._images = 0.0, 0

    def _evaluation_is_due(self) -> bool:
        every, step = self.config.evaluate_every, self.step
        if not every or step == self.evaluated_at:
            return False
        return step % every == 0 or step == self.config.steps

    def train_step(self, batch: Batch) -> StepRecord | None:
        """One update. Nothing is changed if the loss or a gradient is not finite."""
        config = self.config
        if self.step < config.half_size_steps:
            batch = batch.half_size()
        buffers = buffers_changed_in_steps(self.algorithm)
        before = [buffer.clone() for buffer in buffers]
        rates = self.schedule.apply(self.optimizer, self.step / config.steps)
        context = StepContext(self.step, config.steps, self.generator, self.processes.shard)
        output = self._training_step(batch, context)
        loss = output.loss
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        parameters = [p for p in self.algorithm.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if not self._may_go_on(loss, norm):
            # A bad batch has already gone into the running statistics of batch norm.
            for buffer, value in zip(buffers, before, strict=True):
                buffer.copy_(value)
            raise NonFiniteLossError(self._explanation(output))
        is_logged = (self.step + 1) % config.log_every == 0 or self.step + 1 == config.steps
        health = output.health() if is_logged else {}  # before the weights change
        if config.max_gradient_norm > 0:
            nn.utils.clip_grads_with_norm_(parameters, config.max_gradient_norm, norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.algorithm.after_step(context)
        self.step += 1
        if self.average is not None and self._is_averaged():
            self.average.update_parameters(self.algorithm)
        return self._record(output, health, rates) if is_logged else None

    def _may_go_on(self, loss: Tensor, norm: Tensor) -> bool:
        """Whether all is finite, or only the gradient is not, scaled up as far as it was in float16."""
        fine = bool(torch.isfinite(loss)) and (
            bool(torch.isfinite(norm)) or (self.scaler.is_enabled() and self.scaler.get_scale() > 1)
        )
        return not self.processes.any(not fine)

    def _explanation(self, output: StepOutput) -> str:
        terms = ", ".join(f"{name} {value.item():.3g}" for name, value in output.terms.items())
        other = "" if self.config.precision == "float32" else " or training.precision float32"
        return (
            f"training stopped before step {self.step}: the loss or its gradient is not finite ({terms}); "
            f"the weights before this update are kept. Try a lower schedule.max_learning_rate{other}"
        )

    def _is_averaged(self) -> bool:
        """Whether the weights after this step go into the average."""
        config = self.config
        if config.swa_every == 0:
            return config.ema_decay > 0 or self.step > (1 - config.swa_fraction) * config.steps

        def due(step: int) -> int:
            """Weights that should be in the average after a step, however many steps there are for them."""
            since = step / config.steps - (1 - config.swa_fraction)
            return max(0, math.floor(since / config.swa_every + 1e-9))  # rounding must not delay one

        return due(self.step) > due(self.step - 1)

    def _record(self, output: StepOutput, health: Mapping[str, float], rates: Rates) -> StepRecord:
        mean = self.processes.mean
        return StepRecord(
            step=self.step,
            loss=mean({"loss": output.loss.item()})["loss"],
            terms=mean({name: value.item() for name, value in output.terms.items()}),
            learning_rate=rates.learning_rate,
            momentum=rates.momentum,
            health=mean(health),
        )

    def evaluated_algorithm(self) -> Algorithm[Any]:
        """The algorithm with the weights that count: the averaged ones if there is an average."""
        if self.average is None or self.average.n_averaged == 0:
            return self.algorithm
        averaged = self.average.module
        assert isinstance(averaged, Algorithm)
        return averaged

    def inference_model(self) -> nn.Module:
        """The module whose predictions count."""
        return self.evaluated_algorithm().inference_model()

    def refresh_statistics(self, images: Iterator[Tensor]) -> None:
        """Measure batch norm's statistics for a plain average of weights, which never saw a batch itself.

        An exponential average is so near to the weights that it goes on with theirs.
        """
        if self.config.swa_fraction > 0 and self.average is not None and self.average.n_averaged > 0:
            with RandomState(self.device).replay():
                update_bn(images, self.inference_model())

    def snapshot(self) -> Snapshot:
        """Everything about the training that changes from step to step, copied."""
        names = {id(p): name for name, p in self.algorithm.named_parameters()}
        momentum = {
            names[id(p)]: state["momentum_buffer"]
            for p, state in self.optimizer.state.items()
            if state.get("momentum_buffer") is not None
        }
        tensors = {
            **prefixed("algorithm", self.algorithm.state_dict()),
            **prefixed("average", {} if self.average is None else self.average.state_dict()),
            **prefixed("momentum", momentum),
            "random.method": self.generator.get_state(),
            "random.torch": torch.get_rng_state(),
        }
        if self.device.type == "cuda":
            tensors["random.cuda"] = torch.cuda.get_rng_state(self.device)
        values = {
            "step": self.step,
            "evaluated_at": self.evaluated_at,
            "scaler": self.scaler.state_dict(),
        }
        return Snapshot({name: tensor.detach().clone() for name, tensor in tensors.items()}, values)

    def restore(self, snapshot: Snapshot) -> None:
        """Go back, or forward, to where `snapshot` was taken."""
        self.algorithm.load_state_dict(snapshot.part("algorithm"))
        if self.average is not None:
            self.average.load_state_dict(snapshot.part("average"))
        momentum = snapshot.part("momentum")
        self.optimizer.state.clear()
        for name, parameter in self.algorithm.named_parameters():
            if name in momentum:
                buffer = torch.empty_like(parameter).copy_(momentum[name])
                self.optimizer.state[parameter]["momentum_buffer"] = buffer
        random = snapshot.part("random")
        state = random["method"].cpu()
        if state.numel() == self.generator.get_state().numel():
            self.generator.set_state(state)
        else:  # begun on another kind of device: other numbers, but not those of the first step again
            self.generator.manual_seed(self.generator.initial_seed() + snapshot.values["step"])
        torch.set_rng_state(random["torch"].cpu())
        if self.device.type == "cuda" and "cuda" in random:
            torch.cuda.set_rng_state(random["cuda"].cpu(), self.device)
        self.step = snapshot.values["step"]
        self.evaluated_at = snapshot.values["evaluated_at"]
        self.scaler.load_state_dict(snapshot.values["scaler"])
        self._seconds, self._images = 0.0, 0
