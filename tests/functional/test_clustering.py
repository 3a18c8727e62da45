"""A walk over the images of a batch: compact latent space clustering."""

import math

import pytest
import torch
from torch import Tensor

from manigraph.functional import clustering_loss, ideal_transitions, propagated_labels, transition_log_probs
from tests.helpers import assert_agree, check_gradients, normal, receivers
from tests.reference import clustering as reference

N, D, C = 7, 3, 3
FEATURES = normal(N, D, seed=1)
LABELS = torch.tensor([2, 0, 1])
ONE_CLASS_MISSING = torch.tensor([2, 0, 2])
LABEL_SETS = [
    pytest.param(LABELS, id="all classes"),
    pytest.param(ONE_CLASS_MISSING, id="no class 1"),
    pytest.param(torch.tensor([1]), id="one label"),
]


def phi_of(features: Tensor, labels: Tensor = LABELS, smoothing: float = 1e-5) -> Tensor:
    return propagated_labels(transition_log_probs(features), labels, C, smoothing=smoothing)


def loss_of(features: Tensor, labels: Tensor = LABELS, num_steps: int = 3) -> Tensor:
    log_transitions = transition_log_probs(features)
    phi = propagated_labels(log_transitions, labels, C, smoothing=1e-5)
    return clustering_loss(log_transitions, phi, num_steps=num_steps)


def reference_loss(features: Tensor, labels: Tensor = LABELS, num_steps: int = 3) -> Tensor:
    H = reference.transitions(features)
    walk = reference.without_staying(H, 1e-5)
    phi = reference.propagated(walk, labels.tolist(), C)
    return reference.loss(H, phi, num_steps=num_steps)


# The walk


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_transitions_are_the_reference(scale: float) -> None:
    assert_agree(
        lambda features: transition_log_probs(features, scale=scale),
        lambda features: torch.log(reference.transitions(features, scale=scale)),
        FEATURES,
    )


def test_transitions_by_hand() -> None:
    # z = 1 and z = 2: row 1 has exp(1) and exp(2), row 2 exp(2) and exp(4); the way to oneself is in it.
    found = transition_log_probs(torch.tensor([[1.0], [2.0]], dtype=torch.float64)).exp()
    e = math.e
    assert found[0].tolist() == pytest.approx([1 / (1 + e), e / (1 + e)])
    assert found[1].tolist() == pytest.approx([1 / (1 + e**2), e**2 / (1 + e**2)])


# Labels


@pytest.mark.parametrize("labels", LABEL_SETS)
def test_propagation_is_the_papers_formula(labels: Tensor) -> None:
    # (I - H_UU)⁻¹ H_UL Y_L with the diagonal of H: without smoothing, to leave it out changes nothing.
    assert_agree(
        lambda features: phi_of(features, labels, smoothing=0.0),
        lambda features: reference.propagated(reference.transitions(features), labels.tolist(), C),
        FEATURES,
    )


@pytest.mark.parametrize("smoothing", [1e-5, 0.2])
def test_smoothed_propagation_is_the_reference(smoothing: float) -> None:
    assert_agree(
        lambda features: phi_of(features, smoothing=smoothing),
        lambda features: reference.propagated(
            reference.without_staying(reference.transitions(features), smoothing), LABELS.tolist(), C
        ),
        FEATURES,
    )


def test_propagation_is_where_a_long_walk_ends() -> None:
    features = 0.3 * FEATURES  # further apart, most steps would go nowhere
    walked = reference.walked(reference.transitions(features), LABELS.tolist(), C, num_steps=500)
    torch.testing.assert_close(phi_of(features, smoothing=0.0), walked, rtol=1e-12, atol=1e-12)


