"""Views of vectors, on the way to their nearest ones."""

import pytest
import torch
from torch import Tensor

from manigraph.contract import DataRequest
from manigraph.data import neighbours as module
from manigraph.data.augmentation import AugmentationConfig
from manigraph.data.batches import BatchConfig, BatchStream
from manigraph.data.neighbours import Neighbours
from manigraph.data.prepared import PreparedImages
from manigraph.data.preprocessing import Standardise
from manigraph.sharding import Shard
from tests.helpers import normal


def table_of(vectors: Tensor) -> PreparedImages:
    return PreparedImages(vectors, Standardise.fit(vectors))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_nearest_after_preprocessing_among_those_trained_on() -> None:
    vectors = normal(40, 3).float() * torch.tensor([1.0, 100.0, 0.01])  # of equal weight once prepared
    indices = torch.arange(0, 40, 2)
    found = Neighbours(table_of(vectors), indices, 4).table
    scaled = (vectors - vectors.mean(0)) / vectors.std(0)
    for row, index in enumerate(indices.tolist()):
        others = [i for i in indices.tolist() if i != index]
        expected = sorted(others, key=lambda i: float((scaled[i] - scaled[index]).norm()))[:4]
        assert found[row].tolist() == expected


def test_views_lie_between_a_vector_and_a_neighbour() -> None:
    vectors = normal(30, 5).float()
    found = Neighbours(table_of(vectors), torch.arange(30), 3)
    indices = torch.arange(30).repeat(40)
    views = found.views(indices, vectors[indices], generator())
    shares, choices = [], set()
    for index, view in zip(indices.tolist(), views, strict=True):
        way = vectors[found.table[index]] - vectors[index]  # to each neighbour
        share = (view - vectors[index]) @ way.T / way.square().sum(1)
        ends = vectors[index] + share.unsqueeze(1) * way
        choice = int((ends - view).norm(dim=1).argmin())
        torch.testing.assert_close(ends[choice], view, rtol=1e-4, atol=1e-5)
        shares.append(float(share[choice]))
        choices.add(choice)
    assert choices == {0, 1, 2}
    assert 0 <= min(shares) < 0.02
    assert 0.48 < max(shares) <= 0.5 + 1e-4


def test_processes_draw_parts_of_the_same_views() -> None:
    vectors = normal(30, 5).float()
    found, indices = Neighbours(table_of(vectors), torch.arange(30), 3), torch.arange(8)
    whole = found.views(indices, vectors[indices], generator())
    for rank in range(2):
        own = indices[rank::2]
        part = found.views(own, vectors[own], generator(), Shard(rank, 2))
        assert torch.equal(part, whole[rank::2])


def test_fewer_vectors_than_neighbours() -> None:
    vectors = normal(3, 2).float()
    assert Neighbours(table_of(vectors), torch.arange(3), 5).table.shape == (3, 2)
    alone = Neighbours(table_of(vectors), torch.arange(1), 5)
    assert torch.equal(
        alone.views(torch.zeros(2, dtype=torch.long), vectors[[0, 0]], generator()), vectors[[0, 0]]
    )


def test_of_very_many_some_are_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CANDIDATES", 10)
    vectors = normal(50, 2).float()
    table = Neighbours(table_of(vectors), torch.arange(50), 3).table
    assert table.shape == (50, 3)
    assert len(table.unique()) <= 10
    assert (table != torch.arange(50).unsqueeze(1)).all()


def stream(vectors: Tensor, neighbours: int) -> BatchStream:
    return BatchStream(
        table_of(vectors),
        torch.zeros(len(vectors), dtype=torch.long),
        labelled=torch.arange(4),
        unlabelled=torch.arange(4, 20),
        num_classes=1,
        request=DataRequest({"image": "weak"}, {"first": "weak", "second": "weak", "plain": "plain"}),
        batch=BatchConfig(4, 16),
        augmentation=AugmentationConfig(neighbours=neighbours),
        generator=generator(),
    )


def test_batches_hold_such_views_if_asked() -> None:
    vectors = normal(25, 4).float()
    batch = next(stream(vectors, 0))
    assert torch.equal(batch.unlabelled["first"], batch.unlabelled["plain"])
    batch = next(stream(vectors, 5))
    first, second, plain = (batch.unlabelled[name] for name in ("first", "second", "plain"))
    assert (first != plain).any(1).all()
    assert (first != second).any(1).all(), "drawn independently"
    prepared = table_of(vectors).prepare(vectors)
    assert not any((prepared == row).all(1).any() for row in batch.labelled["image"])


def test_images_have_other_views() -> None:
    images = (255 * normal(20, 1, 8, 8).abs().clamp(0, 1)).to(torch.uint8)
    one, other = (next(stream(images, count)) for count in (0, 5))
    assert torch.equal(one.unlabelled["first"], other.unlabelled["first"])


def test_a_number_of_neighbours_that_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="neighbours must be at least 0, got -1"):
        AugmentationConfig(neighbours=-1)
