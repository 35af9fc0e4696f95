"""Users and items of a client: who rated what, under names that only clients understand, and users of other clients.

FedGNN (Wu et al., 2021). A node's attribute "side" says what it is: 0 for a user, 1 for an item.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from isthmus.algorithms.fedgnn.perturbation import TableRows, free_rows
from isthmus.core.errors import BadInput
from isthmus.core.random import ProtectingStream
from isthmus.core.record import Params, Record
from isthmus.data.graph import spans
from isthmus.data.link_graph import LinkGraph
from isthmus.learn.tasks.link_task import PreparedLinks
from isthmus.learn.tasks.stacked_batches import StackedBatch
from isthmus.models.encoders import EmbeddingSum
from isthmus.models.inputs import GraphInput
from isthmus.models.model import Model
from isthmus.models.products.sparse import Features, Pattern, SparseMatrix

SIDE = "side"
TOKEN_BYTES = 8


@dataclass(frozen=True)
class SharedUsers(Record):
    """A client's users, without their names, and what they rated, under keyed hashes."""

    # What has a row for each user, and whether a row is of probabilities (guard row_noise).
    row_fields: ClassVar[Mapping[str, bool]] = {"embeddings": False}
    # What says which user rated which item (guard edge_response).
    joins: ClassVar[tuple[str, str]] = ("user", "item")

    embeddings: Tensor
    """(users, width): what the encoder of the global model makes of each user's features; whoever has the model may
    find the features from it, or the bucket of a hashed id. Large buckets and `embedding_noise` make it vague."""
    user: Tensor
    """(pairs,), int64: a row of `embeddings`; no pair is there twice."""
    item: Tensor
    """(pairs,), int64: the keyed hash of an item that this user rated in the training data. The server learns how many
    users rated each item and which users have items in common; not which item, for it does not have the key."""


# ---- what a client has


def interactions(data: Any) -> tuple[Tensor, Tensor]:
    """Return the distinct pairs of a user and an item that a training link joins: nodes, (pairs,) each, sorted.

    There are none in data that is no graph of links or has no attribute "side". Links within a side do not count.
    """
    empty = torch.empty(0, dtype=torch.int64, device=data.x.device if hasattr(data, "x") else None)
    if not isinstance(data, LinkGraph) or SIDE not in data.node_attributes:
        return empty, empty
    ends = data.links[:, data.mask("train") & data.is_link]
    side = data.node_attributes[SIDE][ends]  # (2, links)
    mixed = side[0] != side[1]
    user = torch.where(side[0] == 0, ends[0], ends[1])[mixed]
    item = torch.where(side[0] == 0, ends[1], ends[0])[mixed]
    pair = torch.unique(user * max(data.num_nodes, 1) + item)
    return pair // max(data.num_nodes, 1), pair % max(data.num_nodes, 1)


def tokens(keys: Tensor, secret: bytes) -> Tensor:
    """Return keyed hashes of nodes' keys, (nodes,), int64: the first 8 bytes of HMAC-SHA256(secret, key).

    Equal keys have equal tokens, under one secret; without it nobody can tell which key a token is of.
    """
    digests = (hmac.digest(secret, str(key).encode(), "sha256") for key in keys.tolist())
    found = [int.from_bytes(digest[:TOKEN_BYTES], "big", signed=True) for digest in digests]
    return torch.tensor(found, dtype=torch.int64, device=keys.device)


def used_columns(x: Tensor, nodes: Tensor) -> Tensor:
    """Return the columns that some of these nodes have an entry in, ascending, of dense or CSR features."""
    if x.layout != torch.sparse_csr:
        return (x[nodes] != 0).any(dim=0).nonzero().flatten()
    start = x.crow_indices()
    length = start.diff()[nodes]
    entries = torch.from_numpy(spans(start[nodes].cpu().numpy(), length.cpu().numpy())).to(x.device)
    found: Tensor = torch.unique(x.col_indices()[entries][x.values()[entries] != 0]).long()
    return found


def table_name(model: nn.Module) -> str | None:
    """Return the name of the model's table of embeddings, one row for each feature column; None where it has none.

    That is the encoder "categorical" of features that say which user or item a node is.
    """
    encoder = model.encoder if isinstance(model, Model) else None
    return "encoder.weight" if isinstance(encoder, EmbeddingSum) else None


def table_rows(
    model: nn.Module, data: Any, params: Params, num_pseudo: int, stream: ProtectingStream
) -> TableRows | None:
    """Return the rows of the table that go up: those of nodes with a training link, and pseudo ones, drawn evenly.

    A pseudo row is one that none of these nodes uses. None where there is no table, or where it stays at the client.
    """
    name = table_name(model)
    if name is None or name not in params or not isinstance(data, LinkGraph):
        return None
    used = used_columns(data.x, torch.unique(data.links[:, data.mask("train")]))
    return TableRows(name, used, free_rows(used, len(params[name]), num_pseudo, stream))


def embedded(model: nn.Module, graph: GraphInput, nodes: Tensor) -> Tensor:
    """Return the encoder's rows of some nodes, (nodes, width); raises BadInput where there is no encoder."""
    encoder = model.encoder if isinstance(model, Model) else None
    if encoder is None:
        raise BadInput(
            "users are shared with other clients as the model's encoder makes them of their features, and the model "
            "has no encoder, so they would be the features themselves; set model.encoder (linear, mlp, categorical), "
            "or leave the graphs as they are (expand_every=0)"
        )
    with torch.no_grad():
        return encoder(graph, graph.x, None)[nodes]


# ---- what the clients have in common


