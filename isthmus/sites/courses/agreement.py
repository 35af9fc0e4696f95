"""Server and silos agree on a course before training: same package, same features, same outputs, same classes.

Features and classes are compared by what they are called, in order: as many of them are not the same ones. What silos
need not have in common follows from what their models share (`SiteModels`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from isthmus.config.course import Course
from isthmus.config.load import clients_with_own_models
from isthmus.core.errors import BadInput, CourseFailed
from isthmus.core.federation import InitialModel
from isthmus.models.model import EVERYTHING, names_by_classes, names_by_features, require_same_shared, shared_names
from isthmus.runs.simulation import build_model, initial_model, known_parameters
from isthmus.sites.courses.messages import Terms

Names = TypeVar("Names", bound=str | tuple[str, ...])
# What a model ends in: how many outputs, and the names of their classes or tasks, if they have any.
Outputs = tuple[int, tuple[str, ...]]
# What a model begins with: how many features, and a digest of their names, if they have any.
Inputs = tuple[int, str]
# What most silos have in common; None for what everybody may have of its own.
Group = tuple[Inputs | None, Outputs | None]

OTHER_COLUMNS = "its feature columns have other names, or another order, than those of the others"


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
    features: str = ""  # digest of the names of the feature columns; empty where they have none or need not agree
    notes: dict[str, str] = field(default_factory=dict)  # site -> what is odd about it, though it takes part
    schema: str = ""  # digest of the schema that all follow; empty where they do not follow one


@dataclass(frozen=True)
class Freedom:
    """What silos need not have in common, since nothing that depends on it is shared.

    Fields:
        classes:     whether every silo may have classes of its own
        features:    whether every silo may have features of its own
        models:      sites whose settings change the model: they may have both, if what they share has the right shapes
        by_position: whether features and classes without names agree with any of the same number
    """

    classes: bool = False
    features: bool = False
    models: frozenset[str] = frozenset()
    by_position: bool = False


def agree(
    terms: Mapping[str, Terms], version: str, stated: tuple[str, ...] = (), free: Freedom | None = None
) -> Agreement:
    """Compare terms; where they differ, the largest group stands and the others are refused, each with the reason.

    `stated` is the class list of the course, if it has one: then that is what stands. What silos are free to have
    stands for the server as the first of them has it.
    """
    free = free or Freedom()
    if stated:
        free = replace(free, classes=False)
    refused = _unwilling(terms, version, stated)
    willing = _without(refused, terms)
    if not willing:
        raise CourseFailed("no silo takes part: " + "; ".join(f"{site}: {why}" for site, why in refused.items()))
    if free.by_position:
        willing = _named_by_position(willing)
    bound = _without(free.models, willing)
    refused |= _differing(bound, _largest_group((bound or willing).values(), free))
    agreed = _without(refused, willing)
    first = next(iter((_without(refused, bound) or agreed).values()))
    return _agreement_of(agreed, first, refused, free)


def _without(sites: Container[str], terms: Mapping[str, Terms]) -> dict[str, Terms]:
    return {site: found for site, found in terms.items() if site not in sites}


def _unwilling(terms: Mapping[str, Terms], version: str, stated: tuple[str, ...]) -> dict[str, str]:
    """Return who takes no part whatever the others say: by its own will, its version, or the course's classes."""
    refused = {site: found.refusal for site, found in terms.items() if found.refusal}
    for site, found in terms.items():
        if site not in refused and found.version != version:
            refused[site] = f"it runs isthmus {found.version}, the server runs {version}; install the same version"
        if site not in refused and stated and found.class_names != stated:
            refused[site] = _class_difference(found.class_names, stated)
    return refused


def _largest_group(terms: Iterable[Terms], free: Freedom) -> Group:
    """Return the inputs and outputs that most have."""
    # Counter keeps the order of first mention among equals, so the order of the sites decides a tie.
    groups = Counter(
        (None if free.features else inputs_of(found), None if free.classes else outputs_of(found)) for found in terms
    )
    return groups.most_common(1)[0][0]


def _differing(terms: Mapping[str, Terms], group: Group) -> dict[str, str]:
    """Return who has other inputs or outputs than a group, and how they differ."""
    inputs, outputs = group
    refused = {}
    for site, found in terms.items():
        if inputs is not None and inputs_of(found) != inputs:
            refused[site] = _input_difference(inputs_of(found), inputs)
        elif outputs is not None and outputs_of(found) != outputs:
            refused[site] = _output_difference(outputs_of(found), outputs)
    return refused


def _agreement_of(agreed: Mapping[str, Terms], first: Terms, refused: dict[str, str], free: Freedom) -> Agreement:
    """Return what sites have agreed on; `first` is what stands for the server."""
    output_dim, class_names = outputs_of(first)
    own_models = {site: found for site, found in agreed.items() if site in free.models}
    own_outputs = agreed if free.classes else own_models
    own_inputs = agreed if free.features else own_models
    return Agreement(
        input_dim=first.input_dim,
        output_dim=output_dim,
        class_names=class_names,
        refused=refused,
        holds={site: found.holds for site, found in agreed.items()},
        own={site: outputs_of(found) for site, found in own_outputs.items()},
        inputs={site: found.input_dim for site, found in own_inputs.items()},
        features="" if free.features else first.features,
        notes={} if free.features else _scale_notes(agreed),
        schema=_common_schema(agreed),
    )


