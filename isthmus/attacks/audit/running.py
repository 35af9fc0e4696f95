"""Runs an audit: courses with an ear on them, shadow federations in processes; what is finished stays finished.

Before it begins it says how many courses and shadows there are to be run, and after the first ones about how long.

A folder has `audit.json` (what is audited), `rows.jsonl` (a line for each attack on each course, written as it is
there) and `shadows/` (what attacks noted of courses of their own). Whatever stops it, the same command goes on.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from isthmus import __version__
from isthmus.attacks.attack import (
    MALICIOUS_CLIENT,
    MALICIOUS_SERVER,
    Attack,
    Case,
    NothingSeen,
    Seen,
    Shadowed,
    Tampering,
)
from isthmus.attacks.audit.pace import Pace, Standing, Work
from isthmus.attacks.audit.spec import Audit, Cell, guards_told, key_of, require_attackable, told
from isthmus.attacks.listening import Overhearing
from isthmus.attacks.poisoning.poisoned import marks, poisoned, tampered_with
from isthmus.attacks.spoiling import Spoiling
from isthmus.config.build import describe
from isthmus.config.course import Course
from isthmus.config.load import course_digest
from isthmus.core.codec import decode_own, encode
from isthmus.core.errors import BadInput, CourseFailed, IsthmusError, TooFewReplies
from isthmus.core.outside import data_root as locate_data
from isthmus.core.outside import replace_file, some
from isthmus.core.record import Params, Record
from isthmus.report.summary import score_of
from isthmus.runs.in_processes import in_processes
from isthmus.runs.life import Result
from isthmus.runs.simulated import SimulatedRun, run
from isthmus.runs.simulation import Scenario, Simulation, load_scenario, torch_threads

# With fewer shadows than this share of them an attack that needs them is not tried.
ENOUGH = 0.5
# Of a course's line: why it did not come to its end.
FAILED = "failed"

Row = Mapping[str, Any]
Say = Callable[[str], None]
Watch = Callable[[Standing], None]
Load = Callable[[Course, Path], Scenario]


@dataclass(frozen=True)
class Gist(Record):
    """What an attack noted of a course of its own."""

    noted: Params
    """By name."""


@dataclass
class Carried:
    """What an audit has found so far."""

    audit: Audit
    rows: list[Row] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)  # attacks that cannot be tried, and why


def carry_out(
    audit: Audit,
    folder: Path,
    *,
    data_root: str | Path | None = None,
    workers: int | None = None,
    say: Say = lambda text: None,
    watch: Watch = lambda standing: None,
    load: Load = load_scenario,
) -> Carried:
    """Run what is not finished yet and return everything that was found.

    `say` is given lines for people, `watch` how far it is. `load` says who holds what in a course; shadows in processes
    of their own have it from the course.
    """
    attacks = require_attackable(audit)
    rows = _Rows(audit, folder)
    root = locate_data(data_root)
    data = _LastScenario(root, load)
    processes = workers or os.cpu_count() or 1
    pace = Pace(_work(audit, attacks, rows, folder, processes), say, watch)
    for cell in audit.cells():
        missing = rows.missing(cell, attacks)
        if not missing:
            continue
        try:
            _Attacked(cell, missing, rows, folder, data, processes, say, pace).carry_out()
        except (CourseFailed, TooFewReplies) as error:
            if cell.guards == guards_told(audit.lines[0]) or rows.of_course(cell) is not None:
                raise
            # A guard may well keep a method from learning anything: that is found out, and no reason to stop.
            whose = {"guards": cell.guards, "seed": cell.course.seed}
            rows.write(course_key(cell), {"what": "course", **whose, FAILED: str(error)})
    found = [row for cell in audit.cells() for row in rows.of_cell(cell, attacks)]
    return Carried(audit, found, audit.problems())


def _work(audit: Audit, attacks: Sequence[Attack], rows: _Rows, folder: Path, processes: int) -> Work:
    """Return what is not finished yet."""
    courses = tampered = 0
    shadows: dict[str, set[Path]] = {}
    for cell in audit.cells():
        missing = rows.missing(cell, attacks)
        courses += bool(missing)
        for attack in missing or ():
            tampered += attack.position in (MALICIOUS_CLIENT, MALICIOUS_SERVER)
            if isinstance(attack, Shadowed):
                todo = {path for path in shadow_paths(folder, cell, attack) if not path.exists()}
                shadows.setdefault(told(attack), set()).update(todo)
    return Work(courses, tampered, {name: len(paths) for name, paths in shadows.items() if paths}, processes)


class _LastScenario:
    """Keeps the data of the last seed."""

    def __init__(self, root: Path, load: Load) -> None:
        self.root, self.load = root, load
        self._kept: tuple[int, Scenario] | None = None

    def of(self, cell: Cell) -> Scenario:
        """Return who holds what in a course."""
        seed = cell.course.seed
        if self._kept is None or self._kept[0] != seed:
            with torch_threads(cell.course.threads):
                self._kept = (seed, self.load(cell.course, self.root))
        return self._kept[1]


class _Rows:
    """The lines of the file, by what they are about."""

    def __init__(self, audit: Audit, folder: Path) -> None:
        self.path = folder / "rows.jsonl"
        _begin(audit, folder)
        self._found: dict[str, Row] = {}
        text = self.path.read_text() if self.path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # it was stopped within a line
            replace_file(self.path, whole.encode())
        for line in whole.splitlines():
            row = json.loads(line)
            self._found[row["key"]] = row

    def write(self, key: str, row: Row) -> None:
        """Add a line, in one write."""
        self._found[key] = {"key": key, **row}
        with self.path.open("a") as file:
            file.write(json.dumps(self._found[key]) + "\n")

    def of_course(self, cell: Cell) -> Row | None:
        """Return the line of a course."""
        return self._found.get(course_key(cell))

    def of_attack(self, cell: Cell, attack: Attack) -> Row | None:
        """Return the line of an attack on a course."""
        return self._found.get(attack_key(cell, attack))

    def missing(self, cell: Cell, attacks: Sequence[Attack]) -> list[Attack] | None:
        """Return the attacks that are still to be made on a course; None where nothing is to be done."""
        missing = [attack for attack in attacks if self.of_attack(cell, attack) is None]
        course = self.of_course(cell)
        return None if course is not None and (FAILED in course or not missing) else missing

    def of_cell(self, cell: Cell, attacks: Sequence[Attack]) -> list[Row]:
        """Return the lines of a course and of all attacks on it."""
        found = [self.of_course(cell), *(self.of_attack(cell, attack) for attack in attacks)]
        return [row for row in found if row is not None]


def _begin(audit: Audit, folder: Path) -> None:
    """Make the folder, or see that it is of the same course."""
    path, facts = folder / "audit.json", audit.facts()
    if path.exists():
        before = json.loads(path.read_text())
        if before.get("course") != json.loads(json.dumps(facts["course"])):
            raise BadInput(f"{folder} holds the audit of another course; choose another folder with --out")
    elif folder.exists() and any(folder.iterdir()):
        raise BadInput(f"{folder} is not empty and holds no audit; choose another folder with --out")
    (folder / "shadows").mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps({**facts, "version": __version__}, indent=2) + "\n").encode())


def course_key(cell: Cell) -> str:
    """Return what a course's line is known by."""
    return key_of(course=cell.digest)


