"""Lookup tables: searches on them see what they would see of courses; what a round costs elsewhere."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isthmus.core.errors import BadInput
from isthmus.core.random import numpy_generator
from isthmus.tune import filling
from isthmus.tune.backends import Here
from isthmus.tune.cost import CostModel
from isthmus.tune.curves import Curves, LookedUp, regrets
from isthmus.tune.filling import Filling, fill
from isthmus.tune.reading import read_study
from isthmus.tune.running import Computed, search
from isthmus.tune.spec import Study

PLAIN: dict[str, Any] = {
    "base": {
        "dataset": {"name": "csbm", "num_nodes": 60, "num_features": 8},
        "num_clients": 2,
        "splitter": "random",
        "model.gnn.hidden": 4,
        "evaluate_every": 2,
    },
    "space": {"algorithm.optimizer.lr": [0.1, 1.0], "algorithm.local_steps": [1, 2]},
    "fidelity": {"rounds": [2, 5, 6], "sampling.fraction": 1.0},
    "search": {"name": "sha"},
    "seeds": [3, 4],
    "final_seeds": [],
}


def study(**changes: Any) -> Study:
    return read_study({**PLAIN, **changes}, "s.yaml", "mine")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Curves, Path]:
    folder = tmp_path_factory.mktemp("table") / "out"
    return fill(Filling.of(study(), (0.5, 1.0)), folder), folder


@pytest.mark.parametrize("at", ["best", "last"])
def test_a_search_on_the_table_sees_what_it_sees_of_courses(
    at: str, filled: tuple[Curves, Path], tmp_path: Path
) -> None:
    found = study(at=at, objectives=["val/loss", "bytes", "bytes_up"])
    computed = search(found, Computed(found, tmp_path / "out", Here()))
    looked_up = search(found, LookedUp(found, filled[0]))
    assert [row.trial for row in looked_up.rows] == [row.trial for row in computed.rows]
    for ours, theirs in zip(looked_up.rows, computed.rows, strict=True):
        assert ours.cost == theirs.cost
        assert ours.scores[0] == pytest.approx(theirs.scores[0], abs=2e-6)
        # Messages of evaluations are no part of what a table counts.
        assert 0 < ours.scores[1] < theirs.scores[1] and ours.scores[2] < theirs.scores[2]


def test_the_truth_is_the_mean_of_the_test_scores_over_the_seeds(filled: tuple[Curves, Path]) -> None:
    from isthmus.runs.simulated import run

    curves, _ = filled
    scores = [run(study().course(curves.points[2], None, seed)).score() for seed in (3, 4)]
    assert curves.truth()[2] == pytest.approx(sum(scores) / 2)
    assert curves.truth(0.5).shape == (4,) and curves.final.shape == (4, 2, 2)


def test_a_table_is_read_as_it_was_written(filled: tuple[Curves, Path], tmp_path: Path) -> None:
    curves, folder = filled
    again = Curves.load(folder / "curves.npz")
    for name in ("points", "fractions", "seeds", "metrics", "clients", "facts"):
        assert getattr(again, name) == getattr(curves, name)
    for name in ("values", "kept", "final", "down", "up", "client_seconds"):
        np.testing.assert_array_equal(getattr(again, name), getattr(curves, name))
    (tmp_path / "other.npz").write_bytes(b"nothing")
    with pytest.raises(BadInput, match=r"other\.npz is no table of curves"):
        Curves.load(tmp_path / "other.npz")
    with pytest.raises(BadInput, match="isthmus tune --table makes one"):
        Curves.load(tmp_path / "none.npz")


def test_what_is_filled_stays_filled(
    filled: tuple[Curves, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    curves, folder = filled
    (tmp_path / "t").mkdir()
    lines = (folder / "curves.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "t" / "table.json").write_text((folder / "table.json").read_text())
    (tmp_path / "t" / "curves.jsonl").write_text("".join(lines[:-2]) + lines[-2][:40])
    drawn: list[int] = []
    real = filling.drawn
    monkeypatch.setattr(filling, "drawn", lambda course, s: drawn.append(course.seed) or real(course, s))
    again = fill(Filling.of(study(), (0.5, 1.0)), tmp_path / "t")
    assert drawn == [4, 4]
    np.testing.assert_array_equal(again.values, curves.values)
    # More seeds are more lines; another space is another table.
    more = fill(Filling.of(study(seeds=[3, 4, 5]), (0.5, 1.0)), tmp_path / "t")
    assert more.seeds == (3, 4, 5) and drawn == [4, 4] + [5] * 8
    other = study(space={"algorithm.optimizer.lr": [0.1, 0.2]})
    with pytest.raises(BadInput, match="holds another table: it differs in space"):
        fill(Filling.of(other, (0.5, 1.0)), tmp_path / "t")


@pytest.mark.slow
def test_two_processes_fill_it_as_one_does(filled: tuple[Curves, Path], tmp_path: Path) -> None:
    curves = fill(Filling.of(study(), (0.5, 1.0)), tmp_path / "out", workers=2)
    for name in ("values", "kept", "final", "down", "up"):
        np.testing.assert_array_equal(getattr(curves, name), getattr(filled[0], name))


def test_only_seeds_that_are_whole_are_in_a_table(filled: tuple[Curves, Path]) -> None:
    _, folder = filled
    made = Filling.of(study(), (0.5, 1.0))
    lines = {line["key"]: line for line in map(json.loads, (folder / "curves.jsonl").read_text().splitlines())}
    lines.pop("3/1/4")
    assert filling.gathered(made, lines).seeds == (3,)
    lines.pop("0/1/3")
    with pytest.raises(BadInput, match="no seed's courses are all finished"):
        filling.gathered(made, lines)


@pytest.mark.parametrize(
    ("changes", "lacks"),
    [
        ({"space": {"algorithm.optimizer.lr": [0.1, 0.3], "algorithm.local_steps": [1]}}, "the point"),
        (
            {"space": {"algorithm.optimizer.lr": {"low": 0.1, "high": 1.0}}, "search": {"name": "sha", "arms": 2}},
            "make algorithm.optimizer.lr choices",
        ),
        ({"seeds": [3, 7]}, "the seed 7"),
        ({"fidelity": {"rounds": [2, 9]}}, "the round 9"),
        ({"fidelity": {"rounds": [2, 5], "sampling.fraction": [0.3, 1.0]}}, "the fraction 0.3"),
        ({"search": {"name": "pbt"}}, "courses that go on from others"),
    ],
)
def test_what_a_table_lacks_is_told(changes: Any, lacks: str, filled: tuple[Curves, Path]) -> None:
    with pytest.raises(BadInput, match=f"s.yaml: the table of 'mine' lacks .*{lacks}"):
        LookedUp(study(**changes), filled[0])


def test_without_a_fidelity_the_share_of_clients_is_that_of_the_course(filled: tuple[Curves, Path]) -> None:
    base = {**PLAIN["base"], "sampling.fraction": 0.5}
    half, said = study(base=base, fidelity={"rounds": 6}), study(fidelity={"rounds": 6, "sampling.fraction": 0.5})
    whole = study(fidelity={"rounds": 6})
    rows = [search(each, LookedUp(each, filled[0])).rows for each in (half, said, whole)]
    assert rows[0] == rows[1] != rows[2]
    assert rows[0][0].cost == 12.0 and Filling.of(half).fractions == (0.5,)


def test_regret_is_how_far_the_best_so_far_is_from_the_best_there_is(filled: tuple[Curves, Path]) -> None:
    curves, _ = filled
    final = np.zeros_like(curves.final)
    final[:, 1] = np.asarray([0.1, 0.4, 0.3, 0.2])[:, None]
    values, kept = np.zeros_like(curves.values), np.full_like(curves.kept, 2)
    values[:, 1, :, curves.metrics.index("val/accuracy")] = np.asarray([0.5, 0.1, 0.6, 0.2])[:, None, None]
    made = replace(curves, final=final, values=values, kept=kept)
    found = study(search="grid", fidelity={"rounds": 6})
    table = search(found, LookedUp(found, made))
    assert [spent for spent, _ in regrets(table, made)] == [24, 48, 72, 96]
    assert [regret for _, regret in regrets(table, made)] == pytest.approx([0.3, 0.3, 0.1, 0.1])


# ---- the cost of a round


def test_a_round_takes_as_long_as_its_messages_and_its_slowest_client() -> None:
    model = CostModel(server_mbit=8, down_mbit=80, up_mbit=4, server_seconds=0.5)  # 1, 10 and 0.5 megabytes per second
    # Three clients: the server needs 3 s for 3 x 1 MB, each sends 1 MB in 2 s, and computes for 2 s in the mean.
    assert model.round_seconds(3, 1e6, 1e6, 2.0) == pytest.approx(3 + 2 + 2 * (1 + 1 / 2 + 1 / 3) + 0.5)
    # One alone is bound by its own way down where that is narrower.
    slow = replace(model, down_mbit=0.8)
    assert slow.round_seconds(1, 1e6, 0.0, 0.0) == pytest.approx(10 + 0.5)
    with pytest.raises(ValueError, match="up_mbit is 0; it must be positive"):
        replace(model, up_mbit=0)


def test_the_slowest_of_some_clients_is_what_is_drawn_in_the_mean() -> None:
    drawn = numpy_generator(0).exponential(2.0, size=(200_000, 5)).max(axis=1).mean()
    model = CostModel(server_mbit=1e12, down_mbit=1e12, up_mbit=1e12)
    assert model.round_seconds(5, 0.0, 0.0, 2.0) == pytest.approx(drawn, rel=5e-3)


def test_seconds_on_a_table_are_those_of_the_model(filled: tuple[Curves, Path]) -> None:
    curves, _ = filled
    model = CostModel(up_mbit=0.001)
    found = study(objectives=["val/accuracy", "round_seconds"], search="grid")
    row = search(found, LookedUp(found, curves, model)).rows[0]
    each = [curves.round_seconds(0, 1, seed, model) for seed in (0, 1)]
    assert row.scores[1] == pytest.approx(sum(each) / 2) and row.seconds == pytest.approx(6 * sum(each))
