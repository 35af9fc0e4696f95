"""What an audit leaves in its folder beside its rows: findings as JSON, tables as Markdown, and a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isthmus.attacks.attack import LESS
from isthmus.attacks.audit.running import Carried
from isthmus.attacks.audit.spec import guards_told, told
from isthmus.attacks.audit.table import Found, attack_table, cost_table, findings, in_words
from isthmus.attacks.spoiling import Spoiling
from isthmus.config.build import name_of
from isthmus.core.outside import replace_file
from isthmus.report.drawing import escape, tag
from isthmus.report.page import page, section, table_markup

GENERATOR = "isthmus audit"
HOW_TO_READ = (
    "Each score stands beside that of the prior in brackets: the guess of somebody who knows as much beforehand and "
    f"sees nothing of the course. Of {', '.join(sorted(LESS))} less is better for the attacker. Numbers are means over "
    "seeds, with half of a 95 % interval."
)


def title_of(carried: Carried) -> str:
    """Return what an audit is called."""
    course = carried.audit.course
    return (
        carried.audit.title or f"What {name_of(type(course.algorithm))} on {name_of(type(course.dataset))} gives away"
    )


def facts_of(carried: Carried) -> dict[str, Any]:
    """Return everything that was found, as plain values."""
    found = list(findings(carried))
    return {
        **carried.audit.facts(),
        "findings": [each.facts() for each in found],
        "courses": [row for row in carried.rows if row["what"] == "course"],
        "skipped": carried.skipped,
        "words": in_words(carried, found),
    }


def write_results(carried: Carried, folder: Path) -> list[Path]:
    """Write what was found; return the files."""
    found = list(findings(carried))
    texts = {
        "findings.json": json.dumps(facts_of(carried), indent=2) + "\n",
        "audit.md": markdown(carried, found),
        "audit.html": html(carried, found),
    }
    for name, text in texts.items():
        replace_file(folder / name, text.encode())
    return [folder / name for name in texts]


def markdown(carried: Carried, found: Sequence[Found]) -> str:
    """Return the tables and the words as Markdown."""
    skipped = [f"- {name} was not tried: {problem}" for name, problem in carried.skipped.items()]
    words = [f"- {line}" for line in in_words(carried, found)]
    parts = [
        f"# {title_of(carried)}",
        HOW_TO_READ,
        attack_table(found).markdown().rstrip(),
        "## What guards cost",
        cost_table(carried).markdown().rstrip(),
        "## In words",
        "\n".join([*words, *skipped, *_unseen(found)]),
    ]
    return "\n\n".join(parts) + "\n"


def _came_to(found: Found) -> str:
    return "left no model to be scored" if isinstance(found.attack, Spoiling) else "saw nothing"


def _unseen(found: Sequence[Found]) -> list[str]:
    """Return a line for each attack that saw nothing under other guards than the first."""
    lines = [
        f"- under {each.guards}, {told(each.attack)} {_came_to(each)}: {each.reasons[0]}"
        for each in found
        if each.reasons
    ]
    return list(dict.fromkeys(lines))


def html(carried: Carried, found: Sequence[Found]) -> str:
    """Return the same as a page."""
    skipped = [f"{name} was not tried: {problem}" for name, problem in carried.skipped.items()]
    lines = [*in_words(carried, found), *skipped, *(line[2:] for line in _unseen(found))]
    items = tag("ul", *(f"<li>{escape(line)}</li>" for line in lines))
    wide = (tag("div", table_markup(table), class_="scroll") for table in (attack_table(found), cost_table(carried)))
    seeds = ", ".join(map(str, carried.audit.seeds))
    guards = "; ".join(map(guards_told, carried.audit.lines))
    return page(
        title_of(carried),
        [
            tag("h1", escape(title_of(carried))),
            tag("p", escape(f"Seeds {seeds}; guards: {guards}.")),
            section("Attacks", HOW_TO_READ, next(wide)),
            section("What guards cost", "Bytes and seconds of a round beside those of the first row.", next(wide)),
            section("In words", "By message, under the first guards.", items),
        ],
        GENERATOR,
    )