def attack_key(cell: Cell, attack: Attack) -> str:
    """Return what the line of an attack on a course is known by."""
    return key_of(course=cell.digest, attack=describe(attack))


@dataclass(frozen=True, eq=False)
class _Course:
    """A course that has run, and what was heard of it; one that was tampered with may have `ended` before its time."""

    simulation: Simulation
    listening: Overhearing
    result: Result | None
    tampered: bool = False
    ended: str = ""

    @staticmethod
    def run(
        simulation: Simulation, attacks: Sequence[Attack], notes: Sequence[str] = (), may_end: bool = False
    ) -> _Course:
        """Run a course with an ear on it."""
        simulation.listener = listening = Overhearing(attacks)
        made = SimulatedRun(simulation, None, ())
        made.begin()
        for note in notes:
            made.note(note)
        try:
            return _Course(simulation, listening, made.to_the_end(None), may_end)
        except (TooFewReplies, CourseFailed) as error:
            if not may_end:
                raise
            return _Course(simulation, listening, None, may_end, str(error))

    def seen(self, attack: Attack, case: Case) -> Seen:
        """Return what an attack sees of it."""
        final = {} if self.result is None else self.result.params
        seen = self.listening.seen(attack, case, self.simulation.initial.params, final)
        return replace(seen, result=self.result) if self.tampered else seen


