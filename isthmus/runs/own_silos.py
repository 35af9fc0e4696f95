"""Own folders as the clients of a simulation, by the rules that silos have between sites."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from isthmus import __version__
from isthmus.config.course import Course
from isthmus.core.errors import BadInput, CourseFailed
from isthmus.data.dividing import without_examples
from isthmus.data.features import name_differences
from isthmus.data.folders.own_folder import OwnData, OwnFolder
from isthmus.data.folders.own_kinds import Folders
from isthmus.data.graph import input_names
from isthmus.data.joining import joined, renumbered
from isthmus.runs.simulation import Scenario, columns_of, own_split_note
from isthmus.runtime.reasons import Refusal
from isthmus.sites.courses.agreement import OTHER_COLUMNS, Agreement, SiteModels, agree
from isthmus.sites.courses.messages import Terms
from isthmus.sites.silo.terms import read_own, terms_of


def scenario_of_folders(course: Course, dataset: Folders) -> Scenario:
    """Return who holds what where each folder is a client; raises BadInput where silos like these would be refused."""
    started = time.perf_counter()
    one = dataset.one
    folders: dict[str, OwnData[Any]] = {}
    terms: dict[str, Terms] = {}
    for name, path in dataset.places.items():
        try:
            folders[name] = read_own(course, one, path, name)
            terms[name] = terms_of(course, folders[name], name)
        except (BadInput, Refusal) as error:
            raise BadInput(f"{name} ({path}): {error}") from None
    agreement = _agreement(course, dataset, terms, folders)
    parts = dict(zip(folders, renumbered([folder.data for folder in folders.values()]), strict=True))
    notes = [f"{name} {text}" for name, text in agreement.notes.items()]
    notes += own_split_note(course, {name: folder.data for name, folder in folders.items() if folder.own_split})
    notes += _shared_ids(folders)
    return Scenario(_whole(course, parts), parts, time.perf_counter() - started, tuple(notes))


def undivided(course: Course) -> Scenario:
    """Return who holds what of own folders, for a look at them, which needs neither labels nor a model."""
    started = time.perf_counter()
    dataset = course.dataset
    if isinstance(dataset, OwnFolder):
        dataset = Folders(paths=(dataset.path,), names=("all",), each=dataset)
    assert isinstance(dataset, Folders)
    one, places = dataset.one, dataset.places.items()
    held = {name: read_own(course, one, path, name, needs_labels=False).data for name, path in places}
    first, *others = held.items()
    for name, data in others:
        differences = name_differences(input_names(data), input_names(first[1]), f"{first[0]}'s")
        if differences or data.x.shape[1] != first[1].x.shape[1]:
            counted = f"{data.x.shape[1]} features, {first[0]} has {first[1].x.shape[1]}"
            raise BadInput(f"{name} and {first[0]} cannot be shown side by side: {'; '.join(differences) or counted}")
    parts = dict(zip(held, renumbered(list(held.values())), strict=True))
    name = first[1].name if len(held) == 1 else "folders"
    return Scenario(joined(list(held.values()), name), parts, time.perf_counter() - started)


def _agreement(
    course: Course, dataset: Folders, terms: Mapping[str, Terms], folders: Mapping[str, OwnData[Any]]
) -> Agreement:
    stated = dataset.one.class_names if course.task.outputs_are_classes else ()
    try:
        found = agree(terms, __version__, stated, SiteModels(course).freedom())
    except CourseFailed as error:
        raise BadInput(f"the folders do not fit together: {error}") from None
    if found.refused:
        columns = columns_of(course, folders[next(iter(found.holds))].data)
        reasons = []
        for name, why in found.refused.items():
            if why == OTHER_COLUMNS:
                others = name_differences(columns_of(course, folders[name].data), columns, "the others")
                why = f"{why}: {'; '.join(others)}"
            reasons.append(f"{name}: {why}")
        told = "; ".join(reasons)
        raise BadInput(f"the folders do not fit together, and between sites these would be refused: {told}")
    return found


def _whole(course: Course, parts: Mapping[str, Any]) -> Any:
    """Return all data side by side; where clients differ in features or classes, the first one's, with nothing scored.

    Between sites nobody has a whole either: what silos need not have in common stands as the first of them has it.
    """
    held = list(parts.values())
    kinds = {(data.x.shape[1], columns_of(course, data), data.class_names, data.num_classes) for data in held}
    if not course.task.outputs_are_classes:
        kinds = {(width, names, (), 0) for width, names, _, _ in kinds}
    if len(kinds) == 1 or (len({(k[0], k[2], k[3]) for k in kinds}) == 1 and () in {k[1] for k in kinds}):
        return joined(held, "folders")
    if course.algorithm.pooled:
        raise BadInput("the folders have different features or classes, so that there is no whole to train on")
    return replace(without_examples(held[0]), name="folders")


def _shared_ids(folders: Mapping[str, OwnData[Any]]) -> list[str]:
    """Return a note where the same id is in several folders: a simulation of folders does not match nodes."""
    counts = Counter(id for folder in folders.values() for id in folder.node_ids or ())
    number = sum(count > 1 for count in counts.values())
    if not number:
        return []
    return [
        f"{number} ids are in more than one folder; here these are different nodes, as between sites without an id "
        "secret; isthmus up matches them"
    ]
