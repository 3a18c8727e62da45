"""Cross-entropy against the class of a sure prediction."""

import functools
import math

import pytest
import torch

from manigraph.functional import confident_cross_entropy
from tests.helpers import assert_agree, check_gradients, normal, receivers
from tests.reference import consistency as reference


@pytest.mark.parametrize("threshold", [0.0, 0.5, 0.8, 1.0])
def test_it_is_the_reference(threshold: float) -> None:
    assert_agree(
        functools.partial(confident_cross_entropy, threshold=threshold),
        functools.partial(reference.confident_cross_entropy, threshold=threshold),
        3 * normal(9, 4, seed=1),
        2 * normal(9, 4, seed=2),
    )


def test_by_hand() -> None:
    # Targets 0.8 : 0.2, 0.6 : 0.4 and 0.1 : 0.9; with a threshold of 0.7 the first and the third count, whose
    # students give their classes 1/2 and 1/4: (log 2 + 0 + log 4) / 3.
    target = torch.tensor([[0.8, 0.2], [0.6, 0.4], [0.1, 0.9]]).double().log()
    student = torch.tensor([[0.5, 0.5], [0.9, 0.1], [0.75, 0.25]]).double().log()
    found = confident_cross_entropy(target, student, threshold=0.7)
    assert found.item() == pytest.approx((math.log(2) + math.log(4)) / 3)


def test_a_prediction_at_the_threshold_is_sure_enough() -> None:
    target = torch.zeros(1, 2, dtype=torch.float64)  # 0.5 : 0.5
    assert confident_cross_entropy(target, target, threshold=0.5).item() == pytest.approx(math.log(2))
    assert confident_cross_entropy(target, target, threshold=0.51).item() == 0


def test_only_the_student_learns() -> None:
    function = functools.partial(confident_cross_entropy, threshold=0.0)
    assert receivers(function, target_logits=normal(5, 4), student_logits=normal(5, 4, seed=1)) == {
        "student_logits"
    }
    check_gradients(lambda student: function(normal(3, 4), student), normal(3, 4, seed=2))
