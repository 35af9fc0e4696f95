"""Every method beside every attack and guard: what can be tried, what it came to, and why the rest cannot.

Courses are on Cora with five clients by communities, 30 rounds, methods as they are by default but that clients count
alike where a method lets them, which noise on clients wants. Each is there a second time with one step of plain SGD in
a round, where its settings have that: some attacks read single gradients. What goes with Cora in no way (ratings,
clients that are nodes, users with items) is on data that is generated. Attacks that run federations of their own, those
that take as long as many courses, and who is malicious are in sections by themselves.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import isthmus as ist
from isthmus.algorithms import ALGORITHMS
from isthmus.attacks import (
    ATTACKS,
    Attack,
    EdgesByMatching,
    FeaturesByMatching,
    GradientMembership,
    GraphFromGradient,
    LinkInfluence,
)
from isthmus.attacks.attack import CURIOUS_CLIENT, CURIOUS_SERVER, Shadowed
from isthmus.attacks.audit.running import carry_out
from isthmus.attacks.audit.spec import NO_GUARDS, Audit, Guards, guards_told, told
from isthmus.attacks.audit.table import Found, findings
from isthmus.config.load import load_course
from isthmus.core.errors import BadInput
from isthmus.learn.optimizers import SGD
from isthmus.privacy import ClientDP, Quantise, RowNoise, SecureSum
from isthmus.report.summary import Table

# What a method needs beside its defaults to run at all, as a command line has it.
HEADS = ("model.decoder.name=mlp",)
SELF_SUPERVISED = (*HEADS, "model.activate=true", "model.gnn.batch_norm=true", "algorithm.downstream.steps=20")
NEEDS: Mapping[str, tuple[str, ...]] = {
    "fedrep": HEADS,
    "fedgrl": SELF_SUPERVISED,
    "fedgl": ("splitter.name=random", "splitter.shares=[0.4,0.4,0.4,0.4,0.4]"),
    "fedsage_plus": ("model.gnn.name=sage",),
    "fedgap": ("model.gnn.name=gap", "algorithm.encoder_rounds=10"),
    "fedprogap": ("model.gnn.name=progap", "algorithm.stage_rounds=10"),
    "gfl_appnp": (
        "dataset.name=csbm",
        "num_clients=200",
        "splitter.name=node_hosts",
        "masks.name=public",
        "task.name=node_samples",
        "stopping.metric=loss",
        "model.gnn.name=bias_free_mlp",
        "model.gnn.dropout=0.0",
    ),
    "fedgnn": (
        "dataset.name=hashed_ids",
        "dataset.dataset.name=csr",
        "dataset.dataset.num_users=60",
        "dataset.dataset.num_items=50",
        "dataset.dataset.num_interactions=600",
        "dataset.user_buckets=64",
        "dataset.item_buckets=64",
        "splitter.name=random",
        "task.name=link_classification",
        "model.encoder.name=categorical",
        "model.decoder.name=hadamard_mlp",
        "algorithm.pseudo_items=10",
    ),
}
# They take ten seconds and more for each course, where a course takes one.
LONG = (EdgesByMatching, FeaturesByMatching, GradientMembership, GraphFromGradient, LinkInfluence)
# They tell nobody anything: there is one client, or each is alone.
ALONE = ("local", "global", "local_grl")
LINES: tuple[Guards, ...] = (
    (),
    (SecureSum(),),
    (ClientDP(clip=0.1, noise=1.0, mode="local"),),
    (RowNoise(noise=1.0),),
    (Quantise(bits=1),),
)
ROUNDS = 30
HEAD = """# What methods give away

Every method beside every attack that only listens and is quick, and every guard, as

    python benchmarks/leakage.py --every --seeds {seeds} --data-root DATA --out FOLDER

prints it: Cora, five clients by communities, {rounds} rounds, methods as they are by default but that clients count
alike where a method lets them; `one step` is the same with one step of plain SGD a round. FedGL's clients hold two
fifths of the nodes each, FedGNN is on ratings and GFL-APPNP on a block model with 200 clients of one node, both
generated. Seeds are 0 to {last}.

