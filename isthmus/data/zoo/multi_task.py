"""Sets of molecules that each ask another question, one client for each (Xie et al., 2021; Wang et al., 2022)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from isthmus.core.errors import BadInput
from isthmus.data.dataset import Dataset
from isthmus.data.features import normalized_rows, on_the_diagonal
from isthmus.data.graph_set import GraphSet
from isthmus.data.joining import joined_edges
from isthmus.data.zoo.moleculenet import BACE, BBBP, SIDER, ClinTox, MoleculeNet, Tox21, check_scale, in_columns
from isthmus.data.zoo.tu import AIDS, BZR, COX2, DHFR, MUTAG, NCI1, PTCMR, TU


@dataclass(frozen=True)
class MultiTaskMol(Dataset):
    """MUTAG, BZR, COX2, DHFR, PTC_MR, AIDS and NCI1: 8,270 molecules, 7 tasks of two classes.

    This is the Multi-task set of FederatedScope-GNN ("Mol"), which follows GCFL: each client holds one of the sets.
    The label of a molecule stands in the column of its own set, 1 for the second of the set's two classes and NaN in
    the other columns; the attribute "dataset" names the set. One task of a multi-task splitter is one set.

    The sets number their atoms differently, and for some the meaning is not published. So each has columns of its own
    in `x` (241 in all), of which its molecules use no other: a first linear layer over them is the encoder of each
    client that the paper describes, side by side. Labels of atoms alone are features, as in the paper. `edge_attr` is
    None: four of the sets have no kinds of bonds.
    """

    task = "graph"
    licence = TU.licence
    members: ClassVar[tuple[type[TU], ...]] = (MUTAG, BZR, COX2, DHFR, PTCMR, AIDS, NCI1)

    def load(self, root: Path) -> GraphSet:
        """Return all molecules; the files of the sets are looked for in `root`."""
        sets = {kind.name: kind(use_attributes=False).load(root) for kind in self.members}
        bare = {name: replace(graphs, edge_attr=None, attribute_names={}) for name, graphs in sets.items()}
        tasks = {name: _as_task(graphs, name) for name, graphs in bare.items()}
        joined = join(tasks, "multi_task_mol", x=on_the_diagonal([graphs.x for graphs in bare.values()]))
        return replace(joined, x=normalized_rows(joined.x)) if self.normalize_features else joined

    def present(self, root: Path) -> bool:
        """Return whether all raw files of all sets are in `root`."""
        return all(kind().present(root) for kind in self.members)


@dataclass(frozen=True)
class MultiTaskMoleculeNet(Dataset):
    """BACE, BBBP, ClinTox, SIDER and Tox21: 14,282 molecules, 43 tasks of yes or no; needs RDKit.

    The sets share the features of atoms and bonds of `MoleculeNet`, so that one encoder serves all clients. A
    molecule's labels stand in the columns of its own set, NaN in the others; the attribute "dataset" names the set,
    and "scaffold" and "size" are as in `MoleculeNet`, the scaffolds numbered anew over all sets.

    Fields:
        one_hot: as in `MoleculeNet`
    """

    task = "graph"
    licence = MoleculeNet.licence
    members: ClassVar[tuple[type[MoleculeNet], ...]] = (BACE, BBBP, ClinTox, SIDER, Tox21)

    one_hot: bool = False

    def load(self, root: Path) -> GraphSet:
        """Return all molecules; the files of the sets are looked for in `root`."""
        name = "multi_task_moleculenet"
        check_scale(name, self.one_hot, self.normalize_features)
        joined = join({kind.name: kind().load(root) for kind in self.members}, name)
        return in_columns(joined, self.normalize_features) if self.one_hot else joined

    def present(self, root: Path) -> bool:
        """Return whether all raw files of all sets are in `root`."""
        return all(kind().present(root) for kind in self.members)


def join(sets: Mapping[str, GraphSet], name: str, x: Tensor | None = None) -> GraphSet:
    """Return sets with task labels as one: their graphs below each other, their tasks side by side.

    `x` replaces the features below each other, which need the same columns. Attributes that all sets have are kept,
    categories numbered anew by their sorted names; "dataset" is the set of each graph. Ids count the joined graphs.
    """
    parts = list(sets.values())
    targets = sorted({part.target for part in parts})
    if len(targets) != 1 or parts[0].y.dim() != 2:
        raise BadInput(f"sets with labels {', '.join(targets)} cannot be joined; all need tasks of one kind")
    sizes = [part.num_items for part in parts]
    # The blocks of a diagonal, NaN besides.
    on_diagonal: Callable[..., Tensor] = torch.block_diag
    labels = [part.y for part in parts]
    y = torch.where(on_diagonal(*map(torch.ones_like, labels)) > 0, on_diagonal(*labels), torch.nan)
    attributes, names = _joined_attributes(parts)
    return GraphSet(
        x=torch.cat([part.x for part in parts]) if x is None else x,
        **joined_edges(parts),
        y=y,
        num_classes=y.shape[1],
        target=targets[0],
        graph_ids=torch.arange(sum(sizes)),
        x_sizes=parts[0].x_sizes,
        edge_sizes=parts[0].edge_sizes,
        attributes={**attributes, "dataset": torch.from_numpy(np.repeat(np.arange(len(parts)), sizes))},
        attribute_names={**names, "dataset": tuple(sets)},
        class_names=tuple(f"{key}: {task}" for key, part in sets.items() for task in part.class_names),
        name=name,
    )


def _as_task(graphs: GraphSet, name: str) -> GraphSet:
    """Return graphs of two classes as one task of yes or no: whether a graph is of the second class."""
    if graphs.num_classes != 2:
        raise BadInput(f"{name} has {graphs.num_classes} classes; a task of yes or no has 2")
    named = (f"class {graphs.class_names[1]}",)
    return replace(graphs, y=graphs.y.float()[:, None], num_classes=1, target="binary", class_names=named)


def _joined_attributes(parts: Sequence[GraphSet]) -> tuple[dict[str, Tensor], dict[str, tuple[str, ...]]]:
    shared = [key for key in parts[0].attributes if all(key in part.attributes for part in parts)]
    attributes: dict[str, Tensor] = {}
    names: dict[str, tuple[str, ...]] = {}
    for key in shared:
        values = [part.attributes[key] for part in parts]
        if all(key in part.attribute_names for part in parts):
            names[key], values = _renumbered(values, [part.attribute_names[key] for part in parts])
        attributes[key] = torch.cat(values)
    return attributes, names


def _renumbered(values: Sequence[Tensor], names: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], list[Tensor]]:
    """Return the names of the categories of all parts, sorted, and the parts' values as numbers of these."""
    every = tuple(sorted({name for own in names for name in own}))
    number = {name: i for i, name in enumerate(every)}
    anew = [torch.tensor([number[name] for name in own]) for own in names]
    return every, [table[told] for table, told in zip(anew, values, strict=True)]
