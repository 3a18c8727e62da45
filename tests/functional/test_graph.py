"""The factorised graph against the graph with all its nodes and edges: section 4."""

import math

import pytest
import torch
from torch import Tensor

from manigraph.functional import (
    attention_entropy,
    attention_weights,
    context_messages,
    image_context,
    image_share,
    own_class_attention,
    prototype_context,
    refine,
    refine_images,
    refine_prototypes,
)
from tests.helpers import assert_agree, check_gradients, normal, receivers, seeded, value_and_gradients
from tests.reference import graph as reference

B, P, E, D = 3, 5, 2, 6
HEADS = [1, 2, 3, 4]
SCALES = [1.0, 0.35]


def images_and_prototypes(num_heads: int) -> tuple[Tensor, Tensor]:
    """g of B images and P prototypes."""
    return normal(B, num_heads, E, seed=1), normal(P, num_heads, E, seed=2)


def with_image(image: Tensor, prototypes: Tensor) -> Tensor:
    """The nodes of one graph, the image first."""
    return torch.cat([image.unsqueeze(0), prototypes])


def naive_weights(images: Tensor, prototypes: Tensor, scale: float) -> Tensor:
    """All edges of all graphs, (B, P + 1, H, P + 1)."""
    return torch.stack([reference.attention(with_image(image, prototypes), scale=scale) for image in images])


def naive_contexts(images: Tensor, prototypes: Tensor, scale: float) -> Tensor:
    """(B, P + 1, H, E)."""
    return torch.stack([reference.contexts(with_image(image, prototypes), scale=scale) for image in images])


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("num_heads", HEADS)
def test_image_row(num_heads: int, scale: float) -> None:
    images, prototypes = images_and_prototypes(num_heads)
    assert_agree(
        lambda g, p: attention_weights(g, p, scale=scale),
        lambda g, p: naive_weights(g, p, scale)[:, 0, :, 1:],
        images,
        prototypes,
    )
    assert_agree(
        lambda g, p: image_context(g, p, scale=scale),
        lambda g, p: naive_contexts(g, p, scale)[:, 0],
        images,
        prototypes,
    )


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("num_heads", HEADS)
def test_prototypes_among_themselves(num_heads: int, scale: float) -> None:
    _, prototypes = images_and_prototypes(num_heads)
    assert_agree(
        lambda p: prototype_context(p, scale=scale).mean,
        lambda p: reference.contexts(p, scale=scale),
        prototypes,
    )


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("num_heads", HEADS)
def test_share_of_the_image_in_the_prototype_rows(num_heads: int, scale: float) -> None:
    images, prototypes = images_and_prototypes(num_heads)

    def ours(g: Tensor, p: Tensor) -> Tensor:
        return image_share(g, p, prototype_context(p, scale=scale).log_normaliser, scale=scale)

    assert_agree(
        ours, lambda g, p: naive_weights(g, p, scale)[:, 1:, :, 0].transpose(1, 2), images, prototypes
    )


@pytest.mark.parametrize("num_heads", HEADS)
def test_prototype_context_with_the_image(num_heads: int) -> None:
    # (1 - α) m_p + α g_b is the context the full graph gives.
    images, prototypes = images_and_prototypes(num_heads)

    def ours(g: Tensor, p: Tensor) -> Tensor:
        log_normaliser, mean = prototype_context(p)
        share = image_share(g, p, log_normaliser).transpose(1, 2).unsqueeze(3)  # (B, P, H, 1)
        return (1 - share) * mean + share * g.unsqueeze(1)

    assert_agree(ours, lambda g, p: naive_contexts(g, p, 1.0)[:, 1:], images, prototypes)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("num_heads", HEADS)
