"""The sum over all triplets in C: the same triplets as in the naive enumeration, and the same gradient."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from manigraph.functional import anchor_angle
from manigraph.functional.prototypes import triplet_sum
from manigraph.native import library, native, triplets
from tests.helpers import normal, seeded
from tests.reference import prototypes as reference

pytestmark = pytest.mark.skipif(
    library() is None, reason="manigraph.native was not compiled for this machine: no C compiler at install"
)


@pytest.fixture(params=[1, 2, 3])
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def drawn(members: int, centres: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    similarity = torch.tanh(normal(members, centres, seed=seed)).float()
    return similarity, torch.randint(0, centres, (members,), generator=seeded(seed))


def gradient_of(similarity: Tensor, classes: Tensor, margin: float) -> Tensor:
    leaf = similarity.detach().requires_grad_(True)
    (gradient,) = torch.autograd.grad(anchor_angle(leaf, classes, margin=margin), leaf)
    return gradient


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("margin", [-0.3, 0.0, 0.15, 0.6])
@pytest.mark.parametrize(("members", "centres"), [(12, 4), (1, 3), (33, 17), (40, 50), (64, 16), (21, 1)])
def test_it_is_the_enumeration(members: int, centres: int, margin: float) -> None:
    similarity, classes = drawn(members, centres)
    exact = similarity.double().requires_grad_(True)
    expected = reference.anchor_angle(exact, classes, margin=margin)
    total, number = triplet_sum(similarity, classes, margin=margin)
    assert number.item() == expected.number
    assert total.item() == pytest.approx((expected.value * expected.number).item(), rel=1e-12, abs=1e-12)
    if expected.number:
        (gradient,) = torch.autograd.grad(expected.value, exact)
        found = gradient_of(similarity, classes, margin)
        torch.testing.assert_close(found.double(), gradient, rtol=1e-6, atol=1e-8)


def test_it_is_taken_for_float32_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = triplets.triplet_sums

    def counted(*given: Any) -> tuple[Tensor, ...]:
        calls.append(given)
        return real(*given)

    monkeypatch.setattr(triplets, "triplet_sums", counted)
    similarity, classes = drawn(12, 4)
    once, _ = triplet_sum(similarity, classes, margin=0.15)
    assert len(calls) == 1
    in_double, _ = triplet_sum(similarity.double(), classes, margin=0.15)
    in_parts, _ = triplet_sum(similarity, classes, margin=0.15, numbers_at_once=12)
    with native(False):
        sorted_ones, _ = triplet_sum(similarity, classes, margin=0.15)
    assert len(calls) == 1
    for other in (in_double, in_parts, sorted_ones):
        torch.testing.assert_close(other, once, rtol=1e-12, atol=0)


def test_equal_similarities_are_no_term() -> None:
    """n = t exactly: the term is zero, and zero terms do not count."""
    similarity = torch.tensor([[0.5, 0.0], [0.25, 0.0], [0.5, 0.0]])
    total, number = triplet_sum(similarity, torch.tensor([0, 1, 1]), margin=0.0)
    assert (total.item(), number.item()) == (0.0, 0)
    total, number = triplet_sum(similarity, torch.tensor([0, 1, 1]), margin=0.25)
    # Centre 0: member 0.5, threshold 0.25; non-members 0.25 (zero) and 0.5 (0.25² = 0.0625).
    # Centre 1: members 0 and 0, thresholds -0.25; the non-member 0 is 0.25 above both: 2 · 0.0625.
    assert (total.item(), number.item()) == (0.1875, 3)


@pytest.mark.parametrize("place", [(0, 0), (5, 2)])
def test_a_bad_number_is_seen(place: tuple[int, int]) -> None:
    similarity, classes = drawn(12, 4)
    similarity[place] = torch.nan
    assert triplet_sum(similarity, classes, margin=0.15).total.isnan()


def test_any_layout_and_the_same_bits_every_time() -> None:
    similarity, classes = drawn(50, 20)
    turned = similarity.T.contiguous().T
    assert not turned.is_contiguous()
    every_other = torch.stack([classes, classes], dim=1)[:, 0]
    for one, other in ((turned, classes), (similarity, every_other), (similarity, classes)):
        assert torch.equal(gradient_of(one, other, 0.15), gradient_of(similarity, classes, 0.15))
