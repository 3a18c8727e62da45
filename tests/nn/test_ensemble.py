"""The ensemble of predictions of each image."""

from collections import defaultdict

import pytest
import torch
from torch import Tensor

from manigraph.nn import Memory, PredictionEnsemble
from manigraph.sharding import Shard
from tests.helpers import assert_bitwise_equal, normal, seeded
from tests.reference.ensemble import ImageEnsemble, weighted_mean

NUM_IMAGES = 7
DECAY = 0.6


def empty(decay: float = DECAY, num_images: int = NUM_IMAGES) -> PredictionEnsemble:
    memory = PredictionEnsemble(3, decay).double()
    memory.make_room(num_images)
    return memory


def predictions(number: int, seed: int = 0) -> Tensor:
    return normal(number, 3, seed=seed).softmax(dim=1)


def test_three_epochs_are_the_naive_ensemble_of_each_image() -> None:
    # Seven images in batches of three: a batch runs over the end of an epoch into the next. Every target
    # that is read on the way, and all that is in the memory in the end.
    memory = empty()
    naive = [ImageEnsemble() for _ in range(NUM_IMAGES)]
    history: dict[int, list[list[float]]] = defaultdict(list)
    generator = seeded(2)
    stream = torch.cat([torch.randperm(NUM_IMAGES, generator=generator) for _ in range(3)])
    for step, positions in enumerate(stream.split(3)):
        assert len(set(positions.tolist())) == len(positions), "no image twice in a batch here"
        probs = predictions(len(positions), seed=step)
        found = memory.targets(positions)
        for row, position in enumerate(positions.tolist()):
            expected = naive[position].target(DECAY)
            assert bool(found.known[row]) == (expected is not None)
            assert found.probs[row].tolist() == pytest.approx(expected or [0.0] * 3, rel=1e-12)
            naive[position].take(probs[row].tolist(), DECAY)
            history[position].append(probs[row].tolist())
        memory.update(positions, probs)

    assert memory.count.tolist() == [3] * NUM_IMAGES
    everything = memory.targets(torch.arange(NUM_IMAGES))
    for position in range(NUM_IMAGES):
        assert memory.ensemble[position].tolist() == pytest.approx(naive[position].total, rel=1e-12)
        expected = weighted_mean(history[position], DECAY)
        assert everything.probs[position].tolist() == pytest.approx(expected, rel=1e-12)


def test_images_that_were_not_in_the_batch_stay_as_they_are() -> None:
    memory = empty()
    memory.update(torch.tensor([4, 1]), predictions(2))
    assert memory.count.tolist() == [0, 1, 0, 0, 1, 0, 0]
    assert not memory.ensemble[[0, 2, 3, 5, 6]].any()
    torch.testing.assert_close(memory.ensemble[[4, 1]], (1 - DECAY) * predictions(2))


def test_an_image_twice_in_a_batch_counts_once_with_its_mean_prediction() -> None:
    memory, by_hand = empty(), empty()
    probs = predictions(4)
    memory.update(torch.tensor([2, 5, 2, 2]), probs)
    by_hand.update(torch.tensor([2, 5]), torch.stack([probs[[0, 2, 3]].mean(dim=0), probs[1]]))
    assert memory.count.tolist() == [0, 0, 1, 0, 0, 1, 0]
    torch.testing.assert_close(memory.ensemble, by_hand.ensemble, rtol=1e-14, atol=0)


def test_the_order_within_a_batch_does_not_matter() -> None:
    positions, probs = torch.tensor([2, 5, 2, 0, 5, 5]), predictions(6)
    expected = empty()
    expected.update(positions, probs)
    for seed in range(5):
        order = torch.randperm(6, generator=seeded(seed))
        memory = empty()
        memory.update(positions[order], probs[order])
        assert torch.equal(memory.count, expected.count)
        torch.testing.assert_close(memory.ensemble, expected.ensemble, rtol=1e-14, atol=1e-16)


def test_a_batch_larger_than_the_pool() -> None:
    memory = empty(num_images=1)
    memory.update(torch.zeros(5, dtype=torch.long), predictions(5))
    found = memory.targets(torch.zeros(5, dtype=torch.long))
    torch.testing.assert_close(found.probs, predictions(5).mean(dim=0).expand(5, 3))
    assert found.known.all()


def test_targets_are_constants_and_reading_them_changes_nothing() -> None:
    memory = empty()
    probs = predictions(2).requires_grad_(True)
    memory.update(torch.tensor([0, 3]), probs)
    before = {name: value.clone() for name, value in memory.state_dict().items()}
    found = memory.targets(torch.tensor([3, 1]))
    assert not found.probs.requires_grad
    assert not memory.ensemble.requires_grad
    found.probs.fill_(9.0)
    assert_bitwise_equal(memory.state_dict(), before)


def test_all_processes_hold_the_predictions_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    positions, probs = torch.tensor([2, 5, 2, 0]), predictions(4)
    whole = empty()
    whole.update(positions, probs)
    for rank in range(2):
        shard = Shard(rank, 2)
        memory = empty()
        memory.shard = shard
        everybodys = {tuple(shard.own(rows).shape): rows for rows in (positions, probs)}
        monkeypatch.setattr(Shard, "gather", lambda _, rows, known=everybodys: known[tuple(rows.shape)])
        memory.update(shard.own(positions), shard.own(probs))
        assert_bitwise_equal(memory.state_dict(), whole.state_dict())


def test_it_is_saved() -> None:
    memory, fresh = empty(), empty()
    memory.update(torch.tensor([0, 3]), predictions(2, seed=1))
    fresh.update(torch.tensor([1, 3]), predictions(2, seed=2))
    fresh.load_state_dict(memory.state_dict())
    for ensemble in (memory, fresh):
        ensemble.update(torch.tensor([3, 6]), predictions(2, seed=3))
    assert_bitwise_equal(dict(fresh.named_buffers()), dict(memory.named_buffers()))
    assert isinstance(memory, Memory), "in checkpoints, not in the trained model's file"


def test_without_room_there_is_a_clear_error() -> None:
    memory = PredictionEnsemble(3, DECAY)
    assert memory.ensemble.shape == (0, 3)
    with pytest.raises(AssertionError, match="call expect_images before the first step"):
        memory.targets(torch.tensor([0]))
    with pytest.raises(AssertionError, match="call expect_images before the first step"):
        memory.update(torch.tensor([0]), predictions(1))


def test_it_has_the_default_dtype() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        memory = PredictionEnsemble(3, DECAY)
        memory.make_room(2)
        assert memory.ensemble.dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert PredictionEnsemble(3, DECAY).ensemble.dtype == torch.float32


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_decay_must_be_a_share(decay: float) -> None:
    with pytest.raises(ValueError, match=f"at least 0 and below 1, got {decay}"):
        PredictionEnsemble(3, decay)
