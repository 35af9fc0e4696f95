"""What is read from a user's own folder: the data, and what its owner calls the things in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from isthmus.data.holding import Holding

Data = TypeVar("Data", bound=Holding, covariant=True)


@dataclass(frozen=True)
class OwnData(Generic[Data]):
    """Data read from a folder, and its owner's names.

    Fields:
        data:         the graph, the graph of links or the set of graphs
        item_columns: what tells the items apart in a table of predictions, in their order: `id` of nodes and graphs,
                      `source` and `target` of links
        node_ids:     the ids of the nodes as text, in their order; None where ids tell nodes apart within a graph only
        numbered:     whether labels are numbers of classes, which name none: what they stand for, only their order says
        own_split:    whether the masks are the owner's own, from a column of splits
    """

    data: Data
    item_columns: Mapping[str, tuple[str, ...]]
    node_ids: tuple[str, ...] | None
    numbered: bool = False
    own_split: bool = False
