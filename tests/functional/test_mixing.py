"""Mixed images and labels, and the losses on them."""

import math

import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from manigraph.functional import (
    mean_log_probs,
    mix,
    mse_consistency,
    sharpen,
    soft_cross_entropy,
    soft_squared_error,
    symmetric_beta,
)
from tests.helpers import TensorFunction, assert_agree, check_gradients, normal, receivers, seeded
from tests.reference import consistency
from tests.reference import mixing as reference


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def uniform(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(*shape, dtype=dtype, generator=seeded(seed))


def probs(*shape: int, seed: int = 0) -> Tensor:
    return normal(*shape, seed=seed).softmax(dim=-1)


# λ

ALPHAS = [0.1, 0.5, 0.75, 1.0, 4.0]


@pytest.mark.parametrize("alpha", ALPHAS)
def test_symmetric_beta_is_the_reference(alpha: float) -> None:
    uniforms = uniform(2, 50)
    expected = [reference.symmetric_beta(u, v, alpha) for u, v in zip(*uniforms.tolist(), strict=True)]
    assert symmetric_beta(uniforms, alpha).tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_symmetric_beta_has_that_distribution(alpha: float, dtype: torch.dtype) -> None:
    shares = symmetric_beta(uniform(2, 20_000, dtype=dtype), alpha)
    assert shares.dtype == dtype
    # float32 cannot tell the last values before 1 apart, of which there are many if α is small.
    inner = shares[(shares > 1e-6) & (shares < 1 - 1e-6)].double()
    beta = scipy.stats.beta(alpha, alpha)
    low, high = beta.cdf(1e-6), beta.cdf(1 - 1e-6)
    assert len(inner) / len(shares) == pytest.approx(high - low, abs=0.01)
    test = scipy.stats.kstest(inner.numpy(), lambda x: (beta.cdf(x) - low) / (high - low))
    assert test.pvalue > 0.01


def test_symmetric_beta_by_hand() -> None:
    # α = 1, u = 1/2: t² = (2 - 1) cos². v = 0: t = 1, λ = 1/2 + 1 / (2 √2). v = 1/2: t = -1, the opposite.
    # v = 1/6: cos = 1/2, t² = 1/4, λ = 1/2 + 1/2 · (1/2) / √(5/4) = 1/2 + 1 / (2 √5).
    shares = symmetric_beta(torch.stack([doubles(0.5, 0.5, 0.5), doubles(0.0, 0.5, 1 / 6)]), 1.0)
    expected = [0.5 + 0.5 / math.sqrt(2), 0.5 - 0.5 / math.sqrt(2), 0.5 + 0.5 / math.sqrt(5)]
    assert shares.tolist() == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", [1e-4, 0.75, 1e6])
def test_ends_of_symmetric_beta_are_finite(alpha: float, dtype: torch.dtype) -> None:
    # What a generator can give: 0, the smallest above, the largest below 1; quarters, where the cosine is 0.
    step = torch.finfo(dtype).eps / 2
    ends = torch.tensor([0.0, step, 0.25, 0.5, 0.75, 1 - step], dtype=dtype)
    shares = symmetric_beta(torch.cartesian_prod(ends, ends).T.contiguous(), alpha)
    assert shares.isfinite().all()
    assert ((shares >= 0) & (shares <= 1)).all()


def test_limits_of_symmetric_beta() -> None:
    uniforms = uniform(2, 1000)
    few_mixed = symmetric_beta(uniforms, 1e-4)
    assert ((few_mixed < 1e-6) | (few_mixed > 1 - 1e-6)).double().mean().item() > 0.99
    torch.testing.assert_close(
        symmetric_beta(uniforms, 1e8), torch.full_like(uniforms[0], 0.5), atol=1e-3, rtol=0
    )


@pytest.mark.parametrize("alpha", [0.0, -1.0, math.nan])
def test_alpha_is_positive(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha must be above 0"):
        symmetric_beta(uniform(2, 3), alpha)


# Mixing


@pytest.mark.parametrize("shape", [(5, 4), (5, 2, 3, 3)])
def test_mix_is_the_reference(shape: tuple[int, ...]) -> None:
    inputs = normal(*shape, seed=1), normal(*shape, seed=2), uniform(5)
    assert_agree(mix, reference.mix, *inputs)
    check_gradients(mix, *inputs)


def test_mix_by_hand() -> None:
    # 3/4 · 4 + 1/4 · 8 = 5; 1/2 · 2 + 1/2 · 6 = 4.
    first, second = doubles(4.0, 2.0).view(2, 1), doubles(8.0, 6.0).view(2, 1)
    assert mix(first, second, doubles(0.75, 0.5)).flatten().tolist() == [5.0, 4.0]


def test_limits_of_mix() -> None:
    first, second = normal(3, 2, 4, seed=1), normal(3, 2, 4, seed=2)
    assert torch.equal(mix(first, second, torch.ones(3, dtype=torch.float64)), first)
    assert torch.equal(mix(first, second, torch.zeros(3, dtype=torch.float64)), second)
    mixed = mix(probs(5, 4, seed=1), probs(5, 4, seed=2), uniform(5))
    torch.testing.assert_close(mixed.sum(dim=1), torch.ones(5, dtype=torch.float64))


def test_mixed_images_keep_their_memory_format() -> None:
    first = normal(4, 3, 5, 5, seed=1).to(memory_format=torch.channels_last)
    second = normal(4, 3, 5, 5, seed=2).to(memory_format=torch.channels_last)
    mixed = mix(first, second[torch.tensor([2, 0, 3, 1])], uniform(4))
    assert mixed.is_contiguous(memory_format=torch.channels_last)


# Guesses


def test_mean_prediction_is_the_reference() -> None:
    def mean_probs(logits: Tensor) -> Tensor:
        return mean_log_probs(logits).exp()

    assert_agree(mean_probs, reference.mean_prediction, 2 * normal(3, 5, 4))
    check_gradients(mean_log_probs, normal(2, 3, 4))


def test_mean_prediction_by_hand() -> None:
    # (1/4, 3/4) and (1/2, 1/2): (3/8, 5/8). The mean of the logits would give another answer.
    logits = torch.stack([doubles(1, 3), doubles(1, 1)]).log().unsqueeze(1)
    assert mean_log_probs(logits).exp().flatten().tolist() == pytest.approx([3 / 8, 5 / 8])


def test_one_prediction_is_its_own_mean() -> None:
    logits = normal(1, 5, 4)
    torch.testing.assert_close(mean_log_probs(logits), logits[0].log_softmax(dim=1))


def test_mean_of_decided_predictions_is_finite() -> None:
    decided = torch.tensor([[[0.0, -1000.0, -1000.0]], [[0.0, -1000.0, -1000.0]]])
    assert mean_log_probs(decided).tolist() == [[0.0, -1000.0, -1000.0]]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_sharpen_is_the_reference(temperature: float) -> None:
    logits = 2 * normal(5, 4)
    expected = reference.sharpen(logits.softmax(dim=1), temperature)
    torch.testing.assert_close(sharpen(logits, temperature), expected, rtol=1e-12, atol=1e-12)


def test_sharpen_by_hand() -> None:
    # T = 1/2 squares: (1/16, 9/16) of 10/16 is (1/10, 9/10).
    assert sharpen(doubles(1, 3).log().view(1, 2), 0.5).tolist() == [pytest.approx([0.1, 0.9])]


def test_limits_of_sharpening() -> None:
    logits = normal(5, 4)
    torch.testing.assert_close(sharpen(logits, 1.0), logits.softmax(dim=1))
    hard = torch.nn.functional.one_hot(logits.argmax(dim=1), 4).double()
    torch.testing.assert_close(sharpen(logits, 1e-4), hard)
    assert sharpen(torch.tensor([[1e4, -1e4]]), 0.1).tolist() == [[1.0, 0.0]]


def test_a_sharpened_prediction_is_a_constant() -> None:
    logits = normal(5, 4).requires_grad_(True)
    assert not sharpen(logits, 0.5).requires_grad


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_temperature_is_positive(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature must be above 0"):
        sharpen(normal(2, 3), temperature)


# Losses

LOSSES = [
    pytest.param(soft_cross_entropy, reference.soft_cross_entropy, id="soft_cross_entropy"),
    pytest.param(soft_squared_error, reference.soft_squared_error, id="soft_squared_error"),
]
every_loss = pytest.mark.parametrize(("function", "loops"), LOSSES)


@every_loss
def test_loss_is_the_reference(function: TensorFunction, loops: TensorFunction) -> None:
    assert_agree(function, loops, probs(5, 4, seed=1), 2 * normal(5, 4, seed=2))


@every_loss
def test_gradcheck_of_the_student(function: TensorFunction, loops: TensorFunction) -> None:
    target = probs(3, 4, seed=1)
    check_gradients(lambda student: function(target, student), normal(3, 4, seed=2))


@every_loss
def test_only_the_student_receives_gradient(function: TensorFunction, loops: TensorFunction) -> None:
    assert receivers(function, target=probs(5, 4, seed=1), student=normal(5, 4, seed=2)) == {"student"}


# Image 1: target (1/2, 1/2), student (1/4, 3/4). Image 2: target (1, 0), student (1/2, 1/2).
TARGET = torch.stack([doubles(0.5, 0.5), doubles(1, 0)])
STUDENT = torch.stack([doubles(0.25, 0.75), doubles(0.5, 0.5)]).log()


def test_soft_cross_entropy_by_hand() -> None:
    # Image 1: -1/2 ln 1/4 - 1/2 ln 3/4 = 1/2 ln 16/3. Image 2: ln 2.
    expected = (0.5 * math.log(16 / 3) + math.log(2)) / 2
    assert soft_cross_entropy(TARGET, STUDENT).item() == pytest.approx(expected)


def test_soft_squared_error_by_hand() -> None:
    # Image 1: 1/16 + 1/16 = 1/8. Image 2: 1/4 + 1/4 = 1/2. Over 2 images and 2 classes: 5/8 / 4 = 5/32.
    assert soft_squared_error(TARGET, STUDENT).item() == pytest.approx(5 / 32)


def test_cross_entropy_of_decided_targets_is_that_of_classes() -> None:
    logits, classes = normal(5, 4), torch.tensor([0, 3, 1, 1, 2])
    target = torch.nn.functional.one_hot(classes, 4).double()
    found = soft_cross_entropy(target, logits).item()
    assert found == pytest.approx(consistency.cross_entropy(logits, classes).item())


def test_squared_error_is_that_of_logits_over_the_classes() -> None:
    target, student = normal(5, 4, seed=1), normal(5, 4, seed=2)
    found = soft_squared_error(target.softmax(dim=1), student)
    torch.testing.assert_close(4 * found, mse_consistency(target, student))


@given(st.lists(st.floats(-30, 30), min_size=8, max_size=8))
def test_the_target_itself_is_best(values: list[float]) -> None:
    logits = doubles(*values).view(2, 4)
    target = logits.softmax(dim=1)
    assert soft_squared_error(target, logits).item() == pytest.approx(0, abs=1e-30)
    assert soft_cross_entropy(target, logits).item() == pytest.approx(
        consistency.entropy(logits).item(), abs=1e-10
    )
    student = logits.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(soft_cross_entropy(target, student), student)
    assert gradient.abs().max().item() < 1e-14


def test_losses_of_decided_predictions_are_finite() -> None:
    target = torch.tensor([[1.0, 0.0]])
    student = torch.tensor([[-1000.0, 0.0]], requires_grad=True)
    loss = soft_cross_entropy(target, student) + soft_squared_error(target, student)
    assert loss.item() == pytest.approx(1001)
    (gradient,) = torch.autograd.grad(loss, student)
    assert gradient.isfinite().all()
