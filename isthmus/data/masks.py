"""Who is trained on and who is held out: train, validation and test masks over the labelled nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from isthmus.core.errors import BadInput
from isthmus.data.graph import SPLITS, Graph


@dataclass(frozen=True)
class MaskRule(ABC):
    """A rule that gives a graph its masks; only nodes with a label get into one."""

    @abstractmethod
    def apply(self, graph: Graph, rng: np.random.Generator) -> Graph:
        """Return the graph with masks by this rule."""


@dataclass(frozen=True)
class PublicSplit(MaskRule):
    """Keep the masks that the dataset brings."""

    def apply(self, graph: Graph, rng: np.random.Generator) -> Graph:
        """Return the graph as it is."""
        if "train" not in graph.masks:
            raise BadInput(
                f"masks 'public': the dataset {graph.name!r} has no split of its own (masks found: "
                f"{sorted(graph.masks)}); use 'ratio' or 'per_class'"
            )
        return graph


@dataclass(frozen=True)
class RatioSplit(MaskRule):
    """Draw shares of the labelled nodes at random, without overlap.

    Of n labelled nodes in random order, train ends at round(n * train), validation at
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

    def apply(self, graph: Graph, rng: np.random.Generator) -> Graph:
        """Return the graph with random masks of the given shares."""
        nodes = rng.permutation(_labelled(graph, "ratio"))
        ends = [round(len(nodes) * share) for share in np.cumsum([self.train, self.val, self.test])]
        return graph.with_masks(
            {
                "train": _mask(graph, nodes[: ends[0]]),
                "val": _mask(graph, nodes[ends[0] : ends[1]]),
                "test": _mask(graph, nodes[ends[1] : ends[2]]),
            }
        )


@dataclass(frozen=True)
class PerClassSplit(MaskRule):
    """Draw as many training nodes from every class, then validation and test nodes from the rest.

    Fields:
        num_per_class: training nodes of each class
        num_val:       validation nodes, drawn from what is left
        num_test:      test nodes, drawn from what is left then; null takes all of them
        allow_short:   whether a class with fewer nodes gives all it has, instead of being refused
    """

    num_per_class: int = 20
    num_val: int = 500
    num_test: int | None = 1000
    allow_short: bool = False

    def __post_init__(self) -> None:
        if self.num_per_class < 1:
            raise ValueError(f"num_per_class is {self.num_per_class!r}; at least 1 is needed")
        for field in ("num_val", "num_test"):
            if (getattr(self, field) or 0) < 0:
                raise ValueError(f"{field} is {getattr(self, field)!r}; it may not be negative")

    def apply(self, graph: Graph, rng: np.random.Generator) -> Graph:
        """Return the graph with random masks of the given sizes."""
        nodes = rng.permutation(_labelled(graph, "per_class"))
        classes = graph.y.numpy()[nodes]
        order = np.argsort(classes, kind="stable")  # by class, and within each in the order drawn
        start = np.searchsorted(classes[order], np.arange(graph.num_classes + 1))
        by_class = [nodes[order[start[c] : start[c + 1]]] for c in range(graph.num_classes)]
        train = np.concatenate([self._draw(graph, members, c) for c, members in enumerate(by_class)])
        rest = nodes[~np.isin(nodes, train)]
        num_test = max(len(rest) - self.num_val, 0) if self.num_test is None else self.num_test
        if len(rest) < self.num_val + num_test:
            raise BadInput(
                f"masks 'per_class': num_val + num_test is {self.num_val} + {num_test}, but beside the "
                f"{len(train)} training nodes the dataset {graph.name!r} has only {len(rest)} labelled "
                "nodes; lower num_val or num_test"
            )
        return graph.with_masks(
            {
                "train": _mask(graph, train),
                "val": _mask(graph, rest[: self.num_val]),
                "test": _mask(graph, rest[self.num_val : self.num_val + num_test]),
            }
        )

    def _draw(self, graph: Graph, nodes: np.ndarray, number: int) -> np.ndarray:
        if len(nodes) < self.num_per_class and not self.allow_short:
            name = repr(graph.class_names[number]) if graph.class_names else str(number)
            raise BadInput(
                f"masks 'per_class': class {name} of the dataset {graph.name!r} has {len(nodes)} labelled "
                f"nodes; num_per_class is {self.num_per_class}: lower it, set allow_short, or use 'ratio'"
            )
        return nodes[: self.num_per_class]


def _labelled(graph: Graph, rule: str) -> np.ndarray:
    nodes = np.flatnonzero(graph.y.numpy() >= 0)
    if len(nodes) == 0:
        raise BadInput(f"masks {rule!r}: the dataset {graph.name!r} has no labelled node among {graph.num_nodes}")
    return nodes


def _mask(graph: Graph, nodes: np.ndarray) -> Tensor:
    mask = torch.zeros(graph.num_nodes, dtype=torch.bool)
    mask[torch.from_numpy(nodes)] = True
    return mask


MASKS: dict[str, type[MaskRule]] = {"public": PublicSplit, "ratio": RatioSplit, "per_class": PerClassSplit}