class _Attacked:
    """One course, and the attacks on it that are still to be done."""

    def __init__(
        self,
        cell: Cell,
        attacks: Sequence[Attack],
        rows: _Rows,
        folder: Path,
        data: _LastScenario,
        workers: int,
        say: Say,
        pace: Pace,
    ) -> None:
        self.cell, self.attacks, self.rows, self.folder, self.say = cell, attacks, rows, folder, say
        self.data, self.workers, self.pace = data, workers, pace
        self.case = Case(cell.course, data.of(cell))
        self._in_shadows = 0.0

    def carry_out(self) -> None:
        """Run the course, and its shadows, and write a line for each attack."""
        course = self.cell.course
        for attack in self.attacks:  # what cannot be is refused before anything is run
            tampered_with(course, self.case.scenario, attack.tampering(self.case))
        began = time.monotonic()
        self._doing("the course")
        with torch_threads(course.threads):
            clean = _Course.run(Simulation(course, self.case.scenario), self.attacks)
            self.pace.ran_course(time.monotonic() - began)
            assert clean.result is not None
            self.case = replace(self.case, clean=clean.result)
            if self.rows.of_course(self.cell) is None:
                self.rows.write(course_key(self.cell), {"what": "course", **self._whose(), **_worth(clean.result)})
            for attack in self.attacks:
                self._doing(told(attack))
                row = self._tried(attack, clean)
                self.rows.write(attack_key(self.cell, attack), {"what": "attack", **self._whose(), **row})
        self.pace.finished(time.monotonic() - began - self._in_shadows)

    def _doing(self, what: str) -> None:
        self.pace.doing(f"seed {self.cell.course.seed}, guards {self.cell.guards}: {what}")

    def _whose(self) -> dict[str, Any]:
        return {"guards": self.cell.guards, "seed": self.cell.course.seed}

    def _tried(self, attack: Attack, clean: _Course) -> dict[str, Any]:
        """Return the line of an attack: its scores, those of the prior, and why it saw nothing, if so."""
        known = attack.known(self.case)
        truth = attack.truth(self.case, known)
        prior = attack.scores(attack.prior(known, self.case.clients), truth)
        tamperings = attack.tampering(self.case)
        row = {"attack": told(attack), "position": attack.position, "prior": prior, "reason": ""}
        if tamperings:
            row["marks"] = marks(self.case.scenario, self.case.course.seed, tamperings)
        heard = self._tampered(tamperings, attack) if tamperings else clean
        if heard.ended:
            row["reason"] = f"the course ended: {heard.ended}"
        try:
            seen = heard.seen(attack, self.case)
            if isinstance(attack, Shadowed):
                seen = seen.beside(self._gists(attack, known))
            return {**row, "scores": attack.scores(attack.guess(seen, known), truth)}
        except NothingSeen as nothing:
            # Of a course that was brought down there is no model, and so no score of what became of it.
            lost = isinstance(attack, Spoiling) and bool(heard.ended)
            scores = dict.fromkeys(attack.measures, math.nan) if lost else prior
            return {**row, "scores": scores, "reason": row["reason"] or str(nothing)}

    def _tampered(self, tamperings: Sequence[Tampering], attack: Attack) -> _Course:
        """Run the course again, with what the attack does to it; it may end before its time."""
        _, _, simulation = poisoned(self.case.course, self.case.scenario, tamperings)
        notes = marks(self.case.scenario, self.case.course.seed, tamperings)
        began = time.monotonic()
        made = _Course.run(simulation, [attack], notes, may_end=True)
        self.pace.ran_course(time.monotonic() - began)
        return made

    # ---- shadows

    def _gists(self, attack: Shadowed, known: Any) -> list[dict[str, Tensor]]:
        """Return what the attack notes of its shadows; those that are not there are run, in processes."""
        paths = shadow_paths(self.folder, self.cell, attack)
        todo = [number for number, path in enumerate(paths) if not path.exists()]
        failed: dict[int, str] = {}
        began = time.monotonic()
        for place, error in self._shadows(attack, known, todo, paths):
            if error:
                failed[todo[place]] = error
            now = time.monotonic()
            self.pace.ran_shadows(1, now - began)
            self._in_shadows += now - began
            began = now
            self._doing(f"shadows of {told(attack)}")
        if failed:
            names = some([f"shadow {number}: {error}" for number, error in sorted(failed.items())], 3)
            self.say(f"{told(attack)}: {names}")
            if len(paths) - len(failed) < ENOUGH * len(paths):
                raise CourseFailed(f"{len(failed)} of {len(paths)} shadows of {told(attack)} failed: {names}")
        left = [path for number, path in enumerate(paths) if number not in failed]
        return [decode_own(path.read_bytes(), Gist).noted for path in left]

    def _shadows(
        self, attack: Shadowed, known: Any, todo: Sequence[int], paths: Sequence[Path]
    ) -> Iterator[tuple[int, str]]:
        """Run some shadows; yield the place of each, as it is done, and why it failed, if it did."""
        course = attack.imitated(self.cell.course)
        if min(self.workers, len(todo)) > 1:
            calls = [(course, attack, number, paths[number], self.data.root) for number in todo]
            with closing(in_processes(_shadow_in_worker, calls, min(self.workers, len(todo)))) as finished:
                yield from finished
            return
        case = Case(course, self.case.scenario)
        for place, number in enumerate(todo):
            yield place, run_shadow(case, attack, known, number, paths[number])


