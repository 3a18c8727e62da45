"""The equations of Manifold Graph and of the other methods as pure functions on tensors.

Nothing here holds state, and nothing imports the rest of the package, so any function can be
taken into other PyTorch code. `docs/equations.md` maps each formula to its function and its test.
"""

from manigraph.functional.adversarial import (
    virtual_adversarial_direction,
    virtual_adversarial_perturbation,
)
from manigraph.functional.class_memory import (
    ClassSlots,
    class_address,
    memory_divergence,
    memory_logits,
    updated_slots,
)
from manigraph.functional.clustering import (
    clustering_loss,
    ideal_transitions,
    propagated_labels,
    transition_log_probs,
)
from manigraph.functional.consistency import (
    class_imbalance,
    entropy,
    kl_consistency,
    kl_divergence,
    largest_class_share,
    mse_consistency,
)
from manigraph.functional.cotraining import (
    gradient_sign,
    gradient_sign_perturbation,
    prediction_cross_entropy,
    view_disagreement,
)
from manigraph.functional.ensemble import accumulated, bias_corrected
from manigraph.functional.graph import (
    attention_entropy,
    attention_weights,
    context_messages,
    image_context,
    image_share,
    message_parts,
    own_class_attention,
    prototype_context,
    refine,
    refine_images,
    refine_prototypes,
)
from manigraph.functional.mixing import (
    mean_log_probs,
    mix,
    sharpen,
    soft_cross_entropy,
    soft_squared_error,
    symmetric_beta,
)
from manigraph.functional.neighbours import neighbour_contrast
from manigraph.functional.prototype_classification import prototype_cross_entropy
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
from manigraph.functional.pseudo_labels import confident_cross_entropy

__all__ = [
    "ClassSlots",
    "accumulated",
    "anchor_angle",
    "anchor_boundary",
    "anchor_magnitude",
    "attention_entropy",
    "attention_weights",
    "bias_corrected",
    "class_address",
    "class_centres",
    "class_imbalance",
    "clustering_loss",
    "confident_cross_entropy",
    "context_messages",
    "cosine_similarity",
    "divergence",
    "entropy",
    "gradient_sign",
    "gradient_sign_perturbation",
    "ideal_transitions",
    "image_context",
    "image_share",
    "kl_consistency",
    "kl_divergence",
    "largest_class_share",
    "mean_log_probs",
    "memory_divergence",
    "memory_logits",
    "message_parts",
    "mix",
    "mse_consistency",
    "nearest_centre",
    "neighbour_contrast",
    "own_class_attention",
    "prediction_cross_entropy",
    "propagated_labels",
    "prototype_context",
    "prototype_cross_entropy",
    "prototype_similarity",
    "refine",
    "refine_images",
    "refine_prototypes",
    "sharpen",
    "soft_cross_entropy",
    "soft_squared_error",
    "symmetric_beta",
    "transition_log_probs",
    "updated_slots",
    "view_disagreement",
    "virtual_adversarial_direction",
    "virtual_adversarial_perturbation",
]
