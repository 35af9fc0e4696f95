"""The sections of `benchmarks/guards.py` print their tables."""

from __future__ import annotations

import ast

import pytest

from tests.benchmarks.test_benchmarks import BENCHMARKS, run, tables


def sections() -> dict[str, str]:
    tree = ast.parse((BENCHMARKS / "guards.py").read_text())
    found = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "SECTIONS"
    ]
    return found[0]


def test_every_section_has_a_module_that_says_what_it_shows() -> None:
    for name in sections():
        tree = ast.parse((BENCHMARKS / "guarding" / f"{name}.py").read_text())
        assert ast.get_docstring(tree)
        assert "show" in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.slow
def test_cost_has_a_row_for_each_size() -> None:
    (rows,) = tables(run("guards.py", "--only cost --quick --repeats 1"))
    for row in rows:
        assert row["clients"] == "3" and float(row["ms"].replace(",", "")) > 0.0
        assert int(row["bytes down"].replace(",", "")) > 0


@pytest.mark.slow
def test_secure_sum_has_a_row_for_one_process_and_one_between_processes() -> None:
    (rows,) = tables(run("guards.py", "--only secure_sum --quick --repeats 1"))
    assert [row["where"] for row in rows] == ["one process", "between processes"]
    for row in rows:
        assert float(row["secure ms"]) > float(row["plain ms"]) > 0.0
