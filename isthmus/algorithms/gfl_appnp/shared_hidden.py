"""Hidden representations of hosted nodes and their gradients, as clients share them in GFL-APPNP (Wu et al., 2022).

    h_k,s = encoder(x_k,s; W)        h_k = mean over s of h_k,s        d h_k / d W, a Jacobian (classes x parameters)

Jacobians are only ever multiplied by softmax(z) - y, whose entries add up to 0. So only the differences of their rows
to the last row count, and gradients have classes - 1 rows here: row c is d(h_c - h_last) / d W.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from isthmus.algorithms.gfl_appnp.hosted import Hosted, bare
from isthmus.core.random import ProtectingStream
from isthmus.core.record import Params
from isthmus.learn.graph_client import load_params
from isthmus.learn.together.layouts import replaced, stackable
from isthmus.models.products.sparse import Features


def hidden(model: nn.Module, params: Params, x: Features) -> Tensor:
    """Return the encoder's output for every row, (rows, classes)."""
    load_params(model, params)
    with torch.no_grad():
        found: Tensor = model(bare(x), None)
    return found


def gradients_together(model: nn.Module, params: Params, x: Tensor, owner: Tensor, counts: Tensor) -> Params:
    """Return the gradients of every node's h, name -> (nodes, classes - 1, ...), one backward pass for each class.

    Every node gets the parameters as if they were its own, expanded without a copy, so that a pass gives a row of all
    nodes' Jacobians; the model must be one that runs for many clients at once.
    """
    rows, weights = _padded_by_node(owner, counts)
    live = {
        name: params[name].detach().expand(len(counts), *params[name].shape).requires_grad_()
        for name, _ in model.named_parameters()
    }
    stacked = x[rows].flatten(0, 1)  # (nodes * samples, features)
    with replaced(model, live):
        h = model(bare(stacked), None).view(len(counts), rows.shape[1], -1)
    means = (h * weights[..., None]).sum(dim=1)  # (nodes, classes)
    last = means.shape[1] - 1
    found: dict[str, list[Tensor]] = {name: [] for name in live}
    for c in range(last):
        difference = (means[:, c] - means[:, last]).sum()
        grads = torch.autograd.grad(difference, list(live.values()), retain_graph=True, allow_unused=True)
        for name, grad in zip(live, grads, strict=True):
            found[name].append(torch.zeros(live[name].shape) if grad is None else grad)
    if last == 1:  # without a copy
        return {name: rows[0].unsqueeze(1) for name, rows in found.items()}
    return {name: torch.stack(rows, dim=1) if rows else live[name][:, None][:, :0] for name, rows in found.items()}


def gradients_one_by_one(model: nn.Module, params: Params, x: Features, hosted: Hosted) -> Params:
    """Return the same for any module: one vector product for each node and class."""
    load_params(model, params)
    live = {name: slot for name, slot in model.named_parameters() if slot.requires_grad}
    means = hosted.means(model(bare(x), None))
    last = means.shape[1] - 1
    found = {name: torch.zeros(len(means), last, *slot.shape, dtype=slot.dtype) for name, slot in live.items()}
    for k in range(len(means)):
        for c in range(last):
            grads = torch.autograd.grad(
                means[k, c] - means[k, last], list(live.values()), retain_graph=True, allow_unused=True
            )
            for name, grad in zip(live, grads, strict=True):
                if grad is not None:
                    found[name][k, c] = grad
    return found


def gradients(model: nn.Module, params: Params, hosted: Hosted, at_once: bool = True) -> Params:
    """Return the gradients of h of each hosted node, name -> (hosted, classes - 1, ...), the quickest way there is."""
    if at_once and isinstance(hosted.x, Tensor) and stackable(model):
        return gradients_together(model, params, hosted.x, hosted.owner, hosted.counts)
    return gradients_one_by_one(model, params, hosted.x, hosted)


def add_noise(found: Params, std: float, num_classes: int, stream: ProtectingStream) -> Params:
    """Return gradients as of Jacobians to each of whose entries noise of a standard deviation was added.

    Noise is drawn for all rows of the Jacobian; of it, too, the differences to the last row count.
    """
    noisy = {}
    for name, tensor in found.items():
        shape = (tensor.shape[0], num_classes, *tensor.shape[2:])
        noise = std * stream.normal(shape).to(tensor.dtype)
        noisy[name] = tensor + (noise[:, :-1] - noise[:, -1:])
    return noisy


def _padded_by_node(owner: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return each node's rows, filled up with its first, and their share in its mean, both (nodes, most rows)."""
    order = torch.argsort(owner, stable=True)
    start = torch.cumsum(counts, 0) - counts
    place = torch.arange(int(counts.max())).expand(len(counts), -1)
    real = place < counts[:, None]
    rows = order[start[:, None] + torch.where(real, place, torch.zeros_like(place))]
    return rows, real / counts[:, None]
