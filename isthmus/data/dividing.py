"""Data to be divided: what it is, its fingerprint, splitters, and masks that say who is trained on or held out."""

from __future__ import annotations

import hashlib
import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from isthmus.core.errors import BadInput, refuse
from isthmus.data.conventions import SPLITS


class _Sized(ABC):
    """What each kind of holding declares in a place of its own."""

    x: Tensor
    num_classes: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Holding(_Sized):
    """Data that a client holds, seen as a set of items; `Graph`, `LinkGraph` and `GraphSet` are its three kinds.

    What masks, attributes and splitters speak of is the item: a node of a graph, a link of a link graph, a graph of a
    set. A part of a holding is a holding of the same kind, with what its items need.

    Fields:
        x:               features of all nodes, (nodes, features), float32; dense, or `torch.sparse_csr` if few are set
        num_classes:     number of classes of the whole dataset, also where a client sees only some; of tasks, where
                         labels are numbers
        class_names:     names of the classes or tasks, or empty
        feature_names:   names of the feature columns of nodes, or empty
        masks:           boolean (items,) for each of "train", "val", "test" that is set
        attributes:      further facts for each item, (items,) or (items, ...), for splitters that go by attribute
        attribute_names: for attributes that are numbers of categories: the categories' names
        name:            name of the dataset
    """

    item: ClassVar[str]
    # The fields that have the id and the label of each item.
    id_field: ClassVar[str]
    label_field: ClassVar[str]

    masks: Mapping[str, Tensor] = field(default_factory=dict)
    attributes: Mapping[str, Tensor] = field(default_factory=dict)
    attribute_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()
    name: str = ""

    @property
    def num_nodes(self) -> int:
        """Number of nodes, of all graphs together."""
        return int(self.x.shape[0])

    @property
    def num_features(self) -> int:
        """Number of feature columns."""
        return int(self.x.shape[1])

    @property
    def num_items(self) -> int:
        """Number of items: what is divided among clients."""
        return len(self.labels)

    @property
    def item_ids(self) -> Tensor:
        """(items,), int64; index of each item in the data that this was cut from."""
        return cast(Tensor, getattr(self, self.id_field))

    @property
    def labels(self) -> Tensor:
        """(items,), int64 classes with -1 for none; or (items, tasks), float32 with NaN for none."""
        return cast(Tensor, getattr(self, self.label_field))

    @property
    def named_classes(self) -> tuple[str, ...]:
        """Names of the classes or tasks: their numbers, where they have none."""
        return self.class_names or tuple(str(number) for number in range(self.num_classes))

    def mask(self, split: str) -> Tensor:
        """Boolean (items,) mask of a split; all False when the split is not set."""
        if split in self.masks:
            return self.masks[split]
        return torch.zeros(self.num_items, dtype=torch.bool, device=self.x.device)

    def to(self, device: torch.device) -> Self:
        """Return the same data with all its tensors on a device; itself where they lie there."""
        if self.x.device == device:
            return self
        return replace(self, **{each.name: _on(getattr(self, each.name), device) for each in fields(self)})

    def with_masks(self, masks: Mapping[str, Tensor]) -> Self:
        """Return the same data with other masks."""
        return replace(self, masks=dict(masks))

    @abstractmethod
    def divide(self, parts: Sequence[Tensor]) -> list[Self]:
        """Return a holding for each part, given by the positions of its items."""

    def _facts_of(self, items: Tensor) -> dict[str, Any]:
        """Return what belongs to some items alone, by the names of the fields."""
        return {
            self.id_field: self.item_ids[items],
            self.label_field: self.labels[items],
            "masks": {split: mask[items] for split, mask in self.masks.items()},
            "attributes": {key: value[items] for key, value in self.attributes.items()},
        }

    def _told(self, *facts: str) -> str:
        """Return a repr: the name, some facts, and how many items are in each split."""
        marks = [f"{split}={int(mask.sum())}" for split, mask in self.masks.items()]
        return f"{type(self).__name__}({self.name or 'unnamed'}: {', '.join([*facts, *marks])})"


