"""The layer that refines features through the graph of one image and all prototypes."""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from manigraph.functional.graph import (
    LEAKY_SLOPE,
    MessageParts,
    attention_weights,
    context_messages,
    message_parts,
    prototype_context,
    refine,
    refine_images,
    refine_prototypes,
)

PrototypeUpdate = Literal["per_image", "shared", "none"]
Attention = Literal["dot", "cosine"]

COSINE_LENGTH = 3.0
"""Of every embedding, with attention by cosines: dot products are then from -9 to 9, times the scale."""


class Nodes(NamedTuple):
    """The class nodes of one step: shared by every pass and every loss of that step."""

    prototypes: Float[Tensor, "P D"]
    embeddings: Float[Tensor, "P H E"]
    messages: Float[Tensor, "H P D"]
    """What an image hears of each of them."""


class ManifoldGraph(nn.Module):
    """φ, attention without the self edge, φ2 and the residual (paper, section 3.2).

    g = LeakyReLU(W f + b), one φ per head for query, key and value; w_ij = softmax_{j≠i} g_i·g_j;
    f̂_i = LeakyReLU(f_i + φ2([g_i, Σ_j w_ij g_j])).

    Args:
        feature_size: D.
        num_heads: Must divide D; each head embeds into D / num_heads numbers.
        prototype_update: How prototypes are refined. "per_image", the paper's: in every image's
            graph, attending to the other prototypes and that image. "shared": once, attending to
            prototypes only. "none": not at all.
        scale: Factor on the dot products; the paper uses none (1).
        attention: By "dot" products of g, the paper's, or by "cosine": φ sees how features differ from the
            mean prototype, and all g have the same length. What all features have in common, such as the
            large values that a maximum over a map leaves, then does not drown what tells them apart.
    """

    origin: Tensor | None

    def __init__(
        self,
        feature_size: int,
        *,
        num_heads: int = 1,
        prototype_update: PrototypeUpdate = "per_image",
        scale: float = 1.0,
        attention: Attention = "dot",
    ) -> None:
        super().__init__()
        if num_heads < 1 or feature_size % num_heads:
            raise ValueError(
                f"the number of heads must divide the feature size {feature_size}, got {num_heads}"
            )
        self.num_heads = num_heads
        self.prototype_update = prototype_update
        self.scale = scale
        # The mean of the prototypes whose nodes were made last, as a constant.
        self.register_buffer("origin", torch.zeros(feature_size) if attention == "cosine" else None)
        self.embed = nn.Linear(feature_size, feature_size)
        self.message = nn.Linear(2 * feature_size, feature_size)

    def embedding(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "N H E"]:
        """G = φ(f), split into heads; with cosines, seen from the prototypes last given to `nodes`."""
        if self.origin is not None:
            features = features - self.origin.to(features.dtype)
        embedded: Tensor = F.leaky_relu(self.embed(features), LEAKY_SLOPE)
        heads = embedded.view(features.shape[0], self.num_heads, embedded.shape[1] // self.num_heads)
        return heads if self.origin is None else COSINE_LENGTH * F.normalize(heads, dim=2)

    def nodes(self, prototypes: Float[Tensor, "P D"]) -> Nodes:
        """The prototypes with all that does not depend on the image."""
        if self.origin is not None:
            self.origin.copy_(prototypes.detach().mean(dim=0))
        g = self.embedding(prototypes)
        return Nodes(prototypes, g, context_messages(g, self.message.weight, self.message.bias))

    def image_attention(
        self, image_embeddings: Float[Tensor, "B H E"], prototype_embeddings: Float[Tensor, "P H E"]
    ) -> Float[Tensor, "B H P"]:
        """How much the image node of each graph hears of which prototype: its row of w."""
        return attention_weights(image_embeddings, prototype_embeddings, scale=self.scale)

    def refine_images(
        self,
        features: Float[Tensor, "B D"],
        prototype_embeddings: Float[Tensor, "P H E"],
        messages: Float[Tensor, "H P D"],
        embeddings: Float[Tensor, "B H E"] | None = None,
    ) -> Float[Tensor, "B D"]:
        """f̂ of the image node of each graph. Depends on that image and the prototypes only.

        Args:
            features: f.
            prototype_embeddings: g of the prototypes.
            messages: What an image hears of each prototype, of `nodes`.
            embeddings: g of the images, where it is known.
        """
        g = self.embedding(features) if embeddings is None else embeddings
        # In mixed precision the nodes are half precision, but VAT's power step is float32.
        prototype_embeddings, messages = prototype_embeddings.to(g.dtype), messages.to(g.dtype)
        weight = self.message.weight
        return refine_images(features, g, prototype_embeddings, messages, weight, scale=self.scale)

    def message_parts(
        self,
        prototypes: Float[Tensor, "P D"],
        prototype_embeddings: Float[Tensor, "P H E"],
        embeddings: Float[Tensor, "B H E"],
    ) -> MessageParts:
        """What refined prototypes in the graphs of the images with these embeddings are made of."""
        weight, bias = self.message.weight, self.message.bias
        return message_parts(prototypes, prototype_embeddings, embeddings, weight, bias, scale=self.scale)

    def refine_prototypes(
        self,
        prototypes: Float[Tensor, "P D"],
        prototype_embeddings: Float[Tensor, "P H E"],
        features: Float[Tensor, "B D"],
    ) -> Float[Tensor, "G P D"]:
        """f̂ of the prototype nodes: in B graphs ("per_image") or in one (G = 1)."""
        if self.prototype_update == "none":
            return prototypes.unsqueeze(0)
        weight, bias = self.message.weight, self.message.bias
        if self.prototype_update == "per_image":
            g = self.embedding(features)
            return refine_prototypes(prototypes, prototype_embeddings, g, weight, bias, scale=self.scale)
        context = prototype_context(prototype_embeddings, scale=self.scale).mean
        return refine(prototypes, prototype_embeddings, context, weight, bias).unsqueeze(0)
