from collections import Counter

import pytest
import torch
from torch import Tensor

from manigraph.contract import DataRequest
from manigraph.data.augmentation import flip, rotate_and_scale, translate
from manigraph.data.batches import AugmentationConfig, BatchConfig, IndexStream, augment, batches
from manigraph.data.preprocessing import Standardise


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int = 6) -> Tensor:
    return torch.arange(count * 2 * 8 * 9, dtype=torch.float32).view(count, 2, 8, 9)


def test_every_index_comes_once_before_any_comes_again() -> None:
    stream = IndexStream(torch.arange(7), generator())
    drawn = torch.cat([stream.take(5) for _ in range(7)]).tolist()  # 35 = 5 rounds of 7
    for start in range(0, 35, 7):
        assert sorted(drawn[start : start + 7]) == list(range(7))


def test_a_batch_may_be_larger_than_the_set() -> None:
    assert Counter(IndexStream(torch.arange(3), generator()).take(9).tolist()) == {0: 3, 1: 3, 2: 3}


def test_an_empty_set_is_refused() -> None:
    with pytest.raises(ValueError, match="no images to draw from"):
        IndexStream(torch.arange(0), generator())


def test_translation_equals_shifting_one_image_at_a_time() -> None:
    x = images()
    shifted = translate(x, 2, generator())
    shift = torch.randint(-2, 3, (2, 6, 1), generator=generator())
    for b in range(6):
        dy, dx = int(shift[0, b]), int(shift[1, b])
        for row in range(8):
            for column in range(9):
                source = x[b, :, min(max(row + dy, 0), 7), min(max(column + dx, 0), 8)]
                assert torch.equal(shifted[b, :, row, column], source)


def test_no_augmentation_changes_nothing() -> None:
    x = images()
    none = AugmentationConfig(translation=0, flip=False, rotation=0.0, scale=0.0)
    assert torch.equal(augment(x, none, generator()), x)


def test_vectors_are_not_augmented() -> None:
    x = torch.randn(4, 10)
    assert torch.equal(augment(x, AugmentationConfig(), generator()), x)


def test_flip_mirrors_about_half() -> None:
    x = images(400)
    flipped = flip(x, generator())
    same = (flipped == x).all(dim=(1, 2, 3))
    mirrored = (flipped == x.flip(3)).all(dim=(1, 2, 3))
    assert bool((same ^ mirrored).all())
    assert 150 < int(mirrored.sum()) < 250


def test_rotation_moves_the_outside_and_keeps_the_centre() -> None:
    x = torch.zeros(64, 1, 9, 9)
    x[:, :, 4, 4] = 1.0  # the centre pixel
    x[:, :, 4, 8] = 1.0  # a pixel at the edge
    turned = rotate_and_scale(x, 20.0, 0.0, generator())
    assert torch.allclose(turned[:, 0, 4, 4], torch.ones(64), atol=1e-5)
    assert int((turned[:, 0, 4, 8] < 0.9).sum()) > 32
    assert not torch.equal(turned[0], turned[1])


@pytest.fixture
def request_two_views() -> DataRequest:
    return DataRequest(unlabelled={"first": "weak", "second": "weak", "as_is": "plain"}, images_per_class=3)


def stream(request: DataRequest, seed: int = 0):  # type: ignore[no-untyped-def]
    x = torch.randn(20, 1, 8, 8, generator=generator(99))
    classes = torch.arange(20) % 2
    return batches(
        x,
        classes,
        labelled=torch.arange(6),
        unlabelled=torch.arange(6, 20),
        num_classes=2,
        request=request,
        batch=BatchConfig(labelled=4, unlabelled=8),
        augmentation=AugmentationConfig(translation=1),
        generator=generator(seed),
    )


def test_batches_hold_the_views_that_were_asked_for(request_two_views: DataRequest) -> None:
    batch = next(stream(request_two_views))
    assert set(batch.unlabelled) == {"first", "second", "as_is"}
    assert {view.shape for view in batch.unlabelled.values()} == {(8, 1, 8, 8)}
    assert batch.labelled["image"].shape == (4, 1, 8, 8)
    assert not torch.equal(batch.unlabelled["first"], batch.unlabelled["second"])
    assert batch.class_images is not None
    assert batch.class_images.shape == (6, 1, 8, 8)


def test_the_same_seed_gives_the_same_batches(request_two_views: DataRequest) -> None:
    first, second, other = (stream(request_two_views, seed) for seed in (0, 0, 1))
    for _ in range(3):
        a, b, c = next(first), next(second), next(other)
        assert torch.equal(a.unlabelled["first"], b.unlabelled["first"])
        assert torch.equal(a.labels, b.labels)
        assert not torch.equal(a.unlabelled["first"], c.unlabelled["first"])


def test_labels_of_unlabelled_images_are_never_read() -> None:
    """Poisoned classes of the unlabelled images change nothing in the batches."""
    x = torch.randn(20, 1, 8, 8)
    clean, poisoned = torch.arange(20) % 2, torch.arange(20) % 2
    poisoned[6:] = 10_000
    streams = [
        batches(
            x,
            classes,
            labelled=torch.arange(6),
            unlabelled=torch.arange(6, 20),
            num_classes=2,
            request=DataRequest(unlabelled={"image": "weak"}, images_per_class=2),
            batch=BatchConfig(4, 8),
            augmentation=AugmentationConfig(),
            generator=generator(),
        )
        for classes in (clean, poisoned)
    ]
    a, b = (next(s) for s in streams)
    assert torch.equal(a.labels, b.labels)
    assert torch.equal(a.unlabelled["image"], b.unlabelled["image"])


def test_supervised_training_draws_no_unlabelled_images() -> None:
    assert next(stream(DataRequest())).unlabelled == {}


def test_standardised_images_have_mean_0_and_deviation_1() -> None:
    x = torch.randint(0, 256, (50, 3, 8, 8), dtype=torch.uint8)
    y = Standardise.fit(x)(x)
    assert torch.allclose(y.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-5)
    assert torch.allclose(y.std(dim=(0, 2, 3), correction=0), torch.ones(3), atol=1e-5)


def test_a_constant_channel_becomes_0() -> None:
    x = torch.full((5, 1, 8, 8), 7, dtype=torch.uint8)
    assert torch.equal(Standardise.fit(x)(x), torch.zeros(5, 1, 8, 8))
