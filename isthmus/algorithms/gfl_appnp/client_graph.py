"""The graph between clients that a server builds from their lists of neighbours, and how it mixes what they share.

A~ = sum_i c_i (D^-1/2 (A + I) D^-1/2)^i, as APPNP has it (Gasteiger et al., 2019; GFL-APPNP, Wu et al., 2022, eq. 13b).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from isthmus.algorithms.gfl_appnp.messages import NeighborList
from isthmus.core.errors import BadInput
from isthmus.data.graph import spans
from isthmus.models.products.sparse import Pattern, SparseMatrix

Numbers = npt.NDArray[np.int64]
Matrix = Any  # scipy.sparse.csr_matrix

# Numbers of gradients that are put together at a time before they are mixed.
CHUNK = 20_000_000


@dataclass(frozen=True, eq=False)
class ClientGraph:
    """Who hosts what, and the edges between nodes. A node that several clients host has a place with each of them.

    Fields:
        clients:   the clients, in order
        counts:    number of places of each client; the places of all lie one after the other
        node:      (places,); the node of each place, numbered from 0
        adjacency: (nodes, nodes), symmetric, without loops
        num_left_out: edges that were named to nodes which nobody hosts
        one_sided: in words, edges that were left out because only one of their ends' hosts names them; nothing if none
    """

    clients: tuple[str, ...]
    counts: tuple[int, ...]
    node: Numbers
    adjacency: Matrix
    num_left_out: int
    one_sided: str = ""

    @staticmethod
    def of(lists: Mapping[str, NeighborList], *, leave_out: bool = False) -> ClientGraph:
        """Build the graph; an edge that only one of its ends' hosts names is refused, or left out.

        Loops are left out, since A~ has its own; so are edges to nodes that nobody hosts.
        """
        from scipy import sparse

        keys = np.concatenate([each.nodes.numpy() for each in lists.values()])
        known, node = np.unique(keys, return_inverse=True)
        source = np.concatenate([each.source.numpy() for each in lists.values()])
        target = np.concatenate([each.target.numpy() for each in lists.values()])
        weight = np.concatenate([_weights(each) for each in lists.values()])
        hosted = np.isin(target, known)
        kept = hosted & (source != target)
        rows, columns = np.searchsorted(known, source[kept]), np.searchsorted(known, target[kept])
        pair, first = np.unique(rows * len(known) + columns, return_index=True)
        rows, columns, weight = pair // len(known), pair % len(known), weight[kept][first]
        adjacency = sparse.csr_matrix((weight, (rows, columns)), (len(known), len(known)))
        counts = tuple(len(each.nodes) for each in lists.values())
        graph = ClientGraph(tuple(lists), counts, node.reshape(-1), adjacency, int((~hosted).sum()))
        problem, doubtful = graph._asymmetry(known)
        if not problem:
            return graph
        if not leave_out:
            raise BadInput(
                f"the graph between clients is not symmetric: {problem}; both sides must list an edge, with one weight "
                "(dataset.undirected=true reads every edge of a folder in both directions)"
            )
        return replace(graph, adjacency=(adjacency - adjacency.multiply(doubtful)).tocsr(), one_sided=problem)

    def _asymmetry(self, keys: Numbers) -> tuple[str, Matrix]:
        """Return in words which edges only one side names, or with another weight, and a matrix with ones there."""
        difference = abs(self.adjacency - self.adjacency.T).tocoo()
        larger = self.adjacency.maximum(self.adjacency.T).tocsr()
        # Edge by edge: beside one heavy edge, the difference of a light one would look like rounding.
        wrong = difference.data > 1e-6 * np.asarray(larger[difference.row, difference.col]).reshape(-1)
        if not wrong.any():
            return "", None
        u, v = int(difference.row[wrong][0]), int(difference.col[wrong][0])
        if not self.adjacency[u, v]:
            u, v = v, u
        names, other = self._hosts(u), self._hosts(v)
        there, back = self.adjacency[u, v], self.adjacency[v, u]
        said = "does not name it back" if not back else f"gives it the weight {back:g}, not {there:g}"
        who = "hosts both nodes, and" if names == other else f"and {other}, which hosts that node,"
        doubtful = type(difference)(
            (np.ones(int(wrong.sum())), (difference.row[wrong], difference.col[wrong])), difference.shape
        ).tocsr()
        problem = (
            f"{names} names an edge from node {keys[u]} to node {keys[v]}, {who} {said} "
            f"({int(wrong.sum()) // 2} such edges)"
        )
        return problem, doubtful

    def _hosts(self, node: int) -> str:
        owner = np.repeat(np.arange(len(self.clients)), self.counts)
        return self.clients[int(owner[self.node == node][0])]

    def mixing(self, coefficients: Sequence[float]) -> Matrix:
        """Return A~ over places, (places, places), sparse: what several clients share of one node is averaged."""
        num_hosts = np.bincount(self.node, minlength=self.adjacency.shape[0])
        mixed = polynomial(normalized(self.adjacency), coefficients)[self.node][:, self.node]
        return (mixed.multiply(1.0 / num_hosts[self.node][None, :])).tocsr()


def normalized(adjacency: Matrix) -> Matrix:
    """Return D^-1/2 (A + I) D^-1/2 with D the row sums of A + I; a node without edges keeps its own 1."""
    from scipy import sparse

    looped = adjacency + sparse.identity(adjacency.shape[0], format="csr")
    scale = sparse.diags(1.0 / np.sqrt(np.asarray(looped.sum(axis=1)).reshape(-1)))
    return (scale @ looped @ scale).tocsr()


def polynomial(matrix: Matrix, coefficients: Sequence[float]) -> Matrix:
    """Return sum_i coefficients[i] matrix^i, sparse, by Horner's rule; entries that no walk reaches stay out."""
    from scipy import sparse

    identity = sparse.identity(matrix.shape[0], format="csr")
    total = coefficients[-1] * identity
    for coefficient in reversed(coefficients[:-1]):
        total = matrix @ total + coefficient * identity
    return total.tocsr()