def test_propagation_by_hand() -> None:
    # Image 3 goes to the labelled 1 and 2 with chances 1/2 and 1/6 and stays with 1/3: 3/4 and 1/4.
    log_transitions = torch.tensor([[1.0, 1, 1], [1, 1, 1], [0.5, 1 / 6, 1 / 3]], dtype=torch.float64).log()
    found = propagated_labels(log_transitions, torch.tensor([0, 1]), 2, smoothing=0.0)
    assert found.flatten().tolist() == pytest.approx([1, 0, 0, 1, 0.75, 0.25])


@pytest.mark.parametrize("labels", LABEL_SETS)
@pytest.mark.parametrize("size", [0.0, 1.0, 10.0, 100.0])
def test_posteriors_are_probabilities(labels: Tensor, size: float) -> None:
    phi = phi_of(size * FEATURES, labels)
    torch.testing.assert_close(phi.sum(dim=1), torch.ones(N, dtype=torch.float64))
    assert phi.min() >= -1e-12
    missing = [c for c in range(C) if c not in labels.tolist()]
    assert not phi[:, missing].any()


def test_labels_follow_clusters_also_where_an_image_is_most_similar_to_itself() -> None:
    # H_ii is 1 up to rounding, and all other chances are below exp(-100).
    centres = torch.tensor([[30.0, 0.0], [0.0, 30.0]], dtype=torch.float64)
    features = torch.cat([centres, centres, centres]) + normal(6, 2)
    log_transitions = transition_log_probs(features)
    phi = propagated_labels(log_transitions, torch.tensor([0, 1]), 2, smoothing=1e-5)
    torch.testing.assert_close(phi[2:], torch.eye(2, dtype=torch.float64).repeat(2, 1), rtol=1e-3, atol=1e-3)


def test_images_without_a_way_to_a_label_are_undecided() -> None:
    features = torch.tensor([[30.0, 0, 0], [0, 30.0, 0], [0, 0, 30.0], [0, 0, 30.0]], dtype=torch.float64)
    phi = propagated_labels(transition_log_probs(features), torch.tensor([0, 1]), 2, smoothing=1e-5)
    torch.testing.assert_close(phi[2:], torch.full((2, 2), 0.5, dtype=torch.float64))


def test_without_unlabelled_images_there_are_only_labels() -> None:
    phi = propagated_labels(transition_log_probs(FEATURES[:3]), LABELS, C, smoothing=1e-5)
    assert torch.equal(phi, reference.one_hot(LABELS.tolist(), C))


# The ideal


@pytest.mark.parametrize("labels", LABEL_SETS)
def test_ideal_transitions_are_the_reference(labels: Tensor) -> None:
    phi = phi_of(FEATURES, labels)
    assert_agree(ideal_transitions, reference.ideal, phi)
    torch.testing.assert_close(ideal_transitions(phi).sum(dim=1), torch.ones(N, dtype=torch.float64))


def test_ideal_transitions_by_hand() -> None:
    # Two of class 0, one of class 1: from each to all of its own class alike.
    found = ideal_transitions(torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 1, 0]]))
    assert found.tolist() == [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]]


# The loss


@pytest.mark.parametrize("num_steps", [1, 2, 3, 4])
def test_loss_is_the_reference(num_steps: int) -> None:
    assert_agree(
        lambda features: loss_of(features, num_steps=num_steps),
        lambda features: reference_loss(features, num_steps=num_steps),
        FEATURES,
    )


@pytest.mark.parametrize("labels", LABEL_SETS)
def test_loss_with_other_labels(labels: Tensor) -> None:
    assert_agree(
        lambda features: loss_of(features, labels),
        lambda features: reference_loss(features, labels),
        FEATURES,
    )
    check_gradients(lambda features: loss_of(features, labels), FEATURES)


@pytest.mark.parametrize("num_steps", [2, 3])
def test_loss_of_a_walk_that_is_not_the_same_both_ways(num_steps: int) -> None:
    # With H of symmetric similarities the order of the steps would not show.
    phi = normal(N, C, seed=3).softmax(dim=1)
    assert_agree(
        lambda log_transitions, phi: clustering_loss(log_transitions, phi, num_steps=num_steps),
        lambda log_transitions, phi: reference.loss(log_transitions.exp(), phi, num_steps=num_steps),
        normal(N, N, seed=2).log_softmax(dim=1),
        phi,
    )


