"""A study from its file: every mistake is told before the first trial. docs/tuning.md has the keys.

    fidelity: {rounds: [8, 16, 32], sampling.fraction: [0.4, 0.4, 1.0], seeds: [1, 1, 3]}

is what a trial is given on each rung; one value holds on all of them, and `{low: 4, high: 64, factor: 2}` are the
rounds 4, 8, ..., 64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from isthmus.config.build import Builder
from isthmus.config.course import Course
from isthmus.config.load import check_client_settings, merge, nested, parse_override
from isthmus.core.errors import BadInput, nearest
from isthmus.core.outside import quoted, read_yaml
from isthmus.runs.stages import mid_course_problem
from isthmus.tune.objectives import BEST, LAST, Objective
from isthmus.tune.search import Search
from isthmus.tune.searches import RandomSearch
from isthmus.tune.space import Dimension, Space, read_space
from isthmus.tune.spec import Budget, Study
from isthmus.tune.table import Rung

KEYS = (
    "title",
    "base",
    "space",
    "fidelity",
    "search",
    "objectives",
    "budget",
    "seeds",
    "final_seeds",
    "seed",
    "parallel",
    "at",
)
FIDELITIES = ("rounds", "sampling.fraction", "seeds")
LADDER = ("low", "high", "factor")
MOST_RUNGS = 64


def load_study(path: Path, words: Sequence[str] = (), sites: Sequence[str] = ()) -> Study:
    """Read a study's file; `words` are changes of the base course, `key=value`, `sites` the clients, if they are."""
    changes = [parse_override(word) for word in words]
    return read_study(read_yaml(path), str(path), path.stem, changes, sites)


def read_study(
    raw: Mapping[str, Any], source: str, title: str, changes: Sequence[Any] = (), sites: Sequence[str] = ()
) -> Study:
    """Return the study that plain values describe; raise BadInput for whatever would fail later.

    With `sites` these are the clients, where the base does not say another number of them.
    """
    for key in raw:
        if key not in KEYS:
            raise BadInput(f"{source}: {key} is not a known key; {nearest(str(key), KEYS)}")
    number = {"num_clients": len(sites)} if sites else {}
    base = nested({**number, **_mapping(raw.get("base") or {}, f"{source}: base")}, f"{source}: base")
    base = merge(base, changes, source)
    builder = Builder(source)
    course: Course = Builder(f"{source}: base").fields(Course, base, "")
    search = builder.build(Search, raw["search"], "search") if "search" in raw else RandomSearch()
    budget: Budget = builder.fields(Budget, _mapping(raw.get("budget") or {}, f"{source}: budget"), "budget")
    seeds = _seeds(raw.get("seeds", [course.seed]), f"{source}: seeds", course.seed)
    final = _seeds(raw.get("final_seeds", []), f"{source}: final_seeds", max(seeds) + 1)
    both = sorted(set(seeds) & set(final))
    if both:
        raise BadInput(f"{source}: final_seeds has {both[0]}, which trials see: it is in seeds too")
    study = Study(
        title=str(raw.get("title", title)),
        base=base,
        space=read_space(raw.get("space"), sites or _clients(course), source),
        rungs=_rungs(raw.get("fidelity") or {}, course, len(seeds), f"{source}: fidelity"),
        search=search,
        objectives=_objectives(raw, source),
        budget=budget,
        seeds=seeds,
        final_seeds=final,
        seed=_whole(raw.get("seed", 0), f"{source}: seed", least=0),
        parallel=_whole(raw.get("parallel", 1), f"{source}: parallel"),
        source=source,
    )
    _check(study, sites)
    return study


