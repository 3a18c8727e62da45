"""Batch norm and its activation as one operation in C: torch's two layers, up to rounding."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from manigraph.catalogue import BACKBONES
from manigraph.native import batch_norm, lanes, library, native
from manigraph.nn import Layers, frozen_running_statistics
from manigraph.nn.batch_norm import SharedBatchNorm, repeated_pass, tracking_layers
from manigraph.nn.normalised_activation import Chain, normalised_activation
from tests.helpers import assert_bitwise_equal, normal, running_statistics

needs_native = pytest.mark.skipif(library() is None, reason="the inner loops in C were not compiled")
SIZES = [
    (160, 32, 8, 8),
    (160, 64, 4, 4),
    (7, 16, 5, 3),
    (3, 240, 9, 7),  # groups of every size
    (2, 512, 1, 1),  # few rows
    (1, 32, 1, 2),
    (33, 48, 31, 17),
    (257, 128),
    (2, 16),
]
SLOPE = 0.1


def pair(channels: int, dimensions: int = 4, **settings: float | None) -> tuple[_BatchNorm, nn.LeakyReLU]:
    kind = nn.BatchNorm2d if dimensions == 4 else nn.BatchNorm1d
    layer = kind(channels, **settings)  # type: ignore[arg-type]
    with torch.no_grad():
        layer.weight.copy_(normal(channels, seed=1))
        layer.bias.copy_(normal(channels, seed=2))
    return layer, nn.LeakyReLU(SLOPE, inplace=True)


def values_of(size: tuple[int, ...], *, mean: float = 0.0, spread: float = 1.0) -> Tensor:
    values = (mean + spread * normal(*size, seed=3)).float()
    return values.contiguous(memory_format=torch.channels_last) if len(size) == 4 else values


def outcome(layers: tuple[_BatchNorm, nn.LeakyReLU], values: Tensor, times: int = 1) -> dict[str, Tensor]:
    """Value, gradients and running statistics; of copies, so that the layers can be used again."""
    layer, activation = copy.deepcopy(layers)
    values = values.detach().requires_grad_(True)
    for _ in range(times):
        result = normalised_activation(layer, activation, values)
    towards = normal(*values.shape, seed=4).to(result)
    gradients = torch.autograd.grad(result, [values, layer.weight, layer.bias], towards)
    names = ("values", "weight", "bias")
    found = {f"gradient of {name}": g for name, g in zip(names, gradients, strict=True)}
    return {"result": result.detach(), **found, **dict(layer.named_buffers())}


def precise(layers: tuple[_BatchNorm, nn.LeakyReLU], values: Tensor, times: int = 1) -> dict[str, Tensor]:
    layer, activation = copy.deepcopy(layers)
    return outcome((layer.double(), activation), values.double(), times)


def worst(found: dict[str, Tensor], expected: dict[str, Tensor], name: str) -> float:
    """The largest error, as a part of the typical value."""
    return float((found[name] - expected[name]).abs().max() / expected[name].double().abs().mean())


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which way the C loops were called."""
    made: list[str] = []

    def watched(name: str) -> None:
        real = getattr(batch_norm, name)

        def call(*given: object, **named: object) -> object:
            made.append(name)
            return real(*given, **named)

        monkeypatch.setattr(batch_norm, name, call)

    watched("forward")
    watched("backward")
    return made


# The same numbers


@needs_native
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_all_is_as_torch_has_it(size: tuple[int, ...], calls: list[str]) -> None:
    """Errors of float32 against float64: at most 1e-5 of a typical value, or three times torch's own."""
    layers, values = pair(size[1], len(size)), values_of(size)
    found = outcome(layers, values)
    assert calls == ["forward", "backward"]
    with native(False):
        usual, expected = outcome(layers, values), precise(layers, values)
    assert calls == ["forward", "backward"]
    assert found.keys() == expected.keys()
    assert found.pop("num_batches_tracked") == 1
    if values.numel() // size[1] == 2:
        # Two values are ±1 once normalised: the gradient of x is nothing but what eps leaves of it.
        for results in (found, usual, expected):
            results["gradient of values"] = results["gradient of values"] + 1
    for name in found:
        assert worst(found, expected, name) <= max(1e-5, 3 * worst(usual, expected, name)), name


@needs_native
@pytest.mark.parametrize(("mean", "spread"), [(1e4, 1.0), (-300.0, 0.01), (1e-3, 1e-7), (1e6, 100.0)])
def test_values_far_from_zero(mean: float, spread: float) -> None:
    """x itself is exact here; Σx² - (Σx)² would leave no digit."""
    layers = pair(32)
    layers[0].eps = 1e-20
    values = values_of((40, 32, 7, 9), mean=mean, spread=spread)
    found = outcome(layers, values)
    with native(False):
        expected = precise(layers, values)
    for name in ("result", "gradient of values", "gradient of weight", "gradient of bias"):
        # Signs of numbers next to zero may differ by rounding; that moves the gradient of a whole value.
        assert worst(found, expected, name) < 2e-5, name
    torch.testing.assert_close(found["running_var"].double(), expected["running_var"], rtol=1e-6, atol=0)
    torch.testing.assert_close(found["running_mean"].double(), expected["running_mean"], rtol=1e-6, atol=0)


