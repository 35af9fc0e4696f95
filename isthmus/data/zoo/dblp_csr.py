"""DBLP-CSR: papers of 81 conferences and their authors (Mendeley Data 3p9w84t5mr).

Stands where FedDBLP (Wang et al., 2022) cannot be had: papers with conference and publisher, but no citations, no text.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isthmus.core.errors import refuse
from isthmus.data.features import from_scipy, normalized_rows
from isthmus.data.graph import Graph
from isthmus.data.on_demand import sparse
from isthmus.data.zoo.raw import RawDataset, damaged, known_digest, read_arrays, rows_of

FILE = "dblp_csr/dblp_csr.npz"
NAMES = ("area", "conf", "publisher")
KEYS = ("author_indptr", "author_indices", *NAMES, *(f"{name}_names" for name in NAMES))
CHOICES = ("authors", "degree")


@dataclass(frozen=True)
class DBLPCSR(RawDataset):
    """148,521 papers, 2,923,072 undirected edges between papers that share an author, 4 areas as classes.

    10,277 papers have no edge; 2,353 of those have no author. The attributes "conference" (81) and "publisher" (5,
    and "unspecified" for 35,945 papers) are ways to divide it. The area is a function of the conference: a client of
    one conference has one class. The paper's FedDBLP has 52,202 papers and 271,054 citations.

    Fields:
        features: "authors": which of the 125,323 authors wrote the paper, sparse, 410,743 entries;
                  "degree": one column, the logarithm of 1 + the number of edges, as nothing else is known of a paper
    """

    needs = (FILE,)
    name = "dblp_csr"
    published = f"https://github.com/SijingYu/Hypergraphs (hypergraphs/DBLP-CSR, as arrays {', '.join(KEYS)})"
    licence = "MIT, as part of SijingYu/Hypergraphs; original on Mendeley Data"

    features: str = "authors"

    def __post_init__(self) -> None:
        refuse(self.features not in CHOICES, self, "features", f"choose from {', '.join(CHOICES)}")

    def load(self, root: Path) -> Graph:
        """Return the graph."""
        (path,) = self.verified(root)
        arrays = read_arrays(path, KEYS, known_digest(path, root))
        start, author = (arrays[key].astype(np.int64) for key in ("author_indptr", "author_indices"))
        num_papers = len(start) - 1
        if int(start[-1]) != len(author) or any(len(arrays[name]) != num_papers for name in NAMES):
            raise damaged(path, None, f"its arrays do not fit together: {num_papers} papers, {len(author)} authorships")
        edge_index = shared_item_edges(start, author)
        degree = torch.bincount(edge_index[0], minlength=num_papers)
        x = (
            from_scipy(incidence(start, author))
            if self.features == "authors"
            else torch.log1p(degree.float()).unsqueeze(1)
        )
        facts = {name: torch.from_numpy(arrays[name].astype(np.int64)) for name in NAMES}
        names = {name: tuple(str(text) for text in arrays[f"{name}_names"]) for name in NAMES}
        return Graph(
            x=normalized_rows(x) if self.normalize_features else x,
            edge_index=edge_index,
            y=facts["area"],
            num_classes=len(names["area"]),
            node_ids=torch.arange(num_papers),
            attributes={"conference": facts["conf"], "publisher": facts["publisher"]},
            attribute_names={"conference": names["conf"], "publisher": names["publisher"]},
            class_names=names["area"],
            name=self.name,
        )


def incidence(start: np.ndarray, item: np.ndarray) -> Any:
    """Return the matrix that says which rows have which items: row i those from start[i] to start[i + 1]."""
    shape = (len(start) - 1, int(item.max(initial=-1)) + 1)
    return sparse.csr_matrix((np.ones(len(item), dtype=np.float32), item, start), shape)


def shared_item_edges(start: np.ndarray, item: np.ndarray) -> Tensor:
    """Return the edges between rows that share an item, as `Graph` has them; the rows as `incidence` takes them."""
    holds = incidence(start, item)
    shared = holds @ holds.T  # its memory is that of the edges themselves
    shared.sort_indices()
    ends = np.stack([rows_of(shared.indptr), shared.indices.astype(np.int64)])
    return torch.from_numpy(ends[:, ends[0] != ends[1]])