def _on(value: Any, device: torch.device) -> Any:
    """Return a field of a holding with its tensors on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    return {name: _on(each, device) for name, each in value.items()} if isinstance(value, Mapping) else value


Held = TypeVar("Held", bound=Holding)


@dataclass(frozen=True)
class Splitter(ABC):
    """Cuts data into the parts of several clients: a graph by nodes, a link graph by links, a set by graphs.

    A subclass says who holds which items (`assign`). A client's graph is the one induced by its nodes, so edges between
    clients are lost. A subclass may also change each client's part
    (`after_cut`), and says in `items` what it can divide.
    """

    items: ClassVar[tuple[str, ...]] = ("node", "link", "graph")

    @abstractmethod
    def assign(self, data: Holding, num_clients: int, rng: np.random.Generator) -> list[Tensor]:
        """Return the positions of each client's items in `data`: int64, ascending, without repetition."""

    def after_cut(self, part: Held, rng: np.random.Generator) -> Held:
        """Return a client's part as the client shall hold it; here, unchanged."""
        return part

    def split(self, data: Held, num_clients: int, rng: np.random.Generator) -> list[Held]:
        """Return one part for each client; `item_ids` tell where its items come from."""
        if data.item not in self.items:
            raise self.refusal(data)
        if num_clients < 1:
            raise BadInput(f"num_clients is {num_clients!r}; at least 1 is needed")
        if num_clients > data.num_items:
            raise BadInput(
                f"num_clients is {num_clients}, but the dataset {data.name!r} has only {data.num_items} "
                f"{data.item}s; every client needs at least one"
            )
        parts = self.assign(data, num_clients, rng)
        if len(parts) != num_clients:
            raise BadInput(f"{self!r} made {len(parts)} parts for {num_clients} clients")
        empty = [client for client, items in enumerate(parts) if len(items) == 0]
        if empty:
            raise BadInput(f"{self!r} left clients {empty} of {num_clients} without a {data.item}; use fewer clients")
        return [self.after_cut(part, rng) for part in data.divide(parts)]

    def refusal(self, data: Holding) -> BadInput:
        """Return the error for data whose kind of items this splitter cannot divide."""
        from isthmus.data.splitters import SPLITTERS  # the table imports this file

        name = next((name for name, kind in SPLITTERS.items() if kind is type(self)), type(self).__name__)
        fitting = sorted(name for name, kind in SPLITTERS.items() if data.item in kind.items)
        return BadInput(
            f"splitter {name!r} divides {' or '.join(f'{item}s' for item in self.items)}, but the dataset "
            f"{data.name!r} holds {data.item}s; these would do: {', '.join(fitting)}"
        )


Items = npt.NDArray[np.int64]


def groups_of(membership: Items, num_groups: int = 0) -> list[Items]:
    """Return the items of each group, ascending; groups are numbered from 0, up to `num_groups` at least."""
    order = np.argsort(membership, kind="stable")
    return np.split(order, np.cumsum(np.bincount(membership, minlength=num_groups))[:-1])


def deal_evenly(groups: Sequence[Items], num_clients: int) -> list[list[Items]]:
    """Give groups, largest first, each to the client with the fewest items so far."""
    clients: list[list[Items]] = [[] for _ in range(num_clients)]
    loads = [(0, client) for client in range(num_clients)]
    for items in sorted(groups, key=len, reverse=True):
        load, client = heapq.heappop(loads)
        clients[client].append(items)
        heapq.heappush(loads, (load + len(items), client))
    return clients


def deal_at_random(groups: Sequence[Items], num_clients: int, rng: np.random.Generator) -> list[list[Items]]:
    """Give groups in random order, the first ones one to each client, the others each to a random client."""
    order = rng.permutation(len(groups))
    owners = np.concatenate([np.arange(num_clients), rng.integers(num_clients, size=len(groups) - num_clients)])
    clients: list[list[Items]] = [[] for _ in range(num_clients)]
    for number, owner in zip(order.tolist(), owners.tolist(), strict=True):
        clients[owner].append(groups[number])
    return clients


def part_of(items: Sequence[Items]) -> Tensor:
    """Return one client's items, ascending."""
    return torch.from_numpy(np.sort(np.concatenate(items)).astype(np.int64, copy=False))


def parts_by_owner(owner: Items, num_clients: int) -> list[Tensor]:
    """Return each client's items, ascending, from the owner of each item."""
    return [torch.from_numpy(items) for items in groups_of(owner, num_clients)]


