"""What lies between some nodes of a graph, taken again and again for other nodes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from isthmus.models.products.sparse import Pattern, SparseMatrix


class EvenRows:
    """The rows of a square matrix, each as long as the longest, so that many are copied in one go.

    Fields:
        columns: (nodes + 1, length); after a row's own entries, and in the last row, a column that nobody has
        values:  (nodes + 1, length)
    """

    def __init__(self, matrix: SparseMatrix) -> None:
        nodes = matrix.shape[0]
        lengths = np.append(matrix.pattern.crow.diff().cpu().numpy(), 0)
        filled = np.arange(int(lengths.max())) < lengths[:, None]
        self.columns = np.full(filled.shape, nodes, dtype=np.int32)
        self.values = np.zeros(filled.shape, dtype=matrix.values.cpu().numpy().dtype)
        self.columns[filled] = matrix.pattern.col.cpu().numpy()
        self.values[filled] = matrix.values.cpu().numpy()
        self.device = matrix.values.device

    def between(self, nodes: Tensor) -> SparseMatrix:
        """Return the entries among some rows and the columns of the same numbers, in the order of `nodes`.

        A number of -1 stands for a row and a column without entries.
        """
        chosen, last = nodes.cpu().numpy(), len(self.columns) - 1
        rank = np.full(last + 1, -1, dtype=np.int32)
        rank[chosen] = np.arange(len(chosen), dtype=np.int32)
        rank[last] = -1  # of nobody, and of -1
        found = rank.take(self.columns.take(chosen, axis=0))
        kept = found >= 0
        crow = np.append(0, np.count_nonzero(kept, axis=1).cumsum())
        parts = (crow, found[kept], self.values.take(chosen, axis=0)[kept])
        starts, columns, values = (torch.from_numpy(part).to(self.device) for part in parts)
        return SparseMatrix(Pattern(starts, columns, (len(chosen), len(chosen))), values)
