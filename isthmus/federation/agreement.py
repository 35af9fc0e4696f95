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
    own: dict[str, Outputs] = field(default_factory=dict)  # site -> its outputs, where it may have its own
    inputs: dict[str, int] = field(default_factory=dict)  # site -> its features, where it may have its own


@dataclass(frozen=True)
class Freedom:
    """What silos need not have in common, since nothing that depends on it is shared.

    Fields:
        classes:  whether every silo may have classes of its own
        features: whether every silo may have features of its own
        models:   sites whose settings change the model: they may have both, if what they share has the right shapes
    """

    classes: bool = False
    features: bool = False
    models: frozenset[str] = frozenset()


def agree(
    terms: Mapping[str, Terms], version: str, stated: tuple[str, ...] = (), free: Freedom | None = None
) -> Agreement:
    """Compare terms; where they differ, the largest group stands and the others are refused, each with the reason.

    `stated` is the class list of the course, if it has one: then that is what stands. What silos are free to have
    stands for the server as the first of them has it.
    """
    free = free or Freedom()
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
    plain = {site: found for site, found in willing.items() if site not in free.models}
    own_classes = free.classes and not stated
    groups = Counter(
        (None if free.features else found.input_dim, None if own_classes else outputs_of(found))
        for found in (plain or willing).values()
    )
    (input_dim, outputs), _ = groups.most_common(1)[0]
    for site, found in plain.items():
        if input_dim is not None and found.input_dim != input_dim:
            refused[site] = _feature_difference(found.input_dim, input_dim)
        elif outputs is not None and outputs_of(found) != outputs:
            refused[site] = _output_difference(outputs_of(found), outputs)
    agreed = {site: found for site, found in willing.items() if site not in refused}
    first = next(found for site, found in (plain or willing).items() if site in agreed)
    return Agreement(
        first.input_dim,
        *outputs_of(first),
        refused,
        {site: found.holds for site, found in agreed.items()},
        {site: outputs_of(found) for site, found in agreed.items() if own_classes or site in free.models},
        {site: found.input_dim for site, found in agreed.items() if free.features or site in free.models},
    )


def outputs_of(terms: Terms) -> Outputs:
    """Return what a model for a silo's data ends in."""
    return terms.output_dim, terms.class_names


def _feature_difference(own: int, others: int) -> str:
    return (
        f"its nodes have {own} features, the others' have {others}; silos may have their own where nothing shared "
        'depends on them: model.encoder.name=linear, shared=["*", "!encoder.*"]'
    )


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
