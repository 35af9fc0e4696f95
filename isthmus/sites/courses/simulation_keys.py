"""Which keys of a course mean nothing between sites: a value for one of them is refused rather than ignored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from isthmus.config.course import Course
from isthmus.config.load import load_course
from isthmus.config.registry import name_of
from isthmus.core.errors import BadInput
from isthmus.core.outside import read_yaml
from isthmus.data.folders.graph_folder import Folder
from isthmus.data.folders.own_folder import OwnFolder
from isthmus.data.folders.own_kinds import OWN_FOLDERS
from isthmus.data.folders.schema.schema import Schema

# Key of the course -> why a value for it would be ignored.
MEANINGLESS = {
    "splitter": "nothing is split, every silo brings its own data",
    "global_graph": "there is no global graph",
    "runtime": "every silo answers for itself",
    "block_mb": "every silo answers for itself",
    "checkpoint_every": "every round is saved",
    "sinks": "metrics go to the journal only",
    "monitor_every": "monitors are for simulation only",
}
ALSO_FINE = {"checkpoint_every": 1}  # what a course that was run between sites says


def load_site_course(
    source: Path | None, overrides: Sequence[str], num_sites: int, say: Callable[[str], None] = print
) -> Course:
    """Load a course for the sites of a federation; refuse what would be ignored between them."""
    in_file = source is not None and "num_clients" in read_yaml(source)
    if in_file or any(word.partition("=")[0].strip() == "num_clients" for word in overrides):
        course = load_course(source, overrides, say=say)
    else:
        course = load_course(source, [f"num_clients={num_sites}", *overrides], say=say)
    refuse_meaningless(course, num_sites)
    return course


def with_schema(course: Course, schema: Schema, source: Path) -> Course:
    """Return a course whose silos must follow a schema: its digest and its classes are the course's."""
    dataset = course.dataset
    if not isinstance(dataset, Folder):
        raise BadInput(
            f"{source} is a schema of nodes, but dataset.name is {name_of(type(dataset))!r}; only dataset.name=folder "
            "has schemas"
        )
    for key, wanted in (("schema_digest", schema.digest), ("class_names", schema.classes)):
        stated = getattr(dataset, key)
        if stated and stated != wanted:
            raise BadInput(
                f"dataset.{key} is {stated!r}, but {source} has {wanted!r}; leave it out of the course, or give "
                "another schema"
            )
    return replace(course, dataset=replace(dataset, schema_digest=schema.digest, class_names=schema.classes))


def refuse_meaningless(course: Course, num_sites: int) -> None:
    """Raise BadInput where a course sets what nobody would heed."""
    if course.num_clients != num_sites:
        raise BadInput(
            f"num_clients is {course.num_clients}, but the federation has {num_sites} sites: leave num_clients out"
        )
    dataset = course.dataset
    if not isinstance(dataset, OwnFolder):
        raise BadInput(
            f"dataset.name is {name_of(type(dataset))!r}; between sites every silo brings its own folder: "
            f"use dataset.name={' or '.join(reversed(OWN_FOLDERS))}"
        )
    if dataset.path:
        raise BadInput(
            f"dataset.path is {dataset.path!r}; between sites every silo brings its own folder: leave dataset.path out"
        )
    plain = Course()
    for key, why in MEANINGLESS.items():
        value = getattr(course, key)
        if value not in (getattr(plain, key), ALSO_FINE.get(key)):
            shown = value if isinstance(value, (str, int, tuple)) else name_of(type(value))
            raise BadInput(f"{key} is {shown!r}, which means nothing between sites ({why}): leave {key} out")
