"""The classification of all refined prototypes in C: the numbers of torch's operations, up to rounding."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from manigraph.functional import prototype_cross_entropy
from manigraph.functional.graph import MessageParts
from manigraph.native import lanes, library, native
from manigraph.native import prototype_classification as in_c
from tests.helpers import normal

pytestmark = pytest.mark.skipif(library() is None, reason="no inner loops in C on this machine")

TOLERANCE = 1e-5
"""Of float32 sums of up to some thousand terms, relative to the length of the whole gradient."""
SIZES = [
    # images, prototypes, features, classes
    pytest.param(9, 26, 32, 10, id="blocks that are not full"),
    pytest.param(8, 24, 16, 12, id="full blocks"),
    pytest.param(1, 3, 32, 3, id="one image"),
    pytest.param(5, 1, 16, 1, id="one prototype"),
    pytest.param(7, 30, 48, 2, id="two classes"),
    pytest.param(6, 64, 16, 16, id="as many classes as lanes"),
    pytest.param(6, 34, 16, 17, id="a class more than lanes"),
    pytest.param(13, 200, 64, 100, id="100 classes"),
    pytest.param(40, 200, 32, 10, id="many rows"),
]


def inputs(images: int, prototypes: int, features: int, classes: int) -> tuple[list[Tensor], Tensor]:
    """The four parts of the message, weight and bias, in float32; and the classes."""
    shapes = [(prototypes, features), (1, prototypes, features), (1, images, features)]
    tensors = [normal(*shape, seed=seed, dtype=torch.float32) for seed, shape in enumerate(shapes)]
    tensors.append(normal(images, 1, prototypes, seed=4, dtype=torch.float32).sigmoid())
    tensors.append(normal(classes, features, seed=5, dtype=torch.float32))
    tensors.append(normal(classes, seed=6, dtype=torch.float32))
    return tensors, torch.arange(prototypes) * 7 % classes


def loss_of(tensors: list[Tensor], classes: Tensor) -> Tensor:
    return prototype_cross_entropy(MessageParts(*tensors[:4]), tensors[4], tensors[5], classes)


def naive(tensors: list[Tensor], classes: Tensor) -> Tensor:
    """Every prototype of every image by itself, as the formula is written."""
    without_image, of_prototypes, of_image, share, weight, bias = tensors
    losses = []
    for b in range(share.shape[0]):
        for p in range(share.shape[2]):
            change = of_image[0, b] - of_prototypes[0, p]
            refined = F.leaky_relu(without_image[p] + share[b, 0, p] * change, 0.1)
            logits = weight @ refined + bias
            losses.append(torch.logsumexp(logits, dim=0) - logits[classes[p]])
    return torch.stack(losses).mean()


def value_and_gradients(tensors: list[Tensor], classes: Tensor, factor: float = 1.0) -> list[Tensor]:
    leaves = [tensor.detach().clone().requires_grad_(True) for tensor in tensors]
    loss = factor * loss_of(leaves, classes)
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


def naive_value_and_gradients(tensors: list[Tensor], classes: Tensor) -> list[Tensor]:
    leaves = [tensor.detach().double().requires_grad_(True) for tensor in tensors]
    loss = naive(leaves, classes)
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


def distance(found: Tensor, expected: Tensor) -> float:
    """Relative to the length of what is expected."""
    gap = torch.linalg.vector_norm(found.double() - expected.double())
    return float(gap / torch.linalg.vector_norm(expected.double()).clamp_min(1e-6))


def assert_near(found: list[Tensor], expected: list[Tensor]) -> None:
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert ours.shape == theirs.shape
        assert distance(ours, theirs) < TOLERANCE, f"result {number}"


@contextmanager
def counted_calls() -> Iterator[list[bool]]:
    """Whether each call of the inner loops was to give a gradient."""
    calls: list[bool] = []
    original = in_c.cross_entropy

    def counting(
        tensors: list[Tensor], classes: Tensor, *, with_gradient: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        calls.append(with_gradient)
        return original(tensors, classes, with_gradient=with_gradient)

    with patch.object(in_c, "cross_entropy", counting):
        yield calls


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("images", "prototypes", "features", "classes"), SIZES)
def test_value_and_gradients_are_those_of_the_formula(
    images: int, prototypes: int, features: int, classes: int
) -> None:
    tensors, own = inputs(images, prototypes, features, classes)
    with counted_calls() as calls:
        found = value_and_gradients(tensors, own)
    assert calls == [True]
    assert_near(found, naive_value_and_gradients(tensors, own))
    with native(False), counted_calls() as calls:
        by_torch = value_and_gradients(tensors, own)
    assert not calls
    assert_near(found, by_torch)


@pytest.mark.parametrize("number", [2, 3, 8])
def test_threads_share_the_prototypes(number: int) -> None:
    tensors, own = inputs(6, 5, 32, 3)
    expected = value_and_gradients(tensors, own)
    with threads(number):
        found, again = value_and_gradients(tensors, own), value_and_gradients(tensors, own)
    assert_near(found, expected)
    assert all(map(torch.equal, found, again))


def test_the_same_bits_twice() -> None:
    tensors, own = inputs(9, 26, 32, 10)
    first, second = value_and_gradients(tensors, own), value_and_gradients(tensors, own)
    assert all(map(torch.equal, first, second))


def test_tensors_may_lie_in_memory_in_any_order() -> None:
    tensors, own = inputs(9, 26, 32, 10)
    turned = [tensor.mT.contiguous().mT if tensor.ndim > 1 else tensor for tensor in tensors]
    turned[3] = tensors[3].transpose(0, 2).contiguous().transpose(0, 2)
    assert not all(tensor.is_contiguous() for tensor in turned)
    found = [loss_of(turned, own), *torch.autograd.grad(*_with_leaves(turned, own))]
    assert all(map(torch.equal, found, value_and_gradients(tensors, own)))


def _with_leaves(tensors: list[Tensor], own: Tensor) -> tuple[Tensor, list[Tensor]]:
    leaves = [tensor.detach().requires_grad_(True) for tensor in tensors]
    return loss_of(leaves, own), leaves


def test_a_factor_on_the_loss_is_a_factor_on_its_gradient() -> None:
    tensors, own = inputs(5, 20, 32, 10)
    assert_near(
        value_and_gradients(tensors, own, 0.1), [0.1 * t for t in naive_value_and_gradients(tensors, own)]
    )


def test_without_gradient_only_the_value_is_computed_and_it_is_the_same() -> None:
    tensors, own = inputs(9, 26, 32, 10)
    leaves = [tensor.requires_grad_(True) for tensor in tensors]
    with counted_calls() as calls:
        with torch.no_grad():
            value = loss_of(leaves, own)
        assert calls == [False]
        assert not value.requires_grad
        assert torch.equal(value, loss_of(leaves, own))
        assert calls == [False, True]


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("part", range(5))
def test_what_is_not_a_number_makes_a_loss_that_is_none(part: int, wrong: float) -> None:
    tensors, own = inputs(9, 26, 32, 10)
    tensors[part].view(-1)[-1] = wrong
    with counted_calls() as calls:
        assert loss_of(tensors, own).isnan()
    assert len(calls) == 1


@pytest.mark.parametrize("position", [0, 9])
def test_a_bias_that_is_not_a_number_makes_a_loss_that_is_none(position: int) -> None:
    tensors, own = inputs(9, 26, 32, 10)
    tensors[5][position] = torch.nan
    assert loss_of(tensors, own).isnan()
    tensors[5][position] = torch.inf
    assert loss_of(tensors, own).isnan()


def test_a_class_may_be_impossible() -> None:
    tensors, own = inputs(9, 26, 32, 10)
    tensors[5][3] = -torch.inf
    others = own.masked_fill(own == 3, 4)
    assert_near([loss_of(tensors, others)], [naive([t.double() for t in tensors], others)])
    assert loss_of(tensors, own) == torch.inf


@pytest.mark.parametrize("size", [30.0, 1e3, 1e30])
def test_logits_may_be_so_large_that_probabilities_are_zero(size: float) -> None:
    tensors, own = inputs(9, 26, 32, 10)
    tensors[4] *= size
    found = value_and_gradients(tensors, own)
    assert all(tensor.isfinite().all() for tensor in found)
    assert_near(found, naive_value_and_gradients(tensors, own))


def test_probabilities_from_one_to_the_smallest_normal_number() -> None:
    # Two classes, logits 0 and -x: the gradient of the second's bias is the mean of exp(-x) / (1 + exp(-x)).
    features = lanes()
    for gap in torch.linspace(0, 87, 500).tolist():
        tensors, own = inputs(1, 1, features, 2)
        tensors[4].zero_()
        tensors[5] = torch.tensor([0.0, -gap])
        *_, to_bias = value_and_gradients(tensors, own)
        expected = torch.sigmoid(torch.tensor(-gap, dtype=torch.float64))
        assert abs(to_bias[1] / expected - 1) < 4e-7
    tensors[5] = torch.tensor([0.0, -90.0])
    assert value_and_gradients(tensors, own)[-1][1] == 0


def test_sums_of_very_many_rows_are_not_rounded_away() -> None:
    # All rows alike: each adds the same to the classifier's gradient, whose mean is that of one row.
    tensors, own = inputs(1, 1, 16, 2)
    expected = value_and_gradients(tensors, own)
    without_image, of_prototypes, of_image, share, weight, bias = tensors
    many = [without_image.expand(400, -1), of_prototypes.expand(-1, 400, -1), of_image.expand(-1, 1000, -1)]
    found = value_and_gradients([*many, share.expand(1000, 1, 400), weight, bias], own.expand(400))
    assert_near(found[5:], expected[5:])
    assert_near(found[:1], expected[:1])


@pytest.mark.parametrize("wrong", [-1, 10, 2**32])
def test_a_class_that_does_not_exist(wrong: int) -> None:
    tensors, own = inputs(5, 20, 32, 10)
    own[7] = wrong
    with pytest.raises(IndexError, match="at least 0 and below 10"):
        loss_of(tensors, own)


def test_everything_else_is_left_to_torch() -> None:
    tensors, own = inputs(5, 20, 32, 10)
    parts, linear = MessageParts(*tensors[:4]), (tensors[4], tensors[5])
    with counted_calls() as calls:
        loss_of([tensor.double() for tensor in tensors], own)
        loss_of(inputs(5, 20, 30, 10)[0], own)  # features that do not fill a vector
        prototype_cross_entropy(parts, *linear, own, numbers_at_once=1 << 20)
        two_heads = MessageParts(
            parts.without_image,
            parts.of_prototypes.repeat(2, 1, 1),
            parts.of_image.repeat(2, 1, 1),
            parts.share.repeat(1, 2, 1),
        )
        prototype_cross_entropy(two_heads, *linear, own)
        assert not calls
        loss_of(tensors, own)
        assert calls == [False]
    no_images = [*parts[:2], parts.of_image[:, :0], parts.share[:0], *tensors[4:]]
    assert in_c.suits(tensors, own)
    assert not in_c.suits(no_images, own)


@pytest.mark.parametrize("place", range(6))
def test_sizes_that_do_not_agree_are_left_to_torch(place: int) -> None:
    """C would read beyond what is there."""
    tensors, own = inputs(5, 20, 32, 10)
    for axis in range(tensors[place].ndim):
        if tensors[place].shape[axis] > 1:
            shorter = tensors[place].narrow(axis, 0, tensors[place].shape[axis] - 1)
            assert not in_c.suits([*tensors[:place], shorter, *tensors[place + 1 :]], own)
    assert not in_c.suits(tensors, own[:-1])
    assert not in_c.suits(tensors, own.float())


def test_memory_does_not_grow_with_rows() -> None:
    def numbers(images: int, prototypes: int) -> int:
        loaded = library()
        assert loaded is not None
        return int(in_c.scratch_size(loaded, images, prototypes, 128, 1000))

    assert numbers(160, 20_000) == numbers(160, 20)
    per_thread = 160 * 128 + 2 * 1000 * 128  # gradients of the images and, twice, of the classifier
    assert numbers(160, 20_000) < torch.get_num_threads() * 2 * per_thread + 2 * 1000 * 128
