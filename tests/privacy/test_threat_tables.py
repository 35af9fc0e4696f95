"""The threats in the pages about guards: every row names a test, and every test that is named is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guards" / "differential-privacy.md"


def threats() -> list[str]:
    """Return the rows of the table of threats."""
    table = PAGE.read_text().split("| threat | who |")[1].split("\n\n")[0]
    return [line for line in table.splitlines()[2:] if line.startswith("|")]


def test_there_is_a_row_for_each_guard() -> None:
    text = "\n".join(threats())
    for guard in ("client_dp", "edge_dp", "node_dp", "example_dp", "row_noise", "edge_response"):
        assert f"`{guard}`" in text, guard


@pytest.mark.parametrize("row", threats(), ids=lambda row: row.split("|")[1].strip()[:40])
def test_every_row_names_tests_that_are_there(row: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
    assert named
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{file}::{name}"
