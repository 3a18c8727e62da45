"""The contrastive loss on the teacher graph: Luo et al. (2018)."""

import functools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from manigraph.functional import neighbour_contrast
from tests.helpers import assert_agree, check_gradients, normal, receivers
from tests.reference import neighbours as reference

CLASSES = torch.tensor([0, 1, 0, 2, 1, 0, 2])


def contrast(features: Tensor, classes: Tensor = CLASSES, margin: float = 1.0) -> Tensor:
    return neighbour_contrast(features, classes, margin=margin)


@pytest.mark.parametrize("margin", [0.5, 1.0, 1.6])
@pytest.mark.parametrize(
    "classes", [CLASSES, torch.zeros(7, dtype=torch.long), torch.arange(7)], ids=["some", "one", "all"]
)
def test_it_is_the_reference(classes: Tensor, margin: float) -> None:
    assert_agree(
        lambda features: neighbour_contrast(features, classes, margin=margin),
        lambda features: reference.neighbour_contrast(features, classes, margin=margin),
        normal(7, 5),
    )


def test_by_hand() -> None:
    # D = 2, so d² = ‖·‖² / 2. Neighbours 0 and 1: (2² + 0²) / 2 = 2. Images 0 and 2: d² = (1 + 1) / 2 = 1,
    # margin 3: (3 - 1)² = 4. Images 1 and 2: d² = (1 + 1) / 2 = 1, again 4. Mean: (2 + 4 + 4) / 3.
    features = torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    found = contrast(features, torch.tensor([5, 5, 0]), margin=3.0)
    assert found.item() == pytest.approx(10 / 3)


def test_gradcheck() -> None:
    check_gradients(functools.partial(contrast, margin=1.3), normal(7, 4))


def test_features_receive_gradient() -> None:
    assert receivers(contrast, features=normal(7, 5)) == {"features"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_identical_images_give_no_nan(dtype: torch.dtype) -> None:
    # The root of 0 has no slope. Value: neighbours 0, others m²; the gradient is exactly 0.
    features = torch.full((4, 3), 0.7, dtype=dtype, requires_grad=True)
    loss = contrast(features, torch.tensor([0, 0, 1, 2]), margin=2.0)
    assert loss.item() == pytest.approx(5 * 4 / 6)  # one pair of neighbours, five others
    (gradient,) = torch.autograd.grad(loss, features)
    assert torch.equal(gradient, torch.zeros_like(features))


def test_some_identical_images_leave_the_other_gradients_alone() -> None:
    features = normal(7, 5)
    features[3], features[5] = features[0], features[0]  # a stranger and a neighbour of image 0
    assert_agree(
        contrast, functools.partial(reference.neighbour_contrast, classes=CLASSES, margin=1.0), features
    )


def test_almost_identical_images_are_pushed_apart_with_a_bounded_force() -> None:
    # d(m - d)²/dh = -2 (m - d) · direction / √D, however small d is: length 2 m / √D at most.
    for distance in (1e-3, 1e-10, 1e-18):
        features = torch.zeros(2, 4)
        features[1, 2] = distance
        features.requires_grad_(True)
        (gradient,) = torch.autograd.grad(contrast(features, torch.tensor([0, 1])), features)
        assert gradient.isfinite().all()
        assert gradient.norm(dim=1).tolist() == pytest.approx([2 / math.sqrt(4)] * 2, rel=2e-3)


def test_strangers_beyond_the_margin_are_left_alone() -> None:
    features = torch.tensor([[0.0, 0.0], [5.0, 5.0]], dtype=torch.float64)
    assert receivers(functools.partial(contrast, classes=torch.tensor([0, 1])), features=features) == set()
    assert contrast(features, torch.tensor([0, 1])).item() == 0


def test_a_step_against_the_gradient_joins_neighbours_and_parts_strangers() -> None:
    classes = torch.tensor([0, 0, 1])
    features = 0.3 * normal(3, 4, seed=2)
    leaf = features.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(contrast(leaf, classes), leaf)
    before, after = torch.pdist(features), torch.pdist(features - 0.1 * gradient)
    assert after[0] < before[0]
    assert after[1] + after[2] > before[1] + before[2]


@given(st.permutations(range(7)))
def test_the_order_of_the_images_does_not_matter(order: list[int]) -> None:
    features = normal(7, 5)
    torch.testing.assert_close(contrast(features[order], CLASSES[order]), contrast(features))


@given(st.permutations(range(3)))
def test_only_equality_of_classes_counts(names: list[int]) -> None:
    renamed = torch.tensor(names)[CLASSES] + 10
    assert torch.equal(contrast(normal(7, 5), renamed), contrast(normal(7, 5)))


def test_the_number_of_features_does_not_change_the_meaning_of_the_margin() -> None:
    features = normal(7, 5)
    torch.testing.assert_close(contrast(features.repeat(1, 6)), contrast(features))


def test_one_image_alone_has_no_pair() -> None:
    features = normal(1, 5).requires_grad_(True)
    loss = contrast(features, torch.tensor([0]))
    assert loss.item() == 0
    (gradient,) = torch.autograd.grad(loss, features)
    assert not gradient.any()
