"""Pages of runs: numbers are the journal's, nothing that a name says is obeyed, and large runs have small pages."""

from __future__ import annotations

import json
import re
import time
from html.parser import HTMLParser
from typing import Any

import pytest

import isthmus
from isthmus.report.run_page import comparison_page, run_page
from isthmus.report.story import Story, story_of
from isthmus.testing import toy_course, toy_scenario

HOSTILE = '"><script>alert(1)</script><img src=http://x/ onerror=alert(2)>'


class Tables(HTMLParser):
    """Collects the rows of every table, with the heading of the section that it is in."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: dict[str, list[list[str]]] = {}
        self.names: list[str] = []
        self.attributes: list[str] = []
        self._heading, self._cell, self._in = "", "", ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.names.append(tag)
        self.attributes += [name for name, _ in attrs]
        self._in = tag
        if tag == "h2":
            self._heading = ""
        if tag == "tr":
            self.rows.setdefault(self._heading, []).append([])
        if tag in ("td", "th"):
            self.rows[self._heading][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in == "h2":
            self._heading += data
        elif self._in in ("td", "th"):
            self.rows[self._heading][-1][-1] += data


def story(events: list[dict[str, Any]], title: str = "it") -> Story:
    return story_of(title, events)


@pytest.fixture(scope="module")
def events() -> list[dict[str, Any]]:
    made = toy_course(isthmus.FedAvg(local_steps=2), rounds=4, monitors=("cka",), monitor_every=1)
    return [dict(event) for event in isthmus.run(made, scenario=toy_scenario()).events]


def test_tables_have_the_numbers_of_the_journal(events: list[dict[str, Any]]) -> None:
    found = Tables(run_page(story(events), events)).rows
    rounds = [event for event in events if event["event"] == "round"]
    for metric in ("val/accuracy", "train/loss"):
        spread = [event["spread"][metric] for event in rounds]
        assert found[metric][1:] == [
            [str(e["round"]), f"{e['metrics'][metric]:.4f}", f"{s[1]:.4f}", f"{s[5]:.4f}"]
            for e, s in zip(rounds, spread, strict=True)
        ]
    exchanges = [event for event in events if event["event"] == "exchange" and event["request"] == "TrainModel"]
    down, up = (sum(event[way] for event in exchanges) for way in ("bytes_down", "bytes_up"))
    assert ["TrainModel", f"{down:,}", f"{up:,}"] in found["Bytes"]
    end = events[-1]
    assert [row[0] for row in found["Results"][1:4]] == list(end["client_scores"])
    assert found["Results"][1][2] == f"{end['client_scores']['client-0']['accuracy']:.4f}"
    apart = dict((row[0], row[1:]) for row in found["How far clients are apart"])
    assert apart["val/accuracy"] == [f"{value:.4f}" for value in rounds[-1]["spread"]["val/accuracy"]]
    cka = [event for event in events if event["event"] == "monitor"]
    assert [row[1] for row in found["cka"][1:]] == [f"{event['mean']:.4f}" for event in cka]


def test_what_differs_from_the_defaults_comes_first_and_who_saw_what_is_told(events: list[dict[str, Any]]) -> None:
    found = Tables(run_page(story(events), events, "isthmus run a/course.yaml")).rows
    assert ["algorithm.local_steps", "2"] in found["Course"] and ["rounds", "4"] in found["Course"]
    assert found["Course"].index(["rounds", "4"]) < found["Course"].index(["min_replies", "1"])
    (train,) = [row for row in found["Who saw what"] if row[0] == "TrainModel"]
    assert train[2:5] == ["ModelUpdate", "params, weight", "only the fold"]


def test_a_chart_for_every_metric_each_with_a_table_and_words_for_those_who_cannot_see(
    events: list[dict[str, Any]],
) -> None:
    page = run_page(story(events), events)
    for metric in ("val/accuracy", "val/loss", "train/accuracy", "train/loss"):
        assert f'aria-label="{metric} over rounds"' in page
    assert page.count("<svg") == page.count('role="img"')


def test_a_run_that_is_not_finished_has_a_page(events: list[dict[str, Any]]) -> None:
    for cut in (0, 1, 5, len(events) - 1):
        page = run_page(story(events[:cut]), events[:cut])
        assert "not finished" in page and "Results" not in Tables(page).rows


def test_failures_absences_and_what_guards_used_up_are_shown() -> None:
    events = large(3, 4)
    events[4]["failures"] = [{"client": "c1", "kind": "lost", "reason": "the connection was lost"}]
    rounds = [event for event in events if event["event"] == "round"]
    rounds[1]["missing"] = ["c1"]
    for number, event in enumerate(rounds, 1):
        event["spent"] = {"epsilon": 1.5 * number}
    found = Tables(run_page(story(events), events)).rows
    assert found["Failures and absences"][1:] == [["1", "c1", "lost", "the connection was lost"]]
    assert found["What guards used up"][1:] == [[str(n), f"{1.5 * n:.4f}"] for n in (1, 2, 3, 4)]


def test_nothing_that_a_name_says_is_obeyed_and_nothing_is_loaded(events: list[dict[str, Any]]) -> None:
    name, text = json.dumps(HOSTILE)[1:-1], json.dumps(events)
    bad: list[dict[str, Any]] = json.loads(text.replace("client-0", name).replace('"cka"', f'"{name}"'))
    bad.append({"event": "note", "text": HOSTILE, "time": 0.0})
    for page in (run_page(story(bad, HOSTILE), bad, HOSTILE), comparison_page([story(bad, HOSTILE), story(bad, "b")])):
        names = Tables(page).names
        assert not {"script", "img", "link", "iframe", "object"} & set(names)
        assert not any(name.startswith("on") or name in ("src", "href") for name in Tables(page).attributes)
        assert "default-src &#x27;none&#x27;" in page and "http" not in re.sub(r"http-equiv|http://x/", "", page)


def test_runs_are_laid_over_each_other_with_what_differs(events: list[dict[str, Any]]) -> None:
    other = [dict(event) for event in events]
    other[0] = {**other[0], "course": {**other[0]["course"], "seed": 7}}
    page = comparison_page([story(events, "a"), story(other, "b")])
    found = Tables(page).rows
    assert found["Courses"] == [["key", "a", "b"], ["seed", "0", "7"]]
    assert [row[0] for row in found["What came of them"]] == ["run", "a", "b"]
    assert page.count('class="curve stroke-1"') == page.count('class="curve stroke-0"') >= 4
    assert "the same in every key" in comparison_page([story(events, "a"), story(events, "b")])


def large(num_clients: int, num_rounds: int) -> list[dict[str, Any]]:
    """Return the journal of a large run, as it would be."""
    clients = [f"c{number}" for number in range(num_clients)]
    told = [{"event": "client", "client": client, "text": "10 nodes"} for client in clients]
    made: list[dict[str, Any]] = [
        {"event": "course", "time": 0.0, "version": "0", "course": {"rounds": num_rounds}},
        *told,
    ]
    for at in range(1, num_rounds + 1):
        values = [0.1 * i + 1e-5 * at for i in range(7)]
        costs = {"seconds": 0.1, "client_seconds": 0.05, "bytes_down": 7, "bytes_up": 5}
        made.append({"event": "exchange", "round": at, "request": "TrainModel", **costs, "failures": []})
        scores = {"metrics": {"val/loss": values[3]}, "spread": {"val/loss": values}, "score": values[3]}
        made.append({"event": "round", "round": at, "seconds": 0.1, "wall_seconds": 0.2, **scores})
    scores = {client: {"loss": 0.5} for client in clients}
    end = {"num_rounds": num_rounds, "best_round": 1, "best_score": 0.5, "seconds": 1.0, "metrics": {}}
    return [*made, {"event": "end", **end, "client_scores": scores}]


def test_a_page_of_ten_thousand_clients_or_a_hundred_thousand_rounds_is_small_and_soon_there() -> None:
    for events in (large(10_000, 20), large(5, 100_000)):
        started = time.process_time()
        page = run_page(story(events), events)
        assert len(page) < 1_500_000
        assert time.process_time() - started < 6.0
        assert page.count("<polyline") >= 1 and page.count("<tr") < 2_000
