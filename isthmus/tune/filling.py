"""Fills a lookup table: every configuration, share of clients and seed is a course; what is finished stays finished.

table.json     what it is of
curves.jsonl   a line for each course that came to its end
curves.npz     the table, as far as it is filled
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from isthmus import __version__
from isthmus.config.course import Course
from isthmus.core.errors import BadInput, IsthmusError
from isthmus.core.outside import replace_file
from isthmus.report.summary import score_of
from isthmus.runs.in_processes import in_processes
from isthmus.runs.life import Result
from isthmus.runs.simulated import run
from isthmus.tune.curves import Curves, points_of
from isthmus.tune.space import Values
from isthmus.tune.spec import Study, digest_of
from isthmus.tune.trials import Scenarios

FILE, ABOUT, LINES = "curves.npz", "table.json", "curves.jsonl"
DIGITS = 6


@dataclass(frozen=True)
class Curve:
    """A course of a table."""

    point: int
    fraction: float
    seed: int
    course: Course

    @property
    def key(self) -> str:
        """What its line is known by."""
        return f"{self.point}/{self.fraction:g}/{self.seed}"


@dataclass(frozen=True)
class Filling:
    """What a table is filled with: configurations x shares of clients x seeds, for so many rounds."""

    study: Study
    points: Sequence[Values]
    fractions: tuple[float, ...]

    @classmethod
    def of(cls, study: Study, fractions: Sequence[float] = (), points: int = 3) -> Filling:
        """Return what a study's table is filled with; by default with the shares that its rungs have."""
        if study.search.forks:
            raise BadInput(f"{study.source}: a table has no courses that go on from others, as the search asks for")
        found = fractions or [study.fraction(rung) for rung in range(len(study.rungs))]
        return cls(study, points_of(study, points), tuple(sorted({float(share) for share in found})))

    def curves(self) -> Iterator[Curve]:
        """Yield the courses, all of a seed one after the other, as they are on the same data."""
        for seed in self.study.seeds:
            for fraction in self.fractions:
                for place, point in enumerate(self.points):
                    course = self.study.course({**point}, None, seed)
                    sampling = replace(course.sampling, fraction=fraction)
                    yield Curve(place, fraction, seed, replace(course, sampling=sampling, threads=1))

    def facts(self) -> dict[str, Any]:
        """Return what it is of."""
        study = self.study.facts()
        told = {key: study[key] for key in ("title", "base", "space", "seeds")}
        rounds = self.study.rungs[-1].rounds
        return json.loads(json.dumps({**told, "rounds": rounds, "fractions": self.fractions}))  # type: ignore[no-any-return]


def fill(
    filling: Filling,
    folder: Path,
    *,
    data_root: Path | None = None,
    workers: int = 1,
    on_done: Callable[[str, int, int], None] = lambda told, done, total: None,
) -> Curves:
    """Run the courses that are not finished yet; return the table, and keep it in the folder."""
    lines = _begin(filling, folder)
    every = list(filling.curves())
    todo = [curve for curve in every if curve.key not in lines]
    with closing(_finished(todo, data_root, min(workers, max(len(todo), 1)))) as found:
        for curve, line in found:
            lines[curve.key] = line
            with (folder / LINES).open("a") as file:
                file.write(json.dumps({"key": curve.key, **line}) + "\n")
            on_done(f"{curve.key}: {line['error'] or line['final']}", len(lines), len(every))
    table = gathered(filling, lines)
    table.save(folder / FILE)
    return table


def _finished(todo: Sequence[Curve], root: Path | None, workers: int) -> Any:
    if workers > 1:
        with closing(in_processes(_in_worker, [(curve.course, root) for curve in todo], workers)) as found:
            for place, line in found:
                yield todo[place], line
        return
    scenarios = Scenarios(root)
    for curve in todo:
        yield curve, drawn(curve.course, scenarios)


# Of a worker.
_scenarios: dict[Path | None, Scenarios] = {}


def _in_worker(course: Course, root: Path | None) -> dict[str, Any]:
    return drawn(course, _scenarios.setdefault(root, Scenarios(root)))


def drawn(course: Course, scenarios: Scenarios) -> dict[str, Any]:
    """Run a course and return its curve as plain values."""
    try:
        return curve_of(run(course, scenario=scenarios.of(course)))
    except IsthmusError as error:
        return {"error": str(error), "final": None}