A cell is the score and, in brackets, that of the prior: the guess of somebody who knows as much and sees nothing; both
are means over the seeds with half of a 95 % interval. `*` marks where an attack learns: its score is above the prior's
by more than the interval of their differences. An empty cell is a guard that the method cannot have, for the reason at
the end of the page, or under which its courses failed; with few seeds intervals are wide. Noise (`client_dp` of one
clip in each client's reply, `row_noise`) was set to be seen, not to be used: `isthmus audit` says what it costs. What
longer attacks, federations of one's own and malicious parties come to is in [attacks](attacks.md).
"""
LISTENING = (CURIOUS_SERVER, CURIOUS_CLIENT)


@dataclass(frozen=True)
class Row:
    """A method as it is attacked: its course, and the guards that it cannot have with the reason."""

    method: str
    variant: str
    course: ist.Course
    lines: tuple[Guards, ...]
    refused: Mapping[str, str]


def rows() -> Iterator[Row]:
    """Yield every method, in its variants."""
    for method in ALGORITHMS:
        if method not in ALONE:
            usual = _course(method)
            yield _row(method, "", usual)
            single = _single_step(usual)
            if single is not None:
                yield _row(method, "one step", single)


def _course(method: str) -> ist.Course:
    words = (f"rounds={ROUNDS}", f"evaluate_every={ROUNDS}", f"algorithm.name={method}", *NEEDS.get(method, ()))
    course = load_course(None, list(words), say=lambda text: None)
    if hasattr(course.algorithm, "weighting"):
        course = replace(course, algorithm=_with(course.algorithm, weighting="uniform"))
    return course


def _with(algorithm: Any, **fields: object) -> Any:
    return replace(algorithm, **fields)


def _single_step(course: ist.Course) -> ist.Course | None:
    """Return a course with one step of plain SGD in a round, where its method has such settings."""
    names = {field.name for field in dataclasses.fields(course.algorithm)}
    if not {"local_steps", "optimizer"} <= names or (
        course.algorithm.local_steps == 1 and course.algorithm.optimizer == SGD(lr=0.25)
    ):
        return None
    return replace(course, algorithm=_with(course.algorithm, local_steps=1, optimizer=SGD(lr=0.25)))


def _row(method: str, variant: str, course: ist.Course) -> Row:
    kept: list[Guards] = []
    refused: dict[str, str] = {}
    for line in LINES:
        try:
            replace(course, guards=line)
        except ValueError as error:
            refused[guards_told(line)] = str(error)
        else:
            kept.append(line)
    return Row(method, variant, course, tuple(kept), refused)


def attacks() -> tuple[Attack, ...]:
    """Return all attacks as they are by default that only listen and are quick."""
    return tuple(
        kind() for kind in ATTACKS.values() if not issubclass(kind, (Shadowed, *LONG)) and kind.position in LISTENING
    )


def show(words: argparse.Namespace) -> None:
    """Carry everything out, and print a table for each attack that learned something somewhere, and the reasons."""
    tried = attacks()
    seeds = tuple(range(1 if words.quick else words.seeds))
    found: dict[str, list[tuple[Row, Found]]] = {}
    cannot: dict[str, dict[str, list[str]]] = {}
    print(HEAD.format(seeds=len(seeds), rounds=ROUNDS, last=seeds[-1]), flush=True)
    chosen = [row for row in rows() if not words.methods or row.method in words.methods]
    for row in chosen:
        made = Audit(row.course, tried, row.lines, seeds)
        for name, problem in made.problems().items():
            cannot.setdefault(name, {}).setdefault(problem, []).append(_name(row))
        try:
            carried = carry_out(made, words.out / _folder(row), data_root=words.data_root, workers=words.workers)
        except BadInput as error:
            print(f"{_name(row)}: {error}\n", flush=True)
            continue
        for each in findings(carried):
            found.setdefault(told(each.attack), []).append((row, each))
    for attack in tried:
        print(f"## {told(attack)}\n\nA {attack.position} learns {attack.learns}. It knows {attack.knows}.\n")
        if told(attack) in found:
            print(_table(found[told(attack)]).markdown())
        for problem, names in cannot.get(told(attack), {}).items():
            print(f"- not tried on {', '.join(names)}: {problem}")
        print()
    print("## Guards that a method cannot have\n")
    for row in chosen:
        for guards, why in row.refused.items():
            if not row.variant:
                print(f"- {row.method}, {guards}: {why}")


def _name(row: Row) -> str:
    return f"{row.method}, {row.variant}" if row.variant else row.method


def _folder(row: Row) -> Path:
    return Path("every") / _name(row).replace(", ", "-").replace(" ", "_")


def _table(found: list[tuple[Row, Found]]) -> Table:
    """Return a row for each method and a column for each list of guards: score (prior), with * where it learns."""
    headings = [NO_GUARDS, *(guards_told(line) for line in LINES if line)]
    cells: dict[str, dict[str, str]] = {}
    for row, each in found:
        measure = each.attack.measures[0]
        text = f"{each.scores[measure]} ({each.priors[measure]})" + (" *" if each.learns else "")
        cells.setdefault(_name(row), {})[each.guards] = text
    body = [(name, *(line.get(guards, "") for guards in headings)) for name, line in cells.items()]
    first = found[0][1].attack.measures[0]
    return Table((f"{first} (prior)", *headings), tuple(body))
