from collections import Counter
from collections.abc import Mapping
from typing import Literal

import pytest
import torch
from torch import Tensor

from manigraph.contract import Batch, DataRequest, ImageTable, ViewKind
from manigraph.data.augmentation import AugmentationConfig
from manigraph.data.batches import BatchConfig, BatchStream, IndexStream
from manigraph.data.prepared import PreparedImages
from manigraph.data.preprocessing import ZCA, Standardise
from manigraph.data.strong_augmentation import StrongAugmentationConfig
from tests.helpers import Table, seeded

TWO_VIEWS = DataRequest(unlabelled={"first": "weak", "second": "weak", "as_is": "plain"}, images_per_class=3)


def stream(
    request: DataRequest,
    seed: int = 0,
    classes: Tensor | None = None,
    labelled_view: Literal["weak", "strong"] = "weak",
) -> BatchStream:
    return BatchStream(
        Table(torch.rand(20, 1, 8, 8, generator=seeded(99))),
        torch.arange(20) % 2 if classes is None else classes,
        labelled=torch.arange(6),
        unlabelled=torch.arange(6, 20),
        num_classes=2,
        request=request,
        batch=BatchConfig(labelled=4, unlabelled=8, labelled_view=labelled_view),
        augmentation=AugmentationConfig(translation=1),
        generator=seeded(seed),
    )


def everything(batch: Batch) -> Mapping[str, Tensor]:
    assert batch.class_images is not None
    return {"labels": batch.labels, "nodes": batch.class_images, **batch.labelled, **batch.unlabelled}


def assert_same(first: Batch, second: Batch) -> None:
    for name, tensor in everything(first).items():
        assert torch.equal(tensor, everything(second)[name]), name


def test_every_index_comes_once_before_any_comes_again() -> None:
    indices = IndexStream(torch.arange(7), seeded())
    drawn = torch.cat([indices.take(5) for _ in range(7)]).tolist()  # 35 = 5 rounds of 7
    for start in range(0, 35, 7):
        assert sorted(drawn[start : start + 7]) == list(range(7))


def test_a_batch_may_be_larger_than_the_set() -> None:
    assert Counter(IndexStream(torch.arange(3), seeded()).take(9).tolist()) == {0: 3, 1: 3, 2: 3}


def test_an_empty_set_is_refused() -> None:
    with pytest.raises(ValueError, match="no images to draw from"):
        IndexStream(torch.arange(0), seeded())


def test_batches_hold_the_views_that_were_asked_for() -> None:
    batch = next(stream(TWO_VIEWS))
    assert set(batch.unlabelled) == {"first", "second", "as_is"}
    assert {view.shape for view in batch.unlabelled.values()} == {(8, 1, 8, 8)}
    assert batch.labelled["image"].shape == (4, 1, 8, 8)
    assert batch.class_images is not None
    assert batch.class_images.shape == (6, 1, 8, 8)


def test_two_views_are_of_the_same_images_and_independent() -> None:
    batches = stream(TWO_VIEWS)
    equal = total = 0
    for _ in range(20):
        batch = next(batches)
        first, second, plain = (batch.unlabelled[name] for name in ("first", "second", "as_is"))
        # A shift of one pixel keeps the inner pixels of an image somewhere near where they were.
        for a, b, x in zip(first, second, plain, strict=True):
            assert torch.isin(a, x).all()
            assert torch.isin(b, x).all()
            equal += int(torch.equal(a, b))
            total += 1
    assert 0 < equal < total / 3  # one in nine by chance


def test_the_same_seed_gives_the_same_batches() -> None:
    first, second, other = (stream(TWO_VIEWS, seed) for seed in (0, 0, 1))
    for _ in range(3):
        a, b, c = next(first), next(second), next(other)
        assert_same(a, b)
        assert not torch.equal(a.unlabelled["first"], c.unlabelled["first"])


@pytest.mark.parametrize("steps_before", [0, 1, 5])
def test_a_stream_goes_on_where_its_state_was_taken(steps_before: int) -> None:
    whole, resumed = stream(TWO_VIEWS), stream(TWO_VIEWS, seed=7)
    for _ in range(steps_before):
        next(whole)
    state = {name: tensor.clone() for name, tensor in whole.state_dict().items()}
    expected = [next(whole) for _ in range(4)]
    next(resumed)
    resumed.load_state_dict(state)
    for batch in expected:
        assert_same(next(resumed), batch)


