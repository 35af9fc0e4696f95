"""A course in which some clients poison, from its data to its result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from isthmus.attacks.poisoning.poisoner import Poisoning
from isthmus.config.course import Course, schedule_notes
from isthmus.config.load import course_to_yaml
from isthmus.core.outside import data_root as locate_data
from isthmus.runs.folder import RunFolder
from isthmus.runs.life import Result
from isthmus.runs.simulated import SimulatedRun
from isthmus.runs.simulation import Scenario, Simulation, load_scenario, torch_threads


def poisoned(
    course: Course, scenario: Scenario, poisonings: Sequence[Poisoning]
) -> tuple[Course, Scenario, Simulation]:
    """Return the course, who holds what, and the simulation, with what the poisoning clients make of them."""
    for poisoning in poisonings:
        poisoning.require_clients(scenario)
        course, scenario = poisoning.of_course(course), poisoning.of_data(scenario)
    simulation = Simulation(course, scenario)
    for poisoning in poisonings:
        simulation.runtime = poisoning.of_runtime(simulation.runtime, course)
    return course, scenario, simulation


def run_poisoned(
    course: Course,
    *poisonings: Poisoning,
    scenario: Scenario | None = None,
    run_dir: str | Path | None = None,
    data_root: str | Path | None = None,
) -> Result:
    """Run a course some of whose clients poison it; its journal and its notes say so.

    Without poisonings it has the bits of the course as it is. What is scored are the true graphs of the others and the
    whole one; a poisoning client's own score is on what it holds.
    """
    if run_dir is not None:
        RunFolder.check_new(Path(run_dir))
    with torch_threads(course.threads):
        found = scenario or load_scenario(course, locate_data(data_root))
        course, found, simulation = poisoned(course, found, poisonings)
        folder = None if run_dir is None else RunFolder.create(Path(run_dir), course_to_yaml(course))
        made = SimulatedRun(simulation, folder, ())
        made.begin()
        told = [f"poisoned: {poisoning!r}" for poisoning in poisonings]
        for note in [*told, *schedule_notes(course), *found.notes, *simulation.notes()]:
            made.note(note)
        return made.to_the_end(None)
