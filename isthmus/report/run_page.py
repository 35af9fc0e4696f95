"""The page of one run: what was asked, how it went, what came of it, and how to do it again; from its journal alone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from isthmus.report.drawing import Bar, Part, bar_chart, escape, heat_map, tag
from isthmus.report.lines import Line, legend, line_drawing
from isthmus.report.page import page, section, table_markup
from isthmus.report.profile import PARTS
from isthmus.report.story import Event, Story
from isthmus.report.summary import Table, column, monitor_line, results_table

GENERATOR = "isthmus report"
MOST_ROWS = 60  # of a table of rounds
MOST_CLIENTS = 1_000  # of a table of clients
MOST_TOLD = 200  # failures in a table
# Which of a round's values at shares of the clients are the ends of a band: those at a tenth and at nine tenths.
LOW, MIDDLE, HIGH = 1, 3, 5
QUANTILES = ("least", "10 %", "25 %", "half", "75 %", "90 %", "largest")


def run_page(story: Story, events: Sequence[dict[str, Any]], again: str = "") -> str:
    """Return the page of a run; `again` is the command that repeats it."""
    body = [
        tag("h1", escape(story.title)),
        tag("p", escape(_when(story))),
        _tiles(story),
        _course(story),
        *_curves([story]),
        _clients_apart(story),
        _results(story, events),
        _traffic([story]),
        _times([story]),
        _failures(story),
        _seen(story),
        _spent(story),
        *_monitors(story),
        _notes(story),
        _again(story, again),
    ]
    return page(story.title, filter(None, body), GENERATOR)


def comparison_page(stories: Sequence[Story]) -> str:
    """Return the page of several runs, one laid over the other."""
    title = ", ".join(story.title for story in stories)
    rows = [
        (story.title, *_came_to(story), f"{story.end.get('seconds', 0.0):.1f}", *_bytes_in_all(story))
        for story in stories
    ]
    heads = ("run", "score", "best round", "rounds", "seconds", "bytes down", "bytes up")
    body = [
        tag("h1", escape(title)),
        section("What came of them", "Scores on test examples, in the best round.", _table(Table(heads, tuple(rows)))),
        _differences(stories),
        *_curves(stories),
        _traffic(stories),
        _times(stories),
    ]
    return page(title, filter(None, body), GENERATOR)


# ---- the head


def _when(story: Story) -> str:
    began = story.course.get("time")
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(began)) if isinstance(began, int | float) else "?"
    versions = f"isthmus {story.course.get('version', '?')}, Python {story.course.get('python', '?')}"
    return f"Begun {at}; {versions}" + ("." if story.end else "; not finished.")


def _tiles(story: Story) -> str:
    score, best, rounds = _came_to(story)
    tiles = [(score, f"test {story.metric}"), (best, f"best round, of {rounds}")]
    if story.end:
        tiles.append((f"{story.end['seconds']:.1f} s", "of training"))
    down, up = _bytes_in_all(story)
    tiles += [(down, "sent to clients"), (up, "sent by clients")]
    tiles += [(f"{value:.3g}", name) for name, value in story.spent.items()]
    if story.num_failures:
        tiles.append((f"{story.num_failures:,}", "replies that failed"))
    shown = (tag("div", tag("b", escape(value)), tag("span", escape(words)), class_="tile") for value, words in tiles)
    return tag("div", *shown, class_="tiles")


def _came_to(story: Story) -> tuple[str, str, str]:
    """Return the score, the best round and the number of rounds."""
    if not story.end:
        return "-", "-", str(story.rounds[-1]["round"] if story.rounds else 0)
    found = column(story.title, [dict(story.end)], story.metric)
    score = found.clients_mean if found.whole is None else found.whole
    return _number(score), str(story.end["best_round"]), str(story.end["num_rounds"])


def _bytes_in_all(story: Story) -> tuple[str, str]:
    return tuple(  # type: ignore[return-value]
        _bytes(sum(size for (_, way), size in story.traffic.items() if way == wanted)) for wanted in ("down", "up")
    )


# ---- the course


def leaves_of(value: Any, *path: str) -> Iterator[tuple[str, str]]:
    """Yield what is said in a course, each with its key; a part's name stands for itself."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from leaves_of(item, *path, str(key))
    else:
        yield ".".join(path), json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value


