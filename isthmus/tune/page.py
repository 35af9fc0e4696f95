"""A study as a page of one file: what was found, how soon, which keys decide, and where good points lie."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from isthmus.report.drawing import drawing, escape, tag
from isthmus.report.drawing import text as words_at
from isthmus.report.page import page, section, table_markup
from isthmus.report.summary import Table as Printed
from isthmus.tune.results import Found, in_words, progress, trials_table
from isthmus.tune.space import Dimension
from isthmus.tune.table import Row

MOST_LINES = 200  # of parallel coordinates
WIDTH, HEIGHT, EDGE = 720.0, 240.0, 56.0
GROUPS = ("best quarter", "others")


def study_page(found: Found) -> str:
    """Return the page of a study."""
    study = found.study
    body = [
        f"<h1>{escape(study.title)}</h1>",
        *(f"<p>{escape(line)}.</p>" for line in in_words(found)),
        section("The best configurations", "Those that went furthest first.", _table(trials_table(found))),
        _progress(found),
        _regret(found),
        _importance(found),
        _parallel(found),
    ]
    return page(study.title, body, "isthmus tune")


def _table(rows: Printed) -> str:
    return tag("div", table_markup(rows), class_="scroll")


def _progress(found: Found) -> str:
    """Return the best score so far by what was spent; where it was better, a row."""
    name = found.study.objectives[0].name
    points = progress(found.table)
    steps = [point for place, point in enumerate(points) if not place or point[1] != points[place - 1][1]]
    rows = Printed(("client-rounds", name), tuple((f"{spent:,.0f}", f"{score:.4f}") for spent, score in steps))
    words = (
        "The score of the configuration that was best on the highest rung so far; it falls where a higher one begins."
    )
    return section("How soon", words, _steps(points, name), _table(rows))


def _regret(found: Found) -> str:
    """Return how far the best so far was from the best, by what was spent."""
    if not found.regret:
        return ""
    steps = [point for n, point in enumerate(found.regret) if not n or point[1] != found.regret[n - 1][1]]
    rows = Printed(("client-rounds", "regret"), tuple((f"{spent:,.0f}", f"{regret:.4f}") for spent, regret in steps))
    of_study = f"{found.study.objectives[0].name} of the best that the study found, on the highest rung"
    words = f"How far the best configuration so far was from the best: {found.truth or of_study}."
    return section("Regret", words, _steps(found.regret, "regret"), _table(rows))


def _importance(found: Found) -> str:
    rows = Printed(("key", "share"), tuple((key, f"{share:.1%}") for key, share in found.shares.items()))
    words = "Shares in what configurations on the last rung came to, by fANOVA."
    if not found.shares:
        return section("What decides", "Too few configurations came to the last rung, or Optuna is not installed.")
    return section("What decides", words, _table(rows))


# ---- parallel coordinates


def _lines(found: Found) -> str:
    """Return a line for each configuration, the best quarter on top: its place in each key, and that of its score."""
    dimensions, rows = found.study.space.dimensions, _last(found)
    ranked = found.table.ranked(rows)
    best = {row.trial.arm for row in ranked[: max(1, len(ranked) // 4)]}
    step = (WIDTH - 2 * EDGE) / len(dimensions)
    names = [*dimensions, found.study.objectives[0].name]
    inside = []
    for number, name in enumerate(names):
        x = EDGE + number * step
        inside.append(tag("line", x1=x, x2=x, y1=24, y2=HEIGHT - 24, class_="grid"))
        inside.append(words_at(name.rsplit(".", 1)[-1], x, HEIGHT - 6, "small", "middle"))
    for row in reversed(ranked):
        places = [*coordinates(dimensions, row), _height(row.scores[0], [each.scores[0] for each in rows])]
        known = [(EDGE + number * step, place) for number, place in enumerate(places) if place is not None]
        points = " ".join(f"{x:.1f},{HEIGHT - 24 - place * (HEIGHT - 48):.1f}" for x, place in known)
        told = ", ".join(f"{key} {value}" for key, value in row.trial.values.items())
        style = "line-own" if row.trial.arm in best else "line-whole"
        inside.append(
            tag("polyline", tag("title", escape(f"{told}: {row.scores[0]:.4g}")), points=points, class_=style)
        )
    return tag("div", drawing("configurations as lines over the keys", WIDTH, HEIGHT, *inside), class_="scroll wide")


def coordinates(dimensions: Mapping[str, Dimension], row: Row) -> list[float | None]:
    """Return a configuration's place in each key, from 0 to 1; none where the key is not there."""
    values = row.trial.values
    return [_place(dimension, values[key]) if key in values else None for key, dimension in dimensions.items()]


