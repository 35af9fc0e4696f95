"""Several node datasets as one: silos whose graphs, features and classes have nothing in common but their kind.

FedGRL (Suresh et al., 2022, section 5.1.2) has six co-purchase networks, each with classes of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from isthmus.core.errors import BadInput, nearest, refuse
from isthmus.data.dataset import Dataset
from isthmus.data.features import on_the_diagonal, scipy_rows
from isthmus.data.graph import Graph
from isthmus.data.joining import shifted

CHOICES = ("svd", "side_by_side")


@dataclass(frozen=True)
class Union(Dataset):
    """The disjoint union of node datasets; the attribute "dataset" tells them apart.

    Classes are those of all datasets one after the other, named `dataset/class`; `splitter: {name: meta, own_classes:
    true}` gives each client its own only. What their features mean is not the same, and which words they stand for is
    not published, so a space for all has to be made:

    "svd":          each dataset's features become their first `dim` singular components, U S, by themselves: columns
                    are ordered by how much they explain, each with the sign that makes its sum positive, and scaled so
                    that a row has length 1 in the root mean square. Column k is the k-th most telling direction of
                    every dataset; nothing else makes the columns comparable
    "side_by_side": every dataset keeps its columns, with zeros in those of the others

    Fields:
        datasets: names of the datasets, in the order of their numbers
        features: "svd" or "side_by_side"
        dim:      columns with "svd"
    """

    licence = "those of its parts"

    datasets: tuple[str, ...] = ("amazon_computers", "amazon_photo")
    features: str = "svd"
    dim: int = 128

    def __post_init__(self) -> None:
        refuse(self.features not in CHOICES, self, "features", f"choose from {', '.join(CHOICES)}")
        refuse(self.dim < 1, self, "dim", "it must be at least 1")
        if len(self.datasets) < 2 or len(set(self.datasets)) < len(self.datasets):
            raise ValueError(f"datasets is {self.datasets!r}; name at least two, and none twice")
        self._parts()

    def _parts(self) -> list[Dataset]:
        from isthmus.data.zoo import DATASETS  # the table imports this file

        known = [name for name, kind in DATASETS.items() if kind.task == "node" and kind not in (Union,)]
        for name in self.datasets:
            if name not in known or name in ("folder", "folders"):
                raise ValueError(f"datasets has {name!r}, which is no dataset of nodes; {nearest(name, known)}")
        return [DATASETS[name](normalize_features=self.normalize_features) for name in self.datasets]

    def load(self, root: Path) -> Graph:
        """Return the union."""
        parts = [cast(Graph, part.load(root)) for part in self._parts()]
        sizes = torch.tensor([part.num_nodes for part in parts])
        classes = np.cumsum([0, *(part.num_classes for part in parts)])
        y = [torch.where(part.y >= 0, part.y + int(shift), -1) for part, shift in zip(parts, classes, strict=False)]
        named = list(zip(self.datasets, parts, strict=True))
        if self.features == "svd":
            x = torch.cat([_components(name, part, self.dim) for name, part in named])
        else:
            x = on_the_diagonal([part.x for part in parts])
        return Graph(
            x=x,
            edge_index=shifted(parts, "edge_index"),
            y=torch.cat(y),
            num_classes=int(classes[-1]),
            node_ids=torch.arange(int(sizes.sum())),
            attributes={"dataset": torch.repeat_interleave(torch.arange(len(parts)), sizes)},
            attribute_names={"dataset": self.datasets},
            class_names=tuple(f"{name}/{label}" for name, part in named for label in part.named_classes),
            name="union",
        )

    def present(self, root: Path) -> bool:
        """Return whether all parts are there."""
        return all(part.present(root) for part in self._parts())


def _components(name: str, part: Graph, dim: int) -> Tensor:
    """Return the first singular components of a graph's features, (nodes, dim)."""
    from scipy.sparse.linalg import svds

    if min(part.x.shape) <= dim:
        raise BadInput(
            f"dim is {dim}, which is not below the {part.num_nodes} nodes and {part.num_features} features of {name}"
        )
    x = scipy_rows(part.x).astype(np.float64)
    # The start decides nothing but the last bits; without one it would be random.
    u, s, _ = svds(x, k=dim, v0=np.random.default_rng(0).standard_normal(min(x.shape)))
    found = (u * s)[:, ::-1]  # largest first
    found = found * np.where(found.sum(axis=0) < 0, -1.0, 1.0)
    length = np.sqrt((found**2).sum(axis=1).mean())
    return torch.from_numpy((found / (length or 1.0)).astype(np.float32))
