"""The equations of Manifold Graph as pure functions on tensors.

Nothing here holds state, and nothing imports the rest of the package, so any function can be
taken into other PyTorch code. `docs/equations.md` maps each formula to its function and its test.
"""

from manigraph.functional.adversarial import (
    virtual_adversarial_direction,
    virtual_adversarial_perturbation,
)
from manigraph.functional.consistency import (
    class_imbalance,
    entropy,
    kl_consistency,
    kl_divergence,
    largest_class_share,
    mse_consistency,
)
from manigraph.functional.graph import (
    attention_entropy,
    attention_weights,
    image_context,
    image_share,
    own_class_attention,
    prototype_context,
    refine,
    refine_prototypes,
)
from manigraph.functional.prototypes import (
    anchor_angle,
    anchor_boundary,
    anchor_magnitude,
    class_centres,
    cosine_similarity,
    divergence,
    nearest_centre,
    prototype_similarity,
)

__all__ = [
    "anchor_angle",
    "anchor_boundary",
    "anchor_magnitude",
    "attention_entropy",
    "attention_weights",
    "class_centres",
    "class_imbalance",
    "cosine_similarity",
    "divergence",
    "entropy",
    "image_context",
    "image_share",
    "kl_consistency",
    "kl_divergence",
    "largest_class_share",
    "mse_consistency",
    "nearest_centre",
    "own_class_attention",
    "prototype_context",
    "prototype_similarity",
    "refine",
    "refine_prototypes",
    "virtual_adversarial_direction",
    "virtual_adversarial_perturbation",
]
