"""How far neighbours' gradients are apart: kappa^2 over the edges. GFL-APPNP (Wu et al., 2022), Assumption 3."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from isthmus.algorithms.gfl_appnp.client_graph import Matrix, Mixing, normalized, polynomial
from isthmus.algorithms.gfl_appnp.hosted import Hosted, bare
from isthmus.core.record import Params
from isthmus.data.graph import Graph
from isthmus.learn.metrics.classification import cross_entropy
from isthmus.learn.optimizers import load_params
from isthmus.learn.tasks.node_classification import PreparedNodes
from isthmus.models.products.propagation import pagerank_weights
from isthmus.monitors.connectivity import client_adjacency
from isthmus.monitors.monitor import Measured, Monitor, View

ALPHA, HOPS = 0.1, 10  # of the propagation, as the paper has them; for methods that do not propagate


class OfNodes(Monitor):
    """Looks at nodes and their samples."""

    def problem(self, view: View) -> str:
        """Return why the course has no nodes with samples."""
        if not isinstance(view.prepared, PreparedNodes) or not isinstance(view.whole, Graph):
            return f"it looks at nodes and their samples, and {type(view.task).__name__} has none"
        return ""


class GradientSmoothness(OfNodes):
    """Each client's share in kappa^2, the sum over edges of |grad F_i(W) - grad F_j(W)|^2; kappa^2 is their sum.

    F_k is client k's mean loss over its training samples when predictions are propagated over the whole graph: with
    the `walk_weights` of the course's algorithm where it has them (alpha, hops and coefficients of GFL-APPNP), else as
    APPNP with alpha 0.1 and 10 steps, whatever the model is. W is the mean of the clients' models with the weights that
    they asked for in the round, or the plain one where replies have no weight, or none above 0. An edge counts where
    both ends have something to train on; half of it is each one's. A client without training samples is absent.
    """

    def measure(self, view: View) -> Measured:
        """Compute every client's gradient at the mean model, and the distances along edges."""
        load_params(view.module, mean_model(view))
        slopes = client_gradients(view)
        clients = tuple(slopes)
        if not clients:
            return Measured((), np.zeros(0), tuple(view.parts))
        place = {client: k for k, client in enumerate(view.parts)}
        rows = [place[client] for client in clients]
        near = client_adjacency(view.whole, view.parts)[np.ix_(rows, rows)]
        stacked = torch.stack(list(slopes.values())).double()
        distance = torch.stack([(stacked - mine).square().sum(dim=1) for mine in stacked]).numpy()
        absent = tuple(client for client in view.parts if client not in slopes)
        return Measured(clients, (near * distance).sum(axis=1) / 2.0, absent)


def mean_model(view: View) -> Params:
    """Return the mean of the clients' models, each with its weight of the round; all the same where there is none."""
    models = list(view.models.values())
    weights = [view.weights.get(client, 0.0) for client in view.models]
    share = torch.tensor(weights if sum(weights) > 0.0 else [1.0] * len(models), dtype=torch.float64)
    share = share / share.sum()
    means = {n: torch.tensordot(share, torch.stack([model[n].double() for model in models]), 1) for n in models[0]}
    return {name: mean.to(models[0][name].dtype) for name, mean in means.items()}


def propagated(hosted: Hosted, h: Tensor, step: Matrix, coefficients: Sequence[float]) -> Tensor:
    """Return `hosted.mixed` of sum_i coefficients[i] step^i and h, by Horner's rule: that sum is hardly sparse."""
    mixing, means = Mixing.of(step), hosted.means(h)
    z = coefficients[-1] * means
    for coefficient in reversed(coefficients[:-1]):
        z = mixing.times(z) + coefficient * means  # (nodes, classes)
    if len(hosted.owner) == len(hosted.counts):
        return z
    # A sample says its own of itself, where its node's mean has a part in the sum.
    own = torch.from_numpy(polynomial(step, coefficients).diagonal()).float()[hosted.owner, None]
    return z[hosted.owner] + own * (h - means[hosted.owner])


def client_losses(view: View) -> dict[str, Tensor]:
    """Return the loss of each client that has training samples, under the parameters that the module has now."""
    from scipy import sparse

    whole, hosted = view.whole, Hosted.of_prepared(view.prepared)
    source, target = whole.edge_index.numpy()
    weight = np.ones(len(source)) if whole.edge_weight is None else whole.edge_weight.double().numpy()
    step = normalized(sparse.csr_matrix((weight, (source, target)), (whole.num_nodes,) * 2))
    h = view.module(bare(hosted.x), None)
    own: tuple[float, ...] | None = getattr(view.algorithm, "walk_weights", None)
    z = propagated(hosted, h, step, pagerank_weights(ALPHA, HOPS) if own is None else own)
    position = {id: row for row, id in enumerate(whole.node_ids.tolist())}
    losses = {}
    for client, part in view.parts.items():
        mine = torch.tensor([position[id] for id in part.node_ids.tolist()])
        chosen = torch.isin(hosted.owner[hosted.train], mine)
        if bool(chosen.any()):
            losses[client] = cross_entropy(z[hosted.train[chosen]], hosted.labels[chosen])
    return losses


def client_gradients(view: View) -> dict[str, Tensor]:
    """Return the gradient of each of `client_losses`, as one vector."""
    live = [slot for slot in view.module.parameters() if slot.requires_grad]
    slopes = {}
    for client, loss in client_losses(view).items():
        found = torch.autograd.grad(loss, live, retain_graph=True, allow_unused=True)
        slopes[client] = torch.cat([g.flatten() for g in found if g is not None])
    return slopes
