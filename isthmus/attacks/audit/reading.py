"""An audit as it is asked for: a course or an audit file, and what the words of a command add to it.

title: What FedAvg gives away
base: {rounds: 50, algorithm.local_steps: 1}
attacks: [vocabulary, {name: lira, shadows: 64}]
guards: [secure_sum, [quantise, entropy]]
seeds: 5
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isthmus.attacks import ATTACKS, Attack
from isthmus.attacks.audit.spec import Audit, Guards
from isthmus.config.build import Builder
from isthmus.config.load import load_course, nested
from isthmus.core.errors import BadInput, refuse
from isthmus.core.guards.guard import Guard
from isthmus.core.outside import parse_yaml, read_yaml

SEEDS = 5


@dataclass(frozen=True)
class AuditFile:
    """What an audit file says.

    Fields:
        base:    keys of the course that is attacked
        title:   what the audit is called
        attacks: what is tried; by default every attack that can be
        guards:  each a guard or a list of them, that takes the place of the course's own; these come first
        seeds:   how many, from the course's own on
    """

    base: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    attacks: tuple[Attack, ...] = ()
    guards: tuple[Guards, ...] = ()
    seeds: int = SEEDS

    def __post_init__(self) -> None:
        refuse(self.seeds < 1, self, "seeds", "it must be at least 1")


def read_audit(
    source: str | Path | None,
    overrides: Iterable[str] = (),
    *,
    attacks: Sequence[str] = (),
    guards: Sequence[str] = (),
    seeds: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Audit:
    """Return the audit of a course file, an audit file or the default course; words are of the command line.

    Attacks of words take the place of the file's, guards of words are tried beside them. A guard that the course cannot
    have is refused here, before anything is run.
    """
    told, base = _told(source)
    course = load_course(source if base is None else base, overrides, named=str(source or ""), say=say)
    chosen = _attacks(attacks) or told.attacks or tuple(kind() for kind in ATTACKS.values())
    lines = (course.guards, *(line for line in (*told.guards, *map(_line, guards)) if line != course.guards))
    first = course.seed
    try:
        made = Audit(course, chosen, lines, tuple(range(first, first + (seeds or told.seeds))), told.title)
        list(made.cells())
    except ValueError as error:
        raise BadInput(f"{source or 'command line'}: {error}") from None
    return made


def _told(source: str | Path | None) -> tuple[AuditFile, Mapping[str, Any] | None]:
    """Return what an audit file says, and the keys of its course; None where it is a course file, or none."""
    raw = read_yaml(Path(source)) if source else {}
    if not {"base", "attacks"} & raw.keys():
        return AuditFile(), None
    builder = Builder(str(source))
    if isinstance(raw.get("guards"), list):
        raw["guards"] = [line if isinstance(line, list) else [line] for line in raw["guards"]]
    told: AuditFile = builder.fields(AuditFile, raw, "")
    return told, nested(told.base, builder.place("base"))


def _attacks(words: Sequence[str]) -> tuple[Attack, ...]:
    plain = [parse_yaml(word, "command line: an attack") for word in words]
    found: tuple[Attack, ...] = Builder("command line").build(tuple[Attack, ...], plain, "--attacks")
    return found


def _line(word: str) -> Guards:
    plain = parse_yaml(word, "command line: guards")
    found: Guards = Builder("command line").build(
        tuple[Guard, ...], plain if isinstance(plain, list) else [plain], "--guards"
    )
    return found
