"""The classification of all refined prototypes, a few images at a time: section 5, L_clf,P."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from manigraph.functional import (
    message_parts,
    prototype_classification,
    prototype_cross_entropy,
    refine_prototypes,
)
from manigraph.functional.graph import MessageParts
from manigraph.functional.prototype_classification import _add_gradients
from tests.helpers import assert_agree, check_gradients, normal, receivers
from tests.reference import graph as reference

B, C, K, E, D = 5, 3, 2, 2, 6
P = C * K
CLASSES = torch.arange(C).repeat_interleave(K)


def inputs(num_heads: int) -> dict[str, Tensor]:
    """Prototypes, embeddings of prototypes and images, φ2 and the linear classifier."""
    return {
        "prototypes": normal(P, D, seed=1),
        "prototype_embeddings": normal(P, num_heads, E, seed=2),
        "image_embeddings": normal(B, num_heads, E, seed=3),
        "weight": normal(D, 2 * num_heads * E, seed=4),
        "bias": normal(D, seed=5),
        "linear_weight": normal(C, D, seed=6),
        "linear_bias": normal(C, seed=7),
    }


def ours(
    prototypes: Tensor,
    prototype_embeddings: Tensor,
    image_embeddings: Tensor,
    weight: Tensor,
    bias: Tensor,
    linear_weight: Tensor,
    linear_bias: Tensor,
    **options: Any,
) -> Tensor:
    parts = message_parts(prototypes, prototype_embeddings, image_embeddings, weight, bias, scale=0.7)
    return prototype_cross_entropy(parts, linear_weight, linear_bias, CLASSES, **options)


def naive(
    prototypes: Tensor,
    prototype_embeddings: Tensor,
    image_embeddings: Tensor,
    weight: Tensor,
    bias: Tensor,
    linear_weight: Tensor,
    linear_bias: Tensor,
) -> Tensor:
    """Every graph with its P + 1 nodes, every node classified by itself."""
    losses = []
    for g in image_embeddings:
        features = torch.cat([prototypes.new_zeros(1, D), prototypes])  # the image's own are not looked at
        embeddings = torch.cat([g.unsqueeze(0), prototype_embeddings])
        refined = reference.refined(features, embeddings, weight, bias, scale=0.7)[1:]
        for node, own_class in zip(refined, CLASSES, strict=True):
            logits = linear_weight @ node + linear_bias
            losses.append(torch.logsumexp(logits, dim=0) - logits[own_class])
    return torch.stack(losses).mean()


@pytest.mark.parametrize("num_heads", [1, 2, 3])
@pytest.mark.parametrize("images_at_once", [1, 2, B, 10 * B])
def test_it_is_the_cross_entropy_of_all_prototypes_of_all_graphs(num_heads: int, images_at_once: int) -> None:
    at_once = images_at_once * P * max(C, D)
    values = inputs(num_heads).values()
    assert_agree(lambda *args: ours(*args, numbers_at_once=at_once), naive, *values)


@pytest.mark.parametrize("num_heads", [1, 2])
@pytest.mark.parametrize("prototypes_at_once", [1, 4])
def test_there_may_be_room_for_a_few_prototypes_only(num_heads: int, prototypes_at_once: int) -> None:
    at_once = prototypes_at_once * max(C, D)
    values = inputs(num_heads).values()
    assert_agree(lambda *args: ours(*args, numbers_at_once=at_once), naive, *values)


def test_it_is_the_cross_entropy_of_what_refine_prototypes_gives() -> None:
    *graph, linear_weight, linear_bias = inputs(2).values()

    def unchunked(*arguments: Tensor) -> Tensor:
        refined = refine_prototypes(*arguments[:5], scale=0.7)  # (B, P, D)
        return F.cross_entropy(F.linear(refined, *arguments[5:]).flatten(0, 1), CLASSES.repeat(B))

    assert_agree(ours, unchunked, *graph, linear_weight, linear_bias)


def test_a_class_may_be_so_unlikely_that_its_probability_is_zero() -> None:
    values = inputs(2)
    values["linear_bias"] += torch.tensor([2000.0, 0.0, -2000.0])
    assert ours(**values).item() == pytest.approx(2000, rel=0.1)  # a third each of about 0, 2000 and 4000
    assert_agree(ours, naive, *values.values())


def test_gradcheck_and_who_receives_gradient() -> None:
    values = inputs(2)
    check_gradients(lambda *args: ours(*args, numbers_at_once=2 * P * D), *values.values())
    assert receivers(ours, **values) == set(values)


def test_a_factor_on_the_loss_is_a_factor_on_its_gradient() -> None:
    values = list(inputs(1).values())
    assert_agree(lambda *args: 0.1 * ours(*args), lambda *args: 0.1 * naive(*args), *values)


def test_without_gradient_only_the_value_is_computed() -> None:
    values = {name: value.requires_grad_(True) for name, value in inputs(1).items()}
    with patch.object(prototype_classification, "_add_gradients", wraps=_add_gradients) as added:
        with torch.no_grad():
            value = ours(**values)
        assert not added.called
        assert torch.equal(ours(**values), value)
        assert added.called


def test_under_autocast_it_is_computed_in_the_precision_of_the_classifier() -> None:
    *graph, linear_weight, linear_bias = (value.float() for value in inputs(2).values())
    linear_weight.requires_grad_(True)
    rounded = MessageParts(*(tensor.bfloat16() for tensor in message_parts(*graph)))
    exact = MessageParts(*(tensor.float() for tensor in rounded))

    def value_and_gradient(parts: MessageParts) -> tuple[Tensor, Tensor]:
        loss = prototype_cross_entropy(parts, linear_weight, linear_bias, CLASSES)
        (gradient,) = torch.autograd.grad(loss, linear_weight)
        return loss, gradient

    expected, expected_gradient = value_and_gradient(exact)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert F.linear(graph[0], linear_weight).dtype == torch.bfloat16
        for parts in (rounded, exact):
            found, gradient = value_and_gradient(parts)
            assert found.dtype == gradient.dtype == torch.float32
            assert torch.equal(found, expected)
            assert torch.equal(gradient, expected_gradient)


class LargestTensor(TorchDispatchMode):
    """How many numbers the largest result of any operation has."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numel = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.numel())
        return result


