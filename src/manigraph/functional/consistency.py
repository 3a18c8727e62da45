"""How far two predictions are apart, and how undecided one is (paper, section 3.1)."""

import math

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def kl_divergence(
    target_logits: Float[Tensor, "B C"], student_logits: Float[Tensor, "B C"]
) -> Float[Tensor, " B"]:
    """KL(target ‖ student) of each image, the target being a constant.

    KL_b = Σ_c t_bc (log t_bc - log s_bc), with t and s the softmax of the two logits.

    Args:
        target_logits: Logits whose softmax is the target; no gradient flows into them.
        student_logits: Logits whose softmax is pulled towards the target.
    """
    target_log_probs = F.log_softmax(target_logits.detach(), dim=1)
    student_log_probs = F.log_softmax(student_logits, dim=1)
    return (target_log_probs.exp() * (target_log_probs - student_log_probs)).sum(dim=1)


def kl_consistency(
    target_logits: Float[Tensor, "B C"], student_logits: Float[Tensor, "B C"]
) -> Float[Tensor, ""]:
    """L_con in its KL form: the mean of `kl_divergence` over the images."""
    return kl_divergence(target_logits, student_logits).mean()


def mse_consistency(
    target_logits: Float[Tensor, "B C"], student_logits: Float[Tensor, "B C"]
) -> Float[Tensor, ""]:
    """L_con in its squared-error form: mean over images of Σ_c (t_bc - s_bc)².

    The sum over classes, not their mean, so that its size does not shrink with C. Bounded by 2
    per image, which makes it the gentler choice when labels are very few.
    """
    target_probs = F.softmax(target_logits.detach(), dim=1)
    student_probs = F.softmax(student_logits, dim=1)
    return (target_probs - student_probs).square().sum(dim=1).mean()


def entropy(logits: Float[Tensor, "B C"]) -> Float[Tensor, ""]:
    """L_em: the mean over images of -Σ_c p_bc log p_bc, with p the softmax of the logits."""
    log_probs = F.log_softmax(logits, dim=1)
    return -(log_probs.exp() * log_probs).sum(dim=1).mean()


def largest_class_share(logits: Float[Tensor, "B C"]) -> Float[Tensor, ""]:
    """Share of the images whose largest logit is that of the most frequent such class: 1 if all agree."""
    return logits.argmax(dim=1).bincount().max() / len(logits)


def class_imbalance(
    logits: Float[Tensor, "B C"], shares: Float[Tensor, " C"] | None = None
) -> Float[Tensor, ""]:
    """KL(shares ‖ mean prediction of the batch): 0 if classes are predicted as often as they should be.

    Not in the paper. With one or two labels per class, consistency alone can merge whole classes;
    this term notices. It assumes that the shares of the classes among unlabelled images are known; without
    `shares` all are equal. Shares are above 0 and sum to 1.
    """
    C = logits.shape[1]
    mean_log_probs = F.log_softmax(logits, dim=1).logsumexp(dim=0) - math.log(len(logits))  # (C,)
    if shares is None:
        return -math.log(C) - mean_log_probs.mean()
    return (shares * (shares.log() - mean_log_probs)).sum()
