"""Whitening written out in float64 with loops over eigenvectors."""

import numpy as np
import numpy.typing as npt


def zca(
    fitted_on: npt.NDArray[np.float64], images: npt.NDArray[np.float64], regulariser: float
) -> npt.NDArray[np.float64]:
    """Σ over eigenvectors u of the covariance: u (uᵀ (x - mean)) / √(λ + regulariser)."""
    mean = fitted_on.mean(axis=0)
    centred = fitted_on - mean
    covariance = centred.T @ centred / len(fitted_on)
    eigenvalues, vectors = np.linalg.eigh(covariance)
    whitened = np.zeros_like(images)
    for eigenvalue, vector in zip(eigenvalues, vectors.T, strict=True):
        for row in range(len(images)):
            along = float(vector @ (images[row] - mean))
            whitened[row] += along / np.sqrt(eigenvalue + regulariser) * vector
    return whitened
