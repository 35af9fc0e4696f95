"""DBLP-CSR: papers of 81 conferences and their authors (Mendeley Data 3p9w84t5mr).

Stands where FedDBLP (Wang et al., 2022) cannot be had: papers with conference and publisher, but no citations, no text.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from isthmus.core.errors import refuse
from isthmus.data.dataset import Dataset
from isthmus.data.features import normalized_rows, sparse_rows
from isthmus.data.graph import Graph, spans
from isthmus.data.zoo.raw import damaged, known_digest, read_arrays, require, rows_of, verified

FILE = "dblp_csr/dblp_csr.npz"
NAMES = ("area", "conf", "publisher")
KEYS = ("author_indptr", "author_indices", *NAMES, *(f"{name}_names" for name in NAMES))
CHOICES = ("authors", "degree")
BLOCK_PAIRS = 2_000_000


@dataclass(frozen=True)
class DBLPCSR(Dataset):
    """148,521 papers, 2,923,072 undirected edges between papers that share an author, 4 areas as classes.

    10,277 papers have no edge; 2,353 of those have no author. The attributes "conference" (81) and "publisher" (5,
    and "unspecified" for 35,945 papers) are ways to divide it. The area is a function of the conference: a client of
    one conference has one class. The paper's FedDBLP has 52,202 papers and 271,054 citations.

    Fields:
        features: "authors": which of the 125,323 authors wrote the paper, sparse, 410,743 entries;
                  "degree": one column, the logarithm of 1 + the number of edges, as nothing else is known of a paper
    """

    summary: ClassVar[str] = "148,521 papers of 81 conferences, 2,923,072 links by author, 4 areas as classes"
    needs: ClassVar[tuple[str, ...]] = (FILE,)
    licence: ClassVar[str] = "MIT, as part of SijingYu/Hypergraphs; original on Mendeley Data"

    features: str = "authors"

    def __post_init__(self) -> None:
        refuse(self.features not in CHOICES, self, "features", f"choose from {', '.join(CHOICES)}")

    def load(self, root: Path) -> Graph:
        """Return the graph."""
        published = "https://github.com/SijingYu/Hypergraphs (hypergraphs/DBLP-CSR, as arrays " + ", ".join(KEYS) + ")"
        (path,) = require("dblp_csr", root, [FILE], published)
        arrays = read_arrays(verified(root, FILE), KEYS, known_digest(path, root))
        start, author = (arrays[key].astype(np.int64) for key in ("author_indptr", "author_indices"))
        num_papers = len(start) - 1
        if int(start[-1]) != len(author) or any(len(arrays[name]) != num_papers for name in NAMES):
            raise damaged(path, None, f"its arrays do not fit together: {num_papers} papers, {len(author)} authorships")
        edge_index = shared_item_edges(start, author)
        degree = torch.bincount(edge_index[0], minlength=num_papers)
        x = _incidence(start, author) if self.features == "authors" else torch.log1p(degree.float()).unsqueeze(1)
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
            name="dblp_csr",
        )


def shared_item_edges(start: np.ndarray, item: np.ndarray, block_pairs: int = BLOCK_PAIRS) -> Tensor:
    """Return the edges between rows of a CSR matrix that share an item, as `Graph` has them.

    Row i has the items from start[i] to start[i + 1]. Rows are taken in blocks that make about `block_pairs` pairs
    each (one row more at most), so memory is that of a block and of the edges themselves.
    """
    num_rows = len(start) - 1
    row = rows_of(start)  # (entries,)
    by_item = np.argsort(item, kind="stable")  # entries of one item together, rows ascending
    place = np.empty_like(by_item)
    place[by_item] = np.arange(len(item))
    after = np.cumsum(np.bincount(item))[item] if len(item) else item  # where the item's entries end
    later = after - place - 1  # rows below this entry's that have the item
    before = np.concatenate([[0], np.cumsum(later)])[start]  # (rows + 1,)
    kept, low = [np.empty(0, dtype=np.int64)], 0
    while low < num_rows:
        high = max(int(np.searchsorted(before, before[low] + block_pairs, "right")) - 1, low + 1)
        entry = np.arange(start[low], start[high])
        source = np.repeat(row[entry], later[entry])
        target = row[by_item[spans(place[entry] + 1, later[entry])]]
        kept.append(np.unique(source * num_rows + target))  # no other block has these sources
        low = high
    low_end, high_end = np.divmod(np.concatenate(kept), max(num_rows, 1))
    key = np.sort(np.concatenate([low_end * num_rows + high_end, high_end * num_rows + low_end]))
    return torch.from_numpy(np.stack(np.divmod(key, max(num_rows, 1))))


def _incidence(start: np.ndarray, author: np.ndarray) -> Tensor:
    order = np.lexsort((author, rows_of(start)))
    shape = (len(start) - 1, int(author.max(initial=-1)) + 1)
    return sparse_rows(torch.from_numpy(start), torch.from_numpy(author[order]), torch.ones(len(author)), shape)
