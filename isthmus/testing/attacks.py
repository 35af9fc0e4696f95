"""What every attack must keep to, as one check for attacks of one's own.

    from isthmus.testing import check_attack
    check_attack(MyAttack(my_field=3))

The attack is made on a toy course, or on one of yours. AssertionError says which rule is broken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from isthmus.algorithms import FedAvg
from isthmus.attacks.attack import LESS, POSITIONS, Attack, Case, NothingSeen, Seen, Shadowed
from isthmus.attacks.listening import Overhearing
from isthmus.attacks.poisoning import poisoned, run_poisoned
from isthmus.attacks.spoiling import Spoiling
from isthmus.config.course import Course
from isthmus.core.errors import nearest
from isthmus.core.training import run_course
from isthmus.learn.optimizers import SGD
from isthmus.models import GCN, ModelSpec
from isthmus.runs.simulated import run
from isthmus.runs.simulation import Scenario, Simulation
from isthmus.testing.inspection import require_frozen, require_sayable
from isthmus.testing.toys import toy_course, toy_scenario
from isthmus.testing.traces import Trace, require_same


@dataclass(frozen=True, eq=False)
class Attacked:
    """An attack, a course that it is made on, and what it saw there."""

    attack: Attack
    case: Case
    known: Any
    truth: Any
    seen: Seen


def check_attack(
    attack: Attack, *, course: Course | None = None, scenario: Scenario | None = None, skip: Sequence[str] = ()
) -> list[str]:
    """Run every check (`ATTACK_CHECKS`) but those in `skip`; raise AssertionError for a broken rule.

    Returns the names of the checks that were made. By default the course is FedAvg with one step of plain SGD a round
    and a GCN without dropout, on three toy clients.
    """
    for name in skip:
        if name not in ATTACK_CHECKS:
            raise ValueError(f"skip has {name!r}; {nearest(name, ATTACK_CHECKS)}")
    plain = ModelSpec(GCN(hidden=5, dropout=0.0))
    made = course or toy_course(FedAvg(local_steps=1, optimizer=SGD(lr=0.1)), model=plain, rounds=2, runtime="auto")
    scenario = scenario or toy_scenario(made.num_clients)
    names = [name for name in ATTACK_CHECKS if name not in skip]
    for name in names:
        try:
            ATTACK_CHECKS[name](attack, made, scenario)
        except AssertionError as error:
            raise AssertionError(f"{type(attack).__name__}, check {name!r}: {error}") from error
    return names


def attacked(attack: Attack, course: Course, scenario: Scenario) -> Attacked:
    """Run a course with an ear on it, with what the attack does to it, and the shadows that it wants."""
    case = Case(course, scenario)
    tamperings = attack.tampering(case)
    if isinstance(attack, Spoiling):
        case = replace(case, clean=run(course, scenario=scenario))
    found, held, _ = poisoned(course, scenario, tamperings)
    _, final, listening, initial = _heard(attack, found, held)
    known = attack.known(case)
    seen = listening.seen(attack, case, initial, final)
    if isinstance(attack, Spoiling):
        seen = replace(seen, result=run_poisoned(course, *tamperings, scenario=scenario))
    if isinstance(attack, Shadowed):
        gists = []
        for number in range(attack.num_shadows):
            shadow = attack.shadow(case, known, number)
            gists.append(attack.gist(shadow, known, run(shadow.course, scenario=shadow.scenario)))
        seen = seen.beside(gists)
    return Attacked(attack, case, known, attack.truth(case, known), seen)


def _heard(attack: Attack | None, course: Course, scenario: Scenario) -> tuple[Trace, Any, Overhearing, Any]:
    simulation = Simulation(course, scenario)
    trace = Trace(simulation.initial.params, tuple(simulation.clients))
    listening = Overhearing([] if attack is None else [attack])
    run_course(
        course.algorithm,
        simulation.runtime,
        replace(course.plan(), checkpoint_every=1),
        simulation.initial,
        [trace],
        own=simulation.own,
        listener=None if attack is None else listening,
    )
    final = course.algorithm.global_params(trace.standings[trace.last].best_state)
    return trace, final, listening, simulation.initial.params


# ---- the checks


def check_frozen(attack: Attack, course: Course, scenario: Scenario) -> None:
    """Check that it is a frozen, hashable dataclass whose fields a command can say."""
    require_frozen(attack)
    require_sayable(attack, "attacks")


def check_words(attack: Attack, course: Course, scenario: Scenario) -> None:
    """Check that it says where it stands, what it learns and what it knows beforehand."""
    if attack.position not in POSITIONS:
        raise AssertionError(f"position is {attack.position!r}; it is one of {', '.join(POSITIONS)}")
    for field in ("learns", "knows", "measures"):
        if not getattr(attack, field):
            raise AssertionError(f"{field} is empty; say it in words")


def check_applies(attack: Attack, course: Course, scenario: Scenario) -> None:
    """Check that it can be made on the course: else nothing below says anything."""
    problem = attack.problem(course)
    if problem:
        raise AssertionError(f"it cannot be made on this course ({problem}); give check_attack one that it can")


def check_changes_nothing(attack: Attack, course: Course, scenario: Scenario) -> None:
    """Check that the course has the same bits whether it is heard or not, by who does not say that it tampers."""
    if attack.tampering(Case(course, scenario)):
        return
    plain, heard = _heard(None, course, scenario)[0], _heard(attack, course, scenario)[0]
    require_same(plain.values(), heard.values(), "the course with an ear on it")


def check_scores(attack: Attack, course: Course, scenario: Scenario) -> None:
    """Check that guesses and the prior have scores of its measures, and that nothing is better than the truth."""
    made = attacked(attack, course, scenario)
    guess = attack.scores(attack.guess(made.seen, made.known), made.truth)
    prior = attack.scores(attack.prior(made.known, made.case.clients), made.truth)
    best = attack.scores(made.truth, made.truth)
    for what, scores in (("a guess", guess), ("the prior", prior), ("the truth", best)):
        if set(scores) != set(attack.measures):
            raise AssertionError(f"the scores of {what} are {sorted(scores)}, its measures {sorted(attack.measures)}")
    for name in attack.measures:
        sign = -1.0 if name in LESS else 1.0
        for what, scores in (("a guess", guess), ("the prior", prior)):
            if sign * scores[name] > sign * best[name] + 1e-9:
                raise AssertionError(f"{what} has {name} {scores[name]:g}, better than the truth's {best[name]:g}")
        if math.isnan(best[name]):
            raise AssertionError(f"{name} of the truth itself is not a number")


def check_repeats(attack: Attack, course: Course, scenario: Scenario) -> None:
    """Check that the same messages give the same guess."""
    made = attacked(attack, course, scenario)
    first, second = (attack.scores(attack.guess(made.seen, made.known), made.truth) for _ in range(2))
    if not _same(first, second):
        raise AssertionError(f"the same messages gave {first}, then {second}; draw from streams of the case alone")


def check_sees_only_messages(attack: Attack, course: Course, scenario: Scenario) -> None:
    """Check that without a message and without a model it says that it sees nothing, or guesses as the prior does."""
    made = attacked(attack, course, scenario)
    blind = replace(made.seen, messages=(), final={}, shadows=(), result=None)
    try:
        found = attack.scores(attack.guess(blind, made.known), made.truth)
    except NothingSeen:
        return
    except Exception as error:
        raise AssertionError(
            f"where it sees nothing it raised {type(error).__name__} ({error}); raise NothingSeen with the reason"
        ) from error
    prior = attack.scores(attack.prior(made.known, made.case.clients), made.truth)
    if not _same(found, prior):
        raise AssertionError(
            f"where it sees nothing its guess has {found}, the prior {prior}: it knows more than it says"
        )


def _same(one: dict[str, float], other: dict[str, float]) -> bool:
    return all(one[name] == other[name] or (math.isnan(one[name]) and math.isnan(other[name])) for name in one)


ATTACK_CHECKS: dict[str, Callable[[Attack, Course, Scenario], None]] = {
    "frozen": check_frozen,
    "words": check_words,
    "applies": check_applies,
    "changes_nothing": check_changes_nothing,
    "scores": check_scores,
    "repeats": check_repeats,
    "sees_only_messages": check_sees_only_messages,
}
