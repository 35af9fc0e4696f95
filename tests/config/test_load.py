from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from isthmus.algorithms import FedAvg, FedProx, Local
from isthmus.config.course import Course
from isthmus.config.load import (
    NOT_IN_DIGEST,
    as_before,
    course_digest,
    course_to_dict,
    course_to_yaml,
    load_course,
    merge,
    parse_override,
)
from isthmus.core.errors import BadInput
from isthmus.core.random import UniformSampling
from isthmus.core.training import EarlyStopping
from isthmus.data.dividing import PublicSplit
from isthmus.data.splitters import RandomSplitter
from isthmus.data.zoo import CiteSeer, Cora
from isthmus.learn.batching import NeighborBatch
from isthmus.learn.optimizers import SGD, Adam
from isthmus.learn.tasks import NodeClassification
from isthmus.models import SAGE, ModelSpec
from tests.core.guards.toys import Boxed


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "course.yaml"


def reason(source: Any = None, *words: str) -> str:
    with pytest.raises(BadInput) as caught:
        load_course(source, words)
    return str(caught.value)


# ---- files


def test_nothing_gives_the_default_course() -> None:
    assert load_course() == load_course({}) == Course()


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "{}"])
def test_an_empty_file_is_the_default_course(file: Path, text: str) -> None:
    file.write_text(text)
    assert load_course(file) == load_course(str(file)) == Course()


def test_a_file_says_what_differs(file: Path) -> None:
    file.write_text("algorithm: {name: fedprox, mu: 1e-3}\nrounds: 7\nmasks: public\ntimeout_seconds: null\n")
    found = load_course(file)
    assert found == Course(algorithm=FedProx(mu=0.001), rounds=7, masks=PublicSplit())


def test_the_resolved_course_can_be_loaded_again(file: Path) -> None:
    before = load_course({}, ["algorithm=local", "algorithm.optimizer=adam", "model.gnn=sage", "sinks=[tensorboard]"])
    file.write_text(course_to_yaml(before))
    assert load_course(file) == before == load_course(course_to_dict(before))
    assert course_digest(load_course(file)) == course_digest(before)
    assert list(yaml.safe_load(course_to_yaml(before))) == [field.name for field in fields(Course)]


def test_a_missing_file_is_named(file: Path) -> None:
    assert reason(file) == f"{file}: cannot be read: No such file or directory"
    assert reason(file.parent).endswith("cannot be read: Is a directory")


@pytest.mark.parametrize(
    ("text", "line"),
    [("rounds: 3\nalgorithm: {name: fedavg\nseed: 1\n", 3), ("a: b: c\n", 1), ("rounds: 3\n\tseed: 1\n", 2)],
)
def test_a_file_that_is_not_yaml_is_named_with_the_line(file: Path, text: str, line: int) -> None:
    file.write_text(text)
    assert reason(file).startswith(f"{file}, line {line}: is not YAML: ")


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe\x00",
        b"seed: 0b_\n",
        b"seed: " + b"9" * 5000,
        b"x: " + b"[" * 2000,
        b"a: \x00",
        b"x: !!python/object:os.x {}",
    ],
    ids=["bytes", "no number", "digits", "brackets", "control character", "object"],
)
def test_whatever_else_a_file_holds_is_an_error_that_names_it(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    assert reason(file).startswith(str(file)) and "is not YAML" in reason(file)


@pytest.mark.parametrize("text", ["- 1\n- 2\n", "fedavg\n", "3\n"])
def test_a_file_without_keys_is_refused(file: Path, text: str) -> None:
    file.write_text(text)
    assert "expected keys and values" in reason(file)


def test_errors_name_the_file_or_the_command_line(file: Path) -> None:
    file.write_text("rounds: many\n")
    assert reason(file) == f"{file}: rounds is 'many', expected a whole number"
    assert reason(None, "rounds=many") == "command line: rounds is 'many', expected a whole number"
    assert reason({"rounds": "many"}) == "rounds is 'many', expected a whole number"


def test_an_unknown_key_is_refused_with_the_nearest(file: Path) -> None:
    file.write_text("algoritm: fedavg\n")
    assert reason(file).endswith("Did you mean 'algorithm'?")
    assert reason(None, "algorithm.local_step=3").endswith("Did you mean 'local_steps'?")


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("rounds=0", "rounds is 0; it must be at least 1"),
        ("checkpoint_every=-1", "checkpoint_every is -1; it must be at least 0"),
        ("timeout_seconds=0", "timeout_seconds is 0"),
        ("runtime=fast", "runtime is 'fast'; choose from auto, loop, strict"),
        ("min_replies=6", "min_replies is 6 but there are 5 clients"),
        ("stopping.metric=f9", "stopping.metric is 'f9', which the task does not report; choose from accuracy, loss"),
        ("sinks=[wand]", "sinks has 'wand'; known: json_lines, mlflow, tensorboard, wandb. Did you mean 'wandb'"),
        (
            "monitors=[ckaa]",
            "monitors has 'ckaa'; known: cka, connectivity, gradient_smoothness, hidden_error, walk_distance. "
            "Did you mean 'cka'?",
        ),
        ("monitors=cka", "monitors is 'cka', expected a list"),
        ("monitor_every=-1", "monitor_every is -1; it must be at least 0"),
        ("stopping.patience=-1", "patience is -1"),
        ("algorithm.optimizer.lr=0", "lr is 0.0; it must be positive"),
    ],
)
def test_impossible_values_are_refused_in_words(word: str, why: str) -> None:
    assert why in reason(None, word)


