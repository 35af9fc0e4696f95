"""Silos agree on what their columns and classes mean, by name, before they train together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import isthmus as ist
from isthmus.core.codec import decode
from isthmus.core.errors import CourseFailed
from isthmus.data.folders.schema.schema import Number, Schema, to_yaml
from isthmus.data.zoo import Folder
from isthmus.learn.graph_client import GraphClient
from isthmus.models import GCN, LinearEncoder, ModelSpec
from isthmus.runs.folder import load_model_file
from isthmus.sites.courses.agreement import Freedom, agree
from isthmus.sites.courses.messages import Terms
from isthmus.sites.courses.site_course import Patience, SiteCourse
from isthmus.sites.silo.policy import Policy
from isthmus.sites.silo.service import SiloService
from tests.sites.in_process import CLASSES, FakeHub, fake_hub, site_course, write_silos

COLUMNS = tuple(f"x{number}" for number in range(6))


def rewritten(silo: SiloService, change: Any) -> None:
    """Write a silo's table of nodes anew, with other columns."""
    path = silo.data / "nodes.parquet"
    columns = {name: column for name, column in zip(*table_parts(path), strict=True)}
    parquet.write_table(pa.table(change(columns)), path)


def table_parts(path: Path) -> tuple[list[str], list[Any]]:
    table = parquet.read_table(path)
    return table.column_names, table.columns


def reversed_columns(columns: Mapping[str, Any]) -> dict[str, Any]:
    rest = {name: column for name, column in columns.items() if name not in COLUMNS}
    return rest | {name: columns[name] for name in reversed(COLUMNS)}


def run(hub: FakeHub, run_dir: Path, course: ist.Course | None = None) -> ist.Result:
    patience = Patience(start_seconds=1, pause_seconds=1, retry_seconds=0.01)
    made = course or site_course(rounds=1, min_replies=2)
    return SiteCourse(made, hub, tuple(hub.silos), run_dir, patience=patience, say=lambda text: None).run()


def heard(silo: SiloService) -> list[str]:
    said: list[str] = []
    silo.say = said.append
    return said


def test_a_silo_with_the_same_columns_in_another_order_is_refused_and_told_the_first_differences(
    tmp_path: Path,
) -> None:
    hub = fake_hub(tmp_path / "silos")
    odd = hub.silos["client-1"]
    rewritten(odd, reversed_columns)
    said = heard(odd)
    result = run(hub, tmp_path / "run")
    assert set(result.client_scores) == {"client-0", "client-2"}
    (told,) = [line for line in said if "was refused" in line]
    assert "column 'x0' is number 6 here, number 1 of the others'" in told
    notes = " ".join(result.notes)
    assert "client-1 is refused: its feature columns have other names" in notes
    assert "x0" not in notes  # which columns, only the silo itself is told


def test_a_silo_with_as_many_columns_of_other_names_is_refused(tmp_path: Path) -> None:
    hub = fake_hub(tmp_path / "silos")
    odd = hub.silos["client-2"]
    rewritten(odd, lambda columns: {"age" if name == "x3" else name: column for name, column in columns.items()})
    said = heard(odd)
    assert set(run(hub, tmp_path / "run").client_scores) == {"client-0", "client-1"}
    (told,) = [line for line in said if "was refused" in line]
    assert "column 'x3' is missing" in told and "column 'age' (number 4) is not among the others'" in told


def test_names_of_columns_cross_only_where_they_differ_and_only_from_one_silo_that_stays(tmp_path: Path) -> None:
    hub = fake_hub(tmp_path / "alike")
    run(hub, tmp_path / "one")
    assert "columns" not in {kind for _, kind in hub.log}
    hub = fake_hub(tmp_path / "unlike")
    rewritten(hub.silos["client-1"], reversed_columns)
    run(hub, tmp_path / "two")
    assert [site for site, kind in hub.log if kind == "columns"] == ["client-0"]


def test_a_silo_whose_policy_keeps_its_columns_to_itself_tells_none(tmp_path: Path) -> None:
    keeps = Policy(share_columns=False)
    hub = fake_hub(tmp_path / "silos", {"client-0": keeps, "client-2": keeps})
    rewritten(hub.silos["client-1"], reversed_columns)
    said = heard(hub.silos["client-1"])
    run(hub, tmp_path / "run")
    (told,) = [line for line in said if "was refused" in line]
    assert "x0" not in told and "isthmus data schema" in told


