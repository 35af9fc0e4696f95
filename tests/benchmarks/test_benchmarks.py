"""The benchmarks run at tiny sizes and print the tables that their README tells of."""

from __future__ import annotations

import importlib
import shlex
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from isthmus.core.errors import BadInput
from isthmus.testing import toy_scenario

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"

# A yardstick that is slow and plain: dense matrices, a loop over clients, gradients by autograd.
YARDSTICK = """
import torch
import torch.nn.functional as F

class Compact:
    def __init__(self, cl, f, c, o):
        self.cl, self.o = cl, o
        self.live = [q for q in cl if (q["role"] == 0).any()]
        self.k = len(self.live)

    def logits(self, q, w, dropout):
        x, s = (torch.from_numpy(q[name].toarray()) for name in ("x", "s"))
        return s @ (F.relu(F.dropout(s @ (x @ w[0]) + w[1], dropout)) @ w[2]) + w[3]

    def round(self):
        mean, total = [torch.zeros_like(t) for t in self.w], sum((q["role"] == 0).sum() for q in self.live)
        for q in self.live:
            train, w = torch.from_numpy(q["role"] == 0), [t.clone().requires_grad_() for t in self.w]
            for _ in range(self.o.steps):
                loss = F.cross_entropy(self.logits(q, w, self.o.dropout)[train], torch.from_numpy(q["y"])[train])
                grads = torch.autograd.grad(loss, w)
                with torch.no_grad():
                    for t, g in zip(w, grads):
                        t -= self.o.lr * (g + self.o.wd * t)
            for t, mine in zip(mean, w):
                t += mine.detach() * (int(train.sum()) / total)
        self.w = mean

    def accuracy(self):
        right = [(self.logits(q, self.w, 0.0).argmax(1).numpy() == q["y"])[q["role"] == 2] for q in self.cl]
        return sum(r.sum() for r in right) / sum(map(len, right))
"""


