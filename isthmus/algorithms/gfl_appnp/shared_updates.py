"""Local updates of a client that knows what its neighbours amount to: GFL-APPNP (Wu et al., 2022), eq. 15a and 15b.

    z_k,s = A~_kk h_k,s + sum over other hosted j of A~_kj h_j + C_k          C_k comes from the server
    g     = mean over the batch of (softmax(z_k,s) - y_k,s) (d z_k,s / d W + grad C_k)

Clients are trained one by one (`train`), or together, their weights stacked (`train_together`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from isthmus.algorithms.gfl_appnp.hosted import Hosted, bare
from isthmus.core.record import Params
from isthmus.learn.metrics.classification import cross_entropy
from isthmus.learn.optimizers import Optimizer, gradients, load_params, read_params
from isthmus.learn.together.layouts import replaced
from isthmus.models.dropout import Streams


@dataclass(frozen=True, eq=False)
class Received:
    """What a client trains with: from the server, for its own nodes.

    Fields:
        own:          (hosted, hosted); the client's own part of A~
        aggregate:    (hosted, classes); C of each node
        compensation: grad C of each node that is trained on, name -> (nodes, classes - 1, ...); empty for none
    """

    own: Tensor
    aggregate: Tensor
    compensation: Params


@dataclass(frozen=True, eq=False)
class Step:
    """The rows that an update runs the encoder on, and which of them count.

    Fields:
        rows:   (used,); rows of the client's samples
        batch:  (examples,); the places among `rows` of those whose loss counts
        labels: (examples,)
    """

    rows: Tensor
    batch: Tensor
    labels: Tensor


def steps_of(hosted: Hosted, batch_size: int | None, generator: torch.Generator) -> Iterator[Step]:
    """Yield updates without end: all training samples, or `batch_size` of them in a new order every epoch.

    With one hosted node, the encoder runs on the batch alone; with several, on all rows, since nodes mix.
    """
    device = hosted.owner.device
    everything = torch.arange(len(hosted.owner), device=device)
    count = len(hosted.train)
    while count:
        order = torch.arange(count, device=device)
        if batch_size is not None and batch_size < count:
            order = torch.randperm(count, generator=generator).to(device)
        for chosen in torch.split(order, batch_size or count):
            rows, labels = hosted.train[chosen], hosted.labels[chosen]
            if hosted.num_nodes == 1:
                yield Step(rows, torch.arange(len(rows), device=device), labels)
            else:
                yield Step(everything, rows, labels)


def batches_per_epoch(hosted: Hosted, batch_size: int | None) -> int:
    """Return how many updates show every training sample once."""
    return -(-len(hosted.train) // (batch_size or max(len(hosted.train), 1)))


def train(
    model: nn.Module,
    params: Params,
    hosted: Hosted,
    received: Received,
    steps: Iterator[Step],
    optimizer: Optimizer,
    lr: float,
    generator: torch.Generator,
) -> Params:
    """Take the given updates (eq. 15b) from `params` and return where they lead."""
    load_params(model, params)
    live = {name: slot for name, slot in model.named_parameters() if slot.requires_grad}
    state = optimizer.start(list(live.values()))
    nodes = hosted.train_nodes
    for step in steps:
        h = model(bare(hosted.rows(step.rows)), generator)
        if hosted.num_nodes == 1:
            z = received.own * h + received.aggregate  # (batch, classes)
        else:
            z = hosted.mixed(received.own, h, received.aggregate)[step.batch]
        grads = gradients(cross_entropy(z, step.labels), list(live.values()))
        with torch.no_grad():
            if received.compensation:
                error = _errors(z, step.labels) / len(step.labels)  # (batch, classes - 1)
                place = torch.searchsorted(nodes, hosted.owner[step.rows[step.batch]])
                by_node = error.new_zeros(len(nodes), error.shape[1]).index_add_(0, place, error)
                for i, name in enumerate(live):
                    grads[i] = grads[i] + torch.tensordot(by_node, received.compensation[name], dims=2)
            optimizer.step(list(live.values()), grads, state, lr)
    return read_params(model)


def _errors(z: Tensor, labels: Tensor) -> Tensor:
    """Return softmax(z) - y without the last class, (rows, classes - 1)."""
    error = z.softmax(dim=-1)
    error.scatter_add_(-1, labels.unsqueeze(-1), torch.full_like(error[..., :1], -1.0))
    return error[..., :-1]


# ---- many clients at once


@dataclass(frozen=True, eq=False)
class _Stacked:
    """One update of many clients side by side; what is beyond a client's own rows counts nothing.

    Fields:
        x:      (clients * rows, features)
        sizes:  rows that each client uses
        rows:   rows that each client takes up
        matrix: (clients, rows, rows), which mixes a client's rows; or (clients, 1, 1) where no client mixes
        offset: (clients, rows, classes), C of each row; or (clients, 1, classes) where a client's rows have one C
        labels: (clients, rows)
        share:  (clients, rows); weight of each row in its client's loss
        place:  (clients, rows); which of the client's training nodes a row belongs to
    """

    x: Tensor
    sizes: tuple[int, ...]
    rows: int
    matrix: Tensor
    offset: Tensor
    labels: Tensor
    share: Tensor
    place: Tensor


def train_together(
    model: nn.Module,
    params: Params,
    hosts: Sequence[Hosted],
    received: Sequence[Received],
    plans: Sequence[Iterator[Step]],
    steps: int,
    full: bool,
    optimizer: Optimizer,
    lr: float,
    generators: Callable[[], Sequence[torch.Generator]],
) -> dict[str, Tensor]:
    """Take `steps` updates for every client and return the stacked parameters, name -> (clients, ...).

    `full` says that every update of a client is the same one.
    """
    live = {name: params[name].expand(len(hosts), *params[name].shape).clone() for name in params}
    moved = [live[name].requires_grad_() for name in live]
    state = optimizer.start(moved)
    compensation = _stack_compensation(received)
    drawn: list[Sequence[torch.Generator]] = []

    def started() -> Sequence[torch.Generator]:
        if not drawn:
            drawn.append(generators())
        return drawn[0]

    single = all(host.num_nodes == 1 for host in hosts)
    joined = Hosted.joined(hosts) if single else None
    data: _Stacked | None = None
    with replaced(model, live):
        for _ in range(steps):
            if data is None or not full:
                chosen = [next(plan) for plan in plans]
                data = _stack(chosen, hosts, received) if joined is None else _stack_single(chosen, joined, received)
            streams = Streams(started, data.sizes, data.rows, ())
            h = model(bare(data.x), streams).view(len(hosts), data.rows, -1)
            z = (data.matrix * h if single else data.matrix @ h) + data.offset
            each = cross_entropy(z.flatten(0, 1), data.labels.flatten(), reduction="none")
            grads = gradients((each * data.share.flatten()).sum(), moved)
            with torch.no_grad():
                if compensation:
                    by_node = _errors_by_node(z, data, next(iter(compensation.values())).shape[1])
                    for i, name in enumerate(live):
                        grads[i] = grads[i] + _compensated(by_node, compensation[name])
                optimizer.step(moved, grads, state, lr)
    return {name: tensor.detach() for name, tensor in live.items()}


def _errors_by_node(z: Tensor, data: _Stacked, num_nodes: int) -> Tensor:
    """Return the errors of all clients' training nodes, each row's by its share, (clients, nodes, classes - 1)."""
    error = _errors(z, data.labels) * data.share[..., None]  # (clients, rows, classes - 1)
    by_node = error.new_zeros(len(error), num_nodes, error.shape[2])
    return by_node.scatter_add_(1, data.place[..., None].expand_as(error), error)


def _compensated(by_node: Tensor, compensation: Tensor) -> Tensor:
    """Return the sum over nodes and classes of error times gradient, (clients, ...)."""
    flat = compensation.flatten(3) if compensation.ndim > 3 else compensation.unsqueeze(-1)
    rows = flat.flatten(1, 2)  # (clients, nodes * classes, numbers)
    return torch.bmm(by_node.flatten(1).unsqueeze(1), rows).view(len(rows), *compensation.shape[3:])


def _stack_compensation(received: Sequence[Received]) -> Params:
    """Return all clients' grad C, name -> (clients, most nodes, classes - 1, ...)."""
    first = received[0].compensation
    if any(each.compensation.keys() != first.keys() for each in received):
        raise ValueError("some clients have gradients of others to add, and others have none")
    most = max((len(t) for each in received for t in each.compensation.values()), default=0)
    stacked = {}
    for name, tensor in first.items():
        parts = [each.compensation[name] for each in received]
        if all(len(part) == most for part in parts):
            stacked[name] = torch.stack(parts)
            continue
        stacked[name] = tensor.new_zeros(len(received), most, *tensor.shape[1:])
        for k, part in enumerate(parts):
            stacked[name][k, : len(part)] = part
    return stacked