def test_the_state_of_another_stream_is_refused() -> None:
    with pytest.raises(ValueError, match="the state is of another stream"):
        stream(DataRequest()).load_state_dict(stream(TWO_VIEWS).state_dict())


def test_labels_of_unlabelled_images_are_never_read() -> None:
    """Poisoned classes of the unlabelled images change nothing in the batches."""
    poisoned = torch.arange(20) % 2
    poisoned[6:] = 10_000
    clean, other = stream(TWO_VIEWS), stream(TWO_VIEWS, classes=poisoned)
    for _ in range(3):
        assert_same(next(clean), next(other))


def test_class_images_come_class_by_class() -> None:
    images = torch.arange(20.0).view(20, 1, 1, 1).expand(20, 1, 8, 8)
    classes = torch.arange(20) % 2
    batches = BatchStream(
        Table(images),
        classes,
        labelled=torch.arange(6),
        unlabelled=torch.arange(6, 20),
        num_classes=2,
        request=DataRequest(images_per_class=3),
        batch=BatchConfig(labelled=4, unlabelled=8),
        augmentation=AugmentationConfig(),
        generator=seeded(),
    )
    nodes = next(batches).class_images
    assert nodes is not None
    chosen = nodes[:, 0, 0, 0].long()
    assert classes[chosen].tolist() == [0, 0, 0, 1, 1, 1]
    assert int(chosen.max()) < 6


def test_supervised_training_draws_no_unlabelled_images() -> None:
    assert next(stream(DataRequest())).unlabelled == {}


def test_labelled_images_are_augmented_too() -> None:
    batches = stream(DataRequest(labelled={"image": "weak", "as_is": "plain"}))
    pairs = [next(batches).labelled for _ in range(5)]
    changed = [
        not torch.equal(a, b) for views in pairs for a, b in zip(views["image"], views["as_is"], strict=True)
    ]
    assert sum(changed) > len(changed) / 2


# Places in the pool, and strong views


def test_positions_say_which_image_of_the_pool_it_is() -> None:
    pool = torch.tensor([17, 3, 9, 12, 5])
    batches = BatchStream(
        Table(torch.arange(20.0).view(20, 1, 1, 1).expand(20, 1, 8, 8)),
        torch.arange(20) % 2,
        labelled=torch.arange(2),
        unlabelled=pool,
        num_classes=2,
        request=DataRequest(unlabelled={"image": "plain"}),
        batch=BatchConfig(labelled=2, unlabelled=3),
        augmentation=AugmentationConfig(translation=0),
        generator=seeded(),
    )
    images: dict[int, float] = {}
    for _ in range(10):
        batch = next(batches)
        assert batch.positions is not None
        for position, image in zip(batch.positions.tolist(), batch.unlabelled["image"], strict=True):
            assert images.setdefault(position, image[0, 0, 0].item()) == image[0, 0, 0].item()
    assert set(images) == set(range(5))
    assert set(images.values()) == {17.0, 3.0, 9.0, 12.0, 5.0}


def test_strong_views_are_drawn_after_the_weak_change_and_differ_from_image_to_image() -> None:
    batch = next(stream(DataRequest(unlabelled={"weak": "weak", "strong": "strong", "as_is": "plain"})))
    weak, strong, plain = (batch.unlabelled[name] for name in ("weak", "strong", "as_is"))
    assert strong.shape == plain.shape
    changed = (strong - plain).flatten(1).abs().amax(dim=1) > 0
    assert changed.all()
    assert not torch.equal(strong, weak)


def test_labelled_images_may_be_seen_in_strong_views_too() -> None:
    views = DataRequest(labelled={"image": "weak", "as_is": "plain"}, unlabelled={"first": "weak"})
    weak = next(stream(views))
    strong = next(stream(views, labelled_view="strong"))
    assert torch.equal(strong.labelled["as_is"], weak.labelled["as_is"])
    assert torch.equal(strong.unlabelled["first"], weak.unlabelled["first"])
    assert torch.equal(strong.labels, weak.labels)
    shifted = {image.sum().item() for image in weak.labelled["image"]}
    values = set(strong.labelled["as_is"].unique().tolist())
    assert len(shifted) == 4
    assert set(weak.labelled["image"].unique().tolist()) <= values  # shifts bring nothing in but the edge
    assert not set(strong.labelled["image"].unique().tolist()) <= values