def test_a_file_may_forbid_import_paths(file: Path) -> None:
    file.write_text("algorithm: isthmus.algorithms.fedprox:FedProx\n")
    assert load_course(file).algorithm == FedProx()
    with pytest.raises(BadInput, match=r"algorithm\.name is .* import paths are not allowed here"):
        load_course(file, allow_import=False)


# ---- key=value


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["rounds=5"], Course(rounds=5)),
        (["algorithm=fedprox"], Course(algorithm=FedProx())),
        (["algorithm.local_steps=2"], Course(algorithm=FedAvg(local_steps=2))),
        (["algorithm=fedprox", "algorithm.mu=1e-3"], Course(algorithm=FedProx(mu=1e-3))),
        (["algorithm.mu=1e-3", "algorithm=fedprox"], Course(algorithm=FedProx(mu=1e-3))),
        (["algorithm.mu=1e-3", "algorithm.name=fedprox"], Course(algorithm=FedProx(mu=1e-3))),
        (["algorithm={name: fedprox, mu: 0}"], Course(algorithm=FedProx(mu=0))),
        (["algorithm.optimizer.lr=0.5"], Course(algorithm=FedAvg(optimizer=SGD(lr=0.5, weight_decay=5e-4)))),
        (["algorithm.optimizer.name=adam"], Course(algorithm=FedAvg(optimizer=Adam()))),
        (["timeout_seconds=null"], Course()),
        (["timeout_seconds=1e3"], Course(timeout_seconds=1000.0)),
        (["task.metrics=[accuracy]"], Course(task=NodeClassification(metrics=("accuracy",)))),
        (["rounds=5", "rounds=6"], Course(rounds=6)),
        (["splitter=random", "splitter.name=random"], Course(splitter=RandomSplitter())),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_words_change_the_course(words: list[str], expected: Course) -> None:
    assert load_course({}, words) == expected


def test_words_change_what_the_file_says_and_the_file_stays(file: Path) -> None:
    text = "algorithm: fedprox\nmodel: {gnn: {name: gcn, hidden: 8}}\nrounds: 3\n"
    file.write_text(text)
    found = load_course(file, ["algorithm.mu=0.5", "model.gnn.dropout=0.25", "rounds=4"])
    assert found.algorithm == FedProx(mu=0.5) and found.rounds == 4
    assert (found.model.gnn.hidden, found.model.gnn.dropout) == (8, 0.25)  # type: ignore[attr-defined]
    assert file.read_text() == text


@pytest.mark.parametrize(
    "words", [["algorithm.name=local", "algorithm.local_steps=9"], ["algorithm.local_steps=9", "algorithm.name=local"]]
)
def test_words_for_the_new_part_are_kept_in_any_order(file: Path, words: list[str]) -> None:
    file.write_text("algorithm: {name: fedprox, mu: 0.5, local_steps: 3}\n")
    assert load_course(file, words).algorithm == Local(local_steps=9)


def test_merging_leaves_its_source_alone() -> None:
    raw = {"algorithm": {"name": "fedprox", "mu": 1.0}, "sinks": ["a"]}
    merged = merge(raw, [(["algorithm", "mu"], 2.0), (["sinks"], ["b"])])
    assert raw == {"algorithm": {"name": "fedprox", "mu": 1.0}, "sinks": ["a"]}
    assert merged == {"algorithm": {"name": "fedprox", "mu": 2.0}, "sinks": ["b"]}


@pytest.mark.parametrize("word", ["rounds", "=5", "", "a..b=1", ".a=1", "a.=1"])
def test_a_word_that_is_no_assignment_is_refused(word: str) -> None:
    assert reason(None, word) == f"command line: {word!r} is not of the form key=value, for example rounds=50"


