"""Every method of `methods.py` gives the weights of its bare loop, and its row of the table."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from tests.quick import by_kind

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
SHIPPED = ("fedavg", "fedprox", "scaffold", "moon", "ditto", "fedgl", "links", "neighbors")  # whose data ship


@pytest.fixture
def methods(monkeypatch: pytest.MonkeyPatch):
    """Import the script, and forget it and all that it imported from its folder afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("methods")
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and BENCHMARKS in Path(file).parents:
            del sys.modules[name]


@pytest.mark.parametrize("name", by_kind(SHIPPED))
def test_bare_loop_does_what_the_method_does(methods, name: str) -> None:
    method = methods.METHODS[name]
    found = methods.apart(method, 3, Path(), rounds=2)
    assert 0.0 < found <= method.tolerance  # never equal to the bit: each side has sums of its own


def test_weights_that_are_apart_end_the_script(methods, monkeypatch: pytest.MonkeyPatch) -> None:
    from bare import fedprox

    monkeypatch.setattr(fedprox, "MU", 0.5)
    with pytest.raises(SystemExit, match=r"fedprox, 3 clients: weights are .* apart, above 1e-05"):
        methods.compare("fedprox", methods.METHODS["fedprox"], 3, Path(), rounds=1, repeats=1)


def test_table_has_a_row_for_each_number_of_clients(methods, monkeypatch, capsys) -> None:
    monkeypatch.setattr(methods, "SHORTEST_TURN", 0.0)
    words = "methods.py --only fedavg --clients 2 3 --rounds 1 --repeats 2"
    monkeypatch.setattr(sys, "argv", words.split())
    methods.main()
    head, _, *rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert [cells[:2] for cells in rows] == [["fedavg", "2"], ["fedavg", "3"]]
    assert head[2:5] == ["isthmus ms", "loop ms", "tuned ms"] and head[5:7] == ["loop / isthmus", "tuned / isthmus"]
    for cells in rows:
        assert all(float(cell.split()[0].replace(",", "")) > 0.0 for cell in cells[2:])
