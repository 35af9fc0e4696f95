"""Which parameters of a model are shared, by patterns of their names; the others never leave a client.

FedPer (Arivazhagan et al., 2019) shares all but the head, FedBN (Li et al., 2021) all but the normalisation: both are
FedAvg with another list of patterns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import torch

from isthmus.core.errors import BadInput
from isthmus.models.model import ModelFactory

EVERYTHING = ("*",)
ALL_BUT_HEADS = ("*", "!decoder.*")


def check_patterns(patterns: Sequence[str]) -> None:
    """Raise ValueError unless there are patterns, each with something in it besides the mark of an exception."""
    if not patterns:
        raise ValueError('shared is empty; name what clients share, such as "gnn.*", or use algorithm.name=local')
    for pattern in patterns:
        if not pattern.removeprefix("!"):
            raise ValueError(f"shared has {pattern!r}; write a parameter's name, * standing for anything")
    if patterns[0].startswith("!"):
        raise ValueError(f'shared begins with the exception {patterns[0]!r}; write what it is taken from first: "*"')


def shared_names(patterns: Sequence[str], names: Iterable[str]) -> frozenset[str]:
    """Return the names that are shared.

    Each pattern adds the names it matches, one that begins with ! takes them away again; the last that matches decides.
    A pattern that matches nothing is an error that lists the names.
    """
    known = tuple(names)
    shared: set[str] = set()
    for pattern in patterns:
        plain = pattern.removeprefix("!")
        found = {name for name in known if fnmatchcase(name, plain)}
        if not found:
            raise BadInput(f"shared has {pattern!r}, which matches no parameter of the model: {', '.join(known)}")
        shared = shared - found if pattern.startswith("!") else shared | found
    if not shared:
        raise BadInput(f"shared is {list(patterns)}, which leaves nothing to share of {', '.join(known)}")
    return frozenset(shared)


def names_by_classes(model: ModelFactory, input_dim: int) -> tuple[str, ...]:
    """Return the names of the parameters whose shapes depend on the number of classes."""
    with torch.random.fork_rng(devices=[]):
        two, three = (model.build(input_dim, number).state_dict() for number in (2, 3))
    return tuple(name for name in three if name not in two or two[name].shape != three[name].shape)


def require_own_heads(model: ModelFactory, input_dim: int, shared: frozenset[str], classes: Sequence[str]) -> None:
    """Raise BadInput unless all that depends on the classes is personal; `classes` says who has how many."""
    tied = [name for name in names_by_classes(model, input_dim) if name in shared]
    if tied:
        parts = sorted({name.split(".")[0] for name in tied})
        wanted = ", ".join(f'"!{part}.*"' for part in parts)
        hint = f'shared=["*", {wanted}]'
        if parts == ["gnn"]:
            hint = 'give the model a head (model.decoder.name=linear) and keep it: shared=["*", "!decoder.*"]'
        raise BadInput(
            f"clients have different classes ({'; '.join(classes)}), but they share {tied[0]!r}, whose shape depends "
            f"on their number; let each keep its own: {hint}"
        )