def test_refined_nodes_are_those_of_the_full_graphs(num_heads: int, scale: float) -> None:
    embeddings = images_and_prototypes(num_heads)
    features, prototypes = normal(B, D, seed=3), normal(P, D, seed=4)
    weight, bias = normal(D, 2 * num_heads * E, seed=5), normal(D, seed=6)

    def naive(f: Tensor, p: Tensor, f_g: Tensor, p_g: Tensor, w: Tensor, b: Tensor) -> Tensor:
        graphs = zip(f, f_g, strict=True)
        return torch.stack(
            [
                reference.refined(with_image(image, p), with_image(g, p_g), w, b, scale=scale)
                for image, g in graphs
            ]
        )

    def ours(f: Tensor, p: Tensor, f_g: Tensor, p_g: Tensor, w: Tensor, b: Tensor) -> Tensor:
        images = refine(f, f_g, image_context(f_g, p_g, scale=scale), w, b)
        refined_prototypes = refine_prototypes(p, p_g, f_g, w, b, scale=scale)
        return torch.cat([images.unsqueeze(1), refined_prototypes], dim=1)

    def ours_with_messages(f: Tensor, p: Tensor, f_g: Tensor, p_g: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return refine_images(f, f_g, p_g, context_messages(p_g, w, b), w, scale=scale) + 0 * p.sum()

    arguments = (features, prototypes, *embeddings, weight, bias)
    assert_agree(ours, naive, *arguments)
    assert_agree(ours_with_messages, lambda *args: naive(*args)[:, 0], *arguments)


@pytest.mark.parametrize("rows_at_once", [1, 2, 4])
def test_edges_among_prototypes_part_by_part(rows_at_once: int) -> None:
    prototypes = normal(P, 2, E, seed=2)

    def in_parts(g: Tensor) -> Tensor:
        context = prototype_context(g, scale=0.35, edges_at_once=rows_at_once * 2 * P)
        return torch.cat([context.log_normaliser.unsqueeze(2), context.mean], dim=2)

    def as_one(g: Tensor) -> Tensor:
        context = prototype_context(g, scale=0.35)
        return torch.cat([context.log_normaliser.unsqueeze(2), context.mean], dim=2)

    assert_agree(in_parts, as_one, prototypes, tolerance=1e-13)


def test_edges_among_prototypes_are_never_in_half_precision() -> None:
    rounded = normal(P, 2, E, seed=2).bfloat16().requires_grad_(True)
    exact = rounded.detach().float().requires_grad_(True)
    expected = prototype_context(exact, scale=0.35)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = prototype_context(rounded, scale=0.35)
        found_from_exact = prototype_context(exact, scale=0.35)
    for of_rounded, of_exact, wanted in zip(found, found_from_exact, expected, strict=True):
        assert torch.equal(of_exact, wanted)
        assert of_rounded.dtype == torch.float32
        assert torch.equal(of_rounded, wanted)
    (gradient,) = torch.autograd.grad([part.sum() for part in found], rounded)
    (wanted,) = torch.autograd.grad([part.sum() for part in expected], exact)
    assert torch.equal(gradient, wanted.bfloat16())


def test_gradchecks() -> None:
    images, prototypes = normal(2, 2, 2, seed=1), normal(3, 2, 2, seed=2)
    check_gradients(attention_weights, images, prototypes)
    check_gradients(image_context, images, prototypes)
    check_gradients(lambda p: prototype_context(p).mean, prototypes)
    check_gradients(lambda p: prototype_context(p).log_normaliser, prototypes)
    check_gradients(image_share, images, prototypes, normal(3, 2, seed=3))
    check_gradients(refine, normal(2, 3), images, images, normal(3, 8, seed=4), normal(3, seed=5))
    check_gradients(
        refine_prototypes, normal(3, 3), prototypes, images, normal(3, 8, seed=4), normal(3, seed=5)
    )


def test_everything_receives_gradient_from_refined_nodes() -> None:
    images, prototypes = images_and_prototypes(2)
    weight, bias = normal(D, 4 * E, seed=5), normal(D, seed=6)
    inputs = {"embeddings": prototypes, "image_embeddings": images, "weight": weight, "bias": bias}
    found = receivers(refine_prototypes, prototypes=normal(P, D), **inputs)
    assert found == {"prototypes", *inputs}
    inputs = {"embeddings": images, "context": images + 1, "weight": weight, "bias": bias}
    assert receivers(refine, features=normal(B, D), **inputs) == {"features", *inputs}


def column(*values: float) -> Tensor:
    """Nodes with one head of size one."""
    return torch.tensor(values, dtype=torch.float64).view(-1, 1, 1)


def test_image_row_by_hand() -> None:
    # g_b = ln 2, g_p = 0, 1: scores 0 and ln 2, weights 1/3 and 2/3, context 2/3 · 1. With scale 2 the
    # scores are 0 and ln 4, the weights 1/5 and 4/5.
    image, prototypes = column(math.log(2)), column(0, 1)
    assert attention_weights(image, prototypes).flatten().tolist() == pytest.approx([1 / 3, 2 / 3])
    assert image_context(image, prototypes).item() == pytest.approx(2 / 3)
    doubled = attention_weights(image, prototypes, scale=2.0)
    assert doubled.flatten().tolist() == pytest.approx([1 / 5, 4 / 5])


def test_prototype_row_by_hand() -> None:
    # g_p = 1, 0, ln 3. Row of the first: scores 0 and ln 3 with the others (its own 1 is masked), so
    # z = ln(1 + 3), weights 1/4 and 3/4, m = 3/4 ln 3. An image with g_b = ln 12 adds exp(ln 12) = 12 to
    # the 4 of the others: its share is 12/16.
    prototypes = column(1, 0, math.log(3))
    context = prototype_context(prototypes)
    assert context.log_normaliser[0].item() == pytest.approx(math.log(4))
    assert context.mean[0].item() == pytest.approx(0.75 * math.log(3))
    share = image_share(column(math.log(12)), prototypes, context.log_normaliser)
    assert share[0, 0, 0].item() == pytest.approx(12 / 16)


def test_refine_by_hand() -> None:
    # φ2 has weights 2 (own), 10 (context) and bias -1. f = 1, g = 3, context 1/2: 1 + 6 + 5 - 1 = 11.
    # f = -20 instead: -10, times 0.1 is -1.
    weight, bias = torch.tensor([[2.0, 10.0]], dtype=torch.float64), torch.tensor([-1.0], dtype=torch.float64)
    features = torch.tensor([[1.0], [-20.0]], dtype=torch.float64)
    refined = refine(features, column(3, 3), column(0.5, 0.5), weight, bias)
    assert refined.flatten().tolist() == pytest.approx([11, -1])


@pytest.mark.parametrize("num_heads", HEADS)
def test_rows_of_the_attention_sum_to_one(num_heads: int) -> None:
    images, prototypes = images_and_prototypes(num_heads)
    torch.testing.assert_close(
        attention_weights(images, prototypes).sum(dim=2), torch.ones(B, num_heads, dtype=torch.float64)
    )
    # A prototype's row in image b's graph: the image's share and, of the same exponentials, the others'.
    share = image_share(images, prototypes, prototype_context(prototypes).log_normaliser)
    for b in range(B):
        for p in range(P):
            for h in range(num_heads):
                exponentials = [
                    torch.dot(prototypes[p, h], prototypes[q, h]).exp() for q in range(P) if q != p
                ]
                with_the_image = sum(exponentials) + torch.dot(prototypes[p, h], images[b, h]).exp()
                others = sum(exponential / with_the_image for exponential in exponentials)
                assert (others + share[b, h, p]).item() == pytest.approx(1)


def test_a_prototype_does_not_hear_itself() -> None:
    # Two prototypes: each hears exactly the other.
    prototypes = normal(2, 3, 4)
    assert torch.equal(prototype_context(prototypes).mean, prototypes.flip(0))


def test_permuting_images_or_prototypes_permutes_the_answers() -> None:
    images, prototypes = images_and_prototypes(2)
    weight, bias = normal(D, 4 * E, seed=5), normal(D, seed=6)
    nodes = normal(P, D)
    image_order, node_order = torch.tensor([2, 0, 1]), torch.randperm(P, generator=seeded())
    refined = refine_prototypes(nodes, prototypes, images, weight, bias)
    permuted = refine_prototypes(nodes[node_order], prototypes[node_order], images[image_order], weight, bias)
    torch.testing.assert_close(permuted, refined[image_order][:, node_order])
    torch.testing.assert_close(
        image_context(images[image_order], prototypes[node_order]),
        image_context(images, prototypes)[image_order],
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("signs", [(1, 1), (1, -1), (-1, 1)])
def test_extreme_scores_stay_finite(signs: tuple[int, int], dtype: torch.dtype) -> None:
    # Dot products of ±80: exp(80) squared is beyond float32.
    size = math.sqrt(80 / 2)
    spread = torch.tensor([1.0, -1.0, 1.0, 0.9, -0.8], dtype=dtype).view(P, 1, 1)
    images = signs[0] * size * torch.ones(B, 1, 2, dtype=dtype)
    prototypes = signs[1] * size * spread * torch.ones(P, 1, 2, dtype=dtype)
    weight, bias = normal(D, 4).to(dtype), normal(D).to(dtype)

    def ours(g: Tensor, p: Tensor) -> Tensor:
        return torch.cat(
            [
                refine_prototypes(normal(P, D).to(dtype), p, g, weight, bias).flatten(),
                image_context(g, p).flatten(),
            ]
        )

    value, gradients = value_and_gradients(ours, images, prototypes)
    assert value.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients)
    if dtype == torch.float64:
        share = image_share(images, prototypes, prototype_context(prototypes).log_normaliser)
        expected = naive_weights(images, prototypes, 1.0)[:, 1:, :, 0].transpose(1, 2)
        torch.testing.assert_close(share, expected, rtol=1e-10, atol=1e-10)


def test_one_prototype_cannot_attend_to_others() -> None:
    with pytest.raises(ValueError, match="attention among prototypes needs at least 2 prototypes, got 1"):
        prototype_context(normal(1, 2, 2))


# What the attention is like


def rows_of_attention(num_heads: int, num_prototypes: int) -> Tensor:
    return normal(B, num_heads, num_prototypes, seed=1).softmax(dim=2)


@pytest.mark.parametrize("num_heads", HEADS)
@pytest.mark.parametrize("per_class", [1, 2, 3])
def test_summaries_of_the_attention_are_the_reference(num_heads: int, per_class: int) -> None:
    weights, classes = rows_of_attention(num_heads, 4 * per_class), torch.tensor([3, 0, 1])
    assert_agree(
        lambda w: own_class_attention(w, classes, 4),
        lambda w: reference.own_class_attention(w, classes, 4),
        weights,
    )
    assert_agree(attention_entropy, reference.attention_entropy, weights)


def test_summaries_of_the_attention_by_hand() -> None:
    # Two classes of two prototypes. Image 1 of class 1: .2 + .4 = .6; image 2 of class 0: .5 + .5 = 1.
    # Entropy of the second row: ln 2, which is half of ln 4.
    weights = torch.tensor([[[0.3, 0.1, 0.2, 0.4]], [[0.5, 0.5, 0.0, 0.0]]], dtype=torch.float64)
    assert own_class_attention(weights, torch.tensor([1, 0]), 2).item() == pytest.approx(0.8)
    assert attention_entropy(weights[1:]).item() == pytest.approx(0.5)


def test_limits_of_the_attention_entropy() -> None:
    alike, single = torch.full((2, 3, 5), 0.2), torch.eye(5).view(5, 1, 5)
    assert attention_entropy(alike).item() == pytest.approx(1)
    assert attention_entropy(single).item() == 0


def test_the_backward_pass_may_be_under_autocast() -> None:
    embeddings = normal(6, 1, 4).float().requires_grad_(True)
    (expected,) = torch.autograd.grad(prototype_context(embeddings).mean.square().sum(), embeddings)
    loss = prototype_context(embeddings).mean.square().sum()
    with torch.autocast("cpu", torch.bfloat16):
        (gradient,) = torch.autograd.grad(loss, embeddings)
    assert torch.equal(gradient, expected)
