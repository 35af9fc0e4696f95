"""Suites whose methods are tuned with a budget in place of a grid: every method gets as many client-rounds.

    tune:
      client_rounds: 2000                       of each cell that has a `search`
      search: {name: sha, factor: 3}            by default random; with all its fields as in a study
      fidelity: {rounds: [9, 27, 81]}           by default the rounds of the course
      seeds: [100]                              splits that the search sees; none of the table's own

The best point by validation on those splits stands for the cell, which is then run with the suite's seeds. Test scores
and the table's own splits play no part in the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from isthmus.config.build import brief
from isthmus.config.load import course_to_dict
from isthmus.core.errors import BadInput, nearest
from isthmus.suites.spec import Adjustment, Choice, Point, Suite
from isthmus.tune.backends import backend_of
from isthmus.tune.reading import read_study
from isthmus.tune.running import Computed, search
from isthmus.tune.spec import Study, digest_of

KEYS = ("client_rounds", "search", "fidelity", "seeds", "parallel", "seed")
FOLDER = "tune"


def tuned(
    suite: Suite,
    folder: Path,
    workers: int | None,
    cluster: str | None,
    data_root: Path | None,
    say: Callable[[str], None] = lambda text: None,
) -> Suite:
    """Carry out the studies of a suite and return it with what they found in place of what was to be searched."""
    found: list[Adjustment] = []
    made = studies(suite)
    with backend_of(workers, cluster, data_root) as backend:
        for point, study in made:
            cell = _cell(suite, point)
            label = "-".join("".join(c if c.isalnum() else "_" for c in name) for name in cell.values())
            path = folder / FOLDER / f"{label}-{digest_of(**study.facts())}"
            path.parent.mkdir(parents=True, exist_ok=True)
            best = search(study, Computed(study, path, backend)).best()
            if best is None:
                raise BadInput(f"{suite.title}: tune: no trial of {', '.join(cell.values())} has a score; see {path}")
            values = dict(best.trial.values)
            told = ", ".join(f"{key}={brief(value)}" for key, value in values.items())
            say(f"{', '.join(cell.values())}: {told}: {best.scores[0]:.4f}")
            found.append(Adjustment(values, {axis: [name] for axis, name in cell.items()}))
    return _with(suite, found, made[0][1]) if made else suite


def studies(suite: Suite) -> list[tuple[Point, Study]]:
    """Return a study for each course of the suite that has something to search, with the first point of its cell."""
    for key in suite.tune:
        if key not in KEYS:
            raise BadInput(f"{suite.title}: tune.{key} is not a known key; {nearest(str(key), KEYS)}")
    if "client_rounds" not in suite.tune:
        raise BadInput(f"{suite.title}: tune.client_rounds is missing: how many each method gets")
    seeded = [key for choice in suite.choices for key in choice.seeded]
    if seeded:
        raise BadInput(f"{suite.title}: tune cannot draw {seeded[0]} for the splits of the search; leave seeded out")
    found: dict[str, tuple[Point, Study]] = {}
    for point in suite.points():
        key = repr(_cell(suite, point))
        if point.searched and key not in found:
            found[key] = (point, _study(suite, point))
    return list(found.values())


def _cell(suite: Suite, point: Point) -> dict[str, str]:
    """Return the choices that decide a course."""
    return {axis: name for axis, name in point.cell.items() if axis not in suite.measured}


def _study(suite: Suite, point: Point) -> Study:
    said: Mapping[str, Any] = suite.tune
    first = max(suite.seeds) + 1
    grid = {
        key: list(values) for axis, name in point.cell.items() for key, values in suite.axes[axis][name].search.items()
    }
    plain = {
        "title": f"{suite.title}: {', '.join(point.cell.values())}",
        "base": course_to_dict(replace(point.course, seed=first)),
        "space": grid,
        "objectives": [f"val/{point.course.stopping.metric}"],
        "budget": {"client_rounds": said["client_rounds"]},
        **{key: said[key] for key in ("search", "fidelity", "parallel", "seed") if key in said},
        "seeds": said.get("seeds", 1),
    }
    study = read_study(plain, f"{suite.title}: tune", suite.title)
    both = sorted(set(study.seeds) & set(suite.seeds))
    if both:
        raise BadInput(
            f"{suite.title}: tune.seeds has {both[0]}, which is a seed of the table: the search must not see it"
        )
    return study


def _with(suite: Suite, found: list[Adjustment], study: Study) -> Suite:
    """Return a suite with nothing left to search, and the keys that were found."""

    def settled(choice: Choice) -> Choice:
        return replace(choice, search={})

    axes = {axis: {name: settled(choice) for name, choice in choices.items()} for axis, choices in suite.axes.items()}
    seeds = ", ".join(map(str, study.seeds))
    rounds = f"{suite.tune['client_rounds']:,} client-rounds"
    title = f"{suite.title} (what is searched: {rounds} for each row, on splits of seed {seeds})"
    return replace(suite, axes=axes, adjust=(*suite.adjust, *found), title=title, tune={})
