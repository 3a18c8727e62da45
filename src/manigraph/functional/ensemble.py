"""The running mean of an image's predictions (Laine & Aila 2017, section 2.2)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def accumulated(
    ensemble: Float[Tensor, "N C"], probs: Float[Tensor, "N C"], *, decay: float
) -> Float[Tensor, "N C"]:
    """Z ← α Z + (1 - α) z.

    Args:
        ensemble: Z, from 0 on.
        probs: z, the newest predictions of the same images.
        decay: α, from 0 to below 1.
    """
    return decay * ensemble + (1 - decay) * probs


def bias_corrected(
    ensemble: Float[Tensor, "N C"], count: Int[Tensor, " N"], *, decay: float
) -> Float[Tensor, "N C"]:
    """z̃ = Z / (1 - α^t): what the weights of the t predictions in Z are missing for a sum of 1.

    The paper's t is the epoch, the same for all images; here each image has its own. An image without a
    prediction has Z = 0, and stays at 0.

    Args:
        ensemble: Z.
        count: t, how many predictions of each image are in Z.
        decay: α, from 0 to below 1.
    """
    weight = 1 - decay ** count.to(ensemble.dtype)  # (N,), 0 if there is none
    return ensemble / torch.where(count > 0, weight, 1).unsqueeze(1)
