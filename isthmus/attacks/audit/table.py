"""An audit as tables and words: what was found beside what anybody could guess, and what guards cost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isthmus.attacks import Attack
from isthmus.attacks.attack import LESS, ROWS
from isthmus.attacks.audit.running import FAILED, Carried, Row
from isthmus.attacks.audit.spec import guards_told, told
from isthmus.attacks.spoiling import Spoiling
from isthmus.core.exposure import Exchange, exposure
from isthmus.core.outside import some
from isthmus.report.summary import Table

# Of a Student's t interval.
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Mean:
    """Numbers of several seeds: their mean, and half the width of its interval (NaN for a single one)."""

    value: float
    half: float
    number: int

    @staticmethod
    def of(values: Sequence[float]) -> Mean:
        """Return the mean of what is a number."""
        found = [value for value in values if not math.isnan(value)]
        if not found:
            return Mean(math.nan, math.nan, 0)
        return Mean(statistics.fmean(found), half_width(found), len(found))

    def __str__(self) -> str:
        if not self.number:
            return "-"
        return f"{self.value:.3f}" + ("" if math.isnan(self.half) else f" ± {self.half:.3f}")


def half_width(values: Sequence[float]) -> float:
    """Return half the width of the interval of a mean; NaN for a single number."""
    if len(values) < 2:
        return math.nan
    from scipy.stats import t

    spread = statistics.stdev(values) / math.sqrt(len(values))
    return float(t.ppf(0.5 + CONFIDENCE / 2, len(values) - 1)) * spread


@dataclass(frozen=True)
class Found:
    """What an attack came to under a list of guards, over all seeds.

    Fields:
        scores, priors: by measure
        gains:          by measure, of the differences to the prior seed by seed; larger is better for the attacker
        reasons:        why nothing was seen, where that was so
    """

    attack: Attack
    guards: str
    scores: Mapping[str, Mean]
    priors: Mapping[str, Mean]
    gains: Mapping[str, Mean]
    reasons: tuple[str, ...]

    @property
    def learns(self) -> bool:
        """Whether the first measure is above the prior by more than its interval."""
        gain = self.gains[self.attack.measures[0]]
        return gain.number > 1 and gain.value - gain.half > 0.0

    def facts(self) -> dict[str, Any]:
        """Return it as plain values."""
        each = {"scores": self.scores, "priors": self.priors, "gains": self.gains}
        numbers = {what: {name: _facts(mean) for name, mean in found.items()} for what, found in each.items()}
        return {
            "attack": told(self.attack),
            "position": self.attack.position,
            "guards": self.guards,
            **numbers,
            "learns": self.learns,
            "reasons": list(self.reasons),
        }


def findings(carried: Carried) -> Iterator[Found]:
    """Yield what each attack came to under each list of guards."""
    for attack in carried.audit.attacks:
        if told(attack) in carried.skipped:
            continue
        for guards in map(guards_told, carried.audit.lines):
            rows = [r for r in carried.rows if r.get("attack") == told(attack) and r["guards"] == guards]
            if rows:
                yield _found(attack, guards, rows)


def _found(attack: Attack, guards: str, rows: Sequence[Row]) -> Found:
    scores, priors, gains = {}, {}, {}
    for name in attack.measures:
        found, before = ([row[what][name] for row in rows] for what in ("scores", "prior"))
        scores[name], priors[name] = Mean.of(found), Mean.of(before)
        sign = -1.0 if name in LESS else 1.0
        gains[name] = Mean.of([sign * (one - other) for one, other in zip(found, before, strict=True)])
    reasons = tuple(dict.fromkeys(row["reason"] for row in rows if row["reason"]))
    return Found(attack, guards, scores, priors, gains, reasons)


def attack_table(found: Sequence[Found]) -> Table:
    """Return a row for each attack and list of guards: measures, each with the prior's in brackets."""
    most = max((len(each.attack.measures) for each in found), default=0)
    headings = ("attack", "position", "guards", *("score (prior)" for _ in range(most)), "seeds")
    rows = []
    for each in found:
        cells = [f"{name} {each.scores[name]} ({each.priors[name]})" for name in each.attack.measures]
        cells += [""] * (most - len(cells))
        number = max(mean.number for mean in each.scores.values())
        rows.append((told(each.attack), each.attack.position, each.guards, *cells, str(number)))
    return Table(headings, tuple(rows))


