"""Server and silos agree on a course before training: same package, same features, same outputs, same classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from isthmus.core.errors import CourseFailed
from isthmus.federation.messages import Terms

# What a model ends in: how many outputs, and the names of their classes or tasks, if they have any.
Outputs = tuple[int, tuple[str, ...]]


@dataclass(frozen=True)
class Agreement:
    """What the silos have in common, and who was refused for what."""

    input_dim: int
    output_dim: int
    class_names: tuple[str, ...]
    refused: dict[str, str]  # site -> reason
    holds: dict[str, str]  # site -> what it holds
    own: dict[str, Outputs] = field(default_factory=dict)  # site -> its outputs, where each has its own


def agree(
    terms: Mapping[str, Terms], version: str, stated: tuple[str, ...] = (), own_classes: bool = False
) -> Agreement:
    """Compare terms; where they differ, the largest group stands and the others are refused, each with the reason.

    `stated` is the class list of the course, if it has one: then that is what stands. With `own_classes` every silo
    may have classes of its own, since nothing that depends on them is shared; those of the first stand for the server.
    """
    refused = {site: found.refusal for site, found in terms.items() if found.refusal}
    for site, found in terms.items():
        if site not in refused and found.version != version:
            refused[site] = f"it runs isthmus {found.version}, the server runs {version}; install the same version"
        if site not in refused and stated and found.class_names != stated:
            refused[site] = _class_difference(found.class_names, stated)
    willing = {site: found for site, found in terms.items() if site not in refused}
    if not willing:
        raise CourseFailed("no silo takes part: " + "; ".join(f"{site}: {why}" for site, why in refused.items()))
    # Counter keeps the order of first mention among equals, so the order of the sites decides a tie.
    free = own_classes and not stated
    groups = Counter((t.input_dim, None if free else outputs_of(t)) for t in willing.values())
    (input_dim, outputs), _ = groups.most_common(1)[0]
    for site, found in willing.items():
        if found.input_dim != input_dim:
            refused[site] = f"its nodes have {found.input_dim} features, the others' have {input_dim}"
        elif outputs is not None and outputs_of(found) != outputs:
            refused[site] = _output_difference(outputs_of(found), outputs)
    agreed = {site: found for site, found in willing.items() if site not in refused}
    holds = {site: found.holds for site, found in agreed.items()}
    if outputs is not None:
        return Agreement(input_dim, *outputs, refused, holds)
    own = {site: outputs_of(found) for site, found in agreed.items()}
    return Agreement(input_dim, *next(iter(own.values())), refused, holds, own)


def outputs_of(terms: Terms) -> Outputs:
    """Return what a model for a silo's data ends in."""
    return terms.output_dim, terms.class_names


def _output_difference(own: Outputs, others: Outputs) -> str:
    if own[1] != others[1]:
        return _class_difference(own[1], others[1])
    return (
        f"its labels ask for a model with {own[0]} outputs, the others' for one with {others[0]}; state the same "
        "dataset.class_names in the course"
    )


def _class_difference(own: tuple[str, ...], others: tuple[str, ...]) -> str:
    extra, missing = [c for c in own if c not in others], [c for c in others if c not in own]
    facts = [f"it has the class {c!r}, the others do not" for c in extra[:1]]
    facts += [f"it lacks the class {c!r}" for c in missing[:1]]
    if not facts:
        facts = [f"it has its classes in the order {', '.join(own)}, the others in the order {', '.join(others)}"]
    return "; ".join(facts) + "; state the same dataset.class_names in the course"
