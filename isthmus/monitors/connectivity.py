"""How well the graph between clients is connected: lambda_max(B_N L^+). GFL-APPNP (Wu et al., 2022), Theorem 4.1."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from isthmus.data.graph import Graph
from isthmus.monitors.monitor import Measured, Monitor, Values, View


class Connectivity(Monitor):
    """lambda_max(B_N L^+) of the graph between clients: small where it is well connected.

    L is the Laplacian of the graph in which two clients are neighbours if an edge of the whole graph joins their nodes,
    or a node is with both; B_N = I / N - 1 1^T / N^2. Since L^+ 1 = 0, this is 1 / (N lambda_2), with lambda_2 the
    least positive eigenvalue of L. It is one number, of the whole: NaN for a graph that is not connected, where the
    theorem does not hold, and 0 for a single client.
    """

    changes: ClassVar[bool] = False

    def problem(self, view: View) -> str:
        """Return why there is no graph between clients."""
        return "" if isinstance(view.whole, Graph) else "there is no graph between clients: the data is no single graph"

    def measure(self, view: View) -> Measured:
        """Return the one number."""
        return Measured(("all",), np.array([connectivity(client_adjacency(view.whole, view.parts))]))


def connectivity(adjacency: Values) -> float:
    """Return lambda_max(B_N L^+) of a symmetric matrix of zeros and ones; NaN where it is not connected."""
    size = len(adjacency)
    if size == 1:
        return 0.0
    laplacian = np.diag(adjacency.sum(axis=1)) - adjacency
    second = float(np.linalg.eigvalsh(laplacian)[1])
    return 1.0 / (size * second) if second > 1e-9 * size else float("nan")


def client_adjacency(whole: Graph, parts: Any) -> Values:
    """Return which clients are neighbours, (clients, clients), zeros and ones."""
    from scipy import sparse

    position = {id: place for place, id in enumerate(whole.node_ids.tolist())}
    owner = [(k, position[id]) for k, part in enumerate(parts.values()) for id in part.node_ids.tolist()]
    client, node = np.array(owner).T
    holds = sparse.csr_matrix((np.ones(len(node)), (client, node)), (len(parts), whole.num_nodes))
    source, target = whole.edge_index.numpy()
    edges = sparse.csr_matrix((np.ones(len(source)), (source, target)), (whole.num_nodes,) * 2)
    near = (holds @ edges @ holds.T + holds @ holds.T).toarray() > 0
    np.fill_diagonal(near, False)
    found: Values = (near | near.T).astype(np.float64)
    return found
