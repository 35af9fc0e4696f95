"""Whole graphs that the server rebuilds from one gradient of each client, who has no other one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import isthmus as ist
from isthmus.attacks import GraphFromGradient
from isthmus.attacks.inputs.grain.graph_from_gradient import near_nodes, with_degrees
from isthmus.core.random import torch_generator
from isthmus.data.zoo.moleculenet import BBBP, ClinTox, Tox21
from isthmus.data.zoo.planetoid import CiteSeer
from isthmus.data.zoo.tu import PROTEINS
from isthmus.learn.optimizers import SGD
from isthmus.learn.tasks import GraphBinary, GraphClassification
from isthmus.models import GCN, LinearDecoder, MLPDecoder, ModelSpec
from isthmus.models.readouts import MeanReadout
from isthmus.privacy import ClientDP, Quantise, SecureSum
from isthmus.runs.simulation import Scenario
from leaking.section import Section

# As in the paper: two layers of 300, and of 100 subgraphs 20, 40, 30 and 10 with as many nodes as this; in ten seeds.
WIDTH = 300
SIZES = ((1, 10), (10, 20), (20, 30), (30, 40))
SHARES = (2, 4, 3, 1)
DEGREES = 40
ONE_STEP = ist.FedAvg(local_steps=1, optimizer=SGD(lr=0.25), weighting="uniform")
NOISE = ClientDP(clip=1.0, noise=0.1, mode="local")
GUARDS = ((), (Quantise(bits=8),), (NOISE,), (SecureSum(),))


def of_graphs(**fields: Any) -> ist.Course:
    """Return FedAvg with one step of plain SGD a round, on graphs with a label each."""
    gnn, head = GCN(hidden=WIDTH, dropout=0.0), MLPDecoder(hidden=WIDTH, dropout=0.0)
    model = ModelSpec(gnn, readout=MeanReadout(), decoder=head, activate=True)
    task = GraphClassification() if isinstance(fields["dataset"], PROTEINS) else GraphBinary()
    return ist.Course(rounds=1, task=task, algorithm=ONE_STEP, model=model, **fields)


def of_nodes(**fields: Any) -> ist.Course:
    """Return the same on graphs whose nodes all have a label."""
    model = ModelSpec(GCN(hidden=WIDTH, dropout=0.0), decoder=LinearDecoder(), activate=True)
    return ist.Course(rounds=1, algorithm=ONE_STEP, model=model, **fields)


def one_graph_each(course: ist.Course, root: Path) -> Scenario:
    """Give each client one of the graphs with a label, drawn at random, to train on."""
    whole: Any = course.dataset.load(root)
    known = ~whole.y.isnan().all(dim=1) if whole.y.ndim == 2 else whole.y >= 0
    able = known.nonzero().flatten()
    draw = torch_generator(course.seed, "a graph for each client")
    chosen = able[torch.randperm(len(able), generator=draw)[: course.num_clients]]
    train = torch.zeros(whole.num_items, dtype=torch.bool)
    train[chosen] = True
    whole = whole.with_masks({"train": train, "val": known & ~train, "test": torch.zeros_like(train)})
    return Scenario(whole, named(whole.divide(list(chosen.split(1)))))


def subgraphs(course: ist.Course, root: Path) -> Scenario:
    """Give each client a connected part of the graph, of as many nodes as the paper's, all of them to train on."""
    whole: Any = course.dataset.load(root)
    draw = torch_generator(course.seed, "a part for each client")
    sizes = [pair for pair, share in zip(SIZES, SHARES, strict=True) for _ in range(share)][: course.num_clients]
    none = torch.zeros(whole.num_nodes, dtype=torch.bool)
    x = torch.cat([whole.x.to_dense(), torch.zeros(whole.num_nodes, DEGREES)], dim=1)
    whole = replace(whole, x=x).with_masks({"train": whole.y >= 0, "val": none, "test": none})
    parts = []
    while len(parts) < len(sizes):
        least, most = sizes[len(parts)]
        number = int(torch.randint(least, most + 1, (1,), generator=draw))
        nodes = near_nodes(whole.edge_index, whole.num_nodes, number, draw)
        part = whole.subgraph(nodes)
        if len(nodes) >= least and bool((part.y >= 0).all()):
            parts.append(with_degrees(part, DEGREES))
    return Scenario(with_degrees(whole, DEGREES), named(parts))


def named(parts: list[Any]) -> dict[str, Any]:
    """Return parts by client."""
    return {f"client-{number:02}": part for number, part in enumerate(parts)}


SECTIONS = {
    "molecules": Section(
        "FedAvg, one step: one molecule of each client",
        of_graphs,
        (GraphFromGradient(),),
        GUARDS,
        {"tox21": Tox21(one_hot=True), "clintox": ClinTox(one_hot=True), "bbbp": BBBP(one_hot=True)},
        (10,),
        load=one_graph_each,
    ),
    "proteins": Section(
        "FedAvg, one step: one protein of each client",
        of_graphs,
        (GraphFromGradient(),),
        GUARDS,
        {"proteins": PROTEINS(use_attributes=False)},
        (10,),
        load=one_graph_each,
    ),
    "subgraphs": Section(
        "FedAvg, one step: one small part of a citation graph of each client",
        of_nodes,
        (GraphFromGradient(degree_columns=DEGREES),),
        GUARDS[:3],  # a sum of twenty such models takes minutes, and hides single ones as it does above
        {"citeseer": CiteSeer()},
        (sum(SHARES),),
        load=subgraphs,
    ),
}
