"""The list of mutations can be tried: each changes a text that is there once, and its tests exist."""

from __future__ import annotations

import pytest

from tools.mutations import ROOT, Mutation, read


@pytest.mark.parametrize("mutation", read(), ids=lambda mutation: mutation.name)
def test_a_mutation_can_be_made(mutation: Mutation) -> None:
    text = (ROOT / mutation.file).read_text()
    assert text.count(mutation.before) == 1 and mutation.before != mutation.after
    places = [word.partition("::")[0] for word in mutation.tests.split() if word.startswith("tests/")]
    assert places and all((ROOT / place).exists() for place in places)
