"""Several classifiers as one."""

import torch
from torch import nn

from manigraph.nn import Classifier, CoTrainedViews
from tests.helpers import normal, tiny_backbone
from tests.reference import cotraining as reference


def classifiers(number: int) -> list[Classifier]:
    torch.manual_seed(0)
    backbones = [tiny_backbone() for _ in range(number)]
    return [Classifier(backbone, nn.Linear(backbone.feature_size, 3)).double() for backbone in backbones]


def test_prediction_is_the_mean_of_all() -> None:
    views = classifiers(3)
    model = CoTrainedViews(views).eval()
    images = normal(5, 1, 8, 8)
    with torch.no_grad():
        found, alone = model(images), [view(images) for view in views]
    for image in range(5):
        expected = torch.stack(reference.mean_prediction(alone, image))
        torch.testing.assert_close(found[image].exp(), expected, rtol=1e-12, atol=1e-12)
    assert model.num_classes == 3


def test_one_view_alone_predicts_as_it_does() -> None:
    (view,) = classifiers(1)
    model = CoTrainedViews([view]).eval()
    images = normal(5, 1, 8, 8)
    torch.testing.assert_close(model(images), view(images).log_softmax(dim=1))


def test_parameters_and_mode_are_those_of_the_views() -> None:
    views = classifiers(2)
    model = CoTrainedViews(views)
    assert model.training
    assert [id(p) for p in model.parameters()] == [id(p) for view in views for p in view.parameters()]
    for view in views:
        view.eval()
    assert not CoTrainedViews(views).training
