"""Precision and memory of the backbone's passes: what may change, and what must not."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from manigraph.algorithms.base import Algorithm
from manigraph.catalogue import ALGORITHMS, BACKBONES
from manigraph.functional import virtual_adversarial_perturbation
from manigraph.nn import Classifier, Layers, Passes, full_precision
from manigraph.nn.backbones.base import Backbone
from manigraph.nn.dropout import Dropout, dropout_of
from manigraph.sharding import Shard
from tests.helpers import (
    NUM_CLASSES,
    NUM_UNLABELLED,
    Case,
    all_cases,
    assert_bitwise_equal,
    batch_for,
    build,
    context_at,
    copied,
    gradients_of,
    recorded_outputs,
    running_statistics,
    step_of,
    term_values,
)

every_method = pytest.mark.parametrize("case", all_cases(), ids=str)


def step_and_gradients(algorithm: Algorithm[Any]) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Terms, and gradients by the ordinary backward pass."""
    output = step_of(algorithm, batch_for(algorithm))
    algorithm.zero_grad()
    output.loss.backward()
    return term_values(output), {n: p.grad for n, p in algorithm.named_parameters() if p.grad is not None}


# Recomputing


def recomputing(algorithm: Algorithm[Any]) -> Algorithm[Any]:
    for module in algorithm.modules():
        if isinstance(module, Layers):
            module.recompute = True
    return algorithm


@every_method
def test_recomputing_changes_nothing_at_all(case: Case) -> None:
    plain, thrifty = build(case, dropout=0.4), recomputing(build(case, dropout=0.4))
    first, second = step_and_gradients(plain), step_and_gradients(thrifty)
    assert first[0] == second[0]
    assert_bitwise_equal(first[1], second[1])
    assert_bitwise_equal(plain.state_dict(), thrifty.state_dict())


@pytest.mark.parametrize("name", sorted(set(BACKBONES) - {"head", "leading", "efficientnet_lite0"}))
def test_every_backbone_recomputes_and_keeps_less(name: str) -> None:
    shape = (64,) if name == "mlp" else (1, 16, 16)

    def kept(recompute: bool) -> tuple[int, dict[str, Tensor], Tensor]:
        torch.manual_seed(0)
        backbone = BACKBONES.get(name)(shape, width=0.25, dropout=0.3)
        for module in backbone.modules():
            if isinstance(module, Layers):
                module.recompute = recompute
        sizes: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            sizes[tensor.data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            features = backbone(torch.randn(12, *shape))
        total = sum(sizes.values())
        features.square().sum().backward()
        gradients = {n: p.grad for n, p in backbone.named_parameters() if p.grad is not None}
        return total, {**gradients, **running_statistics(backbone)}, torch.get_rng_state()

    usual, expected, state = kept(False)
    less, found, state_after = kept(True)
    assert_bitwise_equal(found, expected)
    assert torch.equal(state, state_after)
    assert less < 0.6 * usual


# In parts


class WithoutBatchNorm(Backbone):
    """Where no image of a batch knows of another."""

    def __init__(self) -> None:
        super().__init__((1, 8, 8))
        self.feature_size = 6
        layers = [nn.Flatten(), nn.Linear(64, 12), nn.LeakyReLU(0.1), Dropout(0.4), nn.Linear(12, 6)]
        self.layers = Layers(*layers)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers(images)
        return features

    def another(self) -> "WithoutBatchNorm":
        return WithoutBatchNorm()


def in_parts(case: Case, parts: int) -> Algorithm[Any]:
    torch.manual_seed(0)
    method = ALGORITHMS.get(case.name)
    algorithm = method(method.Config(**case.settings), WithoutBatchNorm(), NUM_CLASSES).double()
    algorithm.expect_images(NUM_UNLABELLED)
    for model in [module for module in algorithm.modules() if isinstance(module, Classifier)]:
        model.passes = Passes(parts=parts)
    return algorithm


@every_method
def test_a_batch_in_parts_is_the_whole_batch(case: Case) -> None:
    """Every method, with dropout; 4 labelled images and 4 unlabelled ones in two parts."""
    found = []
    for parts in (1, 2):
        algorithm = in_parts(case, parts)
        batch = batch_for(algorithm, dtype=torch.float64)
        views = {name: view[:4] for name, view in batch.unlabelled.items()}
        positions = None if batch.positions is None else batch.positions[:4]
        batch = dataclasses.replace(batch, unlabelled=views, positions=positions)
        calls = []
        handle = algorithm.model.backbone.register_forward_pre_hook(lambda *_: calls.append(1))  # noqa: B023
        output = step_of(algorithm, batch)
        output.loss.backward()
        handle.remove()
        gradients = {n: p.grad for n, p in algorithm.named_parameters() if p.grad is not None}
        found.append((output.loss.item(), gradients, torch.get_rng_state(), len(calls)))
    (
        (loss, gradients, state, calls_alone),
        (loss_in_parts, gradients_in_parts, state_after, calls_in_parts),
    ) = found
    assert loss_in_parts == pytest.approx(loss, rel=1e-12)
    assert gradients_in_parts.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradients_in_parts[name], gradient, rtol=1e-10, atol=1e-12, msg=name)
    assert torch.equal(state, state_after), "as many random numbers"
    assert calls_in_parts > 2 * calls_alone, "each part forward, and again on the way back"


