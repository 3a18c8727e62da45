"""A teacher follows its student, and nothing teaches it."""

import pytest
import torch
from torch import nn

from manigraph.nn import Classifier, Teacher
from tests.helpers import assert_bitwise_equal, copied, normal, running_statistics, tiny_backbone


def student(dropout: float = 0.0) -> Classifier:
    torch.manual_seed(0)
    backbone = tiny_backbone(dropout)
    return Classifier(backbone, nn.Linear(backbone.feature_size, 3))


def move(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)


def test_it_begins_as_a_copy_that_shares_nothing() -> None:
    model = student()
    teacher = Teacher(model)
    assert_bitwise_equal(copied(teacher.model.state_dict()), copied(model.state_dict()))
    before = copied(teacher.state_dict())
    move(model)
    assert_bitwise_equal(copied(teacher.state_dict()), before)


@pytest.mark.parametrize(("decay", "updates"), [(0.75, 40), (0.05, 3), (0.999, 1), (0.999, 7)])
def test_it_keeps_a_share_of_its_weights(decay: float, updates: int) -> None:
    model = student()
    teacher = Teacher(model)
    distance = 1.0  # of every weight, from the student's
    move(model)
    for update in range(updates):
        teacher.follow(model, decay)
        distance *= min(decay, (1 + update) / (10 + update))
    for own, weight in zip(teacher.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(own, weight - distance, rtol=1e-5, atol=1e-5)


def test_its_count_of_updates_is_saved() -> None:
    model = student()
    teacher, other = Teacher(model), Teacher(model)
    for _ in range(5):
        teacher.follow(model, 0.999)
    other.load_state_dict(teacher.state_dict())
    move(model)
    for each in (teacher, other):
        each.follow(model, 0.999)
    assert_bitwise_equal(copied(teacher.state_dict()), copied(other.state_dict()))


def test_with_a_decay_of_zero_it_is_the_student() -> None:
    model = student()
    teacher = Teacher(model)
    move(model)
    teacher.follow(model, decay=0.0)
    assert_bitwise_equal(
        copied(dict(teacher.model.named_parameters())), copied(dict(model.named_parameters()))
    )


def test_its_running_statistics_are_its_own_and_other_buffers_the_students() -> None:
    model = student()
    model.register_buffer("switch", torch.tensor(False))
    teacher = Teacher(model)
    model(normal(6, 1, 8, 8, seed=1).float())
    assert isinstance(model.switch, torch.Tensor)
    model.switch.fill_(True)
    own = running_statistics(teacher)
    teacher.follow(model, decay=0.5)
    assert_bitwise_equal(running_statistics(teacher), own)
    assert teacher.model.switch
    teacher(normal(6, 1, 8, 8, seed=2).float())
    assert any(not torch.equal(own[name], value) for name, value in running_statistics(teacher).items())


def test_its_predictions_are_constants() -> None:
    teacher = Teacher(student())
    images = normal(4, 1, 8, 8).float().requires_grad_(True)
    assert not teacher(images).requires_grad
    assert not any(parameter.requires_grad for parameter in teacher.parameters())


def test_it_draws_dropout_masks_of_its_own() -> None:
    teacher = Teacher(student(dropout=0.5))
    images = normal(4, 1, 8, 8).float()
    assert not torch.equal(teacher(images), teacher(images))
