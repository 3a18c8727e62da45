"""Checkpoints on disk: whole or not there, and refused where they are not what they should be."""

import json
import os
from pathlib import Path

import pytest
import torch

from manigraph.errors import UserError
from manigraph.training.checkpoint import Checkpoints, Snapshot
from tests.helpers import assert_bitwise_equal


def snapshot(value: float) -> Snapshot:
    tensors = {"a.weight": torch.full((3, 4), value), "a.count": torch.tensor(7), "b.state": torch.arange(5)}
    return Snapshot(tensors, {"step": value, "best": float("inf"), "nested": {"told": [True, None]}})


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", "run-1")


def names(checkpoints: Checkpoints) -> list[str]:
    return sorted(path.name for path in checkpoints.folder.iterdir())


def test_what_was_written_is_read_to_the_bit(checkpoints: Checkpoints) -> None:
    assert checkpoints.read() is None
    awkward = Snapshot(
        {
            "channels_last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
            "part": torch.randn(6, 4)[::2],
            "double": torch.tensor([1e-300, float("nan")], dtype=torch.float64),
            "flag": torch.tensor(True),
            "nothing": torch.zeros(0, 3),
        },
        {"error": 0.1 + 0.2, "name": "Ä"},
    )
    checkpoints.write(12, awkward)
    found = checkpoints.read()
    assert found is not None
    assert found.values == awkward.values
    assert found.tensors["double"].isnan().tolist() == [False, True]
    assert_bitwise_equal(
        {name: value for name, value in found.tensors.items() if name != "double"},
        {name: value for name, value in awkward.tensors.items() if name != "double"},
    )


def test_the_newest_counts_and_the_last_two_stay(checkpoints: Checkpoints) -> None:
    for step in (9, 10, 100):
        checkpoints.write(step, snapshot(step))
    assert checkpoints.steps() == [10, 100]
    found = checkpoints.read()
    assert found is not None
    assert found.values["step"] == 100
    assert names(checkpoints) == [
        "step-000000010.json",
        "step-000000010.safetensors",
        "step-000000100.json",
        "step-000000100.safetensors",
    ]


def test_parts_are_taken_by_the_beginning_of_their_names() -> None:
    assert_bitwise_equal(snapshot(2).part("a"), {"weight": torch.full((3, 4), 2.0), "count": torch.tensor(7)})


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "truncated":
        content = content[: len(content) // 2]
    elif how == "bit flipped":
        content[-3] ^= 4
    elif how == "empty":
        content.clear()
    elif how == "gone":
        path.unlink()
        return
    path.write_bytes(content)


@pytest.mark.parametrize("kind", ["safetensors", "json"])
@pytest.mark.parametrize("how", ["truncated", "bit flipped", "empty", "gone"])
def test_a_damaged_checkpoint_is_refused_in_one_sentence(
    checkpoints: Checkpoints, kind: str, how: str
) -> None:
    checkpoints.write(5, snapshot(5))
    checkpoints.write(8, snapshot(8))
    damage(checkpoints.folder / f"step-000000008.{kind}", how)
    if (kind, how) == ("json", "gone"):  # then it never existed
        found = checkpoints.read()
        assert found is not None
        assert found.values["step"] == 5
        return
    with pytest.raises(
        UserError,
        match=r"step-000000008\.json' is damaged .* delete step-000000008\.json to go on from step 5",
    ) as refusal:
        checkpoints.read()
    assert "\n" not in str(refusal.value)
    (checkpoints.folder / "step-000000008.json").unlink()
    found = checkpoints.read()
    assert found is not None
    assert found.values["step"] == 5


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'"step": 5,', b'"step": 6,'), (b"true", b"null"), (b"Infinity", b"0.0"), (b"run-1", b"run-2")],
)
def test_a_changed_value_is_noticed(checkpoints: Checkpoints, old: bytes, new: bytes) -> None:
    checkpoints.write(5, snapshot(5))
    path = checkpoints.folder / "step-000000005.json"
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new))
    with pytest.raises(UserError, match=r"damaged.* begin this run again at step 0"):
        checkpoints.read()


def test_a_checkpoint_of_another_run_is_refused(checkpoints: Checkpoints) -> None:
    Checkpoints(checkpoints.folder, "run-2").write(5, snapshot(5))
    with pytest.raises(UserError, match="belongs to another run: delete"):
        checkpoints.read()


def test_a_checkpoint_of_another_format_is_refused(checkpoints: Checkpoints) -> None:
    from manigraph.training.checkpoint import _digest

    checkpoints.write(5, snapshot(5))
    path = checkpoints.folder / "step-000000005.json"
    value = json.loads(path.read_text())
    value.pop("sha256")
    value["format"] = 99
    path.write_text(json.dumps({**value, "sha256": _digest(value)}))
    with pytest.raises(UserError, match="has format 99"):
        checkpoints.read()


def test_until_the_last_moment_the_one_before_is_the_newest(checkpoints: Checkpoints) -> None:
    checkpoints.write(5, snapshot(5))

    def look() -> None:
        assert (checkpoints.folder / "step-000000008.safetensors").exists()
        found = checkpoints.read()
        assert found is not None
        assert found.values["step"] == 5

    checkpoints.write(8, snapshot(8), look)
    assert checkpoints.steps() == [5, 8]


def test_what_a_killed_process_left_is_cleaned_up(checkpoints: Checkpoints) -> None:
    checkpoints.clean()  # nothing there yet
    checkpoints.write(5, snapshot(5))
    half = checkpoints.folder / f".step-000000008.safetensors.{os.getpid()}.tmp"
    half.write_bytes(b"half")
    (checkpoints.folder / "step-000000008.safetensors").write_bytes(b"whole, but never said to be")
    checkpoints.clean()
    assert names(checkpoints) == ["step-000000005.json", "step-000000005.safetensors"]
