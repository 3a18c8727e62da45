import math

import pytest
import torch
from torch import nn

from manigraph.training.evaluation import evaluate, predict_logits
from tests.helpers import Table


def test_error_and_class_errors_by_hand() -> None:
    # Predictions 0, 1, 1, 2 for classes 0, 0, 1, 2 of 4: one of four wrong; class 0 half wrong.
    logits = 10 * torch.eye(4)[torch.tensor([0, 1, 1, 2])]
    result = evaluate(logits, torch.tensor([0, 0, 1, 2]))
    assert result.num_images == 4
    assert result.error == 25.0
    assert result.class_errors == (50.0, 0.0, 0.0, None)


def test_calibration_error_by_hand() -> None:
    # Ten predictions with probability 0.8, of which five are right: |0.8 - 0.5| = 30 %.
    logits = torch.tensor([[math.log(0.8), math.log(0.2)]]).repeat(10, 1)
    classes = torch.tensor([0] * 5 + [1] * 5)
    assert evaluate(logits, classes).calibration_error == pytest.approx(30.0, abs=1e-3)


def test_prediction_is_in_evaluation_mode_and_restores_the_mode() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.9)).train()
    x = torch.randn(10, 3)
    indices = torch.tensor([7, 0, 3, 9, 9, 1])
    logits = predict_logits(model, Table(x), indices, batch_size=4)
    assert torch.allclose(logits, model[0](x[indices]))
    assert model.training
    assert not logits.requires_grad
