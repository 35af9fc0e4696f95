from __future__ import annotations

import contextlib
import json
import math
import statistics
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from isthmus.core.errors import BadInput
from isthmus.report.charts import to_svg
from isthmus.suites.drawn import Drawn
from isthmus.suites.figures import shown
from isthmus.suites.runner import Run, run_suite
from isthmus.suites.spec import Suite, load_suite
from isthmus.suites.table import cell_table, cells, cells_csv
from tests.cli.command import call

SVG = "{http://www.w3.org/2000/svg}"
RATES = {str(rate): {"algorithm.optimizer.lr": rate} for rate in (0.05, 0.25, 1.0)}
SWEEP: dict[str, Any] = {
    "title": "sweep",
    "seeds": [0, 1],
    "base": {"rounds": 2, "num_clients": 3, "model": {"gnn": {"hidden": 8}}},
    "axes": {
        "splitter": {"random": {"splitter.name": "random"}, "community": {"splitter.name": "community"}},
        "method": {"FedAvg": {"algorithm.name": "fedavg"}, "Local": {"algorithm.name": "local"}},
        "rate": {"own": {}, **RATES},
    },
    "skip": [{"method": "Local", "rate": ["0.05", 0.25, 1.0]}, {"method": "FedAvg", "rate": "own"}],
    "figures": [
        {"name": "fig11", "kind": "lines", "x": "rate", "lines": "method", "panels": "splitter", "log_x": True},
        {"name": "fig3", "kind": "rounds", "lines": "method", "panels": "splitter", "only": {"rate": ["own", 0.25]}},
        {"name": "fig10", "kind": "clients", "bars": "method", "panels": "splitter", "only": {"rate": ["own", 0.25]}},
    ],
}
LINES = {"name": "a", "kind": "lines", "x": "rate", "lines": "method", "panels": "splitter"}
ROUNDS = {"name": "a", "kind": "rounds", "lines": "method", "panels": "splitter", "only": {"rate": ["own", 0.25]}}
CLIENTS = {"name": "a", "kind": "clients", "bars": "method", "panels": "splitter", "only": {"rate": ["own", 0.25]}}


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "suite.yaml"
    path.write_text(yaml.safe_dump({**SWEEP, **changes}, sort_keys=False))
    return path


def compare(*args: str, cwd: Path) -> str:
    """Return what `isthmus compare` says, in this process."""
    with contextlib.chdir(cwd):
        code, output = call("compare", *args)
    assert code == 0, output
    return output


def rows(chart: Any, reference: bool = False) -> list[dict[str, Any]]:
    """Return what a chart shows: lines, curves and bars, or the references beside them."""
    return [row for row in json.loads(chart.to_json())["data"]["values"] if row["reference"] is reference]


def said(chart: Any, reference: bool = False) -> list[str]:
    return [f"{row['series']}, {row['place']}: {row['value']}" for row in rows(chart, reference)]


def lines(chart: Any) -> list[int]:
    """Return how many points each line has."""
    return list(Counter((row["panel"], row["part"]) for row in rows(chart)).values())


def panels(chart: Any) -> list[str]:
    return list(dict.fromkeys(row["panel"] for row in rows(chart)))


def labels(svg: Path, role: str) -> list[str]:
    marks = ElementTree.fromstring(svg.read_text()).iter()
    return [e.attrib["aria-label"] for e in marks if e.get("aria-roledescription") == role]


def texts(svg: str) -> list[str]:
    return ["".join(element.itertext()) for element in ElementTree.fromstring(svg).iter(SVG + "text")]


def scored(suite: Suite, score: Any = None) -> list[Run]:
    score = score or (lambda point: 0.5 + 0.1 * point.seed)
    return [Run(point, score(point), 0.5, 2, 0.1) for point in suite.points()]


def drawn(suite: Suite, runs: list[Run], number: int = 0, folder: Path = Path()) -> Any:
    figure = suite.figures[number]
    drawn = shown(suite, figure, cells(suite, runs), folder)
    kept = Drawn.from_csv(drawn.to_csv(), "kept.csv").chart(figure, suite.metric)
    chart = drawn.chart(figure, suite.metric)
    assert kept.to_json() == chart.to_json()  # a figure can be drawn anew from what is kept of it
    return chart


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    said = compare(str(written(folder)), "--workers", "1", cwd=folder)
    assert [line for line in said.splitlines() if line.startswith("figure: ")] == [
        f"figure: results/suite/{name}.svg" for name in ("fig11", "fig3", "fig10")
    ]
    return folder


# skip


