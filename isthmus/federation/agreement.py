"""Server and silos agree on a course before training: same package, same features, same classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from isthmus.core.errors import CourseFailed
from isthmus.federation.messages import Terms


@dataclass(frozen=True)
class Agreement:
    """What the silos have in common, and who was refused for what."""

    input_dim: int
    class_names: tuple[str, ...]
    refused: dict[str, str]  # site -> reason
    holds: dict[str, str]  # site -> what it holds
    classes_of: dict[str, tuple[str, ...]] = field(default_factory=dict)  # site -> its classes, where each has its own


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
    groups = Counter((t.input_dim, () if free else t.class_names) for t in willing.values())
    (input_dim, class_names), _ = groups.most_common(1)[0]
    for site, found in willing.items():
        if found.input_dim != input_dim:
            refused[site] = f"its nodes have {found.input_dim} features, the others' have {input_dim}"
        elif not free and found.class_names != class_names:
            refused[site] = _class_difference(found.class_names, class_names)
    agreed = {site: found for site, found in willing.items() if site not in refused}
    holds = {site: found.holds for site, found in agreed.items()}
    if not free:
        return Agreement(input_dim, class_names, refused, holds)
    classes = {site: found.class_names for site, found in agreed.items()}
    return Agreement(input_dim, next(iter(classes.values())), refused, holds, classes)


def _class_difference(own: tuple[str, ...], others: tuple[str, ...]) -> str:
    extra, missing = [c for c in own if c not in others], [c for c in others if c not in own]
    facts = [f"it has the class {c!r}, the others do not" for c in extra[:1]]
    facts += [f"it lacks the class {c!r}" for c in missing[:1]]
    if not facts:
        facts = [f"it has its classes in the order {', '.join(own)}, the others in the order {', '.join(others)}"]
    return "; ".join(facts) + "; state the same dataset.class_names in the course"