def _mapping(raw: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise BadInput(f"{place} is {quoted(raw)}, expected keys and values")
    return raw


def _clients(course: Course) -> list[str]:
    """Return the names that clients have in a simulation."""
    return [f"client-{number}" for number in range(course.num_clients)]


def _whole(raw: Any, place: str, least: int = 1) -> int:
    if not isinstance(raw, int) or isinstance(raw, bool) or raw < least:
        raise BadInput(f"{place} is {quoted(raw)}, expected a whole number from {least} on")
    return raw


def _seeds(raw: Any, place: str, first: int) -> tuple[int, ...]:
    """Return seeds: those of a list, or so many from the first on."""
    if isinstance(raw, int) and not isinstance(raw, bool) and raw >= 1:
        return tuple(range(first, first + raw))
    if not isinstance(raw, list) or any(not isinstance(seed, int) or isinstance(seed, bool) for seed in raw):
        raise BadInput(f"{place} is {quoted(raw)}, expected how many, or a list of whole numbers")
    if len(set(raw)) < len(raw):
        raise BadInput(f"{place} is {quoted(raw)}, which has a seed twice")
    if not raw and place.endswith(": seeds"):
        raise BadInput(f"{place} is [], expected at least one")
    return tuple(raw)


def _objectives(raw: Mapping[str, Any], source: str) -> tuple[Objective, ...]:
    at, names = raw.get("at", BEST), raw.get("objectives", ["val/accuracy"])
    if at not in (BEST, LAST):
        raise BadInput(f"{source}: at is {quoted(at)}; choose from {BEST}, {LAST}")
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise BadInput(f"{source}: objectives is {quoted(names)}, expected a list of names such as val/accuracy")
    return tuple(Objective(name, at) for name in names)


# ---- rungs


def _rungs(raw: Any, course: Course, num_seeds: int, place: str) -> tuple[Rung, ...]:
    raw = _mapping(raw, place)
    for key in raw:
        if key not in FIDELITIES:
            raise BadInput(f"{place}.{key} is no fidelity; {nearest(str(key), FIDELITIES)}")
    lists = {key: _ladder(raw[key], f"{place}.{key}") for key in raw}
    number = max((len(values) for values in lists.values()), default=1)
    for key, values in lists.items():
        if len(values) not in (1, number):
            raise BadInput(
                f"{place}.{key} has {len(values)} values, and another fidelity has {number}; give one or {number}"
            )

    def on(rung: int, key: str, usual: Any) -> Any:
        values = lists.get(key, [usual])
        return values[rung if len(values) > 1 else 0]

    rungs = []
    for rung in range(number):
        rounds = _whole(on(rung, "rounds", course.rounds), f"{place}.rounds")
        seeds = _whole(on(rung, "seeds", num_seeds), f"{place}.seeds")
        changes = {"sampling.fraction": on(rung, "sampling.fraction", None)} if "sampling.fraction" in lists else {}
        rungs.append(Rung(rounds, changes, seeds))
    _check_rungs(rungs, course, num_seeds, place)
    return tuple(rungs)


def _ladder(raw: Any, place: str) -> list[Any]:
    if isinstance(raw, list):
        if not 0 < len(raw) <= MOST_RUNGS:
            raise BadInput(f"{place} has {len(raw)} values, expected from 1 to {MOST_RUNGS}")
        return raw
    if not isinstance(raw, Mapping):
        return [raw]
    for key in raw:
        if key not in LADDER:
            raise BadInput(f"{place}.{key} is not a known key; {nearest(str(key), LADDER)}")
    low, high = (_whole(raw.get(end), f"{place}.{end}") for end in ("low", "high"))
    factor = raw.get("factor", 2)
    if low > high or not isinstance(factor, int | float) or not factor > 1:
        raise BadInput(f"{place} is {quoted(dict(raw))}, expected low below high and a factor above 1")
    found = [low]
    while round(found[-1] * factor) < high and len(found) < MOST_RUNGS:
        found.append(max(round(found[-1] * factor), found[-1] + 1))
    return [*found, high] if found[-1] < high else found


def _check_rungs(rungs: Sequence[Rung], course: Course, num_seeds: int, place: str) -> None:
    if rungs[0].rounds < course.evaluate_every:
        raise BadInput(
            f"{place}.rounds begins with {rungs[0].rounds}, and the course is evaluated every {course.evaluate_every} "
            "rounds: no trial would have a score there"
        )
    for before, after in pairwise(rungs):
        if after.rounds < before.rounds or after.seeds < before.seeds:
            raise BadInput(f"{place}: rounds and seeds must not become fewer, and {before} comes before {after}")
        if before == after:
            raise BadInput(f"{place} has {before} twice: a rung must give more than the one before")
    if rungs[-1].seeds > num_seeds:
        raise BadInput(f"{place}.seeds is {rungs[-1].seeds}, and the study has {num_seeds} seeds")
    for key in rungs[0].changes:
        if len({rung.changes[key] for rung in rungs}) > 1:
            problem = mid_course_problem(course, key)
            if problem:
                raise BadInput(f"{place}.{key} changes from rung to rung, and cannot in this course: {problem}")


# ---- what would fail later


def _check(study: Study, sites: Sequence[str]) -> None:
    """Build the course of every value of every key, and ask the search whether it can do with the space."""
    for key in study.space.dimensions:
        if key in FIDELITIES or key == "seed":
            raise BadInput(
                f"{study.source}: space.{key} cannot be searched: it is a fidelity, or the seed of the splits"
            )
    for rung in range(len(study.rungs)):
        _course_of(study, study.first, rung, "fidelity", sites)
    for key, point in corners(study.space):
        course = _course_of(study, point, study.top, f"space.{key}", sites)
        for objective in study.objectives:
            problem = objective.problem(course)
            if problem:
                raise BadInput(f"{study.source}: objectives: {problem}")
        _check_fidelity(study, course)
    problem = study.search.problem(study.space, study.rungs, len(study.objectives), len(study.seeds))
    if problem:
        raise BadInput(f"{study.source}: search: {problem}")
    _check_end(study)


def corners(space: Space) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield for every value of every key, of a range for its ends, a point that has it, with the key."""
    for key, dimension in space.dimensions.items():
        for value in _ends(dimension):
            yield key, _with(space, key, value)


def _ends(dimension: Dimension) -> tuple[Any, ...]:
    return dimension.choices or (dimension.low, dimension.high)


def _with(space: Space, key: str, value: Any) -> dict[str, Any]:
    """Return a point at which a key has a value, and all that it depends on is there."""
    wanted = {key: value}
    for other in reversed(list(space.dimensions)):
        if other in wanted:
            wanted |= {name: values[0] for name, values in space.dimensions[other].when.items() if name not in wanted}
    first = {other: _ends(dimension)[0] for other, dimension in space.dimensions.items()}
    return space.there({**first, **wanted})


def _course_of(study: Study, point: Mapping[str, Any], rung: int, what: str, sites: Sequence[str]) -> Course:
    try:
        course = study.course(point, rung)
        if course.client_settings:
            check_client_settings(course, ["all"] if course.algorithm.pooled else sites or _clients(course))
    except BadInput as error:
        told = str(error).removeprefix(f"{study.source}: ")
        raise BadInput(f"{study.source}: {what}: {told}") from None
    return course


def _check_fidelity(study: Study, course: Course) -> None:
    for key in study.rungs[0].changes:
        if len({rung.changes[key] for rung in study.rungs}) > 1:
            problem = mid_course_problem(course, key)
            if problem:
                raise BadInput(
                    f"{study.source}: fidelity.{key} changes from rung to rung, and cannot in a course of the "
                    f"space: {problem}"
                )


def _check_end(study: Study) -> None:
    """Refuse a study that would never end."""
    if study.budget == Budget() and not study.search.ends:
        raise BadInput(
            f"{study.source}: budget is missing, and the search would never end; give it trials, client_rounds "
            "or seconds"
        )
