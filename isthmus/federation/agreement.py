"""Server and silos agree on a course before training: same package, same features, same classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from isthmus.core.errors import CourseFailed
from isthmus.federation.messages import Terms


@dataclass(frozen=True)
class Agreement:
    """What the silos have in common, and who was refused for what."""

    input_dim: int
    class_names: tuple[str, ...]
    refused: dict[str, str]  # site -> reason
    holds: dict[str, str]  # site -> what it holds


def agree(terms: Mapping[str, Terms], version: str, stated: tuple[str, ...] = ()) -> Agreement:
    """Compare terms; where they differ, the largest group stands and the others are refused, each with the reason.

    `stated` is the class list of the course, if it has one: then that is what stands.
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
    (input_dim, class_names), _ = Counter((t.input_dim, t.class_names) for t in willing.values()).most_common(1)[0]
    for site, found in willing.items():
        if found.input_dim != input_dim:
            refused[site] = f"its nodes have {found.input_dim} features, the others' have {input_dim}"
        elif found.class_names != class_names:
            refused[site] = _class_difference(found.class_names, class_names)
    holds = {site: found.holds for site, found in willing.items() if site not in refused}
    return Agreement(input_dim, class_names, refused, holds)


def _class_difference(own: tuple[str, ...], others: tuple[str, ...]) -> str:
    extra, missing = [c for c in own if c not in others], [c for c in others if c not in own]
    facts = [f"it has the class {c!r}, the others do not" for c in extra[:1]]
    facts += [f"it lacks the class {c!r}" for c in missing[:1]]
    if not facts:
        facts = [f"it has its classes in the order {', '.join(own)}, the others in the order {', '.join(others)}"]
    return "; ".join(facts) + "; state the same dataset.class_names in the course"
