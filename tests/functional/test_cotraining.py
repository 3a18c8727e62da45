"""Agreement and difference of networks, and the fast gradient sign method: Deep Co-Training."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from manigraph.functional import (
    entropy,
    gradient_sign_perturbation,
    kl_consistency,
    prediction_cross_entropy,
    view_disagreement,
)
from tests.helpers import assert_agree, check_gradients, normal, receivers
from tests.reference import cotraining as reference

# Agreement


@pytest.mark.parametrize("num_views", [2, 3, 4])
def test_disagreement_is_the_reference(num_views: int) -> None:
    logits = [2 * normal(5, 4, seed=seed) for seed in range(num_views)]
    assert_agree(
        lambda *views: view_disagreement(torch.stack(views)),
        lambda *views: reference.view_disagreement(views),
        *logits,
    )


def test_disagreement_teaches_every_view() -> None:
    inputs = {f"view {seed}": normal(5, 4, seed=seed) for seed in range(4)}

    def disagreement(*views: Tensor) -> Tensor:
        return view_disagreement(torch.stack(views))

    assert receivers(disagreement, **inputs) == set(inputs)
    check_gradients(view_disagreement, normal(3, 2, 4))


def test_disagreement_by_hand() -> None:
    # Image 1: (1/4, 3/4) and (3/4, 1/4); the mean is (1/2, 1/2) with entropy ln 2, each has ln 4 - 3/4 ln 3:
    # ln 2 - ln 4 + 3/4 ln 3 = 3/4 ln 3 - ln 2. Image 2: both (1/2, 1/2), that is 0.
    first = torch.tensor([[0.25, 0.75], [0.5, 0.5]], dtype=torch.float64).log()
    second = torch.tensor([[0.75, 0.25], [0.5, 0.5]], dtype=torch.float64).log()
    expected = (0.75 * math.log(3) - math.log(2)) / 2
    assert view_disagreement(torch.stack([first, second])).item() == pytest.approx(expected)


@pytest.mark.parametrize("num_views", [2, 4, 8])
def test_limits_of_disagreement(num_views: int) -> None:
    # All the same: 0. Each sure of a class of its own: ln V; finite although exp(-1000) is 0.
    same = normal(5, 8).expand(num_views, 5, 8)
    assert view_disagreement(same).item() == pytest.approx(0, abs=1e-12)
    sure = 1000 * torch.eye(8, dtype=torch.float64)[:num_views, None].expand(-1, 3, -1)
    leaf = sure.clone().requires_grad_(True)
    disagreement = view_disagreement(leaf)
    assert disagreement.item() == pytest.approx(math.log(num_views))
    (gradient,) = torch.autograd.grad(disagreement, leaf)
    assert gradient.isfinite().all()


LOGITS = st.lists(st.floats(-30, 30), min_size=24, max_size=24)


@given(LOGITS)
def test_bounds_of_disagreement(values: list[float]) -> None:
    logits = torch.tensor(values, dtype=torch.float64).view(3, 2, 4)
    assert -1e-12 <= view_disagreement(logits).item() <= math.log(3) + 1e-12


def test_nobody_is_the_first_view() -> None:
    logits = normal(4, 5, 3)
    torch.testing.assert_close(view_disagreement(logits.flip(0)), view_disagreement(logits))


# Difference


def test_cross_entropy_is_the_reference() -> None:
    inputs = 2 * normal(5, 4, seed=1), 2 * normal(5, 4, seed=2)
    assert_agree(prediction_cross_entropy, reference.prediction_cross_entropy, *inputs)
    check_gradients(prediction_cross_entropy, normal(3, 4, seed=1), normal(3, 4, seed=2))


def test_cross_entropy_teaches_both() -> None:
    first, second = normal(5, 4, seed=1), normal(5, 4, seed=2)
    assert receivers(prediction_cross_entropy, first=first, second=second) == {"first", "second"}


def test_cross_entropy_by_hand() -> None:
    # p = (1/2, 1/2), q = (1/4, 3/4): -1/2 ln 1/4 - 1/2 ln 3/4 = ln 4 - 1/2 ln 3. The other way round:
    # -1/4 ln 1/2 - 3/4 ln 1/2 = ln 2.
    halves = torch.tensor([[0.5, 0.5]], dtype=torch.float64).log()
    quarters = torch.tensor([[0.25, 0.75]], dtype=torch.float64).log()
    expected = math.log(4) - 0.5 * math.log(3)
    assert prediction_cross_entropy(halves, quarters).item() == pytest.approx(expected)
    assert prediction_cross_entropy(quarters, halves).item() == pytest.approx(math.log(2))


def test_cross_entropy_is_entropy_and_divergence() -> None:
    first, second = normal(5, 4, seed=1), normal(5, 4, seed=2)
    torch.testing.assert_close(
        prediction_cross_entropy(first, second), entropy(first) + kl_consistency(first, second)
    )
    torch.testing.assert_close(prediction_cross_entropy(first, first), entropy(first))


# Fast gradient sign

IMAGE = (2, 3, 3)
CLASSES = torch.tensor([0, 3, 1, 0])


def smooth_network(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(3)
    network = nn.Sequential(nn.Flatten(), nn.Linear(18, 16), nn.Tanh(), nn.Linear(16, 4))
    network.to(dtype)
    return network


def test_perturbation_is_the_reference() -> None:
    network, images = smooth_network(), normal(4, *IMAGE, seed=1)
    found = gradient_sign_perturbation(network, images, CLASSES, epsilon=0.3)
    assert torch.equal(found, reference.gradient_sign(network, images, CLASSES, epsilon=0.3))
    assert torch.equal(found, reference.finite_difference_sign(network, images, CLASSES, epsilon=0.3))


def test_perturbation_by_hand() -> None:
    # Logits (3 x1 - 4 x2, 0), class 0: ∇_x of -log p_0 is -(1 - p_0) (3, -4), so x1 falls and x2 rises.
    # Class 1: the other way round. A pixel without influence stays.
    weight = torch.tensor([[3.0, -4.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    images = normal(2, 3)
    found = gradient_sign_perturbation(lambda x: x @ weight.T, images, torch.tensor([0, 1]), epsilon=0.25)
    assert found.tolist() == [[-0.25, 0.25, 0.0], [0.25, -0.25, 0.0]]


def test_it_makes_the_class_less_likely() -> None:
    network, images = smooth_network(), normal(4, *IMAGE, seed=1)
    classes = network(images).argmax(dim=1)
    noise = gradient_sign_perturbation(network, images, classes, epsilon=0.1)

    def losses(changed: Tensor) -> Tensor:
        return F.cross_entropy(network(changed), classes, reduction="none").detach()

    assert (losses(images + noise) > losses(images)).all()
    for seed in range(20):
        random = 0.1 * normal(*images.shape, seed=100 + seed).sign()
        assert (losses(images + random) < losses(images + noise)).all()


def test_no_step_is_exactly_none() -> None:
    images = normal(4, *IMAGE)
    found = gradient_sign_perturbation(smooth_network(), images, CLASSES, epsilon=0.0)
    assert torch.equal(found, torch.zeros_like(images))


def test_each_image_is_on_its_own() -> None:
    network, images = smooth_network(), normal(4, *IMAGE, seed=1)
    together = gradient_sign_perturbation(network, images, CLASSES, epsilon=0.3)
    for b in range(len(images)):
        alone = gradient_sign_perturbation(network, images[b : b + 1], CLASSES[b : b + 1], epsilon=0.3)
        assert torch.equal(together[b : b + 1], alone)


@pytest.mark.parametrize("existing", [None, 0.25])
def test_gradients_of_parameters_are_not_touched(existing: float | None) -> None:
    network, images = smooth_network(), normal(4, *IMAGE)
    for parameter in network.parameters():
        parameter.grad = None if existing is None else torch.full_like(parameter, existing)
    gradient_sign_perturbation(network, images, CLASSES, epsilon=1.0)
    for parameter in network.parameters():
        if existing is None:
            assert parameter.grad is None
        else:
            assert parameter.grad is not None
            assert torch.equal(parameter.grad, torch.full_like(parameter, existing))


def test_no_gradient_of_a_parameter_is_computed() -> None:
    network, images = smooth_network(), normal(4, *IMAGE)
    for parameter in network.parameters():
        parameter.register_hook(lambda _: pytest.fail("a gradient was computed"))
    gradient_sign_perturbation(network, images, CLASSES, epsilon=1.0)


def test_nobody_receives_gradient_through_the_perturbation() -> None:
    network, images = smooth_network(), normal(4, *IMAGE).requires_grad_(True)
    noise = gradient_sign_perturbation(network, images, CLASSES, epsilon=1.0)
    assert not noise.requires_grad
    with torch.no_grad():
        assert torch.equal(gradient_sign_perturbation(network, images, CLASSES, epsilon=1.0), noise)


def test_images_stay_as_they_are() -> None:
    images = normal(4, *IMAGE)
    before = images.clone()
    gradient_sign_perturbation(smooth_network(), images, CLASSES, epsilon=1.0)
    assert torch.equal(images, before)
    assert not images.requires_grad


def test_it_is_found_in_float32_under_autocast() -> None:
    network = smooth_network(torch.float32)
    images = normal(4, *IMAGE, seed=1).float()
    seen: list[tuple[torch.dtype, torch.dtype]] = []

    def forward(changed: Tensor) -> Tensor:
        logits: Tensor = network(changed)
        seen.append((changed.dtype, logits.dtype))
        return logits

    expected = gradient_sign_perturbation(forward, images, CLASSES, epsilon=0.3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = gradient_sign_perturbation(forward, images, CLASSES, epsilon=0.3)
        assert network(images).dtype == torch.bfloat16, "autocast must be back on afterwards"
    assert torch.equal(found, expected)
    halves = gradient_sign_perturbation(forward, images.bfloat16(), CLASSES, epsilon=0.3)
    assert halves.dtype == torch.float32
    assert seen == 3 * [(torch.float32, torch.float32)]