def test_columns_are_told_to_nobody_before_the_silo_has_agreed_to_the_course(tmp_path: Path) -> None:
    from isthmus.core.codec import encode
    from isthmus.sites.courses.messages import AskColumns, Columns

    silo = fake_hub(tmp_path / "silos").silos["client-0"]
    answer: Columns = decode(silo.handle("columns", encode(AskColumns("0123456789abcdef"))), Columns)
    assert answer.names == ()


def test_a_silo_whose_schema_numbers_its_classes_is_refused_where_the_course_names_them(tmp_path: Path) -> None:
    hub = fake_hub(tmp_path / "silos")
    odd = hub.silos["client-0"]
    number = {name: str(place) for place, name in enumerate(CLASSES)}
    rewritten(odd, lambda c: c | {"label": pa.array([number.get(v.as_py()) for v in c["label"]])})
    (odd.data / "schema.yaml").write_text(to_yaml(Schema(tuple(map(Number, COLUMNS)), ("0", "1", "2"))))
    said = heard(odd)
    assert set(run(hub, tmp_path / "run").client_scores) == {"client-1", "client-2"}
    assert any("label '0' is none of the class names 'red', 'green', 'blue'" in line for line in said)


@pytest.mark.parametrize("by_position", [False, True])
def test_numbers_for_labels_are_taken_for_named_classes_by_position_only_where_the_course_says_so(
    by_position: bool, tmp_path: Path
) -> None:
    hub = fake_hub(tmp_path / "silos")
    odd = hub.silos["client-0"]
    number = {name: place for place, name in enumerate(CLASSES)}
    rewritten(odd, lambda c: c | {"label": pa.array([number.get(v.as_py()) for v in c["label"]])})
    said = heard(odd)
    course = site_course(rounds=1, min_replies=2, dataset=Folder(class_names=CLASSES, by_position=by_position))
    assert ("client-0" in run(hub, tmp_path / "run", course).client_scores) == by_position
    assert by_position or any("its labels are numbers" in line and "by_position" in line for line in said)


def test_columns_without_names_agree_with_such_only_unless_the_course_takes_them_by_position(tmp_path: Path) -> None:
    made = fake_hub(tmp_path / "silos")
    for name in ("client-0", "client-1"):
        nameless(made.silos[name])
    result = run(made, tmp_path / "one")
    assert set(result.client_scores) == {"client-0", "client-1"}
    assert "client-2 is refused: its feature columns have names, those of the others have none" in " ".join(
        result.notes
    )
    course = site_course(rounds=1, dataset=Folder(class_names=CLASSES, by_position=True))
    assert set(run(made, tmp_path / "two", course).client_scores) == set(made.silos)


def nameless(silo: SiloService) -> None:
    """Move a silo's features from named columns into an archive without names."""
    import numpy as np

    names, columns = table_parts(silo.data / "nodes.parquet")
    held = dict(zip(names, columns, strict=True))
    x = np.stack([held.pop(name).to_numpy() for name in COLUMNS], axis=1)
    np.savez(silo.data / "features.npz", x=x)
    parquet.write_table(pa.table(held), silo.data / "nodes.parquet")


def test_two_that_differ_do_not_agree_by_position_through_a_third_without_names() -> None:
    plain = Terms("", "1", 5, 2, ("a", "b"), "few")
    terms = {"bare": plain, "one": replace(plain, features="f1"), "two": replace(plain, features="f2")}
    found = agree(terms, "1", free=Freedom(by_position=True))
    assert list(found.refused) == ["two"] and found.features == "f1"
    numbers = {"n": replace(plain, class_names=()), "ab": plain, "ba": replace(plain, class_names=("b", "a"))}
    assert list(agree(numbers, "1", free=Freedom(by_position=True)).refused) == ["ba"]


def test_silos_that_keep_what_depends_on_features_may_have_any_columns(tmp_path: Path) -> None:
    hub = fake_hub(tmp_path / "silos")
    rewritten(hub.silos["client-1"], reversed_columns)
    model = ModelSpec(GCN(hidden=4), encoder=LinearEncoder(dim=4))
    course = site_course(rounds=1, model=model, shared=("*", "!encoder.*"))
    assert set(run(hub, tmp_path / "run", course).client_scores) == set(hub.silos)


