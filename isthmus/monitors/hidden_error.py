"""How far shared representations are from what a client would see: GFL-APPNP (Wu et al., 2022), Assumption 2."""

from __future__ import annotations

import numpy as np

from isthmus.learn.hosted import Hosted
from isthmus.learn.shared_hidden import hidden
from isthmus.monitors.gradient_smoothness import mean_model, nodes_problem
from isthmus.monitors.monitor import Measured, Monitor, View


class HiddenError(Monitor):
    """For each client k, the largest |h_j(W_k) - h_j(W)|^2 over all nodes j: the bound of Assumption 2 for its model.

    W_k is the client's model after its local updates, W the mean of all models, h_j the mean of the encoder's outputs
    over node j's samples. While k trains, it knows h_j of a mean model only, and its own model walks away from that;
    how far is bounded by 2 lr^2 rho^2 I^2 Delta_k (Lemma A.1), so it grows with the number of local updates.
    """

    def problem(self, view: View) -> str:
        """Return why there are no representations to compare."""
        return nodes_problem(view)

    def measure(self, view: View) -> Measured:
        """Run every client's encoder over all samples."""
        hosted = Hosted.of_prepared(view.prepared)
        shared = hosted.means(hidden(view.module, mean_model(view), hosted.x))
        errors = []
        for params in view.models.values():
            own = hosted.means(hidden(view.module, params, hosted.x))
            errors.append(float((own - shared).square().sum(dim=1).max()))
        absent = tuple(client for client in view.clients if client not in view.models)
        return Measured(tuple(view.models), np.array(errors), absent)
