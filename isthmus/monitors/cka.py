"""How alike the clients' models are: pairwise CKA. Kornblith et al., 2019; FGSSL (Huang et al., 2023), Fig. 1 (a)."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.core.record import Params
from isthmus.learn.optimizers import load_params
from isthmus.learn.tasks.node_classification import PreparedNodes
from isthmus.monitors.monitor import Measured, Monitor, View
from isthmus.monitors.similarity import pairwise_cka


class CKA(Monitor):
    """Linear CKA of what each two clients' models say of the test nodes of the global graph, from 0 to 1 (alike).

    The representation of a node is the model's output, before the softmax. A client is absent if it gave no model, or
    one whose outputs are not finite. The diagonal is 1; it is 0 for a model that says the same of all nodes, as are all
    its other numbers.
    """

    def problem(self, view: View) -> str:
        """Return why outputs cannot be compared."""
        if not isinstance(view.prepared, PreparedNodes):
            return f"it compares outputs for nodes, and {type(view.task).__name__} has none"
        return "" if len(view.prepared.index["test"]) else "the global graph has no test nodes to compare outputs on"

    def measure(self, view: View) -> Measured:
        """Run every model over the global graph and compare each two."""
        outputs = {client: outputs_of(view, params) for client, params in view.models.items()}
        sound = {client: found for client, found in outputs.items() if bool(torch.isfinite(found).all())}
        absent = tuple(client for client in view.clients if client not in sound)
        return Measured(tuple(sound), pairwise_cka(list(sound.values())).numpy(), absent)


def outputs_of(view: View, params: Params) -> Tensor:
    """Return a model's outputs for the test nodes of the global graph, (test nodes, classes)."""
    load_params(view.module, params)
    # Not inference_mode: what the model caches on the graph here must serve later evaluations.
    with torch.no_grad():
        logits: Tensor = view.module(view.prepared.graph, None)
    return logits[view.prepared.index["test"]]
