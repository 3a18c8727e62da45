"""Compact latent space clustering (Kamnitsas et al. 2018): a walk over the images of a batch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.reference.consistency import added, softmax


def transitions(features: Tensor, *, scale: float = 1.0) -> Tensor:
    """H_ij = exp(z_i·z_j) / Σ_k exp(z_i·z_k), the way to oneself included."""
    rows = []
    for z in features:
        similarities = [scale * added(a * b for a, b in zip(z, other, strict=True)) for other in features]
        rows.append(torch.stack(softmax(torch.stack(similarities))))
    return torch.stack(rows)


def one_hot(labels: Sequence[int], num_classes: int) -> Tensor:
    return torch.tensor(
        [[float(label == c) for c in range(num_classes)] for label in labels], dtype=torch.float64
    )


def without_staying(H: Tensor, smoothing: float) -> Tensor:
    """Each row without its diagonal, normalised again; then a little of walking to anybody else."""
    N = len(H)
    rows = []
    for i in range(N):
        leaving = added(H[i, j] for j in range(N) if j != i)
        rows.append(
            torch.stack(
                [
                    0 * leaving if j == i else (1 - smoothing) * H[i, j] / leaving + smoothing / (N - 1)
                    for j in range(N)
                ]
            )
        )
    return torch.stack(rows)


def solved(system: Tensor, right: Tensor) -> Tensor:
    """X with A X = B, by elimination one row after the other."""
    rows = [list(row) + list(b) for row, b in zip(system, right, strict=True)]
    size = len(rows)
    for i in range(size):
        rows[i] = [value / rows[i][i] for value in rows[i]]
        for other in range(size):
            if other != i:
                factor = rows[other][i]
                rows[other] = [v - factor * w for v, w in zip(rows[other], rows[i], strict=True)]
    return torch.stack([torch.stack(row[size:]) for row in rows])


def propagated(H: Tensor, labels: Sequence[int], num_classes: int) -> Tensor:
    """Y_L, then (I - H_UU)⁻¹ H_UL Y_L, with whatever diagonal H has."""
    L, N = len(labels), len(H)
    known = one_hot(labels, num_classes)
    system = torch.stack(
        [torch.stack([(1.0 if i == j else 0.0) - H[i, j] for j in range(L, N)]) for i in range(L, N)]
    )
    right = torch.stack(
        [
            torch.stack([added(H[i, k] * known[k, c] for k in range(L)) for c in range(num_classes)])
            for i in range(L, N)
        ]
    )
    return torch.cat([known, solved(system, right)])


def walked(H: Tensor, labels: Sequence[int], num_classes: int, *, num_steps: int) -> Tensor:
    """The same by walking: Φ ← H Φ again and again, labelled images keeping their labels."""
    known = one_hot(labels, num_classes)
    phi = torch.cat([known, torch.zeros(len(H) - len(labels), num_classes, dtype=torch.float64)])
    for _ in range(num_steps):
        phi = torch.cat([known, (H @ phi)[len(labels) :]])
    return phi


def ideal(phi: Tensor) -> Tensor:
    """T_ij = Σ_c φ_ic φ_jc / Σ_k φ_kc over the classes that occur."""
    N, C = phi.shape
    masses = [added(phi[:, c]) for c in range(C)]
    present = [c for c in range(C) if masses[c].item() > 0]
    return torch.stack(
        [
            torch.stack([added(phi[i, c] * phi[j, c] / masses[c] for c in present) for j in range(N)])
            for i in range(N)
        ]
    )


def same_class(phi: Tensor) -> Tensor:
    """M_ij = Σ_c φ_ic φ_jc."""
    N, C = phi.shape
    return torch.stack(
        [torch.stack([added(phi[i, c] * phi[j, c] for c in range(C)) for j in range(N)]) for i in range(N)]
    )


def loss(H: Tensor, phi: Tensor, *, num_steps: int) -> Tensor:
    """Mean over s of 1/N Σ_i Σ_j -T_ij log H^(s)_ij; H^(s) = (H∘M)^(s-1) H, one entry after the other."""
    N = len(H)
    T, M = ideal(phi), same_class(phi)
    steps, terms = H, []
    for s in range(1, num_steps + 1):
        if s > 1:
            steps = torch.stack(
                [
                    torch.stack([added(H[i, k] * M[i, k] * steps[k, j] for k in range(N)) for j in range(N)])
                    for i in range(N)
                ]
            )
        terms.append(added(-T[i, j] * torch.log(steps[i, j]) for i in range(N) for j in range(N)) / N)
    return added(terms) / num_steps
