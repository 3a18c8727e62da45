"""Targets that are one class, where a prediction is sure enough."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def confident_cross_entropy(
    target_logits: Float[Tensor, "U C"], student_logits: Float[Tensor, "U C"], *, threshold: float
) -> Float[Tensor, ""]:
    """1/U Σ_u 1[max q_u ≥ threshold] H(argmax q_u, p_u), with q the target's and p the student's prediction.

    Lee (2013) with threshold 0 and one prediction as both; Sohn et al. (2020, eq. 4) with views of different
    strength. The target is constant. Images below the threshold count as zero, so the term grows with the
    number of sure ones.
    """
    with torch.no_grad():
        confidence, classes = target_logits.softmax(dim=1).max(dim=1)
        sure = confidence >= threshold
    losses = F.cross_entropy(student_logits, classes, reduction="none")
    return (losses * sure).mean()
