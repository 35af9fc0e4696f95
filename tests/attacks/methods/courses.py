"""Toy courses of methods that need other data than graphs with classes of nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from isthmus.algorithms import GFLAPPNP
from isthmus.config.course import Course
from isthmus.core.random import numpy_generator
from isthmus.data.splitters.node_hosts import NodeHostsSplitter
from isthmus.learn.tasks import LinkClassification
from isthmus.models import GCN, MLP, CategoricalEncoder, HadamardMLPDecoder, ModelSpec
from isthmus.runs.simulation import Scenario
from isthmus.testing import toy_course, toy_graph
from tests.learn.tasks.link_toys import toy_ratings

RATINGS: dict[str, Any] = {
    "task": LinkClassification(),
    "model": ModelSpec(GCN(hidden=5, dropout=0.0), encoder=CategoricalEncoder(4), decoder=HadamardMLPDecoder(hidden=4)),
}


def ratings_scenario(num_clients: int = 2) -> Scenario:
    """Return ratings dealt to clients one by one; a node's features say which it is."""
    whole = toy_ratings(num_users=30, num_items=60, num_links=80)
    whole = replace(whole, x=torch.eye(90).to_sparse_csr())
    deal = torch.randint(num_clients, (whole.num_items,), generator=torch.Generator().manual_seed(1))
    parts = whole.divide([(deal == k).nonzero().flatten() for k in range(num_clients)])
    return Scenario(whole, {f"client-{k}": part for k, part in enumerate(parts)})  # type: ignore[arg-type,misc]


def gfl_course(**fields: Any) -> Course:
    """Return GFL-APPNP with an encoder without dropout."""
    model = ModelSpec(gnn=MLP(hidden=8, dropout=0.0))
    return toy_course(GFLAPPNP(min_sources=1, **fields), model=model, rounds=1, num_clients=16, runtime="auto")


def hosts_scenario(num_clients: int = 16) -> Scenario:
    """Return a toy graph each of whose nodes is a client."""
    graph = toy_graph(num_clients)
    parts = NodeHostsSplitter().split(graph, num_clients, numpy_generator(0, "split"))
    return Scenario(graph, {f"client-{k:02d}": part for k, part in enumerate(parts)})
