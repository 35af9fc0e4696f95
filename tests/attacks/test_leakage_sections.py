"""Every section of the benchmark of what methods give away is an audit that can be begun, on data that it can load."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import pytest

from isthmus.attacks.audit.running import Carried
from isthmus.attacks.audit.spec import Audit, require_attackable

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def sections() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        from leakage import SECTIONS
    finally:
        sys.path.remove(str(BENCHMARKS))
    return SECTIONS


def test_each_section_is_an_audit_of_attacks_that_can_be_tried(sections: Any) -> None:
    for name, section in sections.items():
        for dataset in section.datasets.values():
            for clients in section.clients:
                course = section.course(dataset=dataset, num_clients=clients)
                made = Audit(course, section.attacks, section.lines, (0,))
                assert len(require_attackable(made)) == len(section.attacks), name
                assert len(list(made.cells())) == len(section.lines), name


def test_who_holds_what_and_how_a_table_is_laid_out_are_not_taken_for_each_other(sections: Any) -> None:
    for name, section in sections.items():
        assert list(inspect.signature(section.load).parameters) == ["course", "root"], name
        if section.layout is not None:
            assert len(inspect.signature(section.layout).parameters) == 1, name
            section.layout(Carried(Audit(section.course(**_first(section)), section.attacks, section.lines, (0,))))


def _first(section: Any) -> dict[str, Any]:
    return {"dataset": next(iter(section.datasets.values())), "num_clients": section.clients[0]}