def shadow_paths(folder: Path, cell: Cell, attack: Shadowed) -> list[Path]:
    """Return where an attack's shadows of a course are; those of courses that it imitates alike are the same."""
    digest = course_digest(attack.imitated(cell.course))
    keys = [key_of(course=digest, attack=describe(attack), number=number) for number in range(attack.num_shadows)]
    return [folder / "shadows" / f"{key}.bin" for key in keys]


def run_shadow(case: Case, attack: Shadowed, known: Any, number: int, path: Path) -> str:
    """Run one course of an attack's own and keep what it notes of it; return why it failed, if it did."""
    try:
        shadow = attack.shadow(case, known, number)
        gist = attack.gist(shadow, known, run(shadow.course, scenario=shadow.scenario))
    except IsthmusError as error:
        return str(error)
    replace_file(path, encode(Gist(gist)))
    return ""


# Of a worker: the last case, and what an attack knows of it.
_kept: dict[str, tuple[Case, Any]] = {}


def _shadow_in_worker(course: Any, attack: Shadowed, number: int, path: Path, root: Path) -> str:
    key = key_of(course=describe(course), attack=describe(attack))
    if key not in _kept:
        with torch_threads(1):
            case = Case(course, load_scenario(course, root))
        _kept.clear()
        _kept[key] = (case, attack.known(case))
    return run_shadow(*_kept[key][:1], attack, _kept[key][1], number, path)


def _worth(result: Result) -> dict[str, Any]:
    """Return what a course is worth and costs: its score, bytes and seconds of a round, what guards used up."""
    metric = result.course.task.metrics[0]
    rounds = max(1, result.num_rounds)
    spent = [event["spent"] for event in result.events if event["event"] == "round" and event.get("spent")]
    return {
        "metric": metric,
        "score": score_of(result.metrics, "global_graph", metric) or score_of(result.metrics, "local_graph", metric),
        "bytes": (result.bytes_down + result.bytes_up) / rounds / max(1, len(result.clients)),
        "seconds": result.seconds / rounds,
        "spent": spent[-1] if spent else {},
    }