@dataclass(frozen=True)
class MaskRule(ABC):
    """A rule that gives data its masks; only items (nodes, links, graphs) with a label get into one.

    An item of several tasks has a label when it has one for any of them.
    """

    @abstractmethod
    def apply(self, data: Held, rng: np.random.Generator) -> Held:
        """Return the data with masks by this rule."""


class PublicSplit(MaskRule):
    """Keep the masks that the dataset brings."""

    def apply(self, data: Held, rng: np.random.Generator) -> Held:
        """Return the data as it is."""
        if "train" not in data.masks:
            raise BadInput(
                f"masks 'public': the dataset {data.name!r} has no split of its own (masks found: "
                f"{sorted(data.masks)}); use 'ratio' or 'per_class', or 'none' where there are no labels"
            )
        return data


@dataclass(frozen=True)
class RatioSplit(MaskRule):
    """Draw shares of the labelled items at random, without overlap.

    Of n labelled items in random order, train ends at round(n * train), validation at
    round(n * (train + val)), test at round(n * (train + val + test)).
    """

    train: float = 0.6
    val: float = 0.2
    test: float = 0.2

    def __post_init__(self) -> None:
        for split in SPLITS:
            share = getattr(self, split)
            if not 0.0 <= share <= 1.0:
                raise ValueError(f"{split} is {share!r}; a share lies between 0 and 1")
        total = self.train + self.val + self.test
        if total > 1.0 + 1e-9:
            raise ValueError(
                f"train + val + test is {self.train!r} + {self.val!r} + {self.test!r} = {total:g}; "
                "the shares may add up to 1 at most"
            )

    def apply(self, data: Held, rng: np.random.Generator) -> Held:
        """Return the data with random masks of the given shares."""
        items = rng.permutation(_labelled(data, "ratio"))
        ends = [round(len(items) * share) for share in np.cumsum([self.train, self.val, self.test])]
        return data.with_masks(masks_of(np.split(items[: ends[2]], ends[:2]), data.num_items))


@dataclass(frozen=True)
class PerClassSplit(MaskRule):
    """Draw as many training items from every class, then validation and test items from the rest.

    Fields:
        num_per_class: training items of each class
        num_val:       validation items, drawn from what is left
        num_test:      test items, drawn from what is left then; null takes all of them
        allow_short:   whether a class with fewer items gives all it has, instead of being refused
    """

    num_per_class: int = 20
    num_val: int = 500
    num_test: int | None = 1000
    allow_short: bool = False

    def __post_init__(self) -> None:
        refuse(self.num_per_class < 1, self, "num_per_class", "at least 1 is needed")
        for number in ("num_val", "num_test"):
            refuse((getattr(self, number) or 0) < 0, self, number, "it may not be negative")

    def apply(self, data: Held, rng: np.random.Generator) -> Held:
        """Return the data with random masks of the given sizes."""
        if data.labels.dim() != 1:
            raise BadInput(
                f"masks 'per_class': the {data.item}s of the dataset {data.name!r} have labels for "
                f"{data.labels.shape[1]} tasks, not one class each; use 'ratio'"
            )
        items = rng.permutation(_labelled(data, "per_class"))
        classes = data.labels.numpy()[items]
        order = np.argsort(classes, kind="stable")  # by class, and within each in the order drawn
        start = np.searchsorted(classes[order], np.arange(data.num_classes + 1))
        by_class = [items[order[start[c] : start[c + 1]]] for c in range(data.num_classes)]
        train = np.concatenate([self._draw(data, members, c) for c, members in enumerate(by_class)])
        # In the order drawn, a class of few items would come late: its first ones are all in the training part.
        rest = rng.permutation(items[~np.isin(items, train)])
        num_test = max(len(rest) - self.num_val, 0) if self.num_test is None else self.num_test
        if len(rest) < self.num_val + num_test:
            raise BadInput(
                f"masks 'per_class': num_val + num_test is {self.num_val} + {num_test}, but beside the "
                f"{len(train)} training {data.item}s the dataset {data.name!r} has only {len(rest)} labelled "
                f"{data.item}s; lower num_val or num_test"
            )
        val, test = rest[: self.num_val], rest[self.num_val : self.num_val + num_test]
        return data.with_masks(masks_of((train, val, test), data.num_items))

    def _draw(self, data: Holding, items: np.ndarray, number: int) -> np.ndarray:
        if len(items) < self.num_per_class and not self.allow_short:
            name = repr(data.class_names[number]) if data.class_names else str(number)
            raise BadInput(
                f"masks 'per_class': class {name} of the dataset {data.name!r} has {len(items)} labelled "
                f"{data.item}s; num_per_class is {self.num_per_class}: lower it, set allow_short, or use 'ratio'"
            )
        return items[: self.num_per_class]