def _course(story: Story) -> str:
    chosen = list(leaves_of(story.course.get("chosen", {})))
    every = list(leaves_of(story.course.get("course", {})))
    words = "What differs from the defaults; everything that was set is below it."
    first = _table(Table(("key", "value"), tuple(chosen))) if chosen else tag("p", "Nothing differs from the defaults.")
    return section("Course", words, first, _folded("all keys", _table(Table(("key", "value"), tuple(every)))))


def _differences(stories: Sequence[Story]) -> str:
    """Return in which keys runs differ."""
    said = [dict(leaves_of(story.course.get("course", {}))) for story in stories]
    keys = [key for key in dict.fromkeys(key for each in said for key in each) if len({e.get(key) for e in said}) > 1]
    rows = tuple((key, *(each.get(key, "-") for each in said)) for key in keys)
    if not rows:
        return section("Courses", "They are the same in every key.")
    return section("Courses", "Keys in which they differ.", _table(Table(("key", *(s.title for s in stories)), rows)))


# ---- over rounds


def _curves(stories: Sequence[Story]) -> Iterator[str]:
    """Yield a chart of each metric over the rounds."""
    metrics = sorted({name for story in stories for each in story.rounds for name in each["metrics"]}, key=_order)
    for metric in metrics:
        lines = [Line(story.title, story.curve(metric), story.band(metric, LOW, HIGH)) for story in stories]
        drawn = line_drawing(f"{metric} over rounds", lines, "round")
        if not drawn:
            continue
        words = "The mean over clients by their examples, round by round"
        words += "; the band holds all clients but a tenth at either end." if any(line.band for line in lines) else "."
        names = [story.title for story in stories]
        marks = legend(names) if len(names) > 1 else ""
        yield section(metric, words, marks, drawn, _folded("numbers", _rounds_table(stories, metric)))


def _order(metric: str) -> tuple[int, str]:
    return next((place for place, split in enumerate(("val/", "train/")) if metric.startswith(split)), 2), metric


def _rounds_table(stories: Sequence[Story], metric: str) -> str:
    """Return the numbers behind a chart: of every round, or of so many that lie as far apart as they can."""
    curves = [dict(story.curve(metric)) for story in stories]
    rounds = sorted({at for curve in curves for at in curve})
    shown = _spaced(rounds, MOST_ROWS)
    bands = [{int(at): values for at, *values in story.band(metric, LOW, HIGH)} for story in stories]
    heads, rows = ["round"], []
    for story, band in zip(stories, bands, strict=True):
        heads += [story.title, *(("10 % of clients", "90 %") if band else ())]
    for at in shown:
        row = [f"{at:g}"]
        for curve, band in zip(curves, bands, strict=True):
            row.append(_number(curve.get(at)))
            row += [_number(value) for value in band.get(int(at), (None, None))] if band else []
        rows.append(tuple(row))
    left_out = f"{len(shown)} of {len(rounds)} rounds." if len(shown) < len(rounds) else ""
    return tag("p", left_out) * bool(left_out) + _table(Table(tuple(heads), tuple(rows)))


def _spaced(values: Sequence[float], most: int) -> list[float]:
    if len(values) <= most:
        return list(values)
    return [values[round(place * (len(values) - 1) / (most - 1))] for place in range(most)]


# ---- what came of it