def test_skipped_cells_are_not_run_and_in_no_table(tmp_path: Path) -> None:
    suite = load_suite(written(tmp_path))
    pairs = {(cell["method"], cell["rate"]) for cell in suite.cells()}
    assert pairs == {("Local", "own"), ("FedAvg", "0.05"), ("FedAvg", "0.25"), ("FedAvg", "1.0")}
    assert len(suite.points()) == 2 * 4 * 2
    found = cells(suite, scored(suite))
    assert len(found) == 8 and len(cell_table(suite, found).rows) == 8
    assert len(cells_csv(suite, found).splitlines()) == 1 + 8


def test_what_is_not_skipped_keeps_its_run_folder(tmp_path: Path) -> None:
    kept = {point.key for point in load_suite(written(tmp_path)).points()}
    every = {point.key for point in load_suite(written(tmp_path, skip=[], figures=[])).points()}
    assert kept < every and len(every) == 2 * 2 * 4 * 2


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"skip": {"method": "Local"}}, "skip is {'method': 'Local'}, expected a list"),
        ({"skip": [{}]}, "entry 1 of skip is {}, expected axes and choices, for example: {splitter: 'random'}"),
        ({"skip": ["Local"]}, "entry 1 of skip is 'Local'"),
        ({"skip": [{"methd": "Local"}]}, "entry 1 of skip names the axis 'methd'; known: method, rate, splitter."),
        ({"skip": [{"method": "Locl"}]}, "entry 1 of skip names method 'Locl'; known: FedAvg, Local."),
        ({"skip": [{"method": []}]}, "entry 1 of skip.method is [], expected a choice or a list"),
        ({"skip": [{"method": {"Local": 1}}]}, "entry 1 of skip.method is {'Local': 1}"),
        ({"skip": [{"method": ["Local", "FedAvg"]}], "figures": []}, "skip leaves no cell to run"),
        ({"expected": [{"method": "Local", "rate": 1.0, "value": 0.5}]}, "which skip leaves out"),
        ({"figure": []}, "figure is not a known key"),
    ],
)
def test_mistakes_in_skip_show_before_anything_runs(changes: dict[str, Any], part: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        load_suite(written(tmp_path, **changes))
    assert part in str(caught.value)


# the keys of figures


@pytest.mark.parametrize(
    ("figures", "part"),
    [
        ({"name": "a"}, "figures is {'name': 'a'}, expected a list"),
        (["fig"], "entry 1 of figures is 'fig'"),
        ([{"kind": "lines"}], "the name of figure 1 is None"),
        ([{**LINES, "name": "../a"}], "the name of figure 1 is '../a'"),
        ([{**LINES, "name": ".a"}], "the name of figure 1 is '.a'"),
        ([LINES, {**ROUNDS, "name": "A"}], "two figures have the name 'A'"),
        ([{"name": "a"}], "figure a: kind is None; known: clients, lines, rounds."),
        ([{**LINES, "kind": "line"}], "kind is 'line'; known: clients, lines, rounds. Did you mean 'lines'?"),
        ([{**LINES, "panel": "splitter"}], "panel is not a known key of kind lines; known: "),
        ([{**LINES, "metric": "loss"}], "metric is not a known key of kind lines"),
        ([{**ROUNDS, "log_x": True}], "log_x is not a known key of kind rounds"),
        ([{**ROUNDS, "x": "rate"}], "x is not a known key of kind rounds"),
        ([{**CLIENTS, "lines": "method"}], "lines is not a known key of kind clients"),
        ([{**LINES, "x": "rat"}], "x is 'rat', which is no axis of the suite; known: method, rate, splitter. Did you"),
        ([{**LINES, "lines": ["method"]}], "lines is ['method'], which is no axis"),
        ([{**LINES, "panels": "method"}], "which another of x, lines, panels is as well"),
        ([{"name": "a", "kind": "lines", "lines": "method"}], "x is missing; give the axis"),
        ([{**LINES, "title": ["b"]}], "title is ['b'], expected text"),
        ([{**LINES, "x_label": True}], "x_label is True, expected text"),
        ([{**LINES, "y_label": None}], "y_label is None, expected text"),
        ([{**LINES, "log_x": "yes"}], "log_x is 'yes', expected true or false"),
        ([{**LINES, "shared_y": 1}], "shared_y is 1, expected true or false"),
        ([{**LINES, "only": ["random"]}], "figure a: only is ['random'], expected axes and choices"),
        ([{**LINES, "only": {"method": "FedAv"}}], "figure a: only names method 'FedAv'; known: "),
        ([{**LINES, "only": {"method": "Local", "rate": 1.0}}], "only and skip leave no cell to draw"),
        ([{**LINES, "x": "method", "lines": "splitter", "panels": "rate", "log_x": True}], "log_x needs numbers above"),
        (
            [{"name": "a", "kind": "lines", "x": "rate", "lines": "method"}],
            "'random' and 'community' of splitter would",
        ),
        ([{"name": "a", "kind": "rounds", "lines": "method", "panels": "splitter"}], "only: {rate: '0.05'}"),
        ([{**ROUNDS, "metric": "accuracy"}], "metric is 'accuracy', expected train/accuracy or val/accuracy"),
        ([{**ROUNDS, "metric": "test/accuracy"}], "metric is 'test/accuracy', expected train/accuracy or"),
        ([{**ROUNDS, "metric": "val/f1"}], "metric is 'val/f1', which the task does not report; choose from accuracy"),
        ([{**CLIENTS, "metric": "f1"}], "metric is 'f1', which the task does not report"),
    ],
)
def test_mistakes_in_figures_show_before_anything_runs(figures: Any, part: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        load_suite(written(tmp_path, figures=figures))
    assert part in str(caught.value)


def test_the_suite_of_the_documents_loads(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "suites.md"
    path = tmp_path / "suite.yaml"
    path.write_text(page.read_text().split("```yaml\n")[1].split("```")[0])
    suite = load_suite(path)
    assert len(suite.cells()) == 6 and [figure.kind for figure in suite.figures] == ["lines", "rounds", "clients"]


# what is drawn


def test_a_line_has_mean_and_deviation_and_one_cell_alone_is_a_reference(tmp_path: Path) -> None:
    suite = load_suite(written(tmp_path))
    svg = drawn(suite, scored(suite))
    deviation = statistics.stdev([0.5, 0.6])
    assert said(svg)[0] == f"FedAvg, 0.05: 0.55 ± {deviation:.2g}"
    assert lines(svg) == [3, 3] and sum(row["low"] < row["high"] for row in rows(svg)) == 6
    assert [row["value"] for row in rows(svg, reference=True)] == [f"0.55 ± {deviation:.2g}"] * 2
    assert {row["series"] for row in rows(svg, reference=True)} == {"Local"}
    assert panels(svg) == ["random", "community"]
    # The choice that only the reference has is not on the axis, which therefore is one of numbers.
    ticks = texts(to_svg(svg))
    assert "own" not in ticks and {"0.05", "0.25", "1.0"} <= set(ticks)
    assert [row["x"] for row in rows(svg)][:3] == [0.05, 0.25, 1.0]
    assert json.loads(svg.to_json())["spec"]["layer"][1]["encoding"]["x"]["scale"] == {"type": "log"}


def test_choices_that_are_no_numbers_are_categories_in_order(tmp_path: Path) -> None:
    figure = {"name": "a", "kind": "lines", "x": "splitter", "lines": "method", "only": {"rate": ["own", 0.25]}}
    suite = load_suite(written(tmp_path, figures=[figure]))
    svg = drawn(suite, scored(suite))
    assert lines(svg) == [2, 2] and rows(svg, reference=True) == []
    assert [row["place"] for row in rows(svg)] == ["random", "community"] * 2
    assert {"random", "community"} <= set(texts(to_svg(svg)))


def test_lines_that_all_have_one_place_are_points_and_no_references(tmp_path: Path) -> None:
    suite = load_suite(written(tmp_path, figures=[{**LINES, "only": {"rate": ["own", 0.25]}}]))
    svg = drawn(suite, scored(suite))
    assert rows(svg, reference=True) == [] and len(said(svg)) == 4
    assert {"own", "0.25"} <= set(texts(to_svg(svg)))


def test_a_failed_cell_is_a_gap_and_makes_no_reference_of_its_line(tmp_path: Path) -> None:
    suite = load_suite(written(tmp_path))
    failed = {("FedAvg", "0.25"), ("FedAvg", "1.0")}
    runs = scored(suite, lambda p: None if (p.cell["method"], p.cell["rate"]) in failed else 0.5)
    svg = drawn(suite, runs)
    assert lines(svg) == [1, 1] and len(said(svg, reference=True)) == 2
    nothing = [Run(point, None, None, 0, 0.0, "lost") for point in suite.points()]
    for number in range(3):
        assert any("no data" in text for text in texts(to_svg(drawn(suite, nothing, number))))


def test_words_of_a_figure_and_hostile_names(tmp_path: Path) -> None:
    axes = {**SWEEP["axes"], "method": {"<b>&": {"algorithm.name": "fedavg"}}}
    figure = {**LINES, "title": "T <&>", "x_label": "eta\x07", "y_label": "score", "shared_y": True}
    suite = load_suite(written(tmp_path, axes=axes, skip=[{"rate": "own"}], figures=[figure]))
    svg = drawn(suite, scored(suite))
    assert {"T <&>", "eta?", "score", "<b>&"} <= set(texts(to_svg(svg)))


def journal(folder: Path, run: Run, values: list[float | None], clients: dict[str, dict[str, float]]) -> None:
    path = folder / "runs" / run.point.key / "journal.jsonl"
    path.parent.mkdir(parents=True)
    events: list[dict[str, Any]] = [
        {
            "event": "round",
            "round": i,
            "metrics": {} if value is None else {"val/accuracy": value},
            "score": value,
            "seconds": 0.1,
        }
        for i, value in enumerate(values, start=1)
    ]
    end = {"num_rounds": len(values), "best_round": 1, "best_score": None, "seconds": 0.1, "metrics": {}}
    events.append({"event": "end", **end, "client_scores": clients})
    path.write_text("".join(json.dumps(event) + "\n" for event in events))


def test_rounds_are_means_over_seeds_as_far_as_all_got(tmp_path: Path) -> None:
    suite = load_suite(written(tmp_path, figures=[ROUNDS]))
    runs = scored(suite)
    for run in runs:
        short = run.point.seed == 1
        journal(tmp_path, run, [0.1, None, 0.5, 0.7] if short else [0.3, 0.4, 0.5, 0.9, 0.95], {})
    svg = drawn(suite, runs, folder=tmp_path)
    assert lines(svg) == [3, 3, 3, 3]  # rounds 1, 3 and 4
    assert said(svg)[2] == f"FedAvg, 4: 0.8 ± {statistics.stdev([0.7, 0.9]):.2g}"


def test_clients_are_means_over_the_seeds_in_which_they_were_tested(tmp_path: Path) -> None:
    suite = load_suite(written(tmp_path, figures=[CLIENTS]))
    runs = scored(suite)
    for run in runs:
        scores = {"a": {"accuracy": 0.4 + 0.2 * run.point.seed}, "b": {"accuracy": 0.7}}
        journal(tmp_path, run, [], scores if run.point.seed else {**scores, "b": {"accuracy": math.nan}, "c": {}})
    svg = drawn(suite, runs, folder=tmp_path)
    assert len(said(svg)) == 2 * 2 * 2
    assert said(svg)[:2] == ["FedAvg, a: 0.5 ± 0.14", "FedAvg, b: 0.7"]


# on real data


def test_figures_of_a_real_suite_say_what_its_journals_say(finished: Path) -> None:
    folder = finished / "results" / "suite"
    suite = load_suite(finished / "suite.yaml")
    found = cells(suite, run_suite(suite, folder, workers=1))
    sweep, curves, bars = (folder / f"{name}.svg" for name in ("fig11", "fig3", "fig10"))
    assert len(labels(sweep, "point")) == 2 * 3 and len(labels(sweep, "line mark")) == 2
    cell = next(c for c in found if c.choices == {"splitter": "random", "method": "FedAvg", "rate": "0.05"})
    assert cell.mean is not None and cell.std is not None
    assert labels(sweep, "point")[0].endswith(f"FedAvg; place: 0.05; value: {cell.mean:.4g} ± {cell.std:.2g}")
    assert len(labels(curves, "line mark")) == 4 and len(labels(curves, "area mark")) == 4
    assert len(labels(bars, "bar")) == 2 * 2 * 3 and texts(bars.read_text()).count("client-0") == 2


def test_a_finished_suite_is_drawn_again_without_new_runs(finished: Path) -> None:
    folder = finished / "results" / "suite"
    journals = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/journal.jsonl")}
    before = {path.name: path.read_text() for path in folder.glob("*.svg")}
    assert len(journals) == 16 and len(before) == 3
    (folder / "fig3.svg").unlink()
    again = compare("suite.yaml", "--json", cwd=finished)
    assert json.loads(again)["figures"] == [f"results/suite/{n}.svg" for n in ("fig11", "fig3", "fig10")]
    assert before == {path.name: path.read_text() for path in folder.glob("*.svg")}
    assert journals == {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/journal.jsonl")}


def test_a_suite_without_figures_writes_none(finished: Path) -> None:
    written(finished, figures=[])
    again = compare("suite.yaml", "--json", "--out", str(finished / "results" / "suite"), cwd=finished)
    written(finished)
    assert json.loads(again)["figures"] == []
