"""Data as a course would divide them, without a course: who holds what in figures, and a folder for each silo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus.config.build import describe
from isthmus.config.course import Course
from isthmus.config.load import course_to_dict, load_course
from isthmus.core.errors import BadInput
from isthmus.data.folders.own_kinds import Divided, kind_at, write_divided
from isthmus.data.survey.statistics import survey
from isthmus.data.zoo import is_own_folder
from isthmus.runs.own_silos import undivided
from isthmus.runs.simulation import Scenario, load_scenario, torch_threads


@dataclass(frozen=True)
class Division:
    """Data, and how they are divided.

    Fields:
        course:  the dataset, the splitter, the masks, the number of clients and the seed
        divided: whether they are divided at all: folders of one's own are shown as they are, unless asked otherwise
    """

    course: Course
    divided: bool = True

    @classmethod
    def of(cls, dataset: str, words: Sequence[str] = (), more: Sequence[str] = ()) -> Division:
        """Return what a dataset's name or folder, with more folders beside it, and `key=value` words mean."""
        own = is_own_folder(dataset)
        if more and not own:
            raise BadInput(f"{dataset} is a dataset, and {more[0]} a folder; look at one or the other")
        course = load_course(own_folders([dataset, *more]) if own else {"dataset": dataset}, words)
        return cls(course, not own or any(word.startswith(("splitter", "num_clients")) for word in words))

    @property
    def origin(self) -> str:
        """What figures depend on, in words; data that are shown as they are have no splitter."""
        plain, course = course_to_dict(self.course), self.course
        how = f"splitter {_told(plain['splitter'])}; {course.num_clients} clients; " if self.divided else ""
        return f"dataset {_told(plain['dataset'])}; masks {_told(plain['masks'])}; {how}seed {course.seed}"

    def held(self, data_root: Path) -> Scenario:
        """Return who holds what."""
        with torch_threads(self.course.threads):
            return load_scenario(self.course, data_root) if self.divided else undivided(self.course)

    def figures(self, scenario: Scenario) -> dict[str, Any]:
        """Return sizes, labels, degrees, overlap, lost edges, and how far clients are apart."""
        with torch_threads(self.course.threads):
            return {"origin": self.origin, **survey(scenario.whole, scenario.parts, self.course.seed)}

    def write(self, folder: Path, data_root: Path, names: Sequence[str] = ()) -> tuple[dict[Path, Any], Divided]:
        """Write a folder for each part into a new folder, each with a schema where it has one; return the parts."""
        if folder.exists() and any(folder.iterdir()):
            raise BadInput(f"{folder} exists already; choose another folder")
        scenario = load_scenario(self.course, data_root)
        parts = dict(zip([folder / name for name in names or scenario.parts], scenario.parts.values(), strict=True))
        return parts, write_divided(scenario.whole, parts, with_schemas=True)


def own_folders(paths: Sequence[str]) -> dict[str, Any]:
    """Return the dataset of a course on one folder of one's own, whatever it holds, or on several."""
    if len(paths) == 1:
        return {"dataset": describe(kind_at(Path(paths[0])).at(Path(paths[0])))}
    return {"dataset": {"name": "folders", "paths": list(paths)}}


def _told(part: dict[str, Any]) -> str:
    settings = ", ".join(f"{name} {value}" for name, value in part.items() if name != "name")
    return f"{part['name']} ({settings})" if settings else str(part["name"])
