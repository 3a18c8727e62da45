"""Laine & Aila (2017, algorithm 2): the ensemble of the predictions of each image, number by number."""

from dataclasses import dataclass, field


@dataclass
class ImageEnsemble:
    """Z and t of one image."""

    total: list[float] = field(default_factory=list)
    count: int = 0

    def take(self, probs: list[float], decay: float) -> None:
        """Z ← α Z + (1 - α) z, from 0."""
        old = self.total or [0.0] * len(probs)
        self.total = [decay * Z + (1 - decay) * z for Z, z in zip(old, probs, strict=True)]
        self.count += 1

    def target(self, decay: float) -> list[float] | None:
        """Z / (1 - α^t), if there is one."""
        return [Z / (1 - decay**self.count) for Z in self.total] if self.count else None


def weighted_mean(predictions: list[list[float]], decay: float) -> list[float]:
    """What the target of an image is in the end: α^(t - k) of its k-th prediction, divided by their sum."""
    weights = [decay ** (len(predictions) - 1 - k) for k in range(len(predictions))]
    num_classes = len(predictions[0])
    return [
        sum(w * probs[c] for w, probs in zip(weights, predictions, strict=True)) / sum(weights)
        for c in range(num_classes)
    ]
