"""L_clf,P where every prototype is refined in every image's graph: B·P nodes to classify.

Their features have B·P·D numbers and their logits B·P·C; at C = 1000 and K = 20 neither fits into memory, and
for small networks their traffic through memory is most of what the graph costs. So the loss is computed for a
few images at a time, and since it is one number, its gradient can be taken at once, while the features of
those images are still at hand; nothing of that size is kept for the backward pass.

Where the inner loops in C are there and suit (`manigraph.native`), a few images and prototypes at a time are
taken through all of it within the processor's caches.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from manigraph.functional.graph import LEAKY_SLOPE, MessageParts
from manigraph.native import prototype_classification as native

NUMBERS_AT_ONCE = 1 << 20
"""How many features or logits a block has: 4 MB; five such blocks are held at a time. With less, starting
operations costs more than caches save; with more, it is the other way round."""
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
            to rounding. If given, torch's operations do the work.
    """
    loss: Tensor
    inputs = [tensor.to(weight.dtype) for tensor in (*parts, weight, bias)]  # whatever autocast made of them
    # Without gradient around, inputs that could have one are still marked as such.
    inputs = inputs if torch.is_grad_enabled() else [tensor.detach() for tensor in inputs]
    # Autocast leaves operations alone that write into memory which is there, as all products here do.
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
        numbers_at_once: int | None,
    ) -> Tensor:
        inputs = (without_image, of_prototypes, of_image, share, weight, bias)
        if numbers_at_once is None and native.suits(inputs, classes):
            with_gradient = any(context.needs_input_grad)
            loss, gradients = native.cross_entropy(inputs, classes, with_gradient=with_gradient)
            context.save_for_backward(*gradients)
            return loss
        if numbers_at_once is None:
            numbers_at_once = NUMBERS_AT_ONCE if weight.device.type == "cpu" else NUMBERS_AT_ONCE_ON_GPU
        (B, _, P), (C, D) = share.shape, weight.shape
        rows = max(1, numbers_at_once // max(C, D))
        images_at_once, prototypes_at_once = min(B, max(1, rows // P)), min(P, rows)
        parts = MessageParts(without_image, of_prototypes, of_image, share)
        gradients = ()
        if any(context.needs_input_grad):
            gradients = tuple(torch.zeros_like(tensor) for tensor in (*parts, weight, bias))
        space = _Space(weight, images_at_once * prototypes_at_once)
        losses = []
        for first in range(0, P, prototypes_at_once):
            nodes = slice(first, min(P, first + prototypes_at_once))
            images = _by_images(parts, nodes, images_at_once)
            to_images = (
                _by_images(MessageParts(*gradients[:4]), nodes, images_at_once) if gradients else images
            )
            block = space.block(classes[nodes], images_at_once)
            for part, to_part in zip(images, to_images, strict=True):
                if len(part.shares[0]) < images_at_once:
                    block = space.block(classes[nodes], len(part.shares[0]))
                _refine(block, part)
                torch.addmm(bias, block.rows, weight.T, out=block.logits)
                torch.softmax(block.logits, dim=1, out=block.probabilities)
                losses.append(_losses(block))
                if gradients:
                    *_, to_weight, to_bias = gradients
                    errors = block.probabilities
                    errors.view(-1).index_add_(0, block.own, space.minus_one.expand_as(block.own))
                    torch.mm(errors, weight, out=block.back_rows)
                    to_weight.addmm_(errors.T, block.rows)
                    to_bias.add_(errors.sum(dim=0))
                    _add_gradients(to_part, block, part)
        for gradient in gradients:
            gradient /= B * P
        context.save_for_backward(*gradients)
        return torch.cat(losses).mean(dtype=torch.float64).to(weight.dtype)

    @staticmethod
    @once_differentiable
    def backward(context: Any, output_gradient: Tensor) -> tuple[Tensor | None, ...]:
        gradients = context.saved_tensors
        return (*(output_gradient * gradient for gradient in gradients), None, None)


class _Part(NamedTuple):
    """What some images and some prototypes have to do with it, head by head."""

    without_image: Tensor
    """(p, D)"""
    of_prototypes: tuple[Tensor, ...]
    """(p, D) each."""
    of_image: tuple[Tensor, ...]
    """(b, D) each."""
    shares: tuple[Tensor, ...]
    """(b, p) each."""


def _by_images(parts: MessageParts, nodes: slice, images_at_once: int) -> list[_Part]:
    """Some prototypes with a few images at a time. To cut all at once is cheaper than one by one."""
    without_image, of_prototypes = parts.without_image[nodes], parts.of_prototypes[:, nodes].unbind(0)
    of_image = zip(*(head.split(images_at_once) for head in parts.of_image.unbind(0)), strict=True)
    shares = zip(*(head.split(images_at_once) for head in parts.share[:, :, nodes].unbind(1)), strict=True)
    return [_Part(without_image, of_prototypes, *pair) for pair in zip(of_image, shares, strict=True)]


class _Block(NamedTuple):
    """Memory for b images with p prototypes each."""

    features: Tensor
    """(b, p, D), refined prototypes."""
    change: Tensor
    """(b, p, D), what the last head adds to them."""
    back: Tensor
    """(b, p, D), what the loss sends into them."""
    rows: Tensor
    """(bp, D), the features."""
    back_rows: Tensor
    """(bp, D), what the loss sends."""
    logits: Tensor
    """(bp, C)"""
    probabilities: Tensor
    """(bp, C)"""
    own: Tensor
    """(bp,), where the own class of each prototype is, counted over all logits."""


class _Space:
    """Memory for one block after another; to ask the system for it each time costs as much as to fill it."""

    def __init__(self, weight: Tensor, rows: int) -> None:
        C, D = weight.shape
        self._features = weight.new_empty(3, rows * D)
        self._logits = weight.new_empty(2, rows * C)
        self._sizes = (C, D)
        self.minus_one = weight.new_full((), -1)

    def block(self, classes: Tensor, images: int) -> _Block:
        """For prototypes of these classes, in the graphs of so many images."""
        (C, D), rows = self._sizes, images * len(classes)
        features, change, back = self._features[:, : rows * D].view(3, images, len(classes), D)
        logits, probabilities = self._logits[:, : rows * C].view(2, rows, C)
        own = C * torch.arange(rows, device=classes.device) + classes.repeat(images)
        return _Block(
            features, change, back, features.flatten(0, 1), back.flatten(0, 1), logits, probabilities, own
        )


def _refine(block: _Block, part: _Part) -> None:
    """Fill `features` with refined prototypes, and `change` with what the last head adds to them."""
    before = part.without_image
    for of_prototypes, of_image, share in zip(part.of_prototypes, part.of_image, part.shares, strict=True):
        torch.sub(of_image.unsqueeze(1), of_prototypes, out=block.change)
        torch.addcmul(before, share.unsqueeze(2), block.change, out=block.features)
        before = block.features
    F.leaky_relu_(block.features, LEAKY_SLOPE)


def _losses(block: _Block) -> Tensor:
    """-log of the own class's probability, (bp,)."""
    own = block.probabilities.view(-1).index_select(0, block.own)
    if own.amin() > torch.finfo(own.dtype).tiny:
        return own.log_().neg_()
    return block.logits.logsumexp(dim=1) - block.logits.view(-1).index_select(0, block.own)


def _add_gradients(to_part: _Part, block: _Block, part: _Part) -> None:
    """What a block adds, given its refined prototypes and, in `back`, what the loss sends into these."""
    change, back = block.change, block.back
    torch.ops.aten.leaky_relu_backward.grad_input(back, block.features, LEAKY_SLOPE, True, grad_input=back)
    of_one_image = len(back) == 1
    to_part.without_image.add_(back[0] if of_one_image else back.sum(dim=0))
    for h in reversed(range(len(part.shares))):  # `change` is that of the last head
        if h < len(part.shares) - 1:
            torch.sub(part.of_image[h].unsqueeze(1), part.of_prototypes[h], out=change)
        share = part.shares[h]
        torch.sum(change.mul_(back), dim=2, out=to_part.shares[h])
        to_part.of_image[h].unsqueeze(1).baddbmm_(share.unsqueeze(1), back)
        if of_one_image:
            to_part.of_prototypes[h].addcmul_(share[0].unsqueeze(1), back[0], value=-1)
        else:
            to_part.of_prototypes[h].sub_(torch.mul(share.unsqueeze(2), back, out=change).sum(dim=0))
