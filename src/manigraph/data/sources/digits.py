"""scikit-learn's handwritten digits: 1,797 grey images of 8×8 pixels with values 0 to 16."""

import torch

from manigraph.data.sources.base import Dataset, SourceRequest
from manigraph.errors import UserError

SIDE = 8
TEST_IMAGES = 500
TEST_SEED = 123


def load_digits(request: SourceRequest) -> Dataset:
    """The digits with a fixed test set: the first 500 of a permutation seeded 123."""
    from sklearn.datasets import load_digits as sklearn_digits  # 0.3 s, only when asked for

    if request.image_size not in (None, SIDE):
        raise UserError("the digits have 8×8 pixels and are not resized: leave out data.image_size")
    bunch = sklearn_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(TEST_SEED))
    return Dataset(
        name="digits",
        images=torch.from_numpy(bunch.images).to(torch.uint8).unsqueeze(1),
        classes=torch.from_numpy(bunch.target).long(),
        class_names=[str(name) for name in bunch.target_names],
        test=order[:TEST_IMAGES],
        train=order[TEST_IMAGES:],
        white=16.0,
    )
