"""Section 4: the graph of one image, with all its P + 1 nodes and all its edges."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tests.reference.consistency import added, softmax
from tests.reference.prototypes import leaky


class GraphWeights(NamedTuple):
    """φ (for all heads, one below the other) and φ2."""

    embed_weight: Tensor
    embed_bias: Tensor
    message_weight: Tensor
    message_bias: Tensor


def embedded(nodes: Tensor, weights: GraphWeights, num_heads: int, origin: Tensor | None = None) -> Tensor:
    """g = LeakyReLU(W f + b) of every node, (N, H, E); with an origin o, of f - o and brought to length 3."""
    if origin is not None:
        nodes = torch.stack([node - origin for node in nodes])
    rows = [leaky(weights.embed_weight @ node + weights.embed_bias) for node in nodes]
    heads = [list(row.view(num_heads, -1)) for row in rows]
    if origin is not None:
        heads = [[3 * head / torch.sqrt(torch.dot(head, head)) for head in row] for row in heads]
    return torch.stack([torch.stack(row) for row in heads])


def attention(embeddings: Tensor, *, scale: float = 1.0) -> Tensor:
    """w_ij = softmax over j ≠ i of scale · g_i·g_j in each head; (N, H, N), zero on the diagonal."""
    N, H, _ = embeddings.shape
    rows = []
    for i in range(N):
        others = [j for j in range(N) if j != i]
        for h in range(H):
            scores = torch.stack([scale * torch.dot(embeddings[i, h], embeddings[j, h]) for j in others])
            weight_of = dict(zip(others, softmax(scores), strict=True))
            zero = torch.zeros((), dtype=torch.float64)
            rows.append(torch.stack([weight_of.get(j, zero) for j in range(N)]))
    return torch.stack(rows).view(N, H, N)


def own_class_attention(weights: Tensor, classes: Tensor, num_classes: int) -> Tensor:
    """Weight of every image and head on each prototype of its class, the first K being of class 0."""
    B, H, P = weights.shape
    K = P // num_classes
    own = [weights[b, h, p] for b in range(B) for h in range(H) for p in range(P) if p // K == classes[b]]
    return added(own) / (B * H)


def attention_entropy(weights: Tensor) -> Tensor:
    """-Σ w log w of every image and head, in units of log P."""
    B, H, P = weights.shape
    rows = [added(-w * torch.log(w) for w in weights[b, h] if w > 0) for b in range(B) for h in range(H)]
    return added(rows) / (B * H * math.log(P))


def contexts(embeddings: Tensor, *, scale: float = 1.0) -> Tensor:
    """Σ_j w_ij g_j of every node, (N, H, E)."""
    N, H, _ = embeddings.shape
    weights = attention(embeddings, scale=scale)
    result = []
    for i in range(N):
        for h in range(H):
            context = torch.zeros_like(embeddings[0, 0])
            for j in range(N):
                context = context + weights[i, h, j] * embeddings[j, h]
            result.append(context)
    return torch.stack(result).view_as(embeddings)


def refined(
    nodes: Tensor, embeddings: Tensor, message_weight: Tensor, message_bias: Tensor, *, scale: float = 1.0
) -> Tensor:
    """LeakyReLU(f_i + φ2([g_i, Σ_j w_ij g_j])) of every node of one graph."""
    heard = contexts(embeddings, scale=scale)
    result = []
    for i, node in enumerate(nodes):
        inputs = torch.cat([embeddings[i].flatten(), heard[i].flatten()])
        result.append(leaky(node + message_weight @ inputs + message_bias))
    return torch.stack(result)


def refined_graph(
    nodes: Tensor,
    weights: GraphWeights,
    *,
    num_heads: int = 1,
    scale: float = 1.0,
    origin: Tensor | None = None,
) -> Tensor:
    """All nodes of one graph, from features to refined features."""
    embeddings = embedded(nodes, weights, num_heads, origin)
    return refined(nodes, embeddings, weights.message_weight, weights.message_bias, scale=scale)


class RefinedBatch(NamedTuple):
    """Both kinds of node of the graphs of a batch."""

    images: Tensor
    """(B, D)."""
    prototypes: Tensor
    """(B, P, D)."""


def refined_batch(
    features: Tensor,
    prototypes: Tensor,
    weights: GraphWeights,
    *,
    num_heads: int = 1,
    scale: float = 1.0,
    origin: Tensor | None = None,
) -> RefinedBatch:
    """One graph of P + 1 nodes per image, the image first."""
    graphs = [
        refined_graph(
            torch.cat([feature.unsqueeze(0), prototypes]),
            weights,
            num_heads=num_heads,
            scale=scale,
            origin=origin,
        )
        for feature in features
    ]
    return RefinedBatch(
        torch.stack([graph[0] for graph in graphs]), torch.stack([graph[1:] for graph in graphs])
    )