def _height(value: float, among: Sequence[float]) -> float:
    low, high = min(among), max(among)
    return (value - low) / (high - low) if high > low else 0.5


def _steps(points: Sequence[tuple[float, float]], name: str) -> str:
    """Return a line of steps: scores by what was spent."""
    scores, most = [score for _, score in points], max(spent for spent, _ in points)
    places: list[str] = []
    before: float | None = None
    for spent, score in points:
        x = EDGE + spent / most * (WIDTH - 2 * EDGE)
        y = HEIGHT - 24 - _height(score, scores) * (HEIGHT - 48)
        places += [f"{x:.1f},{before:.1f}"] if before is not None else []
        places.append(f"{x:.1f},{y:.1f}")
        before = y
    ends = [
        words_at(f"{max(scores):.4g}", EDGE - 6, 28, "small", "end"),
        words_at(f"{min(scores):.4g}", EDGE - 6, HEIGHT - 20, "small", "end"),
        words_at(f"{most:,.0f} client-rounds", WIDTH - EDGE, HEIGHT - 6, "small", "end"),
    ]
    line = tag("polyline", points=" ".join(places), class_="line-own")
    shown = drawing(f"{name} by client-rounds", WIDTH, HEIGHT, line, *ends)
    return tag("div", shown, class_="scroll wide")


def _last(found: Found) -> list[Row]:
    """Return the rows of the highest rung, of which parallel coordinates are drawn."""
    rows = [row for row in found.table.at(found.best.trial.rung) if not math.isnan(row.scores[0])]
    return rows[:MOST_LINES]


def _place(dimension: Dimension, value: Any) -> float:
    if dimension.choices:
        return dimension.choices.index(value) / max(len(dimension.choices) - 1, 1)
    low, high = float(dimension.low or 0.0), float(dimension.high or 0.0)
    if low == high:
        return 0.5
    if dimension.log:
        return math.log(value / low) / math.log(high / low)
    return (float(value) - low) / (high - low)


def _parallel(found: Found) -> str:
    """Return where the best quarter of the configurations on the highest rung lies, beside all of them."""
    space, rows = found.study.space, _last(found)
    ranked = found.table.ranked(rows)
    best = ranked[: max(1, len(ranked) // 4)]
    lines = []
    for key, dimension in space.dimensions.items():
        lines.append((key, *(_where(key, dimension, each) for each in (best, rows))))
    words = f"{len(rows)} configurations on the highest rung; places in a range are told as their middle half."
    return section("Where they lie", words, _lines(found), _table(Printed(("key", GROUPS[0], "all"), tuple(lines))))


def _where(key: str, dimension: Dimension, rows: Sequence[Row]) -> str:
    values = [row.trial.values[key] for row in rows if key in row.trial.values]
    if not values:
        return "-"
    if dimension.choices:
        counts = {str(choice): values.count(choice) for choice in dimension.choices}
        return ", ".join(f"{choice} x {count}" for choice, count in counts.items() if count)
    if len(values) < 4:
        return ", ".join(f"{value:g}" for value in sorted(values))
    first, _, third = statistics.quantiles(values, n=4)
    return f"{first:.3g} to {third:.3g}"
