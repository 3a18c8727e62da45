"""The graph layer against the graph with all its nodes, with the same weights: section 4."""

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from manigraph.nn import Attention, ManifoldGraph, PrototypeUpdate
from tests.helpers import assert_agree, normal
from tests.reference import graph as reference

B, P, D = 3, 5, 12
NAMES = ("embed.weight", "embed.bias", "message.weight", "message.bias")


def layer(
    num_heads: int, prototype_update: PrototypeUpdate, scale: float = 1.0, attention: Attention = "dot"
) -> ManifoldGraph:
    torch.manual_seed(0)
    graph = ManifoldGraph(
        D, num_heads=num_heads, prototype_update=prototype_update, scale=scale, attention=attention
    )
    return graph.double()


class _Nodes(torch.nn.Module):
    """Both kinds of refined node of a layer, one after the other: something to differentiate."""

    def __init__(self, graph: ManifoldGraph) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, features: Tensor, prototypes: Tensor) -> Tensor:
        _, g, messages = self.graph.nodes(prototypes)
        images = self.graph.refine_images(features, g, messages)
        refined = self.graph.refine_prototypes(prototypes, g, features)
        return torch.cat([images, refined.flatten(0, 1)])


def naive(
    features: Tensor, prototypes: Tensor, weights: reference.GraphWeights, graph: ManifoldGraph
) -> Tensor:
    heads, scale = graph.num_heads, graph.scale
    origin = None if graph.origin is None else prototypes.detach().mean(dim=0)
    full = reference.refined_batch(features, prototypes, weights, num_heads=heads, scale=scale, origin=origin)
    if graph.prototype_update == "per_image":
        refined = full.prototypes.flatten(0, 1)
    elif graph.prototype_update == "shared":
        refined = reference.refined_graph(prototypes, weights, num_heads=heads, scale=scale, origin=origin)
    else:
        refined = prototypes
    return torch.cat([full.images, refined])


@pytest.mark.parametrize("attention", ["dot", "cosine"])
@pytest.mark.parametrize("prototype_update", ["per_image", "shared", "none"])
@pytest.mark.parametrize(("num_heads", "scale"), [(1, 1.0), (2, 1.0), (3, 0.4), (4, 1.0)])
def test_layer_is_the_reference(
    num_heads: int, scale: float, prototype_update: PrototypeUpdate, attention: Attention
) -> None:
    graph = layer(num_heads, prototype_update, scale, attention)
    nodes = _Nodes(graph)
    weights = [graph.get_parameter(name) for name in NAMES]

    def ours(features: Tensor, prototypes: Tensor, *tensors: Tensor) -> Tensor:
        named = {f"graph.{name}": tensor for name, tensor in zip(NAMES, tensors, strict=True)}
        answer: Tensor = functional_call(nodes, named, (features, prototypes))
        return answer

    def loops(features: Tensor, prototypes: Tensor, *tensors: Tensor) -> Tensor:
        return naive(features, prototypes, reference.GraphWeights(*tensors), graph)

    assert_agree(ours, loops, normal(B, D, seed=1), normal(P, D, seed=2), *weights)


@pytest.mark.parametrize(("num_heads", "scale"), [(1, 1.0), (3, 0.4)])
def test_attention_of_the_images_is_that_of_their_graphs(num_heads: int, scale: float) -> None:
    graph = layer(num_heads, "per_image", scale)
    images, prototypes = (graph.embedding(normal(n, D, seed=n)) for n in (B, P))
    expected = [
        reference.attention(torch.cat([image.unsqueeze(0), prototypes]), scale=scale)[0, :, 1:]
        for image in images
    ]
    torch.testing.assert_close(graph.image_attention(images, prototypes), torch.stack(expected))


def test_what_all_features_have_in_common_does_not_change_attention_by_cosines() -> None:
    features, prototypes, common = normal(B, D, seed=1), normal(P, D, seed=2), 50 * normal(D, seed=3)

    def attention(kind: Attention, shift: Tensor) -> Tensor:
        graph = layer(2, "per_image", attention=kind)
        g = graph.nodes(prototypes + shift).embeddings
        return graph.image_attention(graph.embedding(features + shift), g)

    nothing = torch.zeros_like(common)
    torch.testing.assert_close(attention("cosine", common), attention("cosine", nothing))
    # By dot products all images then hear of the same prototype alone.
    heard = attention("dot", common)
    assert heard.max(dim=2).values.min() > 0.99
    assert (
        len(heard[:, 0].argmax(dim=1).unique())
        == 1
        < len(attention("cosine", common)[:, 0].argmax(dim=1).unique())
    )


@pytest.mark.parametrize(("prototype_update", "graphs"), [("per_image", B), ("shared", 1), ("none", 1)])
def test_number_of_graphs_in_which_prototypes_are_refined(
    prototype_update: PrototypeUpdate, graphs: int
) -> None:
    graph = layer(2, prototype_update)
    prototypes = normal(P, D, seed=2)
    refined = graph.refine_prototypes(prototypes, graph.embedding(prototypes), normal(B, D, seed=1))
    assert refined.shape == (graphs, P, D)


@pytest.mark.parametrize("prototype_update", ["per_image", "shared", "none"])
def test_it_works_in_half_precision_throughout(prototype_update: PrototypeUpdate) -> None:
    graph = layer(2, prototype_update)
    features, prototypes = normal(B, D, seed=1), normal(P, D, seed=2)
    expected = _Nodes(graph)(features, prototypes)
    found = _Nodes(graph.bfloat16())(features.bfloat16(), prototypes.bfloat16())
    torch.testing.assert_close(found.double(), expected, rtol=0.1, atol=0.1)


def test_no_images_are_refined_to_none() -> None:
    graph = layer(2, "per_image")
    _, g, messages = graph.nodes(normal(P, D, seed=2))
    assert graph.refine_images(torch.empty(0, D).double(), g, messages).shape == (0, D)


def test_images_do_not_see_each_other() -> None:
    graph = layer(2, "per_image")
    features, prototypes = normal(B, D, seed=1), normal(P, D, seed=2)
    changed = features.clone()
    changed[1] += 1
    _, g, messages = graph.nodes(prototypes)
    for kind in ("images", "prototypes"):
        if kind == "images":
            before = graph.refine_images(features, g, messages)
            after = graph.refine_images(changed, g, messages)
        else:
            before = graph.refine_prototypes(prototypes, g, features)
            after = graph.refine_prototypes(prototypes, g, changed)
        assert torch.equal(before[[0, 2]], after[[0, 2]])
        assert not torch.equal(before[1], after[1])


def test_parameters_do_not_grow_with_the_heads() -> None:
    # φ is D -> D and φ2 is 2D -> D whatever the number of heads.
    def count(num_heads: int) -> int:
        return sum(parameter.numel() for parameter in layer(num_heads, "per_image").parameters())

    assert {count(h) for h in (1, 2, 3, 4)} == {D * D + D + 2 * D * D + D}


@pytest.mark.parametrize("num_heads", [0, 5])
def test_heads_must_divide_the_features(num_heads: int) -> None:
    message = f"the number of heads must divide the feature size 12, got {num_heads}"
    with pytest.raises(ValueError, match=message):
        ManifoldGraph(D, num_heads=num_heads)
