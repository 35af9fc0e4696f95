"""Feature generators graded by many clients at once: what a peer generates is made once, and sums are taken first.

Every client holds the same generated rows x_r against its own nodes, finds the nearest, u_k(r), and wants the gradient
of the squared distances by the generator that made the rows. The server looks at nothing but the sum over clients,
with weights w_k, and gradients by a generator are linear in those by its rows:

    d / d x_r  sum_k w_k |x_r - x_{u_k(r)}|^2  =  2 ( sum_k w_k ) x_r  -  2 sum_k w_k x_{u_k(r)}

over the clients k whose rows these are not. So there is one way back for each generator, where each client alone takes
one for each of its peers. A client's own gradients are made only if somebody looks at them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from isthmus.algorithms.fedsage.messages import GeneratorView
from isthmus.algorithms.fedsage.neighbor_generation import generated_features, nearest_rows
from isthmus.core.client import NotTogether
from isthmus.core.record import CPU, Params, largest
from isthmus.core.replies import Stacked

# More generated numbers than these are not held at once: four bytes each, and four times for a moment.
MOST_NUMBERS = 1 << 26


class Grades:
    """What clients find for the generators of all, themselves among them.

    Args:
        views:   every generator, by client
        clients: who grades
        alone:   gives one client's gradients, by the place of the client
    """

    def __init__(
        self,
        views: Mapping[str, GeneratorView],
        clients: Sequence[Any],
        alone: Callable[[int], Mapping[str, Params]],
    ) -> None:
        self.views, self._alone = views, alone
        self.number = len(clients)
        columns = {client.data.num_features for client in clients}
        columns |= {view.params["slot_weight"].shape[2] for view in views.values()}
        if len(columns) != 1 or any(client.device != CPU for client in clients):
            raise NotTogether("features that cannot be compared, or that lie on different devices")
        counts = [int(view.counts.sum()) for view in views.values()]
        if sum(counts) * columns.pop() > MOST_NUMBERS:
            raise NotTogether("more neighbours are generated than are held at once")
        self._slots: dict[str, Params] = {
            peer: {name: tensor.detach().requires_grad_() for name, tensor in view.params.items()}
            for peer, view in views.items()
        }
        with torch.enable_grad():
            self._made = [
                generated_features(self._slots[peer], view.inputs, view.counts)[0] for peer, view in views.items()
            ]
        self._rows = torch.cat([rows.detach() for rows in self._made])  # (generated, features)
        owner = np.repeat(np.arange(len(views)), counts)  # of each row: whose it is
        place = {peer: k for k, peer in enumerate(views)}
        turned = self._rows.t().contiguous()
        # For each client which rows it grades, and the nearest of its nodes to each.
        self._graded: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []
        for client in clients:
            mine = np.flatnonzero(owner != place.get(client.id, -1)) if client.num_nodes else np.zeros(0, np.int64)
            nearest = nearest_rows(self._rows, client.prepared.graph.x, turned).numpy() if len(mine) else owner
            self._graded.append((mine, nearest[mine]))
        self._x = sparse.vstack([_scipy(client.data.x) for client in clients], format="csr")
        self._first = np.cumsum([0, *(client.num_nodes for client in clients)])
        self._sum: tuple[Tensor, dict[str, Params]] | None = None
        self._member: tuple[int, Mapping[str, Params]] | None = None
        self.bound = self._bounded([largest(_values(client.data.x)) for client in clients])

    def stacked(self) -> dict[str, dict[str, Grade]]:
        """Return the gradients of all clients, by whose generator and name."""
        return {peer: {name: Grade(self, peer, name) for name in slots} for peer, slots in self._slots.items()}

    def of_client(self, position: int) -> Mapping[str, Params]:
        """Return one client's gradients, as it finds them by itself; the last ones are kept."""
        if self._member is None or self._member[0] != position:
            self._member = (position, self._alone(position))
        return self._member[1]

    def summed(self, weights: Tensor) -> dict[str, Params]:
        """Return the weighted sums over clients, in double precision; the last ones are kept."""
        if self._sum is None or not torch.equal(self._sum[0], weights):
            self._sum = (weights, self._summed(weights.tolist()))
        return self._sum[1]

    def _summed(self, weights: Sequence[float]) -> dict[str, Params]:
        size = len(self._rows)
        mass = np.zeros(size)
        for weight, (rows, _) in zip(weights, self._graded, strict=True):
            mass[rows] += weight
        row = np.concatenate([rows for rows, _ in self._graded])
        column = np.concatenate(
            [nearest + first for (_, nearest), first in zip(self._graded, self._first, strict=False)]
        )
        value = np.repeat(np.array(weights), [len(rows) for rows, _ in self._graded])
        chosen = sparse.csr_matrix((value, (row, column)), shape=(size, int(self._first[-1])))
        nearest = torch.from_numpy((chosen @ self._x).toarray())  # (generated, features), double
        slope = (2.0 * (torch.from_numpy(mass).unsqueeze(1) * self._rows - nearest)).to(self._rows.dtype)
        found, parts = {}, torch.split(slope, [len(rows) for rows in self._made])
        for (peer, slots), made, part in zip(self._slots.items(), self._made, parts, strict=True):
            grads = torch.autograd.grad(made, list(slots.values()), part, retain_graph=True)
            found[peer] = {name: grad.double() for name, grad in zip(slots, grads, strict=True)}
        return found

    def _bounded(self, largest_features: Sequence[float]) -> Tensor:
        """Return what no number of a client's gradients exceeds, (clients,)."""
        # |d / d x_r| times rows, times what a number of fGen is multiplied by on the way: embeddings, weights, hidden
        # rows, which are sums of these.
        inputs = max((largest(view.inputs) for view in self.views.values()), default=0.0)
        params = max((largest(each) for view in self.views.values() for each in view.params.values()), default=0.0)
        width = max((tensor.numel() for slots in self._slots.values() for tensor in slots.values()), default=1)
        way = (1.0 + inputs) * (1.0 + params) * width
        by_row = [2.0 * (largest(self._rows) + each) for each in largest_features]
        return torch.tensor(by_row, dtype=torch.float64) * max(len(self._rows), 1) * way * way


class Grade(Stacked):
    """Gradients of many clients by one parameter of a peer's generator."""

    def __init__(self, grades: Grades, peer: str, name: str) -> None:
        like = grades.views[peer].params[name]
        super().__init__(like.shape, like.dtype, grades.number)
        self._grades, self._peer, self._name = grades, peer, name

    def member(self, position: int) -> Tensor:
        """Return one client's."""
        return self._grades.of_client(position)[self._peer][self._name]

    def bound(self) -> Tensor:
        """Return what no number of a client's gradients exceeds."""
        return self._grades.bound

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the weighted sum, which one way back gives."""
        return self._grades.summed(weights)[self._peer][self._name].clone()


def _values(x: Tensor) -> Tensor:
    return x.values() if x.layout == torch.sparse_csr else x


def _scipy(x: Tensor) -> Any:
    """Return features as scipy has sparse ones."""
    if x.layout != torch.sparse_csr:
        return sparse.csr_matrix(x.numpy())
    parts = (x.values().numpy(), x.col_indices().numpy(), x.crow_indices().numpy())
    return sparse.csr_matrix(parts, shape=tuple(x.shape), copy=False)
