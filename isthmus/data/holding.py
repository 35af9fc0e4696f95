"""What can be divided among clients: items (nodes, links or graphs) with labels, masks and attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol, Self

from torch import Tensor


class Holding(Protocol):
    """Data that a client holds, seen as a set of items; `Graph`, `LinkGraph` and `GraphSet` are its three kinds.

    What masks, attributes and splitters speak of is the item: a node of a graph, a link of a link graph, a graph of a
    set. A part of a holding is a holding of the same kind, with what its items need.
    """

    item: ClassVar[str]

    @property
    def name(self) -> str:
        """Name of the dataset."""

    @property
    def num_items(self) -> int:
        """Number of items."""

    @property
    def item_ids(self) -> Tensor:
        """(items,), int64; index of each item in the data that this was cut from."""

    @property
    def labels(self) -> Tensor:
        """(items,), int64 classes with -1 for none; or (items, tasks), float32 with NaN for none."""

    @property
    def num_classes(self) -> int:
        """Number of classes of the whole dataset; of tasks, where labels are numbers."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes or tasks, or empty."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the feature columns of nodes, or empty."""

    @property
    def masks(self) -> Mapping[str, Tensor]:
        """Boolean (items,) for each split that is set."""

    @property
    def attributes(self) -> Mapping[str, Tensor]:
        """Further facts for each item, (items,) or (items, ...)."""

    @property
    def attribute_names(self) -> Mapping[str, tuple[str, ...]]:
        """For attributes that are numbers of categories: the categories' names."""

    def with_masks(self, masks: Mapping[str, Tensor]) -> Self:
        """Return the same data with other masks."""

    def divide(self, parts: Sequence[Tensor]) -> list[Self]:
        """Return a holding for each part, given by the positions of its items."""