def _clients_apart(story: Story) -> str:
    """Return how far clients are apart at the end, by every metric."""
    last = next((each["spread"] for each in reversed(story.rounds) if each.get("spread")), None)
    if not last:
        return ""
    rows = tuple((name, *map(_number, values)) for name, values in last.items())
    words = "Values at shares of the clients, from the least to the largest, in the last round that was evaluated."
    return section("How far clients are apart", words, _table(Table(("metric", *QUANTILES), rows)))


def _results(story: Story, events: Sequence[dict[str, Any]]) -> str:
    if not story.end:
        return ""
    found = column(story.title, events, story.metric)
    clients = list(dict.fromkeys([*story.holds, *story.end["client_scores"]]))
    words = f"Test {story.metric} of the model that is kept, and what each client holds."
    if len(clients) > MOST_CLIENTS:
        words += f" The first {MOST_CLIENTS:,} of {len(clients):,} clients; the journal has all."
    return section("Results", words, _table(results_table([found], clients[:MOST_CLIENTS], story.holds)))


def _traffic(stories: Sequence[Story]) -> str:
    kinds = list(dict.fromkeys(kind for story in stories for kind, _ in story.traffic))
    if not kinds:
        return ""
    bars, rows = [], []
    for story in stories:
        for kind in kinds:
            down, up = (story.traffic[kind, way] for way in ("down", "up"))
            name = kind if len(stories) == 1 else f"{story.title}, {kind}"
            told = (("fill-0", "down", down), ("fill-1", "up", up))
            parts = tuple(Part(style, float(size), f"{name}, {way}: {size:,} bytes") for style, way, size in told)
            bars.append(Bar(name, parts, _bytes(down + up)))
            rows.append((name, f"{down:,}", f"{up:,}"))
    largest = max(sum(part.length for part in bar.parts) for bar in bars)
    chart = bar_chart("bytes by message", bars, largest, {0.0: "0", largest / 2: _bytes(largest / 2), largest: ""})
    words = "Of all rounds together: requests go down to the clients, replies come up."
    table = _table(Table(("message", "bytes down", "bytes up"), tuple(rows)))
    return section("Bytes", words, legend(("down", "up")), tag("div", chart, class_="scroll wide"), table)


def _times(stories: Sequence[Story]) -> str:
    if not any(sum(story.parts.values()) for story in stories):
        return ""
    bars = []
    for story in stories:
        for part, seconds in sorted(story.parts.items(), key=lambda each: -each[1]):
            name = part if len(stories) == 1 else f"{story.title}, {part}"
            bars.append(Bar(name, (Part("fill-accent", seconds, f"{name}: {seconds:.3f} s"),), f"{seconds:.2f} s"))
    largest = max(part.length for bar in bars for part in bar.parts)
    chart = bar_chart("seconds by part", bars, largest, {0.0: "0", largest: f"{largest:.2g} s"})
    heads = ("part", "what it is", *(f"seconds, {s.title}" if len(stories) > 1 else "seconds" for s in stories))
    rows = tuple((part, PARTS[part], *(f"{story.parts[part]:.3f}" for story in stories)) for part in PARTS)
    return section("Where the time went", "", tag("div", chart, class_="scroll wide"), _table(Table(heads, rows)))


def _failures(story: Story) -> str:
    if not story.num_failures and not story.absences:
        return ""
    by_round: dict[int, int] = {}
    for round, *_ in story.failures:
        by_round[round] = by_round.get(round, 0) + 1
    rounds = range(1, 1 + (story.rounds[-1]["round"] if story.rounds else max(by_round, default=0)))
    lines = [
        Line("failed replies", [(float(at), float(by_round.get(at, 0))) for at in rounds]),
        Line("clients missing", [(float(at), float(story.absences.get(at, 0))) for at in rounds]),
    ]
    drawn = line_drawing("failures over rounds", lines, "round")
    told = tuple((str(at), client, kind, reason) for at, client, kind, reason in story.failures[:MOST_TOLD])
    words = f"{story.num_failures:,} replies failed"
    words += f"; the first {len(told)} of them are named." if len(told) < story.num_failures else "."
    table = _table(Table(("round", "client", "what", "why"), told)) if told else ""
    return section("Failures and absences", words, legend([line.name for line in lines]), drawn, table)


