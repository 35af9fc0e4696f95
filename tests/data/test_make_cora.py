"""The script that makes the shipped Cora: its match between two copies of one graph."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "make_cora.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_cora", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_cora"] = module
    spec.loader.exec_module(module)
    return module


def copies(script: ModuleType, seed: int):
    """Return a graph with many nodes that look alike, and the same graph under other node numbers."""
    draw = np.random.default_rng(seed)
    citations = draw.integers(0, 40, (60, 2))
    ours = script.Citations(draw.random((40, 2)) < 0.5, draw.integers(0, 2, 40), citations, np.arange(40))
    return ours, script.reorder(ours, draw.permutation(40))


@pytest.mark.parametrize("seed", range(8))
def test_a_renumbered_copy_is_matched_node_by_node(script: ModuleType, seed: int) -> None:
    ours, theirs = copies(script, seed)
    matched = script.reorder(ours, script.match(ours, theirs))
    assert np.array_equal(matched.words, theirs.words)
    assert np.array_equal(matched.labels, theirs.labels)
    assert np.array_equal(matched.pairs(), theirs.pairs())


def test_a_copy_with_another_edge_is_refused(script: ModuleType) -> None:
    ours, theirs = copies(script, 0)
    other = replace(theirs, citations=theirs.citations[1:])
    with pytest.raises(SystemExit, match="not the same up to node numbers"):
        script.match(ours, other)


def test_a_folder_without_the_tables_is_refused(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no cora_nodes.parquet.gzip and cora_rels.parquet.gzip in"):
        script.read_wheel(tmp_path)