class NoSplit(MaskRule):
    """Leave all masks empty: nothing is learned from labels or scored by them, as where there are none."""

    def apply(self, data: Held, rng: np.random.Generator) -> Held:
        """Return the data with masks that nothing is in."""
        return without_examples(data)


def has_split(data: Holding) -> bool:
    """Return whether some item of the data is in a split already."""
    return any(bool(mask.any()) for mask in data.masks.values())


def labelled_items(data: Holding) -> np.ndarray:
    """Return the positions of the items that have a label, ascending."""
    labels = data.labels.numpy()
    known = labels >= 0 if np.issubdtype(labels.dtype, np.integer) else ~np.isnan(labels)
    return np.flatnonzero(known if known.ndim == 1 else known.any(axis=1))


def without_examples(data: Held) -> Held:
    """Return the data with masks that nothing is in."""
    return data.with_masks(masks_of([np.zeros(0, dtype=np.int64)] * len(SPLITS), data.num_items))


def _labelled(data: Holding, rule: str) -> np.ndarray:
    if data.num_items == 0:
        raise BadInput(f"the dataset {data.name!r} has no {data.item}s, so there is nothing to learn from")
    items = labelled_items(data)
    if len(items) == 0:
        raise BadInput(
            f"masks {rule!r}: the dataset {data.name!r} has no labelled {data.item} among {data.num_items}; label "
            "some, or set masks.name=none with an algorithm that learns without labels, such as fedgrl"
        )
    return items


def masks_of(parts: Sequence[np.ndarray], num_items: int) -> dict[str, Tensor]:
    """Return the masks of training, validation and test items, given by their positions."""
    masks = {split: torch.zeros(num_items, dtype=torch.bool) for split in SPLITS}
    for mask, items in zip(masks.values(), parts, strict=True):
        mask[torch.from_numpy(items.astype(np.int64))] = True
    return masks


MASKS: dict[str, type[MaskRule]] = {
    "public": PublicSplit,
    "ratio": RatioSplit,
    "per_class": PerClassSplit,
    "none": NoSplit,
}


# ---- what tells data from others


def fingerprint(*data: Any) -> str:
    """Return 16 letters for what clients hold: features, structure, labels, masks, attributes, names of all of these.

    They differ between data that differ, however many nodes, links and examples these have in common. What the data as
    a whole are called is none of it: a folder that is moved holds what it held.
    """
    state = hashlib.blake2b(digest_size=8)
    for each in data:
        for part in _parts(replace(each, name="") if isinstance(each, Holding) else each):
            state.update(part)
    return state.hexdigest()


def _parts(value: Any) -> Iterator[bytes | memoryview]:
    """Yield what tells a value from others, each part after its kind and size, so that no two lists look alike."""
    if isinstance(value, Tensor):
        yield from _tensor(value)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from _parts({each.name: getattr(value, each.name) for each in fields(value)})
    elif isinstance(value, Mapping):
        yield f"mapping {len(value)};".encode()
        for key, item in value.items():
            yield from (*_parts(key), *_parts(item))
    elif isinstance(value, tuple | list):
        yield f"list {len(value)};".encode()
        for item in value:
            yield from _parts(item)
    else:
        text = repr(value).encode()
        yield f"{type(value).__name__} {len(text)};".encode() + text


def _tensor(value: Tensor) -> Iterator[bytes | memoryview]:
    yield f"tensor {value.dtype} {value.layout} {tuple(value.shape)};".encode()
    if value.layout == torch.sparse_csr:
        for part in (value.crow_indices(), value.col_indices(), value.values()):
            yield from _tensor(part)
    elif value.numel():
        yield value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