def test_loss_by_hand() -> None:
    # Two images of different classes: T = M = I, H = (3/4, 1/4; 1/2, 1/2). One step: -(ln 3/4 + ln 1/2) / 2.
    # Two steps: H∘M = diag(3/4, 1/2), H² has 9/16 and 1/4 on its diagonal: twice as much.
    log_transitions = torch.tensor([[0.75, 0.25], [0.5, 0.5]], dtype=torch.float64).log()
    phi = torch.eye(2, dtype=torch.float64)
    one_step = -(math.log(3 / 4) + math.log(1 / 2)) / 2
    assert clustering_loss(log_transitions, phi, num_steps=1).item() == pytest.approx(one_step)
    assert clustering_loss(log_transitions, phi, num_steps=2).item() == pytest.approx(1.5 * one_step)


def test_gradient_goes_through_the_labels_unless_they_are_constants() -> None:
    log_transitions = transition_log_probs(FEATURES)
    phi = phi_of(FEATURES)

    def loss(log_transitions: Tensor, posteriors: Tensor) -> Tensor:
        return clustering_loss(log_transitions, posteriors, num_steps=3)

    assert receivers(loss, log_transitions=log_transitions, posteriors=phi) == {
        "log_transitions",
        "posteriors",
    }


def test_one_cluster_for_each_class_is_best() -> None:
    # Perfect clusters: H is T, and the loss is the entropy of T, the logarithm of a cluster's size. (By
    # smoothing, 1e-5 of the labels go astray, over a distance of 100.)
    centres = 10 * torch.eye(3, dtype=torch.float64)
    features = centres[torch.tensor([2, 0, 1, 2, 0, 1])]
    one_step = loss_of(features, num_steps=1)
    assert one_step.item() == pytest.approx(math.log(2), abs=2e-3)
    # Steps within a class lead to the same place: no more and no less.
    assert loss_of(features, num_steps=3).item() == pytest.approx(math.log(2), abs=2e-3)
    assert loss_of(features + normal(6, 3), num_steps=3).item() > math.log(2)


def test_images_are_pulled_towards_their_cluster() -> None:
    centres = 2 * torch.eye(3, dtype=torch.float64)
    features = centres[torch.tensor([2, 0, 1, 2, 0, 1])] + 0.5 * normal(6, 3)
    before = loss_of(features).item()
    for _ in range(50):
        leaf = features.clone().requires_grad_(True)
        (gradient,) = torch.autograd.grad(loss_of(leaf), leaf)
        features = features - 0.5 * gradient
    assert loss_of(features).item() < 0.8 * before
    log_transitions = transition_log_probs(features)
    phi = propagated_labels(log_transitions, LABELS, C, smoothing=1e-5)
    assert phi.argmax(dim=1).tolist() == [2, 0, 1, 2, 0, 1]


def test_the_order_of_the_images_does_not_matter() -> None:
    order = torch.tensor([1, 2, 0, 5, 3, 6, 4])  # labelled images stay in front
    torch.testing.assert_close(loss_of(FEATURES[order], LABELS[order[:3]]), loss_of(FEATURES))


@pytest.mark.parametrize("labels", LABEL_SETS)
@pytest.mark.parametrize("size", [0.0, 1e-3, 10.0, 100.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_small_and_identical_features_stay_finite(
    labels: Tensor, size: float, dtype: torch.dtype
) -> None:
    features = (size * FEATURES).to(dtype).requires_grad_(True)
    loss = loss_of(features, labels)
    (gradient,) = torch.autograd.grad(loss, features)
    assert loss.isfinite()
    assert gradient.isfinite().all()


def test_a_walk_has_steps() -> None:
    with pytest.raises(ValueError, match="a walk has at least 1 step, got 0"):
        loss_of(FEATURES, num_steps=0)
