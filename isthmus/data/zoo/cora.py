"""Cora, the citation graph that ships with the package (McCallum et al., 2000; Sen et al., 2008)."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from isthmus.core.errors import MissingData
from isthmus.data.conventions import SPLITS
from isthmus.data.dataset import Dataset
from isthmus.data.features import normalized_rows, sparse_rows
from isthmus.data.graph import Graph, undirected


@dataclass(frozen=True)
class Cora(Dataset):
    """2,708 papers on machine learning, 5,278 undirected citation links, 7 classes; nodes as in Planetoid.

    The masks are Planetoid's public split: 140 training, 500 validation, 1,000 test nodes.
    """

    summary: ClassVar[str] = "2,708 machine learning papers, 5,278 links, 1,433 words, 7 classes; ships with us"
    licence: ClassVar[str] = "Apache-2.0, as part of graphdatascience 2.2"

    def load(self, root: Path) -> Graph:
        """Return the graph; nothing is read from `root`."""
        source = files("isthmus.data.zoo") / "files" / "cora.npz"
        if not source.is_file():
            raise MissingData(f"the file {source} should have come with the package; install isthmus again")
        with source.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
        num_nodes = len(arrays["labels"])
        indices = torch.from_numpy(arrays["feature_indices"].astype(np.int64))
        start = torch.from_numpy(arrays["feature_indptr"].astype(np.int64))
        x = sparse_rows(start, indices, torch.ones(len(indices)), (num_nodes, int(arrays["num_features"])))
        citations = torch.from_numpy(arrays["citations"].astype(np.int64)).t()
        return Graph(
            x=normalized_rows(x) if self.normalize_features else x,
            edge_index=undirected(citations, num_nodes)[0],
            y=torch.from_numpy(arrays["labels"].astype(np.int64)),
            num_classes=len(arrays["class_names"]),
            node_ids=torch.arange(num_nodes),
            masks={split: _mask(arrays[split], num_nodes) for split in SPLITS if split in arrays},
            class_names=tuple(arrays["class_names"].tolist()),
            name="cora",
        )


def _mask(nodes: np.ndarray, num_nodes: int) -> torch.Tensor:
    mask = torch.zeros(num_nodes, dtype=torch.bool)
    mask[torch.from_numpy(nodes.astype(np.int64))] = True
    return mask
