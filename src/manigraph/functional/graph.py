"""Message passing in the graph of one image and all prototypes (paper, section 3.2).

Each image has its own graph of P + 1 nodes. Written out, that is B graphs with (P + 1)² edges each;
here the same numbers come from P² + B·P edges, because the P² edges among prototypes are the same
in every graph and an image enters a prototype's softmax as one more exponential:

    A_pq = g_p·g_q (p ≠ q),  z_p = log Σ_q exp A_pq,  m_p = Σ_q softmax_q(A_p·) g_q,
    s_bp = g_b·g_p,          α_bp = exp s_bp / (exp s_bp + exp z_p) = sigmoid(s_bp - z_p),
    context of prototype p in image b's graph = (1 - α_bp) m_p + α_bp g_b.

Embeddings g carry a head axis: (nodes, H, E). Heads never mix before φ2.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

LEAKY_SLOPE = 0.1
EDGES_AT_ONCE = 1 << 24
"""64 MB in float32; with one head up to 4,096 prototypes are computed as one."""


class PrototypeContext(NamedTuple):
    """What a prototype hears from the other prototypes."""

    log_normaliser: Float[Tensor, "P H"]
    """z_p, the logarithm of the softmax denominator without the image."""
    mean: Float[Tensor, "P H E"]
    """m_p, the attention-weighted mean of the other prototypes' embeddings."""


class MessageParts(NamedTuple):
    """f̂_bp = LeakyReLU(without_image_p + Σ_h share_bhp (of_image_hb - of_prototypes_hp))."""

    without_image: Float[Tensor, "P D"]
    """Itself and what it would hear if there were prototypes alone."""
    of_prototypes: Float[Tensor, "H P D"]
    """φ2 of the other prototypes' mean m_p."""
    of_image: Float[Tensor, "H B D"]
    """φ2 of the image's embedding g_b."""
    share: Float[Tensor, "B H P"]
    """α_bp."""


def attention_weights(
    image_embeddings: Float[Tensor, "B H E"],
    prototype_embeddings: Float[Tensor, "P H E"],
    *,
    scale: float = 1.0,
) -> Float[Tensor, "B H P"]:
    """w_bp = softmax over p of scale · g_b·g_p: the image's row of the adjacency matrix.

    The image's own edge is left out, so only prototypes remain and no mask is needed.
    """
    scores = _scores(image_embeddings, prototype_embeddings, scale)  # (H, B, P)
    return F.softmax(scores, dim=2).transpose(0, 1)


def own_class_attention(
    weights: Float[Tensor, "B H P"], classes: Int[Tensor, " B"], num_classes: int
) -> Float[Tensor, ""]:
    """Σ w_bp over the prototypes p of image b's own class: mean over images and heads.

    Args:
        weights: Rows of `attention_weights`.
        classes: Class of every image.
        num_classes: C; prototypes are class-major.
    """
    by_class: Tensor = weights.unflatten(2, (num_classes, -1)).sum(dim=3)  # (B, H, C)
    own: Tensor = by_class[torch.arange(len(classes), device=classes.device), :, classes]  # (B, H)
    return own.mean()


def attention_entropy(weights: Float[Tensor, "B H P"]) -> Float[Tensor, ""]:
    """-Σ_p w_bp log w_bp / log P, mean over images and heads: 0 for a single prototype, 1 for all alike."""
    entropies: Tensor = torch.special.entr(weights).sum(dim=2)  # (B, H)
    return entropies.mean() / math.log(weights.shape[2])


def image_context(
    image_embeddings: Float[Tensor, "B H E"],
    prototype_embeddings: Float[Tensor, "P H E"],
    *,
    scale: float = 1.0,
) -> Float[Tensor, "B H E"]:
    """Σ_p w_bp g_p: what an image hears from the prototypes."""
    weights = attention_weights(image_embeddings, prototype_embeddings, scale=scale)  # (B, H, P)
    return torch.bmm(weights.transpose(0, 1), prototype_embeddings.transpose(0, 1)).transpose(0, 1)


def prototype_context(
    prototype_embeddings: Float[Tensor, "P H E"], *, scale: float = 1.0, edges_at_once: int = EDGES_AT_ONCE
) -> PrototypeContext:
    """z_p and m_p: attention among prototypes, the self edge masked before the softmax.

    Differentiable once.

    Args:
        prototype_embeddings: g of all prototypes.
        scale: Factor on the dot products.
        edges_at_once: Where there are more than this, the rows of the P·P edges are computed part by part,
            and once more in the backward pass, so that they are never all in memory.
    """
    if len(prototype_embeddings) < 2:
        raise ValueError(
            f"attention among prototypes needs at least 2 prototypes, got {len(prototype_embeddings)}"
        )
    g = prototype_embeddings.transpose(0, 1)  # (H, P, E)
    with torch.autocast(g.device.type, enabled=False):
        # Sums of many exponentials, so never in half precision.
        g = g.to(torch.promote_types(g.dtype, torch.float32))
        log_normaliser, mean = _PrototypeContext.apply(g, scale, edges_at_once)  # type: ignore[no-untyped-call]
    return PrototypeContext(log_normaliser.T, mean.transpose(0, 1))


