"""What a grid will cost, against cases worked out by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from manigraph.experiments.cost import Cost, Room, expected_cost
from manigraph.experiments.grid import Cell, Result, ResultsFile
from manigraph.recipes.measured import Measured
from manigraph.runs import machine
from tests.experiments.cells import measured

TWO_CORES = Room(jobs=2, threads=1, cores=2)


def step(seconds: float) -> Measured:
    """Measured on a machine that took 2 s for its calibration."""
    return Measured(1, seconds, 2.0, "", {}, None, "")


# A run of the digits recipe has 500 steps: 50 s for Π-VAT, 100 s for Manifold Graph, on all of that machine.
MEASURED = {"digits": {"pi_vat": step(0.1), "manifold_graph": step(0.2)}}


def cells(algorithm: str, count: int, **changes: Any) -> list[Cell]:
    return [replace(Cell("digits", algorithm, 20, seed), **changes) for seed in range(count)]


def cost(what: list[Cell], room: Room = TWO_CORES, *results: Result, calibration: float = 2.0) -> Cost:
    file = ResultsFile(Path("nowhere.json"))
    file.results = list(results)
    return expected_cost(what, file, MEASURED, calibration, room)


@pytest.mark.parametrize(
    ("jobs", "threads", "cores", "count", "seconds"),
    [
        # One after the other on both cores: 50 s each.
        (1, 2, 2, 4, 200),
        # On one core a run takes 100 s, the other core is idle.
        (1, 1, 2, 4, 400),
        # Two at a time with a core each: 100 s a pair.
        (2, 1, 2, 4, 200),
        # The third is alone, which makes it no faster.
        (2, 1, 2, 3, 200),
        # Two at a time with two threads each on two cores: each takes twice its 50 s.
        (2, 2, 2, 4, 200),
        # Four at a time on two cores: each takes 200 s.
        (4, 1, 2, 4, 200),
        # More jobs than cells: two runs, a core each.
        (8, 1, 2, 2, 100),
        # More threads than cores bring nothing.
        (1, 8, 2, 4, 200),
        # Three of eight cores each, two cores idle: 50 · 8 / 3 s a pair.
        (2, 3, 8, 4, 2 * 50 * 8 / 3),
        (2, 1, 2, 0, 0),
    ],
)
def test_jobs_and_threads_share_the_cores(
    jobs: int, threads: int, cores: int, count: int, seconds: float
) -> None:
    found = cost(cells("pi_vat", count), Room(jobs, threads, cores))
    assert found.seconds == pytest.approx(seconds)
    assert (found.guessed, found.unknown) == (0, 0)


def test_cells_are_taken_in_their_order() -> None:
    # 200, 100, 100 and 200 s on one core each: 200 + 200 in one job, 100 + 100 in the other.
    short, long = cells("pi_vat", 2), cells("manifold_graph", 2)
    assert cost([long[0], short[0], short[1], long[1]]).seconds == 400
    assert cost([*long, *short]).seconds == 300


def test_a_machine_that_is_slower() -> None:
    assert cost(cells("pi_vat", 2), calibration=6.0).seconds == 300


def test_runs_of_other_lengths() -> None:
    assert cost(cells("pi_vat", 2, options=("--training.steps", "50"))).seconds == 10


def test_other_machines_are_not_shared() -> None:
    # Each run has a core of a machine like this one, whoever else computes: 100 s, in two rounds.
    assert cost(cells("pi_vat", 8), Room(4, 1, 2, shared=False)).seconds == 200
    assert cost(cells("pi_vat", 1), Room(1, 8, 2, shared=False)).seconds == 50, "with two cores at most"


def test_gpus() -> None:
    # The calibration was of one GPU: 50 s a run, two at a time; with four jobs two share each GPU.
    assert cost(cells("pi_vat", 4), Room(2, 1, 16, gpus=2)).seconds == 100
    assert cost(cells("pi_vat", 4), Room(4, 1, 16, gpus=2)).seconds == 100
    assert cost(cells("pi_vat", 4), Room(4, 16, 16, gpus=1, shared=False)).seconds == 50


def test_what_runs_took_here_counts_more_than_recipes() -> None:
    before = [
        measured(algorithm="pi_vat", seed=seed, labels=50, seconds=seconds, machine=machine())
        for seed, seconds in ((0, 10.0), (1, 30.0), (2, 70.0))
    ]
    unknown_time = measured(algorithm="pi_vat", seed=3, seconds=None, machine=machine())
    # The median, 30 s with one thread: 15 s with two.
    assert cost(cells("pi_vat", 2), TWO_CORES, *before, unknown_time).seconds == 30
    assert cost(cells("pi_vat", 2), Room(1, 2, 2), *before).seconds == 30
    assert cost(cells("pi_vat", 1), Room(1, 2, 2), *before).seconds == 15


def test_other_settings_and_other_machines_do_not() -> None:
    of_others = measured(algorithm="pi_vat", seconds=1.0, machine={"processor": "another"})
    of_before = measured(algorithm="pi_vat", seconds=1.0, machine=machine(), digest="of other settings")
    assert cost(cells("pi_vat", 1), TWO_CORES, of_others, of_before).seconds == 100
    longer = cells("pi_vat", 1, options=("--training.steps", "5000"))
    of_short_runs = measured(algorithm="pi_vat", seconds=1.0, machine=machine())
    assert cost(longer, TWO_CORES, of_short_runs).seconds == 1000


def test_where_nothing_better_is_known() -> None:
    # Of VAT nothing: as long as Manifold Graph, 200 s on a core. What it took elsewhere is better than that.
    assert cost(cells("vat", 1)) == Cost(200, guessed=1)
    elsewhere = measured(algorithm="vat", seconds=7.0, machine={"processor": "another"})
    assert cost(cells("vat", 1), TWO_CORES, elsewhere) == Cost(7)


def test_what_is_not_known_at_all_is_counted() -> None:
    strange = [Cell("svhn", "vat", 1000, 0)]
    assert cost(strange) == Cost(0, unknown=1)
    assert cost([*strange, *cells("pi_vat", 1)]) == Cost(100, unknown=1)


def test_outsiders_take_no_time_worth_mentioning() -> None:
    assert cost(cells("label_spreading", 3)) == Cost(0)


def test_a_run_that_several_cells_ask_is_counted_once() -> None:
    (cell,) = cells("pi_vat", 1)
    asked = [replace(cell, read_out="views"), replace(cell, read_out="label_spreading")]
    assert cost([cell, *asked]) == cost([cell]) == cost(asked)
