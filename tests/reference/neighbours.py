"""Luo et al. (2018): the contrastive loss on the teacher graph, pair by pair."""

import torch
from torch import Tensor

from tests.reference.consistency import added


def neighbour_contrast(features: Tensor, classes: Tensor, *, margin: float) -> Tensor:
    """Neighbours: d². Others: max(m - d, 0)². Mean over pairs, d² being the mean over the features."""
    B, D = features.shape
    terms = []
    for i in range(B):
        for j in range(i + 1, B):
            square = added((features[i, k] - features[j, k]) ** 2 for k in range(D)) / D
            if int(classes[i]) == int(classes[j]):
                terms.append(square)
            elif square.item() == 0:  # the root has no gradient here
                terms.append(torch.tensor(margin**2, dtype=torch.float64))
            elif (shortfall := margin - torch.sqrt(square)).item() > 0:
                terms.append(shortfall**2)
            else:
                terms.append(torch.zeros((), dtype=torch.float64))
    return added(terms) / max(len(terms), 1)
