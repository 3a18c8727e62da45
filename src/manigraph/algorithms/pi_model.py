"""Π-model (Laine & Aila 2017; Sajjadi et al. 2016).

| equation | function |
|---|---|
| L_clf,I | `torch.nn.functional.cross_entropy` |
| L_con = KL(p(x1) ‖ p(x2)) | `functional.kl_consistency` or `functional.mse_consistency` |
| L_em = H(p(x1)) | `functional.entropy` |

Two views of each unlabelled image, each with its own augmentation and dropout masks; the first gives
the target, the second is the student. L_em and its weight are those of the manifold-graph paper's
baselines; Laine & Aila have no such term, and use MSE with a ramp (`consistency`, `ramp_fraction`).

The pass over the first views alone moves running statistics. Labelled images go with them, or, where neither
entropy nor balance learns from the first views, with the second ones, and the first have no gradient.
"""

from dataclasses import dataclass

from manigraph.algorithms.comparisons import ComparisonAlgorithm, NoiseConfig


class PiModel(ComparisonAlgorithm["PiModel.Config"]):
    """Two views of an unlabelled image must give the same prediction."""

    comparison_name = "pi_model"

    @dataclass(frozen=True)
    class Config(NoiseConfig):
        """Settings of the Π-model."""
