"""What only training needs is in checkpoints and not in the trained model."""

import pytest
import torch
from torch import nn

from manigraph.nn import Memory, buffers_changed_in_steps, load_trained_state, trained_state


class Diary(Memory):
    pages: torch.Tensor

    def __init__(self, number: int) -> None:
        super().__init__()
        self.register_buffer("pages", torch.full((number,), float(number)))


class Ledger(Diary):
    is_written_between_steps = True


class Method(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.model = nn.Linear(2, 3)
        self.part = nn.Module()
        self.part.diary = Diary(number)


def test_the_trained_state_leaves_memories_out() -> None:
    method = Method(4)
    assert set(trained_state(method)) == {"model.weight", "model.bias"}
    assert "part.diary.pages" in method.state_dict()


def test_a_model_is_loaded_whatever_the_size_of_the_memory() -> None:
    trained, other = Method(4), Method(7)
    load_trained_state(other, trained_state(trained))
    assert torch.equal(other.model.weight, trained.model.weight)
    assert torch.equal(other.get_buffer("part.diary.pages"), torch.full((7,), 7.0))


def test_memories_in_a_file_are_not_read() -> None:
    trained, other = Method(4), Method(7)
    load_trained_state(other, trained.state_dict())
    assert torch.equal(other.model.bias, trained.model.bias)
    assert len(other.get_buffer("part.diary.pages")) == 7


@pytest.mark.parametrize("change", ["missing", "unknown"])
def test_anything_else_must_fit(change: str) -> None:
    state = trained_state(Method(4))
    if change == "missing":
        del state["model.bias"]
    else:
        state["model.other"] = torch.zeros(1)
    with pytest.raises(RuntimeError, match=r"model\.(bias|other)"):
        load_trained_state(Method(4), state)


def test_what_a_step_may_change_is_all_but_memories_written_between_steps() -> None:
    method = Method(4)
    method.part.norm = nn.BatchNorm1d(3)
    method.part.ledger = Ledger(5)
    found = {buffer.data_ptr() for buffer in buffers_changed_in_steps(method)}
    expected = {name: buffer for name, buffer in method.named_buffers() if "ledger" not in name}
    assert set(expected) >= {"part.norm.running_mean", "part.norm.num_batches_tracked", "part.diary.pages"}
    assert found == {buffer.data_ptr() for buffer in expected.values()}
