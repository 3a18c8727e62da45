"""How good a model is on images whose classes are known."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from manigraph.contract import ImageTable


@dataclass(frozen=True)
class Evaluation:
    """Errors in per cent."""

    num_images: int
    error: float
    """Share of wrong predictions, in per cent."""
    class_errors: tuple[float | None, ...]
    """The same for each class; None for a class without images."""
    calibration_error: float
    """Expected calibration error (15 bins), in per cent: how far confidence is from accuracy."""


@torch.no_grad()
def predict_logits(model: nn.Module, images: ImageTable, indices: Tensor, batch_size: int = 512) -> Tensor:
    """Logits of the images at `indices`, in evaluation mode; the model's mode is restored afterwards."""
    was_training = model.training
    model.eval()
    try:
        return torch.cat([model(images.prepare(images.stored(chunk))) for chunk in indices.split(batch_size)])
    finally:
        model.train(was_training)


def evaluate(logits: Tensor, classes: Tensor) -> Evaluation:
    """Error, error of each class, and calibration error of predictions."""
    # Half a second of import that commands which evaluate nothing do not pay.
    from torchmetrics.functional.classification import multiclass_calibration_error

    C = logits.shape[1]
    wrong = logits.argmax(dim=1) != classes
    class_errors = tuple(
        100 * wrong[classes == c].double().mean().item() if (classes == c).any() else None for c in range(C)
    )
    probs = logits.softmax(dim=1)
    calibration = multiclass_calibration_error(probs, classes, num_classes=C, n_bins=15, norm="l1")
    return Evaluation(
        num_images=len(classes),
        error=100 * wrong.double().mean().item(),
        class_errors=class_errors,
        calibration_error=100 * calibration.item(),
    )
