"""One compact cluster for each class: the graph over a batch of Kamnitsas et al. (2018).

Nodes are the N images of a batch, the labelled ones first. Probabilities become very small here: use float64.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


def transition_log_probs(features: Float[Tensor, "N D"], *, scale: float = 1.0) -> Float[Tensor, "N N"]:
    """The logarithm of H: H_ij = exp(z_i·z_j) / Σ_k exp(z_i·z_k), the chance to walk from image i to j.

    Args:
        features: z.
        scale: Factor on the dot products; 1 is the paper's.
    """
    return F.log_softmax(scale * (features @ features.T), dim=1)


def propagated_labels(
    log_transitions: Float[Tensor, "N N"], labels: Int[Tensor, " L"], num_classes: int, *, smoothing: float
) -> Float[Tensor, "N C"]:
    """Φ: the labels Y_L of the labelled images, and Φ_U = (I - H_UU)⁻¹ H_UL Y_L of the others.

    Φ_U is the chance that a walk from an unlabelled image meets a label of each class first (Zhu & Ghahramani
    2002). To stay where one is changes nothing about that, so the diagonal of H is left out and the rows are
    normalised without it: the answer is the same, and I - H_UU is far from singular also where an image is
    much more similar to itself than to any other. Differentiable.

    Args:
        log_transitions: log H, labelled images first.
        labels: Classes of the labelled images.
        num_classes: C.
        smoothing: Chance to walk to any other image alike; above 0 there is a way to a label from everywhere.
    """
    N, L = len(log_transitions), len(labels)
    itself = torch.eye(N, dtype=torch.bool, device=labels.device)
    to_any = (~itself).to(log_transitions.dtype) / max(N - 1, 1)
    walk = log_transitions.masked_fill(itself, -torch.inf)[L:].softmax(dim=1)  # (U, N)
    walk = (1 - smoothing) * walk + smoothing * to_any[L:]
    to_labelled, to_unlabelled = walk[:, :L], walk[:, L:]
    known = F.one_hot(labels, num_classes).to(log_transitions.dtype)  # (L, C)
    system = torch.eye(N - L, dtype=walk.dtype, device=walk.device) - to_unlabelled
    return torch.cat([known, torch.linalg.solve(system, to_labelled @ known)])


def ideal_transitions(posteriors: Float[Tensor, "N C"]) -> Float[Tensor, "N N"]:
    """T_ij = Σ_c φ_ic φ_jc / m_c with m_c = Σ_i φ_ic: to all images of one's own class alike.

    A class that nobody belongs to, because no labelled image of it is in the batch, takes no part.
    """
    mass = posteriors.sum(dim=0)  # (C,)
    return posteriors @ (posteriors / mass.masked_fill(mass == 0, 1)).T


def clustering_loss(
    log_transitions: Float[Tensor, "N N"], posteriors: Float[Tensor, "N C"], *, num_steps: int
) -> Float[Tensor, ""]:
    """Mean over s = 1 … S and over rows i of -Σ_j T_ij log H^(s)_ij.

    H^(1) = H and H^(s) = (H ∘ M) H^(s-1) with M = Φ Φᵀ: s steps, of which all but the last stay within a
    class. So images are pulled together along the ways that lead there already.

    Args:
        log_transitions: log H.
        posteriors: Φ.
        num_steps: S, the longest walk.
    """
    if num_steps < 1:
        raise ValueError(f"a walk has at least 1 step, got {num_steps}")
    ideal = ideal_transitions(posteriors)
    transitions = log_transitions.exp()
    within_class = transitions * (posteriors @ posteriors.T)
    # Below this a gradient would overflow on its way back; the first step has no such bound.
    smallest = torch.finfo(transitions.dtype).tiny ** 0.5
    loss = -(ideal * log_transitions).sum(dim=1).mean()
    for _ in range(2, num_steps + 1):
        transitions = within_class @ transitions
        loss = loss - (ideal * transitions.clamp_min(smallest).log()).sum(dim=1).mean()
    return loss / num_steps