@needs_native
def test_first_values_that_are_nothing_like_the_others() -> None:
    """The shift is taken from there, and must not stay there."""
    layers, values = pair(32), values_of((40, 32, 16, 16))
    values[0, :, 0, 0] = 1e4
    found = outcome(layers, values)
    with native(False):
        expected = precise(layers, values)
    torch.testing.assert_close(found["running_var"].double(), expected["running_var"], rtol=2e-6, atol=0)
    torch.testing.assert_close(found["result"].double(), expected["result"], rtol=2e-5, atol=1e-5)


@needs_native
def test_large_maps_are_written_past_the_caches_whole() -> None:
    layers, values = pair(32), values_of((130, 32, 32, 33))
    assert values.numel() > 1 << 22
    found, again = outcome(layers, values), outcome(layers, values)
    assert_bitwise_equal(found, again)
    with native(False):
        expected = precise(layers, values)
    assert worst(found, expected, "result") < 1e-5
    apart = (found["gradient of values"] - expected["gradient of values"]).abs()
    assert int((apart > 1e-5).sum()) < 5, "but for values so close to zero that rounding decides their sign"


@needs_native
@pytest.mark.parametrize("momentum", [0.1, 0.3, None, 0.0])
def test_running_statistics_move_as_torch_moves_them(momentum: float | None) -> None:
    layers, values = pair(16, momentum=momentum), values_of((5, 16, 3, 4), mean=3.0)
    found = outcome(layers, values, times=3)
    with native(False):
        expected = outcome(layers, values, times=3)
    assert found["num_batches_tracked"] == expected["num_batches_tracked"] == 3
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(found[name], expected[name], rtol=1e-6, atol=1e-6)


@needs_native
def test_frozen_statistics_move_nothing_and_are_not_used(calls: list[str]) -> None:
    layer, activation = pair(16)
    chain, values = Chain(layer, activation), values_of((5, 16, 3, 4), mean=3.0)
    before = running_statistics(chain)
    with frozen_running_statistics(chain):
        inside = chain(values)
    assert_bitwise_equal(running_statistics(chain), before)
    with repeated_pass(chain, tracking_layers(chain)):
        repeated = chain(values)
    assert_bitwise_equal(running_statistics(chain), before)
    outside = chain(values)
    assert torch.equal(inside, outside)
    assert torch.equal(repeated, outside)
    assert all(not torch.equal(value, before[name]) for name, value in running_statistics(chain).items())
    assert calls == ["forward"] * 3


@needs_native
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_any_number_of_threads_and_the_same_bits_twice(threads: int) -> None:
    """With more threads than there are chunks of rows too; each has seen values around a mean of its own."""
    layers, values = pair(48), values_of((33, 48, 6, 7))
    values += torch.arange(33)[:, None, None, None]
    with native(False):
        expected = precise(layers, values)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found, again = outcome(layers, values), outcome(layers, values)
    finally:
        torch.set_num_threads(before)
    assert_bitwise_equal(found, again)
    for name in found:
        assert worst(found, expected, name) < 1e-5, name


@needs_native
@pytest.mark.parametrize("strange", [float("nan"), float("inf")])
def test_what_is_not_a_number_stays_so(strange: float) -> None:
    layers, values = pair(32), values_of((20, 32, 8, 8))
    values[3, 5, 1, 1] = strange
    found = outcome(layers, values)
    with native(False):
        expected = outcome(layers, values)
    for name in ("result", "gradient of values", "gradient of weight", "running_var"):
        assert torch.equal(found[name].isnan(), expected[name].isnan()), name
    assert found["result"][:, 5].isnan().all()
    assert found["result"][:, :5].isfinite().all()


@needs_native
def test_gradients_that_come_in_another_layout_or_are_not_wanted() -> None:
    layers, values = pair(16), values_of((4, 16, 6, 5))
    layer, activation = layers
    given = values.clone(memory_format=torch.preserve_format).requires_grad_(True)
    result = normalised_activation(layer, activation, given)
    result.sum(dim=(2, 3)).pow(2).sum().backward()  # its gradient is expanded
    with native(False):
        usual = values.clone(memory_format=torch.preserve_format).requires_grad_(True)
        expected = normalised_activation(layer, activation, usual)
        expected.sum(dim=(2, 3)).pow(2).sum().backward()
    assert given.grad is not None
    torch.testing.assert_close(given.grad, usual.grad, rtol=1e-4, atol=1e-4)
    assert given.grad.is_contiguous(memory_format=torch.channels_last)
    layer.zero_grad()
    normalised_activation(layer, activation, values).sum().backward()
    assert values.grad is None
    own = layer.weight.grad
    assert isinstance(own, Tensor)
    with native(False):
        layer.zero_grad()
        normalised_activation(layer, activation, values).sum().backward()
    torch.testing.assert_close(own, layer.weight.grad, rtol=1e-4, atol=1e-4)


