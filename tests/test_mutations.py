"""The list of mutations is about the code as it is now."""

import shlex
from collections import Counter
from pathlib import Path

import pytest

from tests import mutations
from tests.mutations import MUTATIONS, ROOT, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.what)
def test_it_finds_its_place_and_changes_it(mutation: Mutation) -> None:
    text = (ROOT / "src" / "manigraph" / mutation.file).read_text(encoding="utf-8")
    assert text.count(mutation.old) == 1
    broken = text.replace(mutation.old, mutation.new)
    assert broken != text
    if mutation.file.endswith(".py"):
        # What cannot be read is noticed by every test, whatever it tests.
        compile(broken, mutation.file, "exec")


def test_no_two_are_the_same() -> None:
    assert Counter(m.what for m in MUTATIONS).most_common(1)[0][1] == 1
    assert Counter((m.file, m.old, m.new) for m in MUTATIONS).most_common(1)[0][1] == 1


def test_the_tests_that_should_notice_are_there() -> None:
    commands = {command for mutation in MUTATIONS for command in mutations.tests_for(mutation)}
    words = {word for command in commands for word in shlex.split(command) if word.startswith("tests/")}
    missing = [word for word in words if not (ROOT / Path(word.split("::")[0])).exists()]
    assert not missing