def test_a_strong_view_of_a_vector_has_some_entries_taken_away() -> None:
    batches = BatchStream(
        Table(1 + torch.rand(20, 30, generator=seeded(1))),
        torch.arange(20) % 2,
        labelled=torch.arange(6),
        unlabelled=torch.arange(6, 20),
        num_classes=2,
        request=DataRequest(unlabelled={"as_is": "plain", "strong": "strong"}),
        batch=BatchConfig(labelled=4, unlabelled=14),
        augmentation=AugmentationConfig(),
        generator=seeded(),
    )
    batch = next(batches)
    kept = batch.unlabelled["strong"] != 0
    assert torch.equal(batch.unlabelled["strong"][kept], batch.unlabelled["as_is"][kept])
    assert 0 < (~kept).float().mean() < 0.5


NOTHING_MORE = StrongAugmentationConfig(operations=0, cutout=0.0)


def one_view(
    images: ImageTable,
    kind: ViewKind,
    strong: StrongAugmentationConfig = NOTHING_MORE,
    weak: AugmentationConfig | None = None,
) -> Tensor:
    """One view of 12 images, in the order of their numbers; views of two kinds draw the same at first."""
    batches = BatchStream(
        images,
        torch.arange(12) % 2,
        labelled=torch.arange(2),
        unlabelled=torch.arange(12),
        num_classes=2,
        request=DataRequest(unlabelled={"image": kind}),
        batch=BatchConfig(labelled=2, unlabelled=12),
        augmentation=AugmentationConfig(translation=2) if weak is None else weak,
        strong=strong,
        generator=seeded(),
    )
    batch = next(batches)
    assert batch.positions is not None
    return batch.unlabelled["image"][batch.positions.argsort()]


def test_a_strong_view_that_does_nothing_more_is_the_weak_one() -> None:
    table = Table(torch.randint(256, (12, 1, 8, 8), generator=seeded(1)) / 255)
    weak, strong = one_view(table, "weak"), one_view(table, "strong")
    torch.testing.assert_close(strong, weak)
    assert not torch.equal(weak, one_view(table, "plain"))


@pytest.mark.parametrize("white", [255.0, 15.0])
def test_a_strong_view_is_whitened_after_all_else(white: float) -> None:
    pixels = torch.randint(int(white) + 1, (12, 1, 8, 8), generator=seeded(1)).float()
    whitening = ZCA.fit(pixels, regulariser=0.1)
    images = PreparedImages(pixels, whitening, white=white)
    shifted = one_view(Table(pixels), "weak")
    torch.testing.assert_close(one_view(images, "strong"), whitening(shifted), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("white", [255.0, 15.0])
def test_the_square_is_half_as_bright_as_white(white: float) -> None:
    pixels = torch.randint(int(white) + 1, (12, 1, 8, 8), generator=seeded(1)).float()
    images = PreparedImages(pixels, Standardise((0.0,), (1.0,)), white=white)
    cut = StrongAugmentationConfig(operations=0, cutout=1.0)
    found = one_view(images, "strong", cut, AugmentationConfig(translation=0))
    kept = (found - pixels).abs() < 1e-4
    torch.testing.assert_close(found, torch.where(kept, pixels, white * 128 / 255))
    assert 0 < kept.float().mean() < 1


def test_a_strong_vector_is_standardised_before_its_entries_become_zero() -> None:
    vectors = 5 + torch.rand(12, 30, generator=seeded(1))
    images = PreparedImages(vectors, Standardise.fit(vectors))
    plain = one_view(images, "plain")
    strong = one_view(images, "strong", StrongAugmentationConfig(cutout=0.9))
    assert torch.equal(strong, torch.where(strong == 0, 0.0, plain))
    assert 0 < (strong == 0).float().mean() < 1
