"""A teacher follows its student, and nothing teaches it."""

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


def test_it_keeps_a_share_of_its_weights() -> None:
    model = student()
    teacher = Teacher(model)
    before = copied(dict(teacher.model.named_parameters()))
    move(model)
    teacher.follow(model, decay=0.75)
    for name, parameter in teacher.model.named_parameters():
        torch.testing.assert_close(parameter, 0.75 * before[name] + 0.25 * (before[name] + 1))


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
