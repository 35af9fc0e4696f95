"""Another name for a part keeps what both parts have, and says what it does not keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from isthmus.algorithms import FedAvg, FedProx, Local
from isthmus.config.course import Course
from isthmus.config.load import leaf_paths, load_course, merge, nested, own_model
from isthmus.core.errors import BadInput
from isthmus.data.splitters import RandomSplitter
from isthmus.learn.optimizers import SGD, Adam
from isthmus.models import GCN, SAGE, ModelSpec
from isthmus.suites.spec import load_suite

NINE_ADAM = {"algorithm": {"name": "fedavg", "local_steps": 9, "optimizer": {"name": "adam", "lr": 0.01}}}


def loaded(raw: dict[str, Any], *words: str) -> tuple[Course, list[str]]:
    notes: list[str] = []
    return load_course(raw, words, say=notes.append), notes


@pytest.mark.parametrize("word", ["algorithm.name=fedprox", "algorithm=fedprox", "algorithm={name: fedprox}"])
def test_another_algorithm_keeps_the_steps_and_the_optimiser(word: str) -> None:
    course, notes = loaded(NINE_ADAM, word)
    assert course.algorithm == FedProx(local_steps=9, optimizer=Adam(lr=0.01))
    assert notes == ["algorithm.name is 'fedprox' in place of 'fedavg': kept local_steps, optimizer"]


def test_what_the_new_part_does_not_have_is_dropped_and_said() -> None:
    raw = {"algorithm": {"name": "fedprox", "mu": 0.5, "local_steps": 3, "weighting": "nodes"}}
    course, notes = loaded(raw, "algorithm.name=local")
    assert course.algorithm == Local(local_steps=3)
    assert notes == [
        "algorithm.name is 'local' in place of 'fedprox': kept local_steps; "
        "dropped mu: local has no such field; dropped weighting: local has no such field"
    ]
    assert loaded(raw, "algorithm.name=fedprox")[1] == []  # the same name drops nothing


def test_only_what_was_set_is_kept_and_the_new_part_has_its_own_defaults() -> None:
    course, notes = loaded({"algorithm": {"name": "fedavg", "weighting": "nodes"}}, "algorithm.name=fgssl")
    assert (course.algorithm.optimizer.lr, course.algorithm.optimizer.momentum) == (0.1, 0.9)  # type: ignore[attr-defined]
    assert "optimizer.lr is 0.1 by default, with fedavg it was 0.25" in notes[0]


def test_a_nested_part_keeps_its_fields_too_and_its_default_weight_decay_is_told() -> None:
    raw = {"algorithm": {"optimizer": {"name": "sgd", "lr": 0.03, "momentum": 0.9}}}
    course, notes = loaded(raw, "algorithm.optimizer.name=adam")
    assert course.algorithm == FedAvg(optimizer=Adam(lr=0.03))
    assert notes == [
        "algorithm.optimizer.name is 'adam' in place of 'sgd': kept lr; dropped momentum: adam has no such field; "
        "weight_decay is 0 by default, with sgd it was 0.0005"
    ]
    back, notes = loaded(NINE_ADAM, "algorithm.optimizer.name=sgd")
    assert back.algorithm == FedAvg(local_steps=9, optimizer=SGD(lr=0.01, weight_decay=5e-4))
    assert "weight_decay is 0.0005 by default, with adam it was 0" in notes[0]


@pytest.mark.parametrize("word", ["algorithm.optimizer=adam", "algorithm.optimizer.name=adam"])
def test_switching_the_default_optimiser_tells_the_other_weight_decay(word: str) -> None:
    course, notes = loaded({}, word)
    assert course.algorithm == FedAvg(optimizer=Adam())
    assert notes and "weight_decay is 0 by default, with sgd it was 0.0005" in notes[0]
    assert loaded({"algorithm": {"optimizer": "adam"}})[1] == []  # a file that says so is no switch


def test_a_kept_part_within_the_new_one_tells_where_its_defaults_are_others() -> None:
    course, notes = loaded(NINE_ADAM, "algorithm.name=fedgl")
    assert course.algorithm.optimizer == Adam(lr=0.01, weight_decay=5e-4)  # type: ignore[attr-defined]
    assert "optimizer.weight_decay is 0.0005 by default, with fedavg it was 0" in notes[0]


def test_a_field_that_the_new_part_refuses_is_dropped_with_its_reason() -> None:
    raw = {"task": {"name": "node_classification", "metrics": ["accuracy", "f1_macro"]}}
    course, notes = loaded(raw, "task.name=link_prediction", "stopping.metric=loss")
    assert course.task.metrics == type(course.task)().metrics
    assert "dropped metrics: task: " in notes[0]


def test_fields_that_do_not_go_together_in_the_new_part_are_dropped_one_at_a_time() -> None:
    raw = {"algorithm": {"name": "fedavg", "local_steps": 9, "optimizer": {"lr": 300.0}}}  # times mu it is above 2
    course, notes = loaded(raw, "algorithm.name=fedprox")
    assert course.algorithm == FedProx(local_steps=9)
    assert "kept local_steps; dropped optimizer: algorithm: mu is 0.01 and the optimiser's lr 300.0" in notes[0]


@pytest.mark.parametrize(
    ("raw", "word", "key"),
    [
        ({"algorithm": {"name": "fedavg", "local_step": 9}}, "algorithm.name=fedprox", "algorithm.local_step"),
        ({"algorithm": {"local_step": 9}}, "algorithm.name=fedprox", "algorithm.local_step"),
        (
            {"algorithm": {"name": "fedavg", "optimizer": {"name": "adam", "bta1": 0.5}}},
            "algorithm.name=fedprox",
            "algorithm.optimizer.bta1",
        ),
    ],
)
def test_a_mistake_is_not_taken_for_a_field_to_drop(raw: dict[str, Any], word: str, key: str) -> None:
    with pytest.raises(BadInput, match=f"{key} is not a known key"):
        load_course(raw, [word])


def test_what_is_said_of_the_new_part_must_be_right() -> None:
    with pytest.raises(BadInput, match=r"algorithm\.mu is not a known key"):
        load_course({"algorithm": {"name": "fedprox", "local_steps": 2}}, ["algorithm.name=local", "algorithm.mu=1"])


def test_a_part_that_cannot_be_found_here_gives_way_to_another() -> None:
    raw = {"dataset": {"name": "no_such_package:Graph", "normalize_features": True, "secret": 3}}
    course, notes = loaded(raw, "dataset.name=citeseer")
    assert course.dataset.normalize_features is True  # type: ignore[attr-defined]
    assert "dropped secret: citeseer has no such field" in notes[0]


def test_fields_of_a_part_without_a_name_are_those_of_the_default() -> None:
    course, notes = loaded({"splitter": {"shares": [0.5, 0.5]}, "num_clients": 2}, "splitter.name=random")
    assert course.splitter == RandomSplitter(shares=(0.5, 0.5)) and "kept shares" in notes[0]
    # Fields that only the new one has are meant for it, in whatever order they were said.
    assert load_course({"algorithm": {"mu": 0.5}}, ["algorithm.name=fedprox"]).algorithm == FedProx(mu=0.5)


def test_several_levels_at_once_join_what_was_said_before() -> None:
    raw = {"stopping": {"patience": 9, "metric": "loss"}, "model": {"gnn": {"name": "gcn", "hidden": 8}}}
    course = load_course(raw, ["stopping={patience: 3}", "model={gnn: {name: sage}}"])
    assert (course.stopping.patience, course.stopping.metric) == (3, "loss")
    assert course.model == ModelSpec(gnn=SAGE(hidden=8))
    own = {"client_settings": {"client-0": {"local_steps": 2}}}
    assert load_course(own, ["client_settings={client-1: {local_steps: 3}}"]).client_settings == {
        "client-1": {"local_steps": 3}
    }


def test_a_client_s_own_kind_of_network_has_the_widths_that_the_course_sets() -> None:
    course = Course(model=ModelSpec(gnn=GCN(hidden=8)), client_settings={"client-0": {"model.gnn.name": "sage"}})
    assert own_model(course, "client-0") == ModelSpec(gnn=SAGE(hidden=8))


def test_merging_names_before_fields_and_wholes_before_names() -> None:
    changes: list[tuple[list[str], Any]] = [
        (["a", "x"], 3),
        (["a", "name"], "new"),
        (["a"], {"name": "old", "x": 1, "y": 2}),
    ]
    for order in (changes, changes[::-1]):
        merged = merge({}, order)
        assert merged == {"a": {"name": "new", "x": 3, "y": 2}} and merged["a"].carried == {"y"}
    assert nested({"a.b": 1, "a": {"c": {"d": 2}}}) == {"a": {"b": 1, "c": {"d": 2}}}
    assert sorted(leaf_paths({"a": {"b": 1, "c": [2]}, "d": None})) == ["a.b", "a.c", "d"]


# ---- suites

SUITE: dict[str, Any] = {
    "seeds": 1,
    "base": {"algorithm.local_steps": 9, "algorithm": {"name": "fedavg", "weighting": "nodes"}, "rounds": 2},
    "axes": {
        "method": {
            "FedAvg": {},
            "FedProx": {"algorithm.name": "fedprox"},
            "Whole": {"algorithm": {"name": "fedprox", "mu": 0.5}},
            "Local": {"algorithm.name": "local"},
        }
    },
    "adjust": [{"method": "FedProx", "set": {"algorithm.optimizer.name": "adam"}}],
}


def suite(tmp_path: Path, **changes: Any) -> Any:
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.safe_dump({**SUITE, **changes}, sort_keys=False))
    return load_suite(path)


def test_the_choices_of_a_suite_keep_what_its_base_says(tmp_path: Path) -> None:
    points = {point.cell["method"]: point for point in suite(tmp_path).points()}
    assert points["FedAvg"].course.algorithm == FedAvg(local_steps=9, weighting="nodes")
    assert points["FedProx"].course.algorithm == FedProx(local_steps=9, weighting="nodes", optimizer=Adam())
    assert points["Whole"].course.algorithm == FedProx(local_steps=9, weighting="nodes", mu=0.5)
    assert points["Local"].course.algorithm == Local(local_steps=9)
    assert points["Local"].notes == ("algorithm.weighting is dropped with local: local has no such field",)
    assert points["FedProx"].notes == ()


def test_a_base_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"base is \['rounds'\], expected keys of the course"):
        suite(tmp_path, base=["rounds"])
