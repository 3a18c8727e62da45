"""L_clf,P where every prototype is refined in every image's graph: B·P nodes to classify.

Their features have B·P·D numbers and their logits B·P·C; at C = 1000 and K = 20 neither fits into memory, and
for small networks their traffic through memory is most of what the graph costs. So the loss is computed for a
few images at a time, and since it is one number, its gradient can be taken at once, while the features of
those images are still at hand; nothing of that size is kept for the backward pass.
"""

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from manigraph.functional.graph import LEAKY_SLOPE, MessageParts

NUMBERS_AT_ONCE = 1 << 20
"""How many features or logits are held at a time: 4 MB. With less, starting operations costs more than caches
save; with more, it is the other way round."""
NUMBERS_AT_ONCE_ON_GPU = 1 << 24
"""The same where starting an operation is dear and memory fast."""


def prototype_cross_entropy(
    parts: MessageParts,
    weight: Float[Tensor, "C D"],
    bias: Float[Tensor, " C"],
    classes: Int[Tensor, " P"],
    *,
    numbers_at_once: int | None = None,
) -> Float[Tensor, ""]:
    """Mean over images b and prototypes p of -log softmax(W f̂_bp + bias)[class of p].

    The same as `cross_entropy` on the classified result of `refine_prototypes`; differentiable once.

    Args:
        parts: Of `message_parts`.
        weight: Of the linear classifier.
        bias: Likewise.
        classes: Class of every prototype.
        numbers_at_once: How much to hold at a time, by default what suits the device; the sum is the same up
            to rounding.
    """
    if numbers_at_once is None:
        numbers_at_once = NUMBERS_AT_ONCE if weight.device.type == "cpu" else NUMBERS_AT_ONCE_ON_GPU
    loss: Tensor
    inputs = [tensor.to(weight.dtype) for tensor in (*parts, weight, bias)]  # whatever autocast made of them
    with torch.autocast(weight.device.type, enabled=False):
        # Without gradient around, inputs that could have one are still marked as such.
        inputs = inputs if torch.is_grad_enabled() else [tensor.detach() for tensor in inputs]
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
        (B, _, P), (C, D) = share.shape, weight.shape
        rows = max(1, numbers_at_once // max(C, D))
        images_at_once, prototypes_at_once = min(B, max(1, rows // P)), min(P, rows)
        inputs = (without_image, of_prototypes, of_image, share, weight, bias)
        wants_gradient = any(context.needs_input_grad)
        gradients = [torch.zeros_like(tensor) for tensor in inputs] if wants_gradient else []
        # All that the loss of a node is made of: its largest logit and probability and its own logit.
        largest, certainty, own = share.new_empty(3, B, P)
        space = _Space(weight, images_at_once * prototypes_at_once)
        for first_image, first_prototype in product(
            range(0, B, images_at_once), range(0, P, prototypes_at_once)
        ):
            images = slice(first_image, min(B, first_image + images_at_once))
            nodes = slice(first_prototype, min(P, first_prototype + prototypes_at_once))
            block, shape = (
                _part(inputs, images, nodes),
                (images.stop - first_image, nodes.stop - first_prototype),
            )
            features, change, back = space.features(shape)  # (b, p, D)
            logits, probabilities = space.logits(shape)  # (bp, C)
            _refine(features, change, block)
            torch.addmm(bias, features.flatten(0, 1), weight.T, out=logits)
            torch.softmax(logits, dim=1, out=probabilities)
            targets = classes[nodes].expand(shape).reshape(-1, 1)  # (bp, 1)
            largest[images, nodes] = logits.amax(dim=1).view(shape)
            certainty[images, nodes] = probabilities.amax(dim=1).view(shape)
            own[images, nodes] = logits.gather(1, targets).view(shape)
            if wants_gradient:
                errors = probabilities.scatter_add_(1, targets, space.minus_one.expand_as(targets))
                torch.mm(errors, weight, out=back.flatten(0, 1))
                *_, to_weight, to_bias = gradients
                to_weight.addmm_(errors.T, features.flatten(0, 1))
                to_bias.add_(errors.sum(dim=0))
                _add_gradients(_part(gradients, images, nodes), block, features, change, back)
        for gradient in gradients:
            gradient /= B * P
        context.save_for_backward(*gradients)
        # The largest probability is at least 1 / C: its logarithm is exact; that of the own one may not be.
        loss: Tensor = (largest - own).sub_(certainty.log_()).mean(dtype=torch.float64)
        return loss.to(weight.dtype)

    @staticmethod
    @once_differentiable
    def backward(context: Any, output_gradient: Tensor) -> tuple[Tensor | None, ...]:
        gradients = context.saved_tensors
        return (*(output_gradient * gradient for gradient in gradients), None, None)


class _Space:
    """Memory for one block after another; to ask the system for it each time costs as much as to fill it."""

    def __init__(self, weight: Tensor, rows: int) -> None:
        C, D = weight.shape
        self._features = weight.new_empty(3, rows * D)
        self._logits = weight.new_empty(2, rows * C)
        self._sizes = (C, D)
        self.minus_one = weight.new_full((), -1)

    def features(self, shape: tuple[int, int]) -> Tensor:
        """Three tensors (b, p, D), as one."""
        D = self._sizes[1]
        return self._features[:, : math.prod(shape) * D].view(3, *shape, D)

    def logits(self, shape: tuple[int, int]) -> Tensor:
        """Two tensors (bp, C), as one."""
        C = self._sizes[0]
        return self._logits[:, : math.prod(shape) * C].view(2, -1, C)


def _part(tensors: Sequence[Tensor], images: slice, nodes: slice) -> MessageParts:
    """What some images and some prototypes have to do with it."""
    without_image, of_prototypes, of_image, share, *_ = tensors
    return MessageParts(
        without_image[nodes], of_prototypes[:, nodes], of_image[:, images], share[images, :, nodes]
    )


def _refine(features: Tensor, change: Tensor, block: MessageParts) -> None:
    """Fill `features` with refined prototypes, and `change` with what the last head adds to them."""
    for h, (of_prototypes, of_image) in enumerate(zip(block.of_prototypes, block.of_image, strict=True)):
        torch.sub(of_image.unsqueeze(1), of_prototypes, out=change)
        before = block.without_image if h == 0 else features
        torch.addcmul(before, block.share[:, h].unsqueeze(2), change, out=features)
    F.leaky_relu_(features, LEAKY_SLOPE)


def _add_gradients(
    to_block: MessageParts, block: MessageParts, features: Tensor, change: Tensor, back: Tensor
) -> None:
    """What a block adds, given its refined prototypes and, in `back`, what the loss sends into these."""
    torch.ops.aten.leaky_relu_backward.grad_input(back, features, LEAKY_SLOPE, True, grad_input=back)
    of_one_image = len(back) == 1
    to_block.without_image.add_(back[0] if of_one_image else back.sum(dim=0))
    for h in reversed(range(len(block.of_image))):  # `change` is that of the last head
        if h < len(block.of_image) - 1:
            torch.sub(block.of_image[h].unsqueeze(1), block.of_prototypes[h], out=change)
        share = block.share[:, h]  # (b, p)
        to_block.share[:, h] = change.mul_(back).sum(dim=2)
        to_block.of_image[h].unsqueeze(1).baddbmm_(share.unsqueeze(1), back)
        if of_one_image:
            to_block.of_prototypes[h].addcmul_(share[0].unsqueeze(1), back[0], value=-1)
        else:
            to_block.of_prototypes[h].sub_(torch.mul(share.unsqueeze(2), back, out=change).sum(dim=0))
