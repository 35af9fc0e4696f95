"""Scripts under papers/ that draw what no suite draws, on small stand-ins for the datasets."""

import csv
import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from isthmus.algorithms import Local
from isthmus.algorithms.fedgrl.downstream import Finetune, Freeze
from isthmus.config.course import Course
from isthmus.core.codec import decode
from isthmus.core.errors import BadInput
from isthmus.core.record import Params, State
from isthmus.data.conventions import SPLITS
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.optimizers import AdamW
from isthmus.report.charts import scatter_chart, to_svg
from isthmus.runs.simulated import run
from isthmus.runs.simulation import Simulation, load_scenario
from isthmus.suites.part import narrowed
from isthmus.suites.spec import load_suite
from isthmus.suites.table import cells

ROOT = Path(__file__).parent.parent
FEDGL = ROOT / "papers" / "fedgl"
FEDGRL = FEDGL.with_name("fedgrl")


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = script  # dataclasses look their module up
    spec.loader.exec_module(script)
    return script


@pytest.mark.parametrize("method", ["Centralized", "FedGL"])
def test_fedgl_embeddings_are_the_outputs_of_a_runs_model_on_the_merged_graph(method: str, tmp_path: Path) -> None:
    script = loaded(FEDGL / "embeddings.py")
    suite = narrowed(load_suite(FEDGL / "table2.yaml"), ["dataset=Cora", f"method={method}"])
    suite.base["rounds"] = 2
    point = suite.points()[0]
    result = run(point.course, run_dir=tmp_path / "run")
    whole = load_scenario(point.course, tmp_path).whole
    found = script.embedded(point, tmp_path / "run", whole)
    test = whole.mask("test")
    right = float((found.argmax(dim=1) == whole.y)[test].double().mean())
    assert right == pytest.approx(result.score(), abs=1e-6)
    chosen = test.nonzero().flatten()[:60]
    panel = script.panel(method, found[chosen].numpy(), whole.y[chosen].numpy(), whole.class_names)
    assert sum(len(series.points) for series in panel.series) == 60
    assert {series.name for series in panel.series} == {whole.class_names[c] for c in np.unique(whole.y[chosen])}
    assert ElementTree.fromstring(to_svg(scatter_chart([panel]))).tag.endswith("svg")
    assert torch.isfinite(found).all()


def small(script: ModuleType) -> Any:
    """Return a setting of FedGRL's tables on a small graph."""
    masks = {"name": "ratio", "train": 0.6, "val": 0.2, "test": 0.2}
    views = {"edges": 0.2, "features": 0.2}, {"edges": 0.2, "features": 0.1}
    return script.Setting({"name": "csbm"}, {"name": "random"}, 2, masks, *views, hidden=8)


def test_fedgrl_tables_have_the_protocol_of_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    script = loaded(FEDGRL / "tables.py")
    shares = {name: tuple(setting.masks[part] for part in SPLITS) for name, setting in script.SETTINGS.items()}
    assert shares == {"twitch": (0.6, 0.2, 0.2), "amazon": (0.1, 0.1, 0.8), "mixed": (0.1, 0.1, 0.8)}
    for setting in script.SETTINGS.values():
        together = script.course(setting, script.self_supervised(setting, "fedgrl", 10_000)).algorithm
        assert (together.local_steps, together.optimizer.schedule.warmup_rounds) == (1, 1_000)
        assert together.optimizer.lr == 1e-4 and setting.hidden == 128
    asked: list[Course] = []
    monkeypatch.setattr(script.isthmus, "run", lambda course, scenario: asked.append(course) or Mock(client_scores={}))
    for name in ("local", "fedavg"):
        script.supervised(small(script), None, name, 500, 3)
    local, fedavg = asked
    for course in asked:
        assert (course.rounds, course.seed, course.stopping.keep, course.algorithm.local_steps) == (500, 3, "best", 1)
        assert course.algorithm.optimizer == AdamW(lr=0.01, weight_decay=1e-3)
        assert course.model.decoder.hidden == 128 and course.shared == ("*", "!decoder.*")
    assert type(local.algorithm) is Local
    assert fedavg.algorithm.keep_moments and fedavg.algorithm.weighting == "nodes"


def test_fedgrl_tables_draw_each_split_by_itself_and_score_on_test_nodes() -> None:
    script = loaded(FEDGRL / "tables.py")
    setting = small(script)
    base = script.course(setting, {"name": "local_grl"}, linear=True)
    scenario = load_scenario(base, Path())
    splits = [script.with_split(scenario, base.masks, number) for number in (0, 1, 0)]
    drawn = [torch.cat([part.mask("test") for part in split.parts.values()]) for split in splits]
    assert torch.equal(drawn[0], drawn[2]) and not torch.equal(drawn[0], drawn[1])
    simulation = Simulation(replace(base, seed=1), splits[1])  # heads of their own are drawn by the split too
    params = simulation.initial.params
    found = script.downstream_scores(setting, splits[1], dict.fromkeys(scenario.parts, params), AsItIs(), 1)
    wanted = {
        name: {split: scores["f1_micro"] for split, scores in client.evaluate(params, ("val", "test"))[0].items()}
        for name, client in simulation.clients.items()
    }
    assert found == {name: scores["test"] for name, scores in wanted.items()}
    assert found != {name: scores["val"] for name, scores in wanted.items()}


