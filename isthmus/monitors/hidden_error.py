"""How far shared representations are from what a client would see: GFL-APPNP (Wu et al., 2022), Assumption 2."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from isthmus.algorithms.gfl_appnp.hosted import Hosted, hidden
from isthmus.monitors.gradient_smoothness import OfNodes
from isthmus.monitors.monitor import Measured, View


class HiddenError(OfNodes):
    """For each client k, the largest |h_j(W_k) - h_j(W)|^2 over others' nodes j: the bound of Assumption 2.

    W_k is the client's model after its local updates, W the one that it had been sent last before them (eq. 16), h_j
    the mean of the encoder's outputs over node j's samples. While k trains, it knows h_j of W only; how far it walks
    away is bounded by 2 lr^2 rho^2 I^2 Delta_k (Lemma A.1). The walk that all clients have in common counts. Its own
    nodes count nothing, so a client that hosts all has 0. A client that was sent no model is absent.
    """

    def measure(self, view: View) -> Measured:
        """Run every client's encoder over all samples, with its model and with the one that it came from."""
        hosted = Hosted.of_prepared(view.prepared)
        clients = tuple(client for client in view.models if client in view.starts)
        errors = []
        shared: dict[tuple[int, ...], Tensor] = {}  # many clients start from the same tensors
        for client in clients:
            start = view.starts[client]
            key = tuple(id(tensor) for tensor in start.values())
            if key not in shared:
                shared[key] = hosted.means(hidden(view.module, start, hosted.x))
            own = hosted.means(hidden(view.module, view.models[client], hosted.x))
            error = (own - shared[key]).square().sum(dim=1)  # (nodes,)
            error[torch.isin(view.whole.node_ids, view.parts[client].node_ids)] = 0.0
            errors.append(float(error.max()))
        absent = tuple(client for client in view.clients if client not in clients)
        return Measured(clients, np.array(errors), absent)
