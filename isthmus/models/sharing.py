"""Which parameters of a model are shared, by patterns of their names; the others never leave a client.

FedPer (Arivazhagan et al., 2019) shares all but the head, FedBN (Li et al., 2021) all but the normalisation: both are
FedAvg with another list of patterns.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

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


def shared_names(patterns: Sequence[str], names: Iterable[str], known: Iterable[str] | None = None) -> frozenset[str]:
    """Return which of the names are shared.

    Each pattern adds the names it matches, one that begins with ! takes them away again; the last that matches decides.
    A pattern that matches nothing is an error that lists the names. Where clients have models of their own, `known` are
    the names of all of them: then a pattern has to match one of those.
    """
    mine = tuple(names)
    everywhere = mine if known is None else tuple(dict.fromkeys((*mine, *known)))
    shared: set[str] = set()
    for pattern in patterns:
        plain = pattern.removeprefix("!")
        found = {name for name in everywhere if fnmatchcase(name, plain)}
        if not found:
            raise BadInput(f"shared has {pattern!r}, which matches no parameter of the model: {', '.join(everywhere)}")
        shared = shared - found if pattern.startswith("!") else shared | found
    shared.intersection_update(mine)
    if not shared:
        raise BadInput(f"shared is {list(patterns)}, which leaves nothing to share of {', '.join(mine)}")
    return frozenset(shared)


def names_by_classes(model: ModelFactory, input_dim: int) -> tuple[str, ...]:
    """Return the names of the parameters whose shapes depend on the number of classes."""
    with torch.random.fork_rng(devices=[]):
        return _unlike(*(model.build(input_dim, number) for number in (2, 3)))


def names_by_features(model: ModelFactory, output_dim: int) -> tuple[str, ...]:
    """Return the names of the parameters whose shapes depend on the number of features."""
    with torch.random.fork_rng(devices=[]):
        return _unlike(*(model.build(number, output_dim) for number in (2, 3)))


def _unlike(one: nn.Module, other: nn.Module) -> tuple[str, ...]:
    first, second = one.state_dict(), other.state_dict()
    return tuple(name for name in second if name not in first or first[name].shape != second[name].shape)


def require_own_heads(model: ModelFactory, input_dim: int, shared: frozenset[str], classes: Sequence[str]) -> None:
    """Raise BadInput unless all that depends on the classes is personal; `classes` says who has how many."""
    without = 'give the model a head (model.decoder.name=linear) and keep it: shared=["*", "!decoder.*"]'
    _require_own(names_by_classes(model, input_dim), shared, "classes", classes, without)


def require_own_inputs(model: ModelFactory, output_dim: int, shared: frozenset[str], features: Sequence[str]) -> None:
    """Raise BadInput unless all that depends on the features is personal; `features` says who has how many."""
    without = 'give the model an encoder (model.encoder.name=linear) and keep it: shared=["*", "!encoder.*"]'
    _require_own(names_by_features(model, output_dim), shared, "features", features, without)


def _require_own(names: Sequence[str], shared: frozenset[str], what: str, numbers: Sequence[str], without: str) -> None:
    tied = [name for name in names if name in shared]
    if not tied:
        return
    parts = sorted({name.split(".")[0] for name in tied})
    wanted = ", ".join(f'"!{part}.*"' for part in parts)
    hint = without if "gnn" in parts else f'shared=["*", {wanted}]'
    raise BadInput(
        f"clients have different {what} ({'; '.join(numbers)}), but they share {tied[0]!r}, whose shape depends "
        f"on their number; let each keep its own: {hint}"
    )


def require_same_shared(
    patterns: Sequence[str], ours: Mapping[str, Tensor], client: str, theirs: Mapping[str, Tensor]
) -> None:
    """Raise BadInput unless what is shared has the same names and shapes in the course's model and in a client's."""
    shapes = {
        name: [str(tuple(held[name].shape)) if name in held else "missing" for held in (ours, theirs)]
        for name in dict.fromkeys((*ours, *theirs))
    }
    odd = [name for name, (here, there) in shapes.items() if here != there]
    if not odd:
        return
    here, there = shapes[odd[0]]
    raise BadInput(
        f"the parameter {odd[0]!r} is shared, but in the model of {client} it is {there}, in the course's model "
        f"{here}; give both the same shape (client_settings.{client}), or {_remedy(patterns, odd, shapes)}"
    )


def _remedy(patterns: Sequence[str], odd: Iterable[str], names: Iterable[str]) -> str:
    """Return what to do about shared parameters of which the odd ones differ."""
    places = dict.fromkeys(_place(name) for name in odd)
    if all(_place(name) in places for name in names):
        return "let everybody learn alone (algorithm.name=local): nothing that is shared fits both"
    return f"let clients keep their own: shared={json.dumps([*patterns, *(f'!{place}' for place in places)])}"


def _place(name: str) -> str:
    """Return the pattern of the part that a parameter belongs to: a layer of the graph network, or all of another."""
    part, _, rest = name.partition(".")
    return f"{part}.*" if part != "gnn" else f"gnn.{rest.rpartition('.')[0] or rest}.*"