def test_a_silo_that_comes_back_with_other_columns_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = fake_hub(tmp_path / "silos")
    fit, count = GraphClient.fit, [0]

    def counted(self: GraphClient, *args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        if count[0] == 4:
            rewritten(hub.silos["client-2"], reversed_columns)
            hub.restart("client-2")
        return fit(self, *args, **kwargs)

    monkeypatch.setattr(GraphClient, "fit", counted)
    result = run(hub, tmp_path / "run", site_course(rounds=3, min_replies=2))
    assert "client-2 is refused: it came back with another version, other features" in " ".join(result.notes)


def test_a_silo_whose_labels_are_numbers_may_come_back_where_classes_go_by_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = fake_hub(tmp_path / "silos")
    odd = hub.silos["client-2"]
    number = {name: place for place, name in enumerate(CLASSES)}
    rewritten(odd, lambda c: c | {"label": pa.array([number.get(v.as_py()) for v in c["label"]])})
    fit, count = GraphClient.fit, [0]

    def counted(self: GraphClient, *args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        if count[0] == 4:
            hub.restart("client-2")
        return fit(self, *args, **kwargs)

    monkeypatch.setattr(GraphClient, "fit", counted)
    course = site_course(rounds=3, min_replies=2, dataset=Folder(by_position=True))
    result = run(hub, tmp_path / "run", course)
    assert "client-2" in result.client_scores and not [note for note in result.notes if "is refused" in note]


def test_silos_that_follow_other_scales_for_the_same_columns_are_noted(tmp_path: Path) -> None:
    hub = fake_hub(tmp_path / "silos")
    for name, silo in hub.silos.items():
        mean = 7.0 if name == "client-1" else 0.0
        schema = Schema(tuple(Number(c, mean=mean) for c in COLUMNS), CLASSES)
        (silo.data / "schema.yaml").write_text(to_yaml(schema))
    result = run(hub, tmp_path / "run")
    (note,) = [text for text in result.notes if "another schema" in text]
    assert note.startswith("client-1") and "dataset.schema_digest" in note


def test_the_models_of_a_course_between_sites_say_what_their_columns_are(tmp_path: Path) -> None:
    import json

    hub = fake_hub(tmp_path / "silos")
    run(hub, tmp_path / "run")
    own = next((hub.silos["client-0"].state / "models").iterdir())
    facts = load_model_file(own)[1]
    assert tuple(json.loads(facts["feature_names"])) == COLUMNS
    shared = load_model_file(tmp_path / "run" / "model.safetensors")[1]
    assert shared["features"] == facts["features"] and "feature_names" not in shared
    assert "schema" not in shared and "schema" not in facts


def test_the_models_of_a_course_between_sites_say_which_schema_their_columns_follow(tmp_path: Path) -> None:
    hub, schemas = fake_hub(tmp_path / "silos"), []
    for name, silo in hub.silos.items():
        schema = Schema(tuple(Number(c, mean=1.0 if name == "client-1" else 0.0) for c in COLUMNS), CLASSES)
        (silo.data / "schema.yaml").write_text(to_yaml(schema))
        schemas.append(schema.digest)

    def facts_in(folder: Path) -> dict[str, str]:
        return load_model_file(folder / "model.safetensors")[1]

    run(hub, tmp_path / "unlike")
    assert "schema" not in facts_in(tmp_path / "unlike")
    own = {name: load_model_file(next((silo.state / "models").iterdir()))[1] for name, silo in hub.silos.items()}
    assert [own[name]["schema"] for name in hub.silos] == schemas
    (hub.silos["client-1"].data / "schema.yaml").write_bytes((hub.silos["client-0"].data / "schema.yaml").read_bytes())
    run(hub, tmp_path / "alike")
    assert facts_in(tmp_path / "alike")["schema"] == schemas[0]


def test_no_silo_left_is_told_with_every_reason(tmp_path: Path) -> None:
    paths = write_silos(tmp_path / "silos")
    hub = FakeHub({name: SiloService(name, path, path.parent / "s") for name, path in paths.items()})
    for silo in hub.silos.values():
        (silo.data / "nodes.parquet").unlink()
    with pytest.raises(CourseFailed, match="no silo takes part"):
        run(hub, tmp_path / "run")


def test_a_silo_says_whether_its_own_split_stands_and_draws_anew_where_the_course_says_so(tmp_path: Path) -> None:
    hub = fake_hub(tmp_path / "silos")
    said = heard(hub.silos["client-0"])
    kept = run(hub, tmp_path / "one")
    assert any("its own split stands" in line for line in said)
    said.clear()
    course = site_course(rounds=1, dataset=Folder(class_names=CLASSES, own_split=False))
    drawn = run(hub, tmp_path / "two", course)
    assert not any("its own split" in line for line in said)
    holds = [[e["text"] for e in result.events if e["event"] == "client"] for result in (kept, drawn)]
    assert holds[0] != holds[1]
