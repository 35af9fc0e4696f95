"""What monitors measured, from written journals."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from isthmus.report.summary import last_measured, monitor_figure, monitor_line


def event(name: str = "cka", round: int = 3, **changes: Any) -> dict[str, Any]:
    facts = {"clients": ["a", "b"], "matrix": [[1.0, 0.25], [0.25, 1.0]], "mean": 0.25, "least": 0.25, "largest": 0.25}
    return {"event": "monitor", "name": name, "round": round, **facts, "absent": [], **changes}


def test_the_last_of_each_counts_of_those_that_the_course_asks_for() -> None:
    events = [{"event": "course"}, event(round=1), event("walk_distance", 0), event(round=2), {"event": "end"}]
    assert last_measured(events, ("walk_distance", "cka", "smoothness")) == {
        "walk_distance": events[2],
        "cka": events[3],
    }
    assert last_measured(events, ()) == {}


def test_a_line_has_the_numbers_and_who_is_absent() -> None:
    assert monitor_line(event()) == "cka, round 3: mean 0.2500, least 0.2500, largest 0.2500 over pairs of 2 clients"
    assert monitor_line(event("walk_distance", 0)).startswith("walk_distance: mean 0.2500")
    assert monitor_line(event(absent=["c"])).endswith("of 2 clients; absent: c")
    assert monitor_line(event(absent=list("cdefghi"))).endswith("absent: c, d, e, f, g and 2 more")
    alone = event(clients=["a"], matrix=[[1.0]], mean=None, least=None, largest=None)
    assert monitor_line(alone) == "cka, round 3: no numbers over pairs of 1 client"
    each = {key: value for key, value in event().items() if key != "matrix"}
    assert monitor_line({**each, "values": [1.0, 2.0]}).endswith("over 2 clients")


@pytest.mark.parametrize(
    "drawn",
    [
        event(clients=["<a>", "b & c"]),
        event(clients=[], matrix=[], mean=None, least=None, largest=None),
        event(clients=["a"], matrix=[[1.0]], mean=None, least=None, largest=None),
        event(matrix=[[None, None], [None, 0.0]], mean=None, least=None, largest=None),
    ],
    ids=["odd names", "nobody", "one", "nothing"],
)
def test_the_figure_is_a_file_of_its_own(drawn: dict[str, Any]) -> None:
    root = ElementTree.fromstring(monitor_figure(drawn))
    space = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{space}svg" and "cka, round 3" in root.attrib["aria-label"]
    assert ".cell" in (root.findtext(f"{space}style") or "")
    cells = [e for e in root.iter(f"{space}rect") if e.get("class", "").startswith("cell-")]
    assert len(cells) == len(drawn["clients"]) ** 2
    titles = [e.text for e in root.iter(f"{space}title")]
    assert len(drawn["clients"]) < 2 or any(drawn["clients"][0] in (t or "") for t in titles)


def test_numbers_of_clients_have_no_heat_map() -> None:
    each = {key: value for key, value in event().items() if key != "matrix"}
    assert monitor_figure({**each, "values": [1.0, 2.0]}) == ""