def without_blocks(matrix: Matrix, counts: Sequence[int]) -> tuple[Matrix, list[Tensor]]:
    """Return a matrix over places without each client's own block, and these blocks, (hosted, hosted)."""
    owner = np.repeat(np.arange(len(counts)), counts)
    entries = matrix.tocoo()
    mine = owner[entries.row] == owner[entries.col]
    rest = type(entries)((entries.data[~mine], (entries.row[~mine], entries.col[~mine])), matrix.shape).tocsr()
    if all(count == 1 for count in counts):
        return rest, [torch.full((1, 1), value) for value in matrix.diagonal().tolist()]
    ends = np.cumsum(counts)
    blocks = [
        torch.from_numpy(matrix[end - count : end, end - count : end].toarray()).float()
        for count, end in zip(counts, ends, strict=True)
    ]
    return rest, blocks


class Mixing:
    """A~ over places without each client's own block, as three lists that can be stored, ready to be multiplied.

    Fields:
        start:  (places + 1,), int64; the entries of row i are those from start[i] to start[i + 1]
        column: (entries,), int64
        value:  (entries,), float32
    """

    def __init__(self, start: Tensor, column: Tensor, value: Tensor) -> None:
        self.start, self.column, self.value = start, column, value

    @staticmethod
    def of(matrix: Matrix) -> Mixing:
        """Return a sparse matrix in this form."""
        start, column = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64)
        return Mixing(torch.from_numpy(start), torch.from_numpy(column), torch.from_numpy(matrix.data).float())

    def rows(self, chosen: Tensor) -> Tensor:
        """Return some rows, dense, (rows, places)."""
        length = self.start.diff()[chosen]
        entries = torch.from_numpy(spans(self.start[chosen].numpy(), length.numpy()))
        found = torch.zeros(len(chosen), len(self.start) - 1)
        found[torch.repeat_interleave(torch.arange(len(chosen)), length), self.column[entries]] = self.value[entries]
        return found

    def sources(self, chosen: Tensor) -> Tensor:
        """Return the places that have an entry in some of these rows, ascending."""
        length = self.start.diff()[chosen]
        entries = torch.from_numpy(spans(self.start[chosen].numpy(), length.numpy()))
        found: Tensor = torch.unique(self.column[entries])
        return found

    def num_clients(self, counts: Sequence[int], present: Sequence[bool] | None = None) -> Tensor:
        """Return how many clients have a part in each row, (places,); of those that are present, if that is said.

        A client counts once, however many of its places have an entry.
        """
        owner = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))[self.column]
        row = torch.repeat_interleave(torch.arange(len(self.start) - 1), self.start.diff())
        if present is not None:
            there = torch.tensor(present)[owner]
            owner, row = owner[there], row[there]
        pairs = torch.unique(row * len(counts) + owner)
        return torch.bincount(pairs // len(counts), minlength=len(self.start) - 1)

    def times(self, shared: Tensor) -> Tensor:
        """Return the product with what all places share, (places, width)."""
        size = len(self.start) - 1
        found: Tensor = SparseMatrix(Pattern(self.start, self.column, (size, size)), self.value).matmul(shared)
        return found

    def mixed_gradients(self, chosen: Tensor, found: Sequence[tuple[slice, Mapping[str, Tensor]]]) -> dict[str, Tensor]:
        """Return rows of the product with gradients, name -> (rows, ...), from those of some places each.

        They are put together a few at a time: all of them at once may take more memory than there is.
        """
        if not found or not len(chosen):
            return {}
        weights, mixed = self.rows(chosen), {}
        for name, like in found[0][1].items():
            width = like[0].numel()
            total = torch.zeros(len(chosen), width)
            step = max(CHUNK // max(width, 1), 1)
            for i in range(0, len(found), step):
                parts = torch.cat([grads[name].flatten(1) for _, grads in found[i : i + step]])
                columns = torch.cat([torch.arange(place.start, place.stop) for place, _ in found[i : i + step]])
                total.addmm_(weights[:, columns], parts)
            mixed[name] = total.view(len(chosen), *like.shape[1:])
        return mixed


def slices(counts: Sequence[int]) -> list[slice]:
    """Return where each client's places are, when they lie one after the other."""
    ends = np.cumsum(counts).tolist()
    return [slice(end - count, end) for count, end in zip(counts, ends, strict=True)]


def _weights(each: NeighborList) -> npt.NDArray[np.float64]:
    given = each.weight.double().numpy()
    return given if len(given) else np.ones(len(each.source))
