"""A course that somebody tampers with, from its data to its result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from isthmus.attacks.attack import Tampering
from isthmus.config.course import Course, schedule_notes
from isthmus.config.load import course_to_yaml
from isthmus.core.outside import data_root as locate_data
from isthmus.runs.folder import RunFolder
from isthmus.runs.life import Result
from isthmus.runs.simulated import SimulatedRun
from isthmus.runs.simulation import Scenario, Simulation, load_scenario, torch_threads


def poisoned(
    course: Course, scenario: Scenario, tamperings: Sequence[Tampering]
) -> tuple[Course, Scenario, Simulation]:
    """Return the course, who holds what, and the simulation, with what those who are malicious make of them."""
    named = [tampering.among(scenario, course.seed) for tampering in tamperings]
    course, scenario = tampered_with(course, scenario, named)
    simulation = Simulation(course, scenario)
    for tampering in named:
        simulation.runtime = tampering.of_runtime(simulation.runtime, course)
    return course, scenario, simulation


def tampered_with(course: Course, scenario: Scenario, tamperings: Sequence[Tampering]) -> tuple[Course, Scenario]:
    """Return the course and who holds what, before anything is built of them; refuses what cannot be."""
    for tampering in (each.among(scenario, course.seed) for each in tamperings):
        course, scenario = tampering.of_course(course), tampering.of_data(scenario)
    return course, scenario


def marks(scenario: Scenario, seed: int, tamperings: Sequence[Tampering]) -> list[str]:
    """Return what a journal says of a course that was tampered with."""
    return [f"{tampering.mark}: {tampering.among(scenario, seed)!r}" for tampering in tamperings]


def run_poisoned(
    course: Course,
    *tamperings: Tampering,
    scenario: Scenario | None = None,
    run_dir: str | Path | None = None,
    data_root: str | Path | None = None,
) -> Result:
    """Run a course that malicious clients, or a malicious server, tamper with; its journal and its notes say so.

    Without them it has the bits of the course as it is. What is scored are the true graphs of the others and the
    whole one; a poisoning client's own score is on what it holds.
    """
    if run_dir is not None:
        RunFolder.check_new(Path(run_dir))
    with torch_threads(course.threads):
        found = scenario or load_scenario(course, locate_data(data_root))
        told = marks(found, course.seed, tamperings)
        course, found, simulation = poisoned(course, found, tamperings)
        folder = None if run_dir is None else RunFolder.create(Path(run_dir), course_to_yaml(course))
        made = SimulatedRun(simulation, folder, ())
        made.begin()
        for note in [*told, *schedule_notes(course), *found.notes, *simulation.notes()]:
            made.note(note)
        return made.to_the_end(None)
