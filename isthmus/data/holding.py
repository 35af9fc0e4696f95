"""What can be divided among clients: items (nodes, links or graphs) with labels, masks and attributes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor


class Holding(ABC):
    """Data that a client holds, seen as a set of items; `Graph`, `LinkGraph` and `GraphSet` are its three kinds.

    What masks, attributes and splitters speak of is the item: a node of a graph, a link of a link graph, a graph of a
    set. A part of a holding is a holding of the same kind, with what its items need.

    Fields:
        x:               features of all nodes, (nodes, features)
        num_classes:     number of classes of the whole dataset; of tasks, where labels are numbers
        class_names:     names of the classes or tasks, or empty
        feature_names:   names of the feature columns of nodes, or empty
        masks:           boolean (items,) for each split that is set
        attributes:      further facts for each item, (items,) or (items, ...)
        attribute_names: for attributes that are numbers of categories: the categories' names
        name:            name of the dataset
    """

    item: ClassVar[str]

    x: Tensor
    num_classes: int
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...]
    masks: Mapping[str, Tensor]
    attributes: Mapping[str, Tensor]
    attribute_names: Mapping[str, tuple[str, ...]]
    name: str

    @property
    def num_nodes(self) -> int:
        """Number of nodes, of all graphs together."""
        return int(self.x.shape[0])

    @property
    def num_features(self) -> int:
        """Number of feature columns."""
        return int(self.x.shape[1])

    @property
    @abstractmethod
    def num_items(self) -> int:
        """Number of items."""

    @property
    @abstractmethod
    def item_ids(self) -> Tensor:
        """(items,), int64; index of each item in the data that this was cut from."""

    @property
    @abstractmethod
    def labels(self) -> Tensor:
        """(items,), int64 classes with -1 for none; or (items, tasks), float32 with NaN for none."""

    def mask(self, split: str) -> Tensor:
        """Boolean (items,) mask of a split; all False when the split is not set."""
        return self.masks[split] if split in self.masks else torch.zeros(self.num_items, dtype=torch.bool)

    def with_masks(self, masks: Mapping[str, Tensor]) -> Self:
        """Return the same data with other masks."""
        return cast(Self, replace(cast(Any, self), masks=dict(masks)))

    @abstractmethod
    def divide(self, parts: Sequence[Tensor]) -> list[Self]:
        """Return a holding for each part, given by the positions of its items."""

    def _told(self, *facts: str) -> str:
        """Return a repr: the name, some facts, and how many items are in each split."""
        marks = [f"{split}={int(mask.sum())}" for split, mask in self.masks.items()]
        return f"{type(self).__name__}({self.name or 'unnamed'}: {', '.join([*facts, *marks])})"