# Where it is used


@needs_native
@pytest.mark.parametrize(
    "change",
    [
        "evaluation",
        "float64",
        "bfloat16",
        "shared",
        "subclass",
        "layout",
        "channels",
        "autocast",
        "no weight",
        "hook",
        "pre-hook of the activation",
        "backward hook",
        "switched off",
        "other activation",
    ],
)
def test_what_goes_torchs_way(change: str, calls: list[str]) -> None:
    channels = lanes() + (4 if change == "channels" else 0)
    layer, activation = pair(channels)
    values = values_of((5, channels, 3, 4))
    assert isinstance(layer, nn.BatchNorm2d)
    seen: list[object] = []
    if change == "evaluation":
        layer.eval()
    elif change == "float64":
        layer, values = layer.double(), values.double()
    elif change == "bfloat16":
        values = values.bfloat16()
    elif change == "shared":
        layer = SharedBatchNorm.taking_over(layer).eval()
    elif change == "subclass":
        layer.__class__ = type("Other", (nn.BatchNorm2d,), {})
    elif change == "layout":
        values = values.contiguous()
    elif change == "no weight":
        layer = nn.BatchNorm2d(channels, affine=False)
    elif change == "hook":
        layer.register_forward_hook(lambda *_: seen.append(1))
    elif change == "pre-hook of the activation":
        activation.register_forward_pre_hook(lambda *_: seen.append(1))
    elif change == "backward hook":
        activation.inplace = False
        layer.register_full_backward_hook(lambda *_: seen.append(1))
    elif change == "other activation":
        activation.__class__ = type("Other", (nn.LeakyReLU,), {})
    usual = copy.deepcopy(layer)
    chain = Chain(layer, activation)
    with torch.autocast("cpu", torch.bfloat16, enabled=change == "autocast"):
        with native(change != "switched off"):
            found = chain(values.requires_grad_(True))
        expected = nn.functional.leaky_relu(usual(values), SLOPE)
    found.sum().backward()
    assert calls == []
    assert torch.equal(found, expected)
    if "hook" in change:
        assert seen


def test_errors_are_torchs() -> None:
    chain = Chain(*pair(16))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        chain(values_of((1, 16, 1, 1)))
    with pytest.raises(ValueError, match="expected 4D input"):
        chain(values_of((5, 16)))
    with pytest.raises(RuntimeError, match="16"):
        chain(values_of((5, 32, 2, 2)))


def backbone_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    backbone = BACKBONES.get(name)((1, 16, 16), width=0.5 if name == "cnn13" else 1.0, dropout=0.3)
    return backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def kept_for_the_gradient(layers: nn.Module, values: Tensor) -> int:
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        sizes[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = layers(values)
    assert result.requires_grad
    return sum(sizes.values())


@needs_native
@pytest.mark.parametrize("name", sorted(set(BACKBONES) - {"head", "leading", "efficientnet_lite0"}))
@pytest.mark.parametrize("recompute", [False, True])
def test_backbones_use_it_everywhere(name: str, recompute: bool, calls: list[str]) -> None:
    backbone = backbone_of(name)
    layers = [m for m in backbone.modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d))]
    for module in backbone.modules():
        if isinstance(module, Layers):
            module.recompute = recompute
    backbone(values_of((12, 1, 16, 16))).sum().backward()
    assert calls.count("forward") == (2 if recompute else 1) * len(layers)
    assert calls.count("backward") == len(layers)
    assert all(layer.num_batches_tracked == 1 for layer in layers)


@needs_native
def test_less_is_kept_for_the_gradient() -> None:
    chain, values = Chain(*pair(32)), values_of((12, 32, 8, 8))
    found = kept_for_the_gradient(chain, values)
    with native(False):
        usual = kept_for_the_gradient(chain, values)
    assert values.numel() <= found < 0.55 * usual


@needs_native
@pytest.mark.parametrize("name", ["cnn13", "small_cnn", "wide_resnet28_2", "resnet9"])
def test_backbones_keep_no_more(name: str) -> None:
    """The next convolution keeps its input in either way; the last activation is kept in one only."""
    found = kept_for_the_gradient(backbone_of(name), values_of((12, 1, 16, 16)))
    with native(False):
        usual = kept_for_the_gradient(backbone_of(name), values_of((12, 1, 16, 16)))
    assert found <= usual