@pytest.mark.parametrize("word", ["rounds=[", "rounds={a", "seed=0b_", "seed=" + "9" * 5000, "x=" + "[" * 2000])
def test_a_word_whose_value_is_not_yaml_is_refused(word: str) -> None:
    assert reason(None, word).startswith("command line: the value of ")


def test_a_value_may_hold_an_equals_sign() -> None:
    assert parse_override("dataset.path=a=b") == (["dataset", "path"], "a=b")


def test_a_key_within_a_plain_value_is_refused() -> None:
    assert reason({"rounds": 5}, "rounds.x=1") == "command line: rounds is 5; rounds.x cannot be set in it"
    assert "algorithm is FedAvg(" in reason({"algorithm": FedAvg()}, "algorithm.local_steps=1")


# ---- the digest

CHANGES: dict[str, Any] = {
    "dataset": CiteSeer(),
    "masks": PublicSplit(),
    "splitter": RandomSplitter(),
    "num_clients": 6,
    "global_graph": "merged",
    "task": NodeClassification(metrics=("loss", "accuracy")),
    "model": ModelSpec(gnn=SAGE()),
    "shared": ("gnn.*",),
    "client_settings": {"client-0": {"local_steps": 2}},
    "batching": NeighborBatch(),
    "algorithm": FedAvg(local_steps=5),
    "guards": (Boxed(),),
    "server_share": 0.1,
    "rounds": 101,
    "seed": 1,
    "sampling": UniformSampling(0.5),
    "stopping": EarlyStopping(patience=3),
    "min_replies": 2,
    "timeout_seconds": 60.0,
    "evaluate_every": 2,
    "checkpoint_every": 7,
    "runtime": "strict",
    "block_mb": 64,
    "threads": 2,
    "device": "mps",
    "sinks": ("tensorboard",),
    "monitors": ("cka",),
    "monitor_every": 2,
}
UNDECIDING = ("rounds", "checkpoint_every", "device", "sinks", "monitors", "monitor_every")


@pytest.mark.parametrize("field", [field.name for field in fields(Course)])
def test_the_digest_changes_with_every_field_that_decides_the_rounds(field: str) -> None:
    changed = course_digest(replace(Course(), **{field: CHANGES[field]}))
    assert (changed == course_digest(Course())) == (field in UNDECIDING)


def test_what_is_not_in_the_digest_is_only_how_long_where_and_how_it_is_watched() -> None:
    assert NOT_IN_DIGEST == UNDECIDING


def test_the_digest_sees_fields_deep_inside_and_does_not_depend_on_how_the_course_was_written() -> None:
    base = course_digest(Course())
    assert course_digest(Course(algorithm=FedAvg(optimizer=SGD(lr=0.25, weight_decay=6e-4)))) != base
    assert course_digest(Course(dataset=Cora(normalize_features=True))) != base
    assert course_digest(load_course({"algorithm": {"name": "fedavg", "optimizer": {"lr": "2.5e-1"}}})) == base


@pytest.mark.parametrize(
    "course",
    [Course(timeout_seconds=60), Course(algorithm=FedProx(mu=1)), Course(algorithm=FedAvg(optimizer=SGD(lr=1)))],
    ids=["timeout", "mu", "lr"],
)
def test_a_course_with_whole_numbers_for_floats_is_the_same_course_after_a_file(file: Path, course: Course) -> None:
    file.write_text(course_to_yaml(course))
    assert course_digest(load_course(file)) == course_digest(course) != course_digest(Course())


def test_a_number_written_as_whole_or_with_a_point_is_the_same_course() -> None:
    assert course_digest(load_course({}, ["timeout_seconds=60"])) == course_digest(
        load_course({}, ["timeout_seconds=60.0"])
    )


def test_a_value_that_is_longer_than_a_page_is_quoted_by_its_beginning() -> None:
    huge = "[" + ", ".join(["{name: [1, 2, 3]}"] * 5000) + "]"
    for key in ("model.gnn.name", "rounds", "dataset", "algorithm.optimizer.lr"):
        with pytest.raises(BadInput, match=f"{key}.* is ") as refused:
            load_course(None, [f"{key}={huge}"])
        assert len(str(refused.value)) < 1000


def test_what_courses_of_before_could_not_say_has_no_part_in_what_they_are() -> None:
    own = {"name": "folder", "path": "bank"}
    course, private = load_course({"dataset": own}), load_course({"dataset": {**own, "match_ids": "private"}})
    assert "match_ids" not in as_before(course_to_dict(course))["dataset"]
    assert as_before(course_to_dict(private))["dataset"]["match_ids"] == "private"
    assert course_digest(private) != course_digest(course)