def matched(
    shared: Mapping[str, SharedUsers], max_users: int | None, generator: torch.Generator
) -> dict[str, SharedUsers]:
    """Return for each client the users of others that have an item in common with it, and which items these are.

    Users come in a random order, at most `max_users` of them, drawn evenly; nothing says whose they are.
    """
    names = list(shared)
    counts = [len(each.embeddings) for each in shared.values()]
    first = np.concatenate([[0], np.cumsum(counts)])
    rows = torch.cat([each.embeddings for each in shared.values() if len(each.embeddings)] or [torch.empty(0, 0)])
    token = torch.cat([each.item for each in shared.values()] or [torch.empty(0, dtype=torch.int64)])
    user = torch.cat([each.user + int(shift) for each, shift in zip(shared.values(), first, strict=False)] or [token])
    order = torch.argsort(token, stable=True)
    token, user = token[order], user[order]
    known, length = torch.unique_consecutive(token, return_counts=True)
    start = length.cumsum(0) - length
    found = {}
    for k, name in enumerate(names):
        place = torch.searchsorted(known, torch.unique(shared[name].item))
        pairs = torch.from_numpy(spans(start[place].numpy(), length[place].numpy()))
        other = (user[pairs] < int(first[k])) | (user[pairs] >= int(first[k + 1]))
        found[name] = _drawn(rows, user[pairs[other]], token[pairs[other]], max_users, generator)
    return found


def _drawn(rows: Tensor, user: Tensor, item: Tensor, max_users: int | None, generator: torch.Generator) -> SharedUsers:
    """Return pairs with their users numbered anew, in a random order; those of users beyond the limit are left out."""
    every, position = torch.unique(user, return_inverse=True)
    chosen = torch.randperm(len(every), generator=generator)[:max_users]
    number = torch.full((len(every),), -1).index_copy_(0, chosen, torch.arange(len(chosen)))[position]
    kept = number >= 0
    return SharedUsers(rows[every[chosen]], number[kept], item[kept])


def located(user: Tensor, token: Tensor, items: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Return pairs with `items` in the place of their tokens, `own`; a token that is none of these is refused."""
    ordered, order = own.sort()
    place = torch.searchsorted(ordered, token)
    strange = (place == len(own)) | (torch.cat([ordered, ordered.new_zeros(1)])[place] != token)
    if bool(strange.any()):
        raise BadInput(
            f"{int(strange.sum())} of {len(token)} pairs name an item that this client does not have; "
            "neighbours must be of its own items"
        )
    return user, items[order[place]]


# ---- the expanded graph


def expanded(prepared: PreparedLinks, others: SharedUsers) -> PreparedLinks:
    """Return the links with other clients' users as nodes behind the client's own, joined to its items both ways.

    The features of those nodes are zeros: `ExpandedModel` puts their embeddings in. The columns of the client's own
    message edges stay what they are.
    """
    graph = prepared.graph
    peer = others.user + graph.num_nodes
    there = torch.stack([peer, others.item])
    edge_index = torch.cat([graph.edge_index, there, there.flip(0)], dim=1)
    return replace(prepared, graph=GraphInput(x=_padded(graph.x, len(others.embeddings)), edge_index=edge_index))


def _padded(x: Features, number: int) -> Features:
    """Return features with rows of zeros below."""
    if not isinstance(x, SparseMatrix):
        return torch.cat([x, x.new_zeros(number, x.shape[1])])
    crow = x.pattern.crow
    crow = torch.cat([crow, crow[-1:].expand(number)])
    return SparseMatrix(Pattern(crow, x.pattern.col, (x.shape[0] + number, x.shape[1])), x.values)


class ExpandedModel(nn.Module):
    """A model that reads a graph whose last nodes are other clients' users, with embeddings that nothing changes.

    It gives the representations of the client's own nodes, so that a link task can be trained and measured with it.

    Args:
        model:      the model
        embeddings: (users, width)
        place:      rows of the graph that they stand at, where many clients' graphs lie side by side: then the
                    representations of all rows are given
    """

    def __init__(self, model: nn.Module, embeddings: Tensor, place: Tensor | None = None) -> None:
        super().__init__()
        assert isinstance(model, Model) and model.encoder is not None
        self.encoder = model.encoder
        self.decoder = model.decoder
        self.embeddings, self.place = embeddings, place
        self.behind = Model(None, model.gnn, None, model.decoder, model.activation)

    def embed(self, graph: GraphInput, generator: torch.Generator | None) -> Tensor:
        """Return the representations of the client's own nodes, (nodes, width)."""
        own = graph.num_nodes - len(self.embeddings)
        rows = self.encoder(graph, graph.x, generator)
        if rows.shape[1] != self.embeddings.shape[1]:
            raise BadInput(
                f"other clients' users have embeddings of {self.embeddings.shape[1]} numbers, this client's encoder "
                f"gives {rows.shape[1]}; all clients need encoders of one width"
            )
        if self.place is not None:
            return self.behind.embed(graph.replace(x=rows.index_copy(0, self.place, self.embeddings)), generator)
        return self.behind.embed(graph.replace(x=torch.cat([rows[:own], self.embeddings])), generator)[:own]


def expanded_together(others: Sequence[SharedUsers]) -> Callable[[nn.Module, StackedBatch, Sequence[int]], nn.Module]:
    """Return what makes `ExpandedModel`s of many clients one, whose graphs lie side by side."""

    def seen(model: nn.Module, batch: StackedBatch, owners: Sequence[int]) -> nn.Module:
        rows = [others[k].embeddings for k in owners]
        ends = [place * batch.nodes.rows + size for place, size in enumerate(batch.nodes.sizes)]
        places = [torch.arange(end - len(mine), end) for end, mine in zip(ends, rows, strict=True)]
        return ExpandedModel(model, torch.cat(rows), torch.cat(places))

    return seen
