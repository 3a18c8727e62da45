"""The benchmark of methods against lean steps measures what it says; no time is asserted."""

import pytest
import torch

from manigraph.bench.methods import WHOLE, contenders, run_methods_benchmark
from manigraph.bench.settings import TINY
from manigraph.catalogue import ALGORITHMS
from tests.helpers import copied


def test_every_method_has_a_ratio_with_a_target() -> None:
    told: list[str] = []
    before = torch.get_rng_state()
    ratios = run_methods_benchmark(0.02, told.append)
    assert [ratio.what for ratio in ratios] == list(ALGORITHMS)
    for ratio in ratios:
        assert ratio.setting == TINY.name
        assert ratio.versus == "a lean step in plain torch"
        assert ratio.ratio == pytest.approx(ratio.milliseconds / ratio.versus_milliseconds, rel=0.01)
        assert ratio.target == "≤ 1.03"
        assert ratio.reached == (ratio.ratio <= 1.03)
    assert {text.partition(",")[0] for text in told} == set(ALGORITHMS)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_whole_setting_is_that_of_the_target() -> None:
    assert WHOLE.name == "CNN-13 at width 1/4, 32 + 64 images of 32x32"


def test_each_side_does_its_own_work() -> None:
    """The lean step leaves our weights alone; ours is a step of the trainer with the graph on."""
    with torch.random.fork_rng():
        job = TINY.job("manifold_graph")
        before = copied(dict(job.trainer.algorithm.named_parameters()))
        work = contenders("manifold_graph", job, next(job.batches))
        assert list(work) == ["a lean step in plain torch", "manifold_graph"]
        moved = []
        for step in work.values():
            step()
            now = job.trainer.algorithm.named_parameters()
            moved.append({name for name, p in now if not torch.equal(p, before[name])})
    assert moved == [set(), set(before)]
    assert job.trainer.step == 1
