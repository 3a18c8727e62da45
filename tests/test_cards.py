"""Every method has a card that says what its users need to know."""

from dataclasses import fields
from pathlib import Path

import pytest

from manigraph.catalogue import ALGORITHMS

CARDS = Path(__file__).parent.parent / "docs" / "methods"


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_card_has_what_it_takes(name: str) -> None:
    card = (CARDS / f"{name}.md").read_text(encoding="utf-8")
    for heading in ("## Loss", "## Cost of one step", "## When to use it"):
        assert heading in card, heading
    weights = {field.name for field in fields(ALGORITHMS.get(name).Config) if field.name.endswith("_weight")}
    assert {weight for weight in weights if weight not in card} == set()
    assert "statistics" in card, "who moves batch-norm statistics"


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_card_is_in_the_list(name: str) -> None:
    assert f"`{name}`" in (CARDS / "README.md").read_text(encoding="utf-8")
    assert f"({name}.md)" in (CARDS / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_paper_is_named_where_methods_are_listed(name: str) -> None:
    if name != "supervised":
        assert any(year in ALGORITHMS.entries[name].summary for year in map(str, range(2000, 2030)))