def run(script: str, words: str) -> str:
    command = [sys.executable, str(BENCHMARKS / script), *shlex.split(words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def tables(text: str) -> list[list[dict[str, str]]]:
    """Return the markdown tables in a text, each as its rows by column."""
    found: list[list[dict[str, str]]] = []
    names: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip()[1:-1].split("|")] if line.startswith("|") else []
        if not cells:
            names = []
        elif not names:
            names = cells
            found.append([])
        elif set(cells) != {"---"}:
            found[-1].append(dict(zip(names, cells, strict=True)))
    return found


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch):
    """Import a module of the benchmarks, and forget it afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if (BENCHMARKS / f"{name}.py").is_file():
            del sys.modules[name]


@pytest.mark.slow
def test_simulation_compares_all_sides(tmp_path: Path) -> None:
    yardstick = tmp_path / "plain_loop.py"
    yardstick.write_text(YARDSTICK)
    words = f"--clients 4 --rounds 1 --repeats 2 --accuracy-rounds 3 --seeds 2 --yardstick {yardstick}"
    (weights,), (speed,), (accuracy,) = tables(run("simulation.py", words))
    assert weights["clients"] == speed["clients"] == speed["of them train"] == accuracy["clients"] == "4"
    for side in ("loop", "PyG", "compact"):
        assert float(weights[f"{side} apart"]) < 1e-4
    for side in ("isthmus", "loop", "PyG", "compact"):
        assert float(speed[f"{side} ms"].replace(",", "")) > 0.0
    assert speed.keys() >= {"PyG / isthmus", "loop / isthmus", "isthmus / compact"}
    for side in ("PyG", "compact"):
        assert abs(float(accuracy[f"isthmus - {side}"].split()[0])) < 0.1


def test_sides_agree_where_a_client_has_nothing_to_train_on(module, tmp_path: Path) -> None:
    (tmp_path / "plain_loop.py").write_text(YARDSTICK)
    scenario = toy_scenario(4, client_without_training=True, sparse=True)
    comparison, sides = module("simulation"), module("sides")
    yardstick = sides.load_yardstick(tmp_path / "plain_loop.py")
    found = comparison.sides_of(sides.course_of(4), scenario, 0.0, yardstick)
    assert {name: side.round() for name, side in found.items()} == dict.fromkeys(found, 3)
    assert max(comparison.apart(found).values()) < 1e-5
    assert {round(side.accuracy(), 6) for side in found.values()} == {round(found["PyG"].accuracy(), 6)}


@pytest.mark.slow
def test_growth_has_a_table_for_each_thing_that_grows() -> None:
    found = tables(run("simulation.py", "--growth --quick --rounds 1 --repeats 1"))
    assert [next(iter(table[0])) for table in found] == ["clients", "clients", "nodes", "edges", "features"]
    for row in [row for table in found for row in table]:
        assert float(row["isthmus ms"].replace(",", "")) > 0.0
        assert row.keys() >= {"clients that train", "exponent", "PyG ms", "PyG / isthmus"}


@pytest.mark.slow
def test_scale_tells_seconds_and_peak_of_every_stage() -> None:
    found = [
        *tables(run("scale.py", "--only clients --largest 100 --rounds 2")),
        *tables(run("scale.py", "--only edges --largest 100000 --rounds 2")),
    ]
    assert [next(iter(table[0])) for table in found] == ["clients", "clients", "edges", "edges"]
    for (cells,) in found:
        assert cells["clients that answered"] == ("100" if "clients" in cells else "20")
        assert cells["failures"] == "0"
        assert all(float(cells[f"{stage} s"]) > 0 for stage in ("make", "split", "first round", "a later round", "end"))
        assert float(cells["all s"]) > 0.0 and 0.05 < float(cells["peak GB"]) < 4.0


@pytest.mark.slow
def test_a_tree_is_measured_beside_another() -> None:
    words = f"{BENCHMARKS.parent} --only fedavg --clients 2 --repeats 1 --shortest 0"
    ((cells,),) = tables(run("against.py", words))
    assert (cells["course"], cells["clients"]) == ("fedavg", "2")
    assert float(cells["here ms"]) > 0.0 and float(cells["there ms"]) > 0.0
    assert 0.05 < float(cells["there / here"].split()[0]) < 20.0  # one tree twice


def test_a_folder_without_a_checkout_is_refused(module, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no checkout of isthmus is there"):
        module("against").Tree(tmp_path, tmp_path)


@pytest.mark.slow
def test_a_method_of_ones_own_is_measured_beside_fedavg() -> None:
    ((row,),) = tables(run("own_method.py", "--clients 3 --rounds 1 --repeats 1"))
    assert (row["clients"], row["of them train"]) == ("3", "3")
    assert float(row["FedAvg ms"]) > 0.0 and float(row["own method ms"]) > 0.0


def test_exponents_of_growth(module) -> None:
    scale = module("scale")
    assert scale.exponent(None, 10, len, {}) == ""
    assert scale.exponent((10, {"x": 2.0}), 1000, lambda each: each["x"], {"x": 200.0}) == "1.00"
    assert scale.exponent((10, {"x": 2.0}), 1000, lambda each: each["x"], {"x": 20.0}) == "0.50"


def test_a_figure_that_cannot_be_drawn_is_told_before_anything_is_measured(
    module, monkeypatch: pytest.MonkeyPatch
) -> None:
    growth = module("growth")
    monkeypatch.setitem(sys.modules, "altair", None)
    monkeypatch.setattr(growth, "measure", None)
    with pytest.raises(BadInput, match=r"pip install 'isthmus\[charts\]'"):
        growth.grow(1, 1, Path("growth.svg"), quick=True)


def test_figure_is_drawn_also_where_the_bare_loop_was_left_out_and_anew_from_its_table(module, tmp_path: Path) -> None:
    growth, timing = module("growth"), module("timing")
    curves = [growth.Curve("title", grows, [10, 100], []) for grows in ("nodes", "edges")]
    milliseconds = {"isthmus 10": [1.0, 2.0], "isthmus 100": [3.0, 4.0], "PyG 10": [5.0, 6.0]}
    times = timing.Times(milliseconds, dict.fromkeys(milliseconds, 4))
    figure = tmp_path / "growth.svg"
    growth.draw([(curve, times) for curve in curves], figure)
    drawn = figure.read_text()
    said = [mark.partition("series: ")[2] for mark in points_of(figure)]
    three = ["PyG; place: 10; value: 5.5", "isthmus; place: 10; value: 1.5", "isthmus; place: 100; value: 3.5"]
    assert sorted(said) == sorted(2 * three)
    assert {"title: nodes", "title: edges"} <= {"".join(e.itertext()) for e in ElementTree.fromstring(drawn).iter()}
    figure.unlink()
    growth.redraw(figure)
    assert figure.read_text() == drawn


def test_the_figure_of_growth_shows_the_table_beside_it(module, tmp_path: Path) -> None:
    docs = BENCHMARKS.with_name("docs")
    (tmp_path / "growth.csv").write_text((docs / "growth.csv").read_text())
    module("growth").redraw(tmp_path / "growth.svg")
    kept, drawn = (points_of(folder / "growth.svg") for folder in (docs, tmp_path))
    assert kept == drawn and len(kept) > 30


def points_of(figure: Path) -> list[str]:
    marks = ElementTree.fromstring(figure.read_text()).iter()
    return [e.attrib["aria-label"] for e in marks if e.get("aria-roledescription") == "point"]


def test_exponent_of_growth_in_proportion_is_one(module) -> None:
    growth, timing = module("growth"), module("timing")
    curve = growth.Curve("title", "nodes", [10, 100], [])
    # The second repeat was disturbed, both sizes alike.
    times = timing.Times({"isthmus 10": [1.0, 7.0, 1.0], "isthmus 100": [10.0, 70.0, 10.0]}, {})
    assert growth.exponent(curve, times, "isthmus", 10) == ""
    assert growth.exponent(curve, times, "isthmus", 100) == "1.00"


class Turns:
    def __init__(self, clients: int, seconds: float = 0.0) -> None:
        self.clients, self.seconds, self.rounds = clients, seconds, 0

    def round(self) -> int:
        self.rounds += 1
        time.sleep(self.seconds)
        return self.clients


def test_sides_do_as_many_rounds_and_must_have_as_many_clients(module) -> None:
    timing: ModuleType = module("timing")
    sides = {"a": Turns(4), "b": Turns(4)}
    times = timing.interleaved(sides, rounds=3, repeats=5)
    assert times.trained("a", "b") == 4
    assert sides["a"].rounds == sides["b"].rounds == 2 + 3 * 5
    assert len(times.ratios("a", "b")) == 5
    slow = Turns(4, seconds=0.02)
    timing.interleaved({"slow": slow}, rounds=10, repeats=1, longest=0.05)
    assert 2 + 1 <= slow.rounds <= 2 + 2
    slow = Turns(4, seconds=0.02)
    timing.interleaved({"slow": slow}, rounds=1, repeats=1, shortest=0.4)
    assert slow.rounds > 2 + 1
    with pytest.raises(RuntimeError, match="not the same number of clients trained on all sides"):
        timing.interleaved({"a": Turns(4), "b": Turns(3)}, rounds=1, repeats=1).trained("a", "b")


@pytest.mark.parametrize("words", [0, 6])
def test_synthetic_graph_is_a_graph_of_the_sizes_asked_for(module, words: int) -> None:
    made = module("synthetic")
    graph = made.Synthetic(num_nodes=600, num_pairs=3_000, num_features=70, num_groups=20, words=words).load(Path())
    assert (graph.num_nodes, graph.num_features) == (600, 70)
    assert abs(graph.num_edges / 2 - 3_000) < 100
    source, target = graph.edge_index
    assert bool((source != target).all())
    keys = source * 600 + target
    assert bool((keys.diff() > 0).all())
    assert torch.equal((target * 600 + source).sort().values, keys)
    within = (source // 30 == target // 30).float().mean()
    assert 0.93 < float(within) < 0.98
    if words:
        dense = graph.x.to_dense()
        assert set(dense.unique().tolist()) == {0.0, 1.0}
        assert 4 < float(dense.sum(dim=1).mean()) <= 6
    parts = made.BlockSplitter().assign(graph, 20, np.random.default_rng(0))
    assert torch.equal(torch.cat(parts), torch.arange(600))


def test_synthetic_graph_refuses_more_edges_than_its_groups_hold(module) -> None:
    with pytest.raises(ValueError, match="num_pairs is 500; 10 groups of 4 hold 60"):
        module("synthetic").Synthetic(num_nodes=40, num_pairs=500, num_features=4, num_groups=10).load(Path())


@pytest.mark.slow
def test_pseudo_graph_prints_a_line_for_each_size() -> None:
    text = run("pseudo_graph.py", "--nodes 300 500 --neighbors 20 --exact-up-to 300")
    lines = [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines()[2:]]
    assert [line[0] for line in lines] == ["300", "500"]
    assert float(lines[0][5].rstrip(" %")) > 90.0  # edges found
    assert lines[1][1] == lines[1][5] == ""  # the exact search was left out


@pytest.mark.slow
def test_contrast_prints_a_line_for_each_size_and_sample() -> None:
    text = run("contrast.py", "--nodes 300 --sampled 50")
    lines = [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines()[2:]]
    assert [line[:2] for line in lines] == [["300", "50"], ["300", "300"]]


@pytest.mark.slow
def test_encoders_prints_a_round_and_an_evaluation_for_each_number_of_clients() -> None:
    text = run("encoders.py", "--clients 3 --repeats 1")
    lines = [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines()[2:]]
    assert [line[:2] for line in lines] == [["3", "a round"], ["3", "an evaluation"]]


@pytest.mark.slow
def test_grading_prints_a_line_for_each_number_of_clients() -> None:
    text = run("grading.py", "--clients 3 --repeats 1")
    lines = [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines()[2:]]
    assert [line[0] for line in lines if len(line) == 4] == ["3"]


@pytest.mark.slow
def test_ids_are_matched_as_by_a_secret() -> None:
    (rows,) = tables(run("psi.py", "--ids 40 --silos 2 3"))
    assert [(row["way"], row["silos"]) for row in rows] == [(way, n) for n in "23" for way in ("ring", "keyed")]
    assert {row["in common"] for row in rows} == {"20"}