def curve_of(result: Result) -> dict[str, Any]:
    """Return what a table has of a run. A round that never came, for patience ran out, is as the last one was."""
    course, metric = result.course, result.course.task.metrics[0]
    rounds = [event for event in result.events if event["event"] == "round"]
    exchanges = [
        e for e in result.events if e["event"] == "exchange" and e["round"] and e["request"] != "EvaluateModel"
    ]
    asked = sum(event["num_asked"] for event in rounds)
    names = sorted({name for event in rounds for name in event["metrics"]})
    kept, best = [], 0
    for event in rounds:
        best = event["round"] if event["is_best"] else best
        kept.append(best)
    final = score_of(result.metrics, "global_graph", metric)
    final = score_of(result.metrics, "local_graph", metric) if final is None else final
    missing = course.rounds - len(rounds)
    return {
        "error": "",
        "final": final,
        "kept": kept + kept[-1:] * missing,
        "metrics": {name: [_short(e["metrics"].get(name)) for e in rounds] + [None] * missing for name in names},
        "down": sum(event["bytes_down"] for event in exchanges) / asked,
        "up": sum(event["bytes_up"] for event in exchanges) / asked,
        "client_seconds": round(sum(event["client_seconds"] for event in exchanges) / asked, DIGITS),
        "seconds": round(result.seconds, 3),
    }


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, DIGITS)


def _begin(filling: Filling, folder: Path) -> dict[str, dict[str, Any]]:
    """Make the folder, or see that it is of the same table; return the lines that it has."""
    path, facts = folder / ABOUT, filling.facts()
    if path.exists():
        before = json.loads(path.read_text())
        differing = [key for key, value in facts.items() if before.get(key) != value and key not in ("seeds", "title")]
        if differing:
            raise BadInput(
                f"{folder} holds another table: it differs in {', '.join(differing)}; choose another folder with --out"
            )
    elif folder.exists() and any(folder.iterdir()):
        raise BadInput(f"{folder} is not empty and holds no table; choose another folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps({**facts, "version": __version__}, indent=2) + "\n").encode())
    return read_lines(folder)


def read_lines(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the curves that a folder has, by key; a line that was cut off is taken away."""
    path = folder / LINES
    text = path.read_text() if path.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        replace_file(path, whole.encode())
    found = [json.loads(line) for line in whole.splitlines()]
    return {line["key"]: line for line in found}


def gathered(filling: Filling, lines: dict[str, dict[str, Any]]) -> Curves:
    """Return the table of the seeds whose courses are all finished."""
    study, every = filling.study, list(filling.curves())
    whole = [seed for seed in study.seeds if all(c.key in lines for c in every if c.seed == seed)]
    if not whole:
        raise BadInput(f"{study.source}: no seed's courses are all finished; go on with isthmus tune --table")
    good = [line for line in lines.values() if not line["error"]]
    names = sorted({name for line in good for name in line["metrics"]})
    shape = (len(filling.points), len(filling.fractions), len(whole))
    rounds = study.rungs[-1].rounds
    values = np.full((*shape, len(names), rounds), np.nan, np.float32)
    kept = np.zeros((*shape, rounds), np.int16)
    numbers = {name: np.full(shape, np.nan, np.float32) for name in ("final", "down", "up", "client_seconds")}
    for curve in every:
        if curve.seed not in whole or lines[curve.key]["error"]:
            continue
        at, line = (curve.point, filling.fractions.index(curve.fraction), whole.index(curve.seed)), lines[curve.key]
        for place, name in enumerate(names):
            values[(*at, place)] = [math.nan if v is None else v for v in line["metrics"][name]]
        kept[at] = line["kept"]
        for name, array in numbers.items():
            array[at] = math.nan if line[name] is None else line[name]
    clients = 1 if every[0].course.algorithm.pooled else every[0].course.num_clients
    facts = {**filling.facts(), "version": __version__, "digest": digest_of(**filling.facts())}
    points = tuple(dict(point) for point in filling.points)
    return Curves(facts, points, filling.fractions, tuple(whole), tuple(names), clients, values, kept, **numbers)