def _common_schema(agreed: Mapping[str, Terms]) -> str:
    schemas = {found.schema for found in agreed.values()}
    return schemas.pop() if len(schemas) == 1 else ""


def _named_by_position(terms: Mapping[str, Terms]) -> dict[str, Terms]:
    """Return terms in which what has no names has those that most others of the same number have."""
    features = _most_common(terms.values(), lambda found: (found.input_dim, found.features))
    classes = _most_common(terms.values(), outputs_of)
    return {
        site: replace(
            found,
            features=found.features or features.get(found.input_dim, ""),
            class_names=found.class_names or classes.get(found.output_dim, ()),
        )
        for site, found in terms.items()
    }


def _most_common(terms: Iterable[Terms], of: Callable[[Terms], tuple[int, Names]]) -> dict[int, Names]:
    """Return for each number of things the names that most have, of those that have any."""
    counts = Counter(of(found) for found in terms if of(found)[1])
    best: dict[int, Names] = {}
    for (number, names), _ in counts.most_common():
        best.setdefault(number, names)
    return best


def outputs_of(terms: Terms) -> Outputs:
    """Return what a model for a silo's data ends in."""
    return terms.output_dim, terms.class_names


def inputs_of(terms: Terms) -> Inputs:
    """Return what a model for a silo's data begins with."""
    return terms.input_dim, terms.features


def _scale_notes(agreed: Mapping[str, Terms]) -> dict[str, str]:
    """Return who follows another schema than most although the columns have the same names: other means, say."""
    schemas = Counter(found.schema for found in agreed.values() if found.schema)
    if len(schemas) < 2:
        return {}
    (usual, _), *_ = schemas.most_common(1)
    text = (
        "has feature columns of the same names by another schema than most others: other means or deviations, say; "
        "dataset.schema_digest in the course refuses such silos"
    )
    return {site: text for site, found in agreed.items() if found.schema not in ("", usual)}


def _input_difference(own: Inputs, others: Inputs) -> str:
    free = (
        "silos may have their own where nothing shared depends on them: model.encoder.name=linear, "
        'shared=["*", "!encoder.*"]'
    )
    if own[0] != others[0]:
        return f"its nodes have {own[0]} features, the others' have {others[0]}; {free}"
    if own[1] and others[1]:
        return OTHER_COLUMNS
    has = "names, those of the others have none" if own[1] else "no names, those of the others have"
    return f"its feature columns have {has}; give all of them names, or set dataset.by_position=true in the course"


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


class SiteModels:
    """The models of a course between sites: the course's own, and those that settings of single sites make of it."""

    def __init__(self, course: Course) -> None:
        self.course = course
        self.own = frozenset(clients_with_own_models(course))
        self.known = known_parameters(course)
        self.shared: InitialModel | None = None
        listed: tuple[str, ...] = getattr(course.dataset, "class_names", ())
        self.stated = listed if course.task.outputs_are_classes else ()
        self.by_position = bool(getattr(course.dataset, "by_position", False))

    def freedom(self) -> Freedom:
        """Return what silos may have of their own: that on which nothing shared depends."""
        if self.course.sharing == EVERYTHING:
            return Freedom(models=self.own, by_position=self.by_position)
        model = self.course.model
        shared = shared_names(self.course.sharing, build_model(self.course, 1, 1).state_dict(), self.known)
        # Where outputs are no classes, all silos have the same number of them.
        classes = self.course.task.outputs_are_classes and not shared.intersection(names_by_classes(model, 1))
        features = not shared.intersection(names_by_features(model, 1))
        return Freedom(classes, features, self.own, self.by_position)

    def initial(self, agreement: Agreement) -> InitialModel:
        """Return what the course starts from; raises BadInput when a silo's own model shares something else."""
        built = build_model(self.course, agreement.input_dim, agreement.output_dim)
        self.shared = initial_model(self.course, built, self.known)
        for site in self.own.intersection(agreement.holds):
            self._check(site, agreement.inputs[site], agreement.own[site][0])
        return self.shared

    def problem(self, site: str, terms: Terms) -> str:
        """Return why the model of a silo that comes late does not fit, or nothing."""
        try:
            if site in self.own:
                self._check(site, terms.input_dim, terms.output_dim)
        except BadInput as error:
            return str(error)
        return ""

    def _check(self, site: str, input_dim: int, output_dim: int) -> None:
        assert self.shared is not None
        slots = build_model(self.course, input_dim, output_dim, site).state_dict()
        shared = shared_names(self.course.sharing, slots, self.known)
        theirs = {name: slot for name, slot in slots.items() if name in shared}
        require_same_shared(self.course.sharing, self.shared.params, site, theirs)
