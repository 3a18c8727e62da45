"""What several test files use: comparisons with a reference, and tiny algorithms with their batches."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from manigraph.algorithms.base import Algorithm
from manigraph.catalogue import ALGORITHMS, BACKBONES
from manigraph.contract import Batch, StepContext, StepOutput
from manigraph.nn import Classifier
from manigraph.nn.backbones.base import Backbone

TensorFunction = Callable[..., Tensor]


# Functions and their references


def seeded(seed: int = 0) -> torch.Generator:
    """A generator of its own for every draw."""
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers, the same for the same seed."""
    return torch.empty(shape, dtype=dtype).normal_(generator=seeded(seed))


def value_and_gradients(function: TensorFunction, *inputs: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The answer, and the gradient of a fixed random combination of its entries in every input."""
    leaves = [tensor.detach().clone().requires_grad_(True) for tensor in inputs]
    answer = function(*leaves)
    if not answer.requires_grad:  # a sum without any term
        return answer, [torch.zeros_like(leaf) for leaf in leaves]
    direction = normal(*answer.shape, seed=99).to(answer.dtype)
    gradients = torch.autograd.grad((answer * direction).sum(), leaves, allow_unused=True)
    return answer.detach(), [
        torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip(leaves, gradients, strict=True)
    ]


def assert_agree(
    function: TensorFunction, reference: TensorFunction, *inputs: Tensor, tolerance: float = 1e-10
) -> None:
    """Both give the same values and send the same gradients into every input."""
    value, gradients = value_and_gradients(function, *inputs)
    expected_value, expected_gradients = value_and_gradients(reference, *inputs)
    torch.testing.assert_close(value, expected_value, rtol=tolerance, atol=tolerance)
    for gradient, expected in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=tolerance, atol=tolerance)


def receivers(function: TensorFunction, /, **inputs: Tensor) -> set[str]:
    """Names of the inputs that receive a gradient other than zero."""
    _, gradients = value_and_gradients(function, *inputs.values())
    return {name for name, gradient in zip(inputs, gradients, strict=True) if gradient.any()}


def check_gradients(function: TensorFunction, *inputs: Tensor) -> None:
    """Gradients agree with finite differences."""
    leaves = tuple(tensor.detach().clone().requires_grad_(True) for tensor in inputs)
    assert torch.autograd.gradcheck(function, leaves)


def assert_bitwise_equal(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> None:
    """The same names, and for each the same numbers to the last bit."""
    assert first.keys() == second.keys()
    different = [name for name in first if not torch.equal(first[name], second[name])]
    assert not different


class Table:
    """Images in memory that need no preprocessing."""

    def __init__(self, images: Tensor) -> None:
        self.images = images

    def stored(self, indices: Tensor) -> Tensor:
        return self.images[indices]

    def prepare(self, images: Tensor) -> Tensor:
        return images

    original, prepare_original = stored, prepare
    white = 1.0


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Values that stay as they are now."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


# Networks


def tiny_backbone(dropout: float | None = 0.0) -> Backbone:
    """A convolutional network with batch norm that takes milliseconds."""
    return BACKBONES.get("small_cnn")((1, 8, 8), width=0.25, dropout=dropout)


def batch_norm_layers(module: nn.Module) -> list[_BatchNorm]:
    return [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]


def running_statistics(module: nn.Module) -> dict[str, Tensor]:
    """A copy of all running means, variances and counters."""
    return copied(
        {
            f"{number}.{name}": buffer
            for number, layer in enumerate(batch_norm_layers(module))
            for name, buffer in layer.named_buffers()
        }
    )


@contextmanager
def recorded_inputs(module: nn.Module) -> Iterator[list[Tensor]]:
    """Everything the module is called with."""
    seen: list[Tensor] = []
    handle = module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach().clone()))
    try:
        yield seen
    finally:
        handle.remove()


@contextmanager
def recorded_outputs(module: nn.Module) -> Iterator[list[Tensor]]:
    """Everything the module answers."""
    seen: list[Tensor] = []
    handle = module.register_forward_hook(lambda _, __, output: seen.append(output.detach().clone()))
    try:
        yield seen
    finally:
        handle.remove()


# Algorithms

NUM_CLASSES = 3
NUM_LABELLED = 4
NUM_UNLABELLED = 5

TEST_SETTINGS: Mapping[str, Any] = {
    "epsilon": 2.0,
    "warmup_fraction": 0.0,
    "prototypes_per_class": 2,
    "embedding_size": 6,
    "hidden_size": 8,
    "margin_divergence": 0.3,  # low enough for fresh prototypes to count as alike
    "threshold": 0.0,  # every prediction is sure enough
    "ramp_start": 0.0,
    "ramp_end": 0.0,  # in the first steps too
}
"""Small sizes, and settings with which no term is zero; each is used where a method knows it."""


@dataclass(frozen=True)
class Case:
    """A method of the registry with the settings it is tested with."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        choices = [self.settings[name] for name in CHOICES if name in self.settings]
        return "-".join([self.name, *choices, *(["taught"] if self.settings.get("target_decay") else [])])


CHOICES = ("nodes", "comparison", "anchored_view", "attention")
"""Settings that make another method of a method: each of their values is tested."""

IN_COMPANY: Mapping[str, Mapping[str, Any]] = {
    "student": {"comparison": "fixmatch", "entropy_weight": 0.0, "balance_weight": 0.0}
}
"""Values of such settings that go with certain others only."""


def all_cases() -> list[Case]:
    """Every method of the registry, and of those with choices one variant for each value.

    Terms that are off by default are on here.
    """
    cases = []
    for name in ALGORITHMS:
        config = ALGORITHMS.get(name).Config
        fields = dataclasses.fields(config)
        known = {f.name for f in fields}
        optional_terms = {f.name: 0.5 for f in fields if f.name.endswith("_weight") and f.default == 0}
        settings = optional_terms | {key: value for key, value in TEST_SETTINGS.items() if key in known}
        variants: list[dict[str, Any]] = []
        for choice in CHOICES:
            values = get_args(get_type_hints(config)[choice]) if choice in known else ()
            # The defaults of all choices but the first are in the variants of the first.
            variants += [
                {choice: v, **IN_COMPANY.get(v, {})}
                for v in values
                if not variants or v != getattr(config, choice)
            ]
        if "target_decay" in known:  # the teacher of FixMatch
            company = {"comparison": "fixmatch"} if "comparison" in known else {}
            variants = [*(variants or [{}]), {**company, "target_decay": 0.9}]
        cases += [Case(name, {**settings, **variant}) for variant in variants or [{}]]
    return cases


def case_named(text: str) -> Case:
    """The case that prints as `text`."""
    (case,) = [case for case in all_cases() if str(case) == text]
    return case


def build(case: Case, *, dropout: float | None = 0.0, seed: int = 0, **changes: Any) -> Algorithm[Any]:
    """The method on a tiny backbone, in training mode, its weights drawn from `seed`."""
    torch.manual_seed(seed)
    method = ALGORITHMS.get(case.name)
    algorithm = method(method.Config(**{**case.settings, **changes}), tiny_backbone(dropout), NUM_CLASSES)
    algorithm.expect_images(NUM_UNLABELLED + 2)
    return algorithm


def begun(case: Case, *, dropout: float | None = 0.0, seed: int = 0, **changes: Any) -> Algorithm[Any]:
    """The method after two updates: teachers have fallen behind, memories are filled."""
    algorithm = build(case, dropout=dropout, seed=seed, **changes)
    optimizer = torch.optim.SGD((p for p in algorithm.parameters() if p.requires_grad), lr=0.05)
    for step in range(2):
        context = context_at(step)
        step_of(algorithm, batch_for(algorithm, seed=100 + step), context).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        algorithm.after_step(context)
    # A fresh network says one class for all images: move it to where it does not.
    algorithm.eval()
    with torch.no_grad():
        images = torch.cat(
            [*batch_for(algorithm).labelled.values(), *batch_for(algorithm).unlabelled.values()]
        )
        for model in [module for module in algorithm.modules() if isinstance(module, Classifier)]:
            model.linear.bias.sub_(model(images).mean(dim=0))
    return algorithm.train()


def average_of(name: str) -> dict[str, float]:
    """Settings of the loop with which a method's weights are averaged from the first step on."""
    return {"swa_fraction": 1.0} if ALGORITHMS.get(name).needs_weight_average else {"ema_decay": 0.9}


def batch_for(algorithm: Algorithm[Any], *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Batch:
    """A batch with just what the method asks for; views of an image differ a little."""
    request = algorithm.data_request()
    generator = seeded(seed)

    def images(number: int) -> Tensor:
        return torch.empty(number, 1, 8, 8, dtype=dtype).normal_(generator=generator)

    def views(names: Mapping[str, Any], number: int) -> dict[str, Tensor]:
        original = images(number)
        return {name: original + 0.3 * images(number) for name in names}

    return Batch(
        labelled=views(request.labelled, NUM_LABELLED),
        labels=torch.arange(NUM_LABELLED) % NUM_CLASSES,
        unlabelled=views(request.unlabelled, NUM_UNLABELLED),
        positions=torch.arange(NUM_UNLABELLED) if request.unlabelled else None,
        class_images=images(NUM_CLASSES * request.images_per_class) if request.images_per_class else None,
    )


def context_at(step: int = 3, total_steps: int = 10, seed: int = 5) -> StepContext:
    """A place in a run with a fresh generator."""
    return StepContext(step, total_steps, seeded(seed))


def step_of(
    algorithm: Algorithm[Any], batch: Batch, context: StepContext | None = None, *, seed: int = 7
) -> StepOutput:
    """One training step, torch's own random numbers (dropout) starting from `seed`."""
    torch.manual_seed(seed)
    return algorithm.training_step(batch, context_at() if context is None else context)


def term_values(output: StepOutput) -> dict[str, float]:
    return {name: term.item() for name, term in output.terms.items()}


def gradients_of(algorithm: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    """Gradient of the loss in every parameter, zero where there is none; `.grad` is not used."""
    parameters = {name: p for name, p in algorithm.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, retain_graph=True)
    return {
        name: torch.zeros_like(parameter) if gradient is None else gradient
        for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True)
    }