def _seen(story: Story) -> str:
    """Return who sees what, as the method and its guards say."""
    every: Sequence[Event] = story.course.get("exposure", ())
    if not every:
        return ""
    rows = tuple(
        (each["request"], ", ".join(each["sent"]) or "-", each["reply"], ", ".join(each["answered"]) or "-",
         each["server_sees"], each["up"])
        for each in every
    )  # fmt: skip
    heads = ("request", "holds", "reply", "holds", "the server looks at", "on the wire, up")
    return section(
        "Who saw what", "By message; what each field reveals: isthmus show algorithm.", _table(Table(heads, rows))
    )


def _spent(story: Story) -> str:
    names = list(story.spent)
    if not names:
        return ""
    lines = [
        Line(name, [(float(e["round"]), float(e["spent"][name])) for e in story.rounds if name in e.get("spent", {})])
        for name in names
    ]
    drawn = line_drawing("what guards used up, over rounds", lines, "round")
    shown = _spaced([x for x, _ in lines[0].points], MOST_ROWS)
    each = [dict(line.points) for line in lines]
    rows = tuple((f"{at:g}", *(_number(values.get(at)) for values in each)) for at in shown)
    return section(
        "What guards used up", "", legend(names), drawn, _folded("numbers", _table(Table(("round", *names), rows)))
    )


def _monitors(story: Story) -> Iterator[str]:
    """Yield what each monitor measured: over rounds, and the last of it."""
    for name, events in story.monitors.items():
        points = [(float(event["round"]), float(event["mean"])) for event in events if event.get("mean") is not None]
        band = [
            (float(event["round"]), float(event["least"]), float(event["largest"]))
            for event in events
            if event.get("least") is not None and event.get("largest") is not None
        ]
        drawn = line_drawing(f"{name} over rounds", [Line(name, points, band)], "round") if len(points) > 1 else ""
        last = events[-1]
        yield section(
            name, monitor_line(dict(last)), drawn, _map(last), _folded("numbers", _table(_measured_table(events)))
        )


def _map(event: Event) -> str:
    matrix = event.get("matrix")
    if not matrix or len(matrix) > 200:
        return ""
    label = f"{event['name']}, round {event['round']}"
    return tag("div", heat_map(label, event["clients"], matrix, event["largest"] or 0.0, 4), class_="scroll")


def _measured_table(events: Sequence[Event]) -> Table:
    shown = [events[round(i)] for i in _spaced([float(i) for i in range(len(events))], MOST_ROWS)]
    rows = tuple((str(e["round"]), *(_number(e.get(key)) for key in ("mean", "least", "largest"))) for e in shown)
    return Table(("round", "mean", "least", "largest"), rows)


def _notes(story: Story) -> str:
    if not story.notes:
        return ""
    lines = (
        f"<li>{escape(f'round {at}: ' if at else '')}{escape(words)}</li>" for at, words in story.notes[:MOST_TOLD]
    )
    more = f" The first {MOST_TOLD} of {len(story.notes):,}." if len(story.notes) > MOST_TOLD else ""
    return section("Notes", f"What the course said of itself.{more}", tag("ul", *lines))


def _again(story: Story, command: str) -> str:
    digest = story.course.get("data")
    words = f"On the same data (digest {digest}) and with the same versions it has the same bits." if digest else ""
    return section("How to do it again", words, tag("pre", escape(command))) if command else ""


# ---- in words


def _table(table: Table) -> str:
    return tag("div", table_markup(table), class_="scroll", tabindex="0")


def _folded(title: str, inside: str) -> str:
    return tag("details", tag("summary", escape(title)), inside)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:,.3g} TB"
