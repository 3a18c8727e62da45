"""Passes that batch norm must not remember."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from manigraph.nn import frozen_running_statistics
from tests.helpers import assert_bitwise_equal, batch_norm_layers, normal, running_statistics


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.BatchNorm1d(4 * 36))
    layers(normal(5, 1, 8, 8, seed=9).float())  # so that the statistics are not the initial ones
    return layers


IMAGES = 3 + 2 * normal(5, 1, 8, 8, seed=1).float()


def test_statistics_do_not_move_inside_and_do_outside() -> None:
    layers = network()
    before = running_statistics(layers)
    with frozen_running_statistics(layers):
        layers(IMAGES)
    assert_bitwise_equal(running_statistics(layers), before)
    layers(IMAGES)
    assert all(not torch.equal(value, before[name]) for name, value in running_statistics(layers).items())


def test_the_counter_is_among_the_statistics() -> None:
    assert {name.split(".")[1] for name in running_statistics(network())} == {
        "running_mean",
        "running_var",
        "num_batches_tracked",
    }


def test_batch_statistics_are_used_inside() -> None:
    layers = network()
    with frozen_running_statistics(layers):
        inside = layers(IMAGES)
    assert torch.equal(inside, layers(IMAGES))
    torch.testing.assert_close(inside.mean(dim=0), torch.zeros(4 * 36), atol=1e-5, rtol=0)


def test_gradients_are_those_of_an_ordinary_pass() -> None:
    layers = network()
    parameters = list(layers.parameters())
    with frozen_running_statistics(layers):
        inside = torch.autograd.grad(layers(IMAGES).pow(3).sum(), parameters)
    outside = torch.autograd.grad(layers(IMAGES).pow(3).sum(), parameters)
    assert all(torch.equal(a, b) for a, b in zip(inside, outside, strict=True))


def test_tracking_comes_back_after_an_exception() -> None:
    layers = network()
    with pytest.raises(RuntimeError, match="inside"), frozen_running_statistics(layers):
        raise RuntimeError("inside")
    before = running_statistics(layers)
    layers(IMAGES)
    assert all(not torch.equal(value, before[name]) for name, value in running_statistics(layers).items())


def test_nested_use_ends_with_the_outer_one() -> None:
    layers = network()
    before = running_statistics(layers)
    with frozen_running_statistics(layers):
        with frozen_running_statistics(layers):
            layers(IMAGES)
        layers(IMAGES)
    assert_bitwise_equal(running_statistics(layers), before)
    assert all(layer.track_running_stats for layer in batch_norm_layers(layers))


def everything(layers: nn.Sequential) -> None:
    layers.eval()


def one_layer(layers: nn.Sequential) -> None:
    layers[1].eval()


@pytest.mark.parametrize("put_into_evaluation", [everything, one_layer])
def test_layers_in_evaluation_mode_are_not_touched(
    put_into_evaluation: Callable[[nn.Sequential], None],
) -> None:
    layers = network()
    put_into_evaluation(layers)
    modes = [layer.training for layer in layers]
    before = running_statistics(layers)
    with frozen_running_statistics(layers):
        assert layers[1].track_running_stats, "still the running statistics"
        inside = layers(IMAGES)
    assert_bitwise_equal(running_statistics(layers), before)
    assert [layer.training for layer in layers] == modes
    assert torch.equal(inside, layers(IMAGES))


def test_layers_that_never_track_stay_so() -> None:
    layer = nn.BatchNorm1d(3, track_running_stats=False)
    with frozen_running_statistics(layer):
        layer(normal(4, 3).float())
    assert not layer.track_running_stats
