"""How good a model is on images whose classes are known."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from manigraph.contract import ImageTable
from manigraph.sharding import ALONE, Shard


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
def predict_logits(
    model: nn.Module,
    images: ImageTable,
    indices: Tensor,
    batch_size: int = 512,
    *,
    shard: Shard = ALONE,
    before_batch: Callable[[], None] = lambda: None,
) -> Tensor:
    """Logits of the images at `indices`, in evaluation mode; the model's mode is restored afterwards.

    Several processes share the work and all get all logits. `before_batch` is called again and again, and
    may raise something to end it.
    """
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    # Equally many for each process: the last image fills up.
    missing = -len(indices) % shard.size
    own = shard.own(torch.cat([indices, indices[-1:].expand(missing)]))
    was_training = model.training
    model.eval()
    try:
        logits = []
        for chunk in own.split(batch_size):
            before_batch()
            logits.append(model(images.prepare(images.stored(chunk)).to(device)))
        return shard.gather(torch.cat(logits))[: len(indices)].cpu()
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
