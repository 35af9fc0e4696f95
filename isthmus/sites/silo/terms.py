"""What a silo says of its data to a proposal: read from its folder, divided, and put into terms.

The same for a silo's process and for a simulation of several folders, so that a rehearsal finds what the sites would.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from isthmus import __version__
from isthmus.config.build import name_of
from isthmus.config.course import Course
from isthmus.core.errors import BadInput
from isthmus.core.protocol import Holdings
from isthmus.core.random import numpy_generator
from isthmus.data.conventions import SPLITS
from isthmus.data.dividing import labelled_items, without_examples
from isthmus.data.folders.graph_folder import GraphFolder
from isthmus.data.folders.own_folder import OwnData, OwnFolder
from isthmus.data.folders.own_kinds import OWN_FOLDERS
from isthmus.data.folders.schema.vocabulary import is_whole
from isthmus.data.graph import names_digest
from isthmus.runs.simulation import build_model, columns_of, output_dim, require_kind
from isthmus.runtime.reasons import Refusal, refused_as
from isthmus.sites.courses.messages import Terms
from isthmus.sites.silo.policy import Policy


def own_dataset(course: Course) -> OwnFolder:
    """Return the dataset of a course between sites; refuse one that is not in every silo's own folder."""
    dataset = course.dataset
    if not isinstance(dataset, OwnFolder):
        raise BadInput(
            f"dataset.name is {name_of(type(dataset))!r}; between sites every silo brings its own folder: "
            f"use dataset.name={' or '.join(reversed(OWN_FOLDERS))}"
        )
    return dataset


def read_own(course: Course, dataset: OwnFolder, path: Path, name: str, needs_labels: bool = True) -> OwnData[Any]:
    """Return what a silo holds, with the masks that it has in the course.

    Its own split stands; without one, the course's masks divide it, by random numbers of its own. One without labels is
    refused where the algorithm, or else the caller, needs them.
    """
    folder = replace(dataset, path=str(path)).read()
    names = dataset.class_names
    if names and folder.numbered and not dataset.by_position and not all(map(is_whole, names)):
        raise Refusal(  # which number is which name, only their order would say
            "classes",
            f"its labels are numbers, the course's classes have names ({', '.join(names[:3])}, ...); write the names "
            "into the column label, or set dataset.by_position=true in the course: 0 is the first name then",
        )
    if folder.own_split:
        return folder
    needs_labels = needs_labels and not course.algorithm.learns_without_labels
    if not needs_labels and not len(labelled_items(folder.data)):
        return replace(folder, data=without_examples(folder.data))
    rng = numpy_generator(course.seed, "masks", name)
    return replace(folder, data=course.masks.apply(folder.data, rng))


def terms_of(course: Course, folder: OwnData[Any], name: str, policy: Policy | None = None) -> Terms:
    """Return the terms for a silo's data; refuses a task, classes or a model made for something else.

    What a policy forbids of the data is refused before a model is built; without one, the course is one's own.
    """
    task, data = course.task, folder.data
    with refused_as("task"):
        require_kind(course, data)
    with refused_as("classes"):
        into, out = task.input_dim(data), output_dim(course, data, name)
    counts = {split: task.count(data, split) for split in SPLITS}
    if policy is not None:
        policy.require(course, counts, into, out, name)
    with refused_as("model"):
        if counts["train"]:  # a silo that has nothing to train on only measures
            task.require_model(build_model(course, into, out, name, allow_import=policy is None), data)
    schema = folder.schema if isinstance(folder, GraphFolder) else None
    return Terms(
        refusal="",
        version=__version__,
        input_dim=into,
        output_dim=out,
        class_names=task.output_names(data),
        holds=task.holds(data),
        features=names_digest(columns_of(course, data)),
        schema=schema.digest if schema else "",
        holdings=Holdings(int(data.num_nodes), counts),
    )
