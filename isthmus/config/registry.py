"""Every kind of exchangeable part with its table of names; entry points and import paths add to the tables.

A package adds a part by an entry point in the group `isthmus.<family>`, for example in its pyproject.toml:

    [project.entry-points."isthmus.algorithms"]
    my_method = "my_package.my_method:MyMethod"
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from isthmus.algorithms import ALGORITHMS
from isthmus.algorithms.fedgrl.downstream import DOWNSTREAMS, Downstream
from isthmus.algorithms.fedgrl.selfsup import SELF_SUPERVISIONS, SelfSupervision
from isthmus.core.errors import BadInput, nearest
from isthmus.core.folding import FOLDS
from isthmus.core.folds import Fold
from isthmus.core.guards.guard import Guard
from isthmus.core.protocol import Algorithm
from isthmus.core.random import SAMPLINGS, Sampling
from isthmus.data.dataset import Dataset
from isthmus.data.dividing import MASKS, MaskRule, Splitter
from isthmus.data.splitters import SPLITTERS
from isthmus.data.zoo import DATASETS
from isthmus.learn.batching import BATCHINGS, Batching
from isthmus.learn.optimizers import OPTIMIZERS, SCHEDULES, Optimizer, Schedule
from isthmus.learn.tasks import TASKS, Task
from isthmus.models import DECODERS, ENCODERS, GNNS, READOUTS, DecoderSpec, EncoderSpec, GNNSpec, ReadoutSpec
from isthmus.privacy import GUARDS


@dataclass(frozen=True)
class Family:
    """A kind of part: what it is called, and the parts that ship with the package.

    Those in `also` are found by these names too, but may be parts of another kind as well: a file names them by path.
    """

    name: str
    table: Mapping[str, type[Any]]
    also: Mapping[str, type[Any]] = field(default_factory=dict)


FAMILIES: dict[type[Any], Family] = {
    Algorithm: Family("algorithms", ALGORITHMS),
    Dataset: Family("datasets", DATASETS),
    Splitter: Family("splitters", SPLITTERS),
    MaskRule: Family("masks", MASKS),
    Task: Family("tasks", TASKS),
    Batching: Family("batchings", BATCHINGS),
    Sampling: Family("samplings", SAMPLINGS),
    Optimizer: Family("optimizers", OPTIMIZERS),
    Fold: Family("folds", FOLDS),
    Guard: Family("guards", GUARDS),
    Schedule: Family("schedules", SCHEDULES),
    SelfSupervision: Family("objectives", SELF_SUPERVISIONS),
    Downstream: Family("downstreams", DOWNSTREAMS),
    GNNSpec: Family("models", GNNS),
    EncoderSpec: Family("encoders", ENCODERS),
    DecoderSpec: Family("decoders", DECODERS),
    ReadoutSpec: Family("readouts", READOUTS),
}


def known_names(family: Family) -> list[str]:
    """Return the names of a family: the package's own, then those of installed packages."""
    shipped = {**family.table, **family.also}
    return [*shipped, *(name for name in _installed(family.name) if name not in shipped)]


def find_part(family: Family, name: str, where: str, allow_import: bool = True) -> type[Any]:
    """Return the class of a name: from the table, an entry point, or an import path `package.module:Class`."""
    for shipped in (family.table, family.also):
        if name in shipped:
            return shipped[name]
    if name in _installed(family.name):
        return _load(_installed(family.name)[name], where)
    if ":" in name:
        if not allow_import:
            raise BadInput(
                f"{where} is {name!r}; import paths are not allowed here: install the part as an entry point"
            )
        return _load(name, where)
    raise BadInput(f"{where} is {name!r}; {nearest(name, known_names(family))}")


def name_in_none(kind: type[Any]) -> str:
    """Return the name by which `find_part` finds a class that is in no table: that of an entry point, or its path."""
    path = f"{kind.__module__}:{kind.__qualname__}"
    added = (pair for family in FAMILIES.values() for pair in _installed(family.name).items())
    return next((name for name, value in added if value == path), path)


@cache
def _installed(family: str) -> dict[str, str]:
    return {point.name: point.value for point in entry_points(group=f"isthmus.{family}")}


def _load(path: str, where: str) -> type[Any]:
    module, _, attribute = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # a module that is imported may raise anything
        reason = error if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: {error}"
        raise BadInput(f"{where} is {path!r}, which cannot be imported: {reason}{_remedy(error)}") from None
    if not isinstance(found, type):
        raise BadInput(f"{where} is {path!r}, which is not a class")
    return found


def _remedy(error: Exception) -> str:
    """Return what to do where a part asks for a module or a name of ours that is not there."""
    if not isinstance(error, ImportError) or (error.name or "").partition(".")[0] != "isthmus":
        return ""
    return (
        "; modules of isthmus may move, so import what parts need from isthmus itself, as in `from isthmus import "
        "GraphClient`: dir(isthmus) lists it, and docs/extending.md says what it is for"
    )