class AsItIs(Freeze):
    """Gives a model as it was given."""

    def train(self, client: GraphClient, params: Params) -> Params:
        return params


def test_fedgrl_tables_keep_the_last_encoder_and_tell_trainings_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = loaded(FEDGRL / "tables.py")
    setting = small(script)
    monkeypatch.setitem(script.SETTINGS, "twitch", setting)
    monkeypatch.setattr(script, "Finetune", lambda: Finetune(steps=3))
    monkeypatch.setattr(script, "client_names", lambda scenario, setting: {name: name for name in scenario.parts})
    command = ["twitch", "--out", str(tmp_path), "--splits", "1", "--only", "Self-Finetune", "--looks", "2"]
    script.main([*command, "--rounds", "4"])
    script.main([*command, "--rounds", "4"])  # nothing is computed again
    script.main([*command, "--rounds", "2"])
    rows = list(csv.DictReader((tmp_path / "twitch.csv").open(newline="")))
    assert [row["trained"] for row in rows] == 4 * ["4 rounds, lr 0.0001"] + 4 * ["2 rounds, lr 0.0001"]
    assert {row["method"] for row in rows} == {"No-Fed-Self-Finetune", "Fed-Self-Finetune"}
    kept = decode((tmp_path / "twitch-fed-self-4-0.0001-seed0.isth").read_bytes(), State)
    made = script.course(setting, script.self_supervised(setting, "fedgrl", 4), linear=True, rounds=4, evaluate_every=4)
    last = run(made).client_params  # evaluated once, after the last round
    for client, params in kept.items():
        assert params and not any(name.startswith("decoder.") for name in params)
        for name, value in params.items():
            torch.testing.assert_close(value, last[client][name], rtol=0.0, atol=0.0)
    capsys.readouterr()


@pytest.mark.parametrize(
    "suite", ["fedgl/fig11", "fedgl/fig12", "fedgl/fig13", "fedgl/fig14", "fgssl/fig4a", "fgssl/fig4b"]
)
def test_figures_of_lines_are_those_of_the_runs_that_are_kept(suite: str) -> None:
    script = loaded(ROOT / "tools" / "redraw.py")
    path = ROOT / "papers" / f"{suite}.yaml"
    whole = load_suite(path)
    rows = script.kept_rows(whole, path.parent / "results" / f"{path.stem}.csv")
    kept = script.kept_part(whole, rows)
    found = cells(kept, script.kept_runs(kept, rows))
    drawn = path.with_suffix(".svg").read_text()
    x = kept.figures[0].x
    assert found and all(cell.mean is not None for cell in found)
    for cell in found:
        if cell.choices[x] != "own":  # a reference has no place on the axis
            assert f"place: {cell.choices[x]}; value: {cell.mean:.4g}" in drawn


@pytest.mark.parametrize(
    ("suite", "figures"),
    [("fedgl/table2", 1), ("fgssl/table1", 1), ("fs_g/fig7", 1), ("gfl_appnp/table2", 2)],
)
def test_figures_of_rounds_and_clients_are_those_of_the_tables_beside_them(
    suite: str, figures: int, tmp_path: Path
) -> None:
    path = ROOT / "papers" / f"{suite}.yaml"
    drawn = loaded(ROOT / "tools" / "redraw.py").redraw(path, tmp_path)
    assert len(drawn) == figures
    for figure in drawn:
        assert marks_of(figure) == marks_of(path.parent / figure.name)


def marks_of(figure: Path) -> list[tuple[str | None, ...]]:
    """Return what is drawn of a figure, and where within its panel."""
    elements = ElementTree.fromstring(figure.read_text()).iter()
    marks = ("line mark", "bar", "rule mark", "point")
    keys = ("aria-label", "d", "x2", "y2", "transform")
    found = [tuple(e.get(key) for key in keys) for e in elements if e.get("aria-roledescription") in marks]
    assert found
    return found


def test_every_figure_of_the_papers_is_drawn_by_the_present_charts() -> None:
    for figure in sorted((ROOT / "papers").rglob("*.svg")):
        (kind,) = re.findall(r'<svg [^>]*?class="(\w+)"', figure.read_text()) or ["hand"]
        heat_map = figure.stem.startswith("fig1-")  # as on pages
        assert kind == ("hand" if heat_map else "marks"), figure


def test_a_course_that_no_kept_run_is_of_is_named() -> None:
    script = loaded(ROOT / "tools" / "redraw.py")
    suite = narrowed(load_suite(ROOT / "papers/fgssl/fig4a.yaml"), ["dataset=Cora"])
    with pytest.raises(BadInput, match=r"no row has Cora, 0\.01 with seed 0"):
        script.kept_runs(suite, [])