def cost_table(carried: Carried) -> Table:
    """Return a row for each list of guards: the score, and bytes and seconds beside those of the first list."""
    rows: list[tuple[str, ...]] = []
    first: list[Row] | None = None
    for guards in map(guards_told, carried.audit.lines):
        courses = [row for row in carried.rows if row["what"] == "course" and row["guards"] == guards]
        failed = [f"seed {row['seed']}: {row[FAILED]}" for row in courses if FAILED in row]
        courses = [row for row in courses if FAILED not in row]
        if failed:
            rows.append((guards, f"failed, {some(failed, 2)}", "-", "-", "-", str(len(failed))))
        if not courses:
            continue
        first = first or courses
        ratios = (_ratio(courses, first, what) for what in ("bytes", "seconds"))
        score = Mean.of([math.nan if row["score"] is None else row["score"] for row in courses])
        spent = {name: max(row["spent"].get(name, 0.0) for row in courses) for row in courses for name in row["spent"]}
        words = ", ".join(f"{name} {value:.3g}" for name, value in spent.items()) or "-"
        rows.append((guards, f"{courses[0]['metric']} {score}", *ratios, words, str(len(courses))))
    return Table(("guards", "score", "bytes", "seconds", "used up", "seeds"), tuple(rows))


def _ratio(courses: Sequence[Row], first: Sequence[Row], what: str) -> str:
    before = {row["seed"]: row[what] for row in first}
    found = [row[what] / before[row["seed"]] for row in courses if before.get(row["seed"])]
    return f"{statistics.fmean(found):.2f}" if found else "-"


# ---- in words


def in_words(carried: Carried, found: Sequence[Found]) -> list[str]:
    """Return by message what attacks learned of it, under the first list of guards, and what no attack here reads."""
    first = guards_told(carried.audit.lines[0])
    here = [each for each in found if each.guards == first]
    lines = [_sentence(each, "the model that everybody has at the end") for each in here if not each.attack.reads]
    for exchange in exposure(type(carried.audit.course.algorithm), carried.audit.lines[0]):
        for field in exchange.answered:
            readers = [each for each in here if _reads(each.attack, exchange, field)]
            place = f"{exchange.reply}.{field}"
            lines += [_sentence(each, place) for each in readers]
            if not readers and exchange.server_sees == "each client's":
                lines.append(f"{place} is seen by the server, and no attack here reads it")
    return list(dict.fromkeys(lines))


def _reads(attack: Attack, exchange: Exchange, field: str) -> bool:
    return field in attack.reads or (ROWS in attack.reads and field in exchange.rows)


def _sentence(found: Found, place: str) -> str:
    attack, measure = found.attack, found.attack.measures[0]
    score, prior = found.scores[measure], found.priors[measure]
    if isinstance(attack, Spoiling):
        return _spoilt(found)
    if found.reasons:
        return f"{place} told {told(attack)} nothing: {found.reasons[0]}"
    verb = "learns" if found.learns else "does not learn more than was known of"
    found_out = f"from {place} a {attack.position} {verb} {attack.learns}"
    return f"{found_out} ({told(attack)}: {measure} {score}, by the prior alone {prior})"


def _spoilt(found: Found) -> str:
    """Return what malicious clients came to."""
    each = [f"{name} {found.scores[name]}, without them {found.priors[name]}" for name in found.attack.measures]
    verb = "changes what the model says" if found.learns else "changes no more than chance"
    ended = f" ({found.reasons[0]})" if found.reasons else ""
    return f"{told(found.attack)} by {found.attack.position}s {verb}: {'; '.join(each)}{ended}"


def _facts(mean: Mean) -> dict[str, float | int | None]:
    value, half = (None if math.isnan(each) else round(each, 6) for each in (mean.value, mean.half))
    return {"mean": value, "half": half, "seeds": mean.number}
