"""The sections of `benchmarks/guards.py` print their tables."""

from __future__ import annotations

import ast
from pathlib import Path

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
def test_cost_has_a_row_for_each_guard_and_is_kept(tmp_path: Path) -> None:
    (rows,) = tables(run("guards.py", f"cost --quick --repeats 1 --out {tmp_path}"))
    assert {row["clients"] for row in rows} == {"3"} and len({row["guards"] for row in rows}) == len(rows) > 12
    took = {row["guards"]: float(row["10 KB: ms"].split()[0].replace(",", "")) for row in rows}
    assert all(milliseconds > 0.0 for milliseconds in took.values())
    shares = {row["guards"]: float(row["10 KB: down, up"].split(", ")[1]) for row in rows}
    assert shares["none"] == 1.0 > shares["quantise 8"] > shares["top_k 0.05, entropy"] > 0.0
    (again,) = tables(run("guards.py", f"--only cost --quick --repeats 1 --out {tmp_path}"))
    assert again == rows


@pytest.mark.slow
def test_compression_has_a_row_for_each_guard_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    (rows,) = tables(run("guards.py", f"compression --quick --out {tmp_path}"))
    fewer = {row["guards"]: float(row["fewer"]) for row in rows}
    assert fewer["none"] == 1.0 < fewer["quantise 8"] < fewer["top_k 0.05, entropy"]
    file = tmp_path / "compression.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    assert len(lines) == len(rows)
    file.write_text("".join(lines[:-1]) + lines[-1][:20])  # stopped in the middle of its last word
    (again,) = tables(run("guards.py", f"compression --quick --out {tmp_path}"))
    assert again == rows


@pytest.mark.slow
def test_secure_sum_has_a_row_for_one_process_and_one_between_processes() -> None:
    (rows,) = tables(run("guards.py", "--only secure_sum --quick --repeats 1"))
    assert [row["where"] for row in rows] == ["one process", "between processes"]
    for row in rows:
        assert float(row["secure ms"]) > float(row["plain ms"]) > 0.0


@pytest.mark.slow
def test_a_row_can_be_taken_alone() -> None:
    (rows,) = tables(run("guards.py", 'secure_sum --clients 4 --sizes "10 KB" --where here --repeats 1'))
    assert [(row["where"], row["clients"], row["model"]) for row in rows] == [("one process", "4", "10 KB")]


@pytest.mark.slow
def test_poison_has_a_row_for_each_fold_and_a_column_for_each_attack() -> None:
    (rows,) = tables(run("guards.py", "--only poison --quick"))
    assert [row["fold or check"] for row in rows] == ["mean", "median"]
    for row in rows:
        assert list(row) == ["fold or check", "none", "labels flipped", "signs flipped"]
        assert all(0.0 <= float(row[attack]) <= 100.0 for attack in list(row)[1:])