def test_no_tensor_has_features_of_all_images_or_edges_of_all_graphs() -> None:
    images, classes, features = 40, 10, 8
    prototypes = 4 * classes
    leaves = [
        normal(*shape, seed=seed).requires_grad_(True)
        for seed, shape in enumerate(
            [(prototypes, features), (prototypes, 1, 8), (images, 1, 8), (features, 16), (features,)]
        )
    ]
    linear = normal(classes, features).requires_grad_(True), normal(classes).requires_grad_(True)
    own_class = torch.arange(classes).repeat_interleave(4)
    at_once = 5 * prototypes * classes
    with LargestTensor() as largest:
        parts = message_parts(*leaves)
        prototype_cross_entropy(parts, *linear, own_class, numbers_at_once=at_once).backward()
    assert largest.numel <= max(3 * at_once, prototypes * prototypes, images * prototypes)
    assert largest.numel < images * prototypes * features


def test_no_tensor_has_features_of_all_prototypes_of_an_image() -> None:
    features = 32
    parts = message_parts(
        normal(P, features), normal(P, 1, 1), normal(B, 1, 1), normal(features, 2), normal(features)
    )
    linear = normal(C, features).requires_grad_(True), normal(C)
    with LargestTensor() as largest:
        prototype_cross_entropy(parts, *linear, CLASSES, numbers_at_once=features).backward()
    # A gradient; features, their change and what the loss sends into them would be 3 times that.
    assert largest.numel <= P * features
