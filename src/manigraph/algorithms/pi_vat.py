"""Π-VAT, the baseline of Kuo et al. (2019, section 3.1): a Π-model with adversarial noise.

| equation | function |
|---|---|
| L_clf,I | `torch.nn.functional.cross_entropy` |
| r = ε g/‖g‖, g = ∇_d KL(p(x1) ‖ p(x2 + ξ d)) | `functional.virtual_adversarial_perturbation` |
| L_con = KL(p(x1) ‖ p(x2 + r)) | `functional.kl_consistency` or `functional.mse_consistency` |
| L_em = H(p(x1)) | `functional.entropy` |

The paper does not say against which prediction r is found; here it is the target itself, p(x1), and
`adversarial_reference="own_view"` takes p(x2) instead. Where targets are balanced (`balance_memory`), r
is still found against the prediction itself: what is balanced is only what the student is told.
"""

from dataclasses import dataclass

from manigraph.algorithms.comparisons import ComparisonAlgorithm, PiVATConfig


class PiVAT(ComparisonAlgorithm["PiVAT.Config"]):
    """One view predicts, the other, adversarially disturbed, must agree."""

    comparison_name = "pi_vat"

    @dataclass(frozen=True)
    class Config(PiVATConfig):
        """Settings of Π-VAT."""
