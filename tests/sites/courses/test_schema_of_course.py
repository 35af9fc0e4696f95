"""A course says which schema its silos must follow: `submit --schema` and `serve --schema` set that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from isthmus.core.errors import BadInput
from isthmus.data.folders.graph_folder import read_graph_folder
from isthmus.data.folders.schema.schema import Number, Schema, read_schema, write_schema
from isthmus.data.zoo import Folder, LinkFolder
from isthmus.sites.courses.site_course import Patience, SiteCourse, keep_schema, with_schema
from isthmus.sites.silo.service import SiloService
from tests.cli.command import call
from tests.sites.in_process import FakeHub, site_course

SCHEMA = Schema((Number("age"), Number("income")), ("b", "a"))


def test_a_course_takes_digest_and_classes_from_the_schema(tmp_path: Path) -> None:
    write_schema(SCHEMA, tmp_path / "schema.yaml")
    course = with_schema(site_course(dataset=Folder()), tmp_path / "schema.yaml")
    assert course.dataset == Folder(schema_digest=SCHEMA.digest, class_names=("b", "a"))
    assert with_schema(course, tmp_path / "schema.yaml") == course and with_schema(course, None) == course
    keep_schema(tmp_path / "run" if (tmp_path / "run").mkdir() is None else tmp_path, tmp_path / "schema.yaml")
    assert read_schema(tmp_path / "run" / "schema.yaml") == SCHEMA


@pytest.mark.parametrize(
    ("dataset", "part"),
    [
        (LinkFolder(), "dataset.name is 'link_folder'"),
        (Folder(class_names=("a", "b")), "dataset.class_names is"),
        (Folder(schema_digest="s0"), "dataset.schema_digest is 's0'"),
    ],
)
def test_a_course_that_says_something_else_is_told(dataset: Folder, part: str, tmp_path: Path) -> None:
    write_schema(SCHEMA, tmp_path / "schema.yaml")
    with pytest.raises(BadInput, match=part):
        with_schema(replace(site_course(), dataset=dataset), tmp_path / "schema.yaml")


def test_folders_of_a_divided_dataset_follow_the_schema_beside_them(tmp_path: Path) -> None:
    words = ["dataset.num_nodes=60", "splitter.name=random"]
    code, text = call("data", "split", "csbm", "--names", "p,q", "--out", str(tmp_path / "silos"), *words)
    assert code == 0 and f"schema: {tmp_path / 'silos' / 'schema.yaml'}" in text
    shared = read_schema(tmp_path / "silos" / "schema.yaml")
    for name in "pq":
        assert read_graph_folder(tmp_path / "silos" / name).schema == shared
    hub = FakeHub({n: SiloService(n, tmp_path / "silos" / n, tmp_path / n, None, lambda text: None) for n in "pq"})
    course = with_schema(replace(site_course(), dataset=Folder(), rounds=1), tmp_path / "silos" / "schema.yaml")
    patience = Patience(start_seconds=1, pause_seconds=1, retry_seconds=0.01)
    result = SiteCourse(course, hub, ("p", "q"), tmp_path / "run", patience=patience, say=lambda text: None).run()
    assert set(result.client_scores) == {"p", "q"}
    said: list[str] = []
    hub.silos["q"].say = said.append
    write_schema(replace(shared, features=(Number("x0", 7.0), *shared.features[1:])), tmp_path / "other.yaml")
    (tmp_path / "other.yaml").replace(tmp_path / "silos" / "q" / "schema.yaml")
    again = SiteCourse(course, hub, ("p", "q"), tmp_path / "two", patience=patience, say=lambda text: None).run()
    assert set(again.client_scores) == {"p"} and any("the course asks for" in line for line in said)


def test_a_schema_goes_with_a_course(tmp_path: Path) -> None:
    assert call("federation", "init", "--sites", "a,b", "--server", "localhost:1", "--out", str(tmp_path / "f"))[0] == 0
    code, text = call("serve", str(tmp_path / "f" / "server"), "--schema", "schema.yaml")
    assert code == 2 and "--schema goes with a course given here" in text