class _PrototypeContext(torch.autograd.Function):
    """With W_pq = softmax_q A_pq, dA_pq = W_pq (dz_p + dm_p·g_q - dm_p·m_p) and dg = (dA + dAᵀ) g + Wᵀ dm.

    Written by hand it is one softmax and no second logarithm of a sum, and may forget the edges.
    """

    @staticmethod
    def forward(context: Any, g: Tensor, scale: float, edges_at_once: int) -> tuple[Tensor, Tensor]:
        H, P, _ = g.shape
        context.scale, context.rows_at_once = scale, max(1, edges_at_once // (P * H))
        log_normaliser, mean = g.new_empty(H, P), torch.empty_like(g)
        kept = []
        for rows in _rows(P, context.rows_at_once):
            scores = torch.bmm(g[:, rows], g.mT).mul_(scale)  # (H, r, P)
            scores.diagonal(rows.start, dim1=1, dim2=2).fill_(-torch.inf)
            weights = torch.softmax(scores, dim=2)
            # The largest weight is at least 1 / P, so its logarithm is exact.
            log_normaliser[:, rows] = scores.amax(dim=2) - weights.amax(dim=2).log_()
            mean[:, rows] = torch.bmm(weights, g)
            if context.rows_at_once >= P:
                kept = [weights]
        context.save_for_backward(g, log_normaliser, mean, *kept)
        return log_normaliser, mean

    @staticmethod
    @once_differentiable
    def backward(context: Any, to_log_normaliser: Tensor, to_mean: Tensor) -> tuple[Tensor, None, None]:
        g, log_normaliser, mean, *kept = context.saved_tensors
        scale = context.scale
        with torch.autocast(g.device.type, enabled=False):
            constant = (to_log_normaliser - torch.linalg.vecdot(to_mean, mean)).unsqueeze(2)  # (H, P, 1)
            to_g = torch.zeros_like(g)
            for rows in _rows(g.shape[1], context.rows_at_once):
                weights = kept[0] if kept else _weights_again(g, log_normaliser, rows, scale)
                to_g.baddbmm_(weights.mT, to_mean[:, rows])
                to_scores = torch.baddbmm(constant[:, rows], to_mean[:, rows], g.mT).mul_(weights)
                to_g.baddbmm_(to_scores.mT, g[:, rows], alpha=scale)
                to_g[:, rows].baddbmm_(to_scores, g, alpha=scale)
        return to_g, None, None


def _rows(count: int, at_once: int) -> Iterator[slice]:
    return (slice(start, min(count, start + at_once)) for start in range(0, count, at_once))


def _weights_again(g: Tensor, log_normaliser: Tensor, rows: slice, scale: float) -> Tensor:
    """The softmax of the edges of some rows, whose denominator is known by now."""
    weights = torch.baddbmm(-log_normaliser[:, rows].unsqueeze(2), g[:, rows], g.mT, alpha=scale).exp_()
    weights.diagonal(rows.start, dim1=1, dim2=2).fill_(0)
    return weights


def image_share(
    image_embeddings: Float[Tensor, "B H E"],
    prototype_embeddings: Float[Tensor, "P H E"],
    log_normaliser: Float[Tensor, "P H"],
    *,
    scale: float = 1.0,
) -> Float[Tensor, "B H P"]:
    """α_bp = sigmoid(s_bp - z_p): the weight of image b in prototype p's row of its graph."""
    scores = _scores(image_embeddings, prototype_embeddings, scale)  # (H, B, P)
    return torch.sigmoid(scores - log_normaliser.T.unsqueeze(1)).transpose(0, 1)


def context_messages(
    prototype_embeddings: Float[Tensor, "P H E"],
    weight: Float[Tensor, "D F"],
    bias: Float[Tensor, " D"],
) -> Float[Tensor, "H P D"]:
    """What φ2 makes of each prototype's embedding g_p as a context; each head has its share of the bias.

    φ2 is linear and an image's weights w_bp sum to 1, so the weighted mean of these is what φ2 makes of the
    context Σ_p w_bp g_p: P rows once a step instead of B in every pass.
    """
    _, H, E = prototype_embeddings.shape
    context_weight = weight[:, H * E :].unflatten(1, (H, E)).permute(1, 2, 0)  # (H, E, D)
    return torch.baddbmm((bias / H).expand(H, 1, -1), prototype_embeddings.transpose(0, 1), context_weight)


def refine_images(
    features: Float[Tensor, "B D"],
    image_embeddings: Float[Tensor, "B H E"],
    prototype_embeddings: Float[Tensor, "P H E"],
    messages: Float[Tensor, "H P D"],
    weight: Float[Tensor, "D F"],
    *,
    scale: float = 1.0,
) -> Float[Tensor, "B D"]:
    """f̂ = LeakyReLU(f + φ2([g, Σ_p w_bp g_p])) of images, given the `context_messages` of the prototypes."""
    weights = attention_weights(image_embeddings, prototype_embeddings, scale=scale)  # (B, H, P)
    g = image_embeddings.flatten(1)
    total = torch.addmm(features, g, weight[:, : g.shape[1]].T)
    for of_head, messages_of_head in zip(weights.unbind(1), messages, strict=True):
        total = torch.addmm(total, of_head, messages_of_head)
    return F.leaky_relu(total, LEAKY_SLOPE)


def refine(
    features: Float[Tensor, "N D"],
    embeddings: Float[Tensor, "N H E"],
    context: Float[Tensor, "N H E"],
    weight: Float[Tensor, "D F"],
    bias: Float[Tensor, " D"],
) -> Float[Tensor, "N D"]:
    """f̂ = LeakyReLU(f + φ2([g, context])), φ2 being the linear layer of `weight` and `bias`.

    The F = 2·H·E inputs of φ2 are all heads of g, then all heads of the context.
    """
    own_weight, context_weight = weight.chunk(2, dim=1)
    own = F.linear(embeddings.flatten(1), own_weight, bias)  # (N, D)
    message = torch.addmm(own, context.flatten(1).to(weight.dtype), context_weight.T)
    return F.leaky_relu(features + message, LEAKY_SLOPE)


def refine_prototypes(
    prototypes: Float[Tensor, "P D"],
    prototype_embeddings: Float[Tensor, "P H E"],
    image_embeddings: Float[Tensor, "B H E"],
    weight: Float[Tensor, "D F"],
    bias: Float[Tensor, " D"],
    *,
    scale: float = 1.0,
) -> Float[Tensor, "B P D"]:
    """Every prototype, refined in the graph of every image.

    φ2 is linear, so its context half is applied to the P means m_p and the B embeddings g_b, and
    only their combination with the shares α_bp has B·P rows.
    """
    parts = message_parts(prototypes, prototype_embeddings, image_embeddings, weight, bias, scale=scale)
    total = parts.without_image.unsqueeze(0)  # (1, P, D)
    for share, of_image, of_prototypes in zip(
        parts.share.unbind(1), parts.of_image, parts.of_prototypes, strict=True
    ):
        total = total + share.unsqueeze(2) * (of_image.unsqueeze(1) - of_prototypes)  # (B, P, D)
    return F.leaky_relu(total, LEAKY_SLOPE)


def message_parts(
    prototypes: Float[Tensor, "P D"],
    prototype_embeddings: Float[Tensor, "P H E"],
    image_embeddings: Float[Tensor, "B H E"],
    weight: Float[Tensor, "D F"],
    bias: Float[Tensor, " D"],
    *,
    scale: float = 1.0,
) -> MessageParts:
    """All that `refine_prototypes` needs, before anything has B·P·D numbers."""
    _, H, E = prototype_embeddings.shape
    log_normaliser, mean = prototype_context(prototype_embeddings, scale=scale)
    share = image_share(image_embeddings, prototype_embeddings, log_normaliser, scale=scale)
    own_weight, context_weight = weight.split(H * E, dim=1)
    context_weight = context_weight.unflatten(1, (H, E)).permute(1, 2, 0)  # (H, E, D)
    own = prototypes + F.linear(prototype_embeddings.flatten(1), own_weight, bias)  # (P, D)
    # Batched products as they are: `einsum` would copy what it is given into its own order.
    of_prototypes = torch.bmm(mean.transpose(0, 1).to(weight.dtype), context_weight)
    of_image = torch.bmm(image_embeddings.transpose(0, 1), context_weight)
    return MessageParts(own + of_prototypes.sum(dim=0), of_prototypes, of_image, share)


def _scores(image_embeddings: Tensor, prototype_embeddings: Tensor, scale: float) -> Tensor:
    """Scale · g_b·g_p, (H, B, P)."""
    scores = torch.bmm(image_embeddings.transpose(0, 1), prototype_embeddings.permute(1, 2, 0))
    return scores if scale == 1 else scale * scores
