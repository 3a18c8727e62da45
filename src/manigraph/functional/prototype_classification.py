"""L_clf,P where every prototype is refined in every image's graph: B·P nodes to classify.

Their features have B·P·D numbers and their logits B·P·C; at C = 1000 and K = 20 neither fits into memory, and
for small networks their traffic through memory is most of what the graph costs. So the loss is computed for a
few images at a time, and since it is one number, its gradient can be taken at once, while the features of
those images are still at hand; nothing of that size is kept for the backward pass.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from manigraph.functional.graph import LEAKY_SLOPE, MessageParts

NUMBERS_AT_ONCE = 1 << 18
"""How many features or logits are held at a time (of one image at least): 1 MB, which caches hold."""


def prototype_cross_entropy(
    parts: MessageParts,
    weight: Float[Tensor, "C D"],
    bias: Float[Tensor, " C"],
    classes: Int[Tensor, " P"],
    *,
    numbers_at_once: int = NUMBERS_AT_ONCE,
) -> Float[Tensor, ""]:
    """Mean over images b and prototypes p of -log softmax(W f̂_bp + bias)[class of p].

    The same as `cross_entropy` on the classified result of `refine_prototypes`; differentiable once.

    Args:
        parts: Of `message_parts`.
        weight: Of the linear classifier.
        bias: Likewise.
        classes: Class of every prototype.
        numbers_at_once: How much to hold at a time; the sum is the same up to rounding.
    """
    loss: Tensor
    inputs = [tensor.to(weight.dtype) for tensor in (*parts, weight, bias)]  # whatever autocast made of them
    with torch.autocast(weight.device.type, enabled=False):
        loss = _PrototypeCrossEntropy.apply(*inputs, classes, numbers_at_once)  # type: ignore[no-untyped-call]
    return loss


class _PrototypeCrossEntropy(torch.autograd.Function):
    """The gradient is found in the forward pass."""

    @staticmethod
    def forward(
        context: Any,
        without_image: Tensor,
        of_prototypes: Tensor,
        of_image: Tensor,
        share: Tensor,
        weight: Tensor,
        bias: Tensor,
        classes: Tensor,
        numbers_at_once: int,
    ) -> Tensor:
        (B, H, P), (C, D) = share.shape, weight.shape
        images_at_once = max(1, numbers_at_once // (P * max(C, D)))
        differentiable = (without_image, of_prototypes, of_image, share, weight, bias)
        wants_gradient = any(context.needs_input_grad)
        gradients = [torch.zeros_like(tensor) for tensor in differentiable] if wants_gradient else []
        total = without_image.new_zeros((), dtype=torch.float64)
        for start in range(0, B, images_at_once):
            images = slice(start, start + images_at_once)
            features = without_image + share[images, 0].unsqueeze(2) * (
                of_image[0, images].unsqueeze(1) - of_prototypes[0]
            )  # (b, P, D)
            for h in range(1, H):
                change = of_image[h, images].unsqueeze(1) - of_prototypes[h]
                features += share[images, h].unsqueeze(2) * change
            F.leaky_relu_(features, LEAKY_SLOPE)
            flat = features.flatten(0, 1)  # (bP, D)
            targets = classes.repeat(len(features)).unsqueeze(1)  # (bP, 1)
            log_probs = F.log_softmax(torch.addmm(bias, flat, weight.T), dim=1)
            total -= log_probs.gather(1, targets).sum(dtype=torch.float64)
            if not wants_gradient:
                continue
            errors = log_probs.exp_()
            errors.scatter_add_(1, targets, errors.new_full((), -1).expand_as(targets))
            errors /= B * P
            _add_gradients(gradients, features, errors, images, of_prototypes, of_image, share, weight)
        context.save_for_backward(*gradients)
        return (total / (B * P)).to(without_image.dtype)

    @staticmethod
    @once_differentiable
    def backward(context: Any, output_gradient: Tensor) -> tuple[Tensor | None, ...]:
        gradients = context.saved_tensors
        return (*(output_gradient * gradient for gradient in gradients), None, None)


def _add_gradients(
    gradients: list[Tensor],
    features: Tensor,
    errors: Tensor,
    images: slice,
    of_prototypes: Tensor,
    of_image: Tensor,
    share: Tensor,
    weight: Tensor,
) -> None:
    """What a few images add, given their refined prototypes (b, P, D) and errors of logits (bP, C)."""
    to_without_image, to_of_prototypes, to_of_image, to_share, to_weight, to_bias = gradients
    to_weight.addmm_(errors.T, features.flatten(0, 1))
    to_bias += errors.sum(dim=0)
    back = (errors @ weight).view_as(features)
    back = torch.ops.aten.leaky_relu_backward(back, features, LEAKY_SLOPE, True)  # (b, P, D), of the result
    to_without_image += back.sum(dim=0)
    for h in range(len(of_image)):
        of_head = share[images, h]  # (b, P)
        to_of_image[h, images] += torch.bmm(of_head.unsqueeze(1), back).squeeze(1)
        towards_image = torch.bmm(back, of_image[h, images].unsqueeze(2)).squeeze(2)  # (b, P)
        to_share[images, h] += towards_image - (back * of_prototypes[h]).sum(dim=2)
        to_of_prototypes[h] -= (of_head.unsqueeze(2) * back).sum(dim=0)