def _stack_single(steps: Sequence[Step], joined: Hosted, received: Sequence[Received]) -> _Stacked:
    """Return an update of clients with one node each, whose samples lie one after the other in `joined`."""
    sizes = tuple(len(step.rows) for step in steps)
    index = pad_sequence([step.rows for step in steps], batch_first=True)  # (clients, rows)
    first = joined.counts.cumsum(0) - joined.counts
    length = torch.tensor(sizes, device=index.device)[:, None]
    share = (torch.arange(index.shape[1], device=index.device) < length) / length
    return _Stacked(
        joined.dense_x[index + first[:, None]].flatten(0, 1),
        sizes,
        index.shape[1],
        torch.stack([each.own for each in received]),
        torch.stack([each.aggregate for each in received]),
        pad_sequence([step.labels for step in steps], batch_first=True),
        share,
        torch.zeros_like(index),
    )


def _stack(steps: Sequence[Step], hosts: Sequence[Hosted], received: Sequence[Received]) -> _Stacked:
    num = len(steps)
    sizes = tuple(len(step.rows) for step in steps)
    rows = max(sizes)
    classes = received[0].aggregate.shape[1]
    device = hosts[0].owner.device
    x = torch.zeros(num, rows, hosts[0].x.shape[1], device=device)
    matrix = torch.zeros(num, rows, rows, device=device)
    offset = torch.zeros(num, rows, classes, device=device)
    labels = torch.zeros(num, rows, dtype=torch.int64, device=device)
    share = torch.zeros(num, rows, device=device)
    place = torch.zeros(num, rows, dtype=torch.int64, device=device)
    for k, (step, host, got) in enumerate(zip(steps, hosts, received, strict=True)):
        used, size = step.rows, sizes[k]
        x[k, :size] = host.dense_x[used]
        if host.num_nodes == 1:
            matrix[k, :size, :size] = got.own * torch.eye(size, device=device)
        else:
            matrix[k, :size, :size] = host.mixing_of_rows(got.own)
        offset[k, :size] = got.aggregate[host.owner[used]]
        labels[k, step.batch] = step.labels
        share[k, step.batch] = 1.0 / len(step.batch)
        place[k, step.batch] = torch.searchsorted(host.train_nodes, host.owner[used[step.batch]])
    return _Stacked(x.flatten(0, 1), sizes, rows, matrix, offset, labels, share, place)