# Parts of a batch in several processes


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_masks_of_all_processes_are_the_mask_of_one(layout: torch.memory_format) -> None:
    values = torch.rand(12, 3, 4, 4).to(memory_format=layout) + 1
    layer = Dropout(0.4)
    torch.manual_seed(3)
    whole = layer(values)
    assert (whole == 0).any()
    for rank in range(3):
        torch.manual_seed(3)
        with dropout_of(layer, Shard(rank, 3)):
            assert torch.allclose(layer(values[rank::3].contiguous(memory_format=layout)), whole[rank::3])
        assert layer.shard == Shard()
    layer.eval()
    with dropout_of(layer, Shard(1, 3)):
        assert torch.equal(layer(values), values)


# Precision


@every_method
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_only_the_backbone_is_less_precise(case: Case, dtype: torch.dtype) -> None:
    algorithm, reference = build(case), build(case)
    algorithm.model.passes = Passes(dtype)
    inside: list[torch.dtype] = []
    convolution = next(m for m in algorithm.modules() if isinstance(m, nn.Conv2d))
    convolution.register_forward_hook(lambda _, __, answer: inside.append(answer.dtype))
    with recorded_outputs(algorithm.model.linear) as logits:
        output = step_of(algorithm, batch_for(algorithm))
    assert dtype in inside
    assert all(values.dtype == torch.float32 for values in logits)
    assert all(term.dtype == torch.float32 for term in output.terms.values())
    exact = term_values(step_of(reference, batch_for(reference)))
    for name, value in term_values(output).items():
        assert value == pytest.approx(exact[name], rel=0.3, abs=0.1), name
    gradients = gradients_of(algorithm, output.loss)
    assert all(
        gradient.isfinite().all() and gradient.dtype == torch.float32 for gradient in gradients.values()
    )


ADVERSARIAL = [
    case
    for case in all_cases()
    if "epsilon" in case.settings and case.settings.get("comparison", "pi_vat") == "pi_vat"
]


@pytest.mark.parametrize("case", ADVERSARIAL, ids=str)
@pytest.mark.parametrize("reference", ["target", "own_view"])
def test_the_power_step_is_float32_in_any_precision(
    case: Case, reference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every pass that goes into the direction: those inside it, and a reference at the same network."""
    from manigraph.algorithms import parts

    changes: dict[str, Any] = {} if case.name == "vat" else {"adversarial_reference": reference}
    algorithm = build(case, **changes)
    algorithm.model.passes = Passes(torch.bfloat16)
    convolution = next(m for m in algorithm.modules() if isinstance(m, nn.Conv2d))
    inside: list[torch.dtype] = []
    convolution.register_forward_hook(lambda _, __, answer: inside.append(answer.dtype))
    real, seen = virtual_adversarial_perturbation, []

    def watched(forward: Any, images: Tensor, logits: Tensor, **named: Any) -> Tensor:
        before = len(inside)
        answer = real(forward, images, logits, **named)
        seen.extend(inside[before:])
        same_network = case.name == "vat" or reference == "own_view"
        if same_network:
            seen.append(inside[before - 1])  # the pass just before gave the reference
        return answer

    monkeypatch.setattr(parts, "virtual_adversarial_perturbation", watched)
    algorithm.training_step(batch_for(algorithm), context_at())
    assert seen
    assert set(seen) == {torch.float32}
    assert torch.bfloat16 in inside


def test_full_precision_is_for_the_moment() -> None:
    algorithm = build(all_cases()[0])
    algorithm.model.passes = Passes(torch.bfloat16, parts=2)
    with full_precision(algorithm.model):
        assert algorithm.model.passes == Passes(torch.float32, parts=2)
    assert algorithm.model.passes == Passes(torch.bfloat16, parts=2)


def test_a_float32_pass_is_the_backbone_itself() -> None:
    algorithm = build(all_cases()[0])
    images = batch_for(algorithm).labelled["image"]
    state = copied(algorithm.state_dict())
    first = algorithm.model.features(images)
    algorithm.load_state_dict(state)
    assert torch.equal(first, algorithm.model.backbone(images))
