"""Images of one class side by side, those of others apart (Luo et al. 2018, section 3)."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor


def neighbour_contrast(
    features: Float[Tensor, "B D"], classes: Int[Tensor, " B"], *, margin: float
) -> Float[Tensor, ""]:
    """L_G: how far neighbours are apart, and strangers together; the mean over all unordered pairs of images.

    Of the pair i, j: d_ij² if W_ij = 1, max(m - d_ij, 0)² if W_ij = 0. W, the graph, is 1 where the classes
    of i and j agree, else 0, and d_ij² = 1/D Σ_k (h_ik - h_jk)².

    The distance is the root mean square over the D features, not the sum, so that the margin means the same
    for any D. Images that are the same in all features and should be apart are left where they are: there
    is no direction to push them in, and their gradient is 0. With one image there is no pair, and the loss
    is 0. Memory grows with B², and not with B² D.

    Args:
        features: h, before the last layer.
        classes: The true class where it is known, else the target's prediction.
        margin: m, the distance at which two images of different classes are far enough apart.
    """
    B, D = features.shape
    features = features.to(
        torch.promote_types(features.dtype, torch.float32)
    )  # half is too coarse for a root
    i, j = torch.triu_indices(B, B, offset=1, device=features.device)  # the order of pdist
    neighbours = classes[i] == classes[j]  # W, (pairs,)
    distances = torch.pdist(features) / math.sqrt(D)  # (pairs,); its gradient at 0 is 0
    terms = torch.where(neighbours, distances, (margin - distances).clamp_min(0)).square()
    return terms.sum() / max(len(terms), 1)
