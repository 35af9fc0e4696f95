"""Sums that are made once: how much an edge and a node change of them, by all small graphs, and the noise on them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from isthmus.algorithms.fedgap import noisy_sums
from isthmus.algorithms.fedgap.noisy_sums import bounded, memory_of_sums, network_of, own_rows, with_sums
from isthmus.core.errors import BadInput
from isthmus.core.guards.hiding import NoisySums
from isthmus.core.random import Secret
from isthmus.data.graph import Graph
from isthmus.learn.graph_client import GraphClient
from isthmus.models import GAP, MLPDecoder, ModelSpec, ProGAP
from isthmus.models.gnn.gap import GAPStack, OwnRows, SummedRows
from isthmus.models.inputs import GraphInput
from isthmus.testing import toy_client, toy_graph

NODES = 4
PAIRS = tuple(itertools.combinations(range(NODES), 2))
STREAM = Secret.of_simulation(0, "anybody").stream("degrees")


def edges_of(pairs: tuple[tuple[int, int], ...]) -> Tensor:
    both = sorted([*pairs, *((b, a) for a, b in pairs)])
    return torch.tensor(both, dtype=torch.int64).reshape(-1, 2).T.contiguous()


def all_graphs() -> Iterator[tuple[tuple[int, int], ...]]:
    for size in range(len(PAIRS) + 1):
        yield from itertools.combinations(PAIRS, size)


def all_sums(network: str, x: Tensor, edges: Tensor, released: list[Tensor]) -> list[Tensor]:
    """Return the sums of each hop as they are before noise, where what was released of the hops before is given."""
    kind = {"gap": GAP(hidden=4, dim=2, hops=2, encoder_layers=1), "progap": ProGAP(dim=2, hops=2)}[network]
    module = kind.build(2, 2)
    with torch.no_grad():
        for name, slot in module.named_parameters():
            if name.startswith(module.summed_by) and name.endswith("weight"):
                slot.copy_(torch.eye(2))
    seen: list[Tensor] = []

    def blur(sums: Tensor) -> Tensor:
        seen.append(sums.double())
        return released[len(seen) - 1]

    view: GraphInput = OwnRows(x, edges[:, :0])
    with torch.no_grad():
        for _ in module.summed_by:
            view = module.with_sums(view, GraphInput(x, edges), blur)
    assert len(seen) == len(released)
    return seen


def inputs() -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Yield features, and noisy sums of two hops that were released: all rows alike, and rows anyhow."""
    draw = torch.Generator().manual_seed(0)
    alike = torch.tensor([[3.0, 4.0]]).repeat(NODES, 1)
    yield alike, [alike, alike]
    for _ in range(3):
        yield torch.randn(NODES, 2, generator=draw), [torch.randn(NODES, 2, generator=draw) for _ in range(2)]


@pytest.mark.parametrize("network", ["gap", "progap"])
def test_an_edge_changes_the_sums_of_a_hop_by_no_more_than_is_said_in_all_graphs_and_as_much_in_some(
    network: str,
) -> None:
    most = 0.0
    for x, released in inputs():
        sums = {graph: all_sums(network, x, edges_of(graph), released) for graph in all_graphs()}
        for graph, mine in sums.items():
            for pair in set(PAIRS) - set(graph):
                other = sums[tuple(sorted((*graph, pair)))]
                for hop in range(2):
                    most = max(most, float((mine[hop] - other[hop]).norm()))
    said = NoisySums(1.0).sensitivity
    assert most <= said == math.sqrt(2.0)
    assert most > said - 1e-4


@pytest.mark.parametrize("network", ["gap", "progap"])
@pytest.mark.parametrize("degree", [1, 2, 3])
def test_a_node_changes_the_sums_of_all_others_by_no_more_than_is_said(network: str, degree: int) -> None:
    most = 0.0
    for x, released in inputs():
        for graph in all_graphs():
            if max((sum(node in pair for pair in graph) for node in range(NODES)), default=0) > degree:
                continue
            mine = all_sums(network, x, edges_of(graph), released)
            for node in range(NODES):
                # Without the node there is no row of its own either: those of the others are what may tell of it. In
                # the second hop its row is another one, of which the others know nothing but what they add up.
                less = tuple(pair for pair in graph if node not in pair)
                other = all_sums(network, x, edges_of(less), released)
                others = [row for row in range(NODES) if row != node]
                most = max(most, *(float((a - b)[others].norm()) for a, b in zip(mine, other, strict=True)))
    said = NoisySums(1.0, degree).sensitivity
    assert most <= said == math.sqrt(degree)
    assert most > said - 1e-4


def test_nodes_keep_no_more_edges_than_they_may_and_all_where_they_have_no_more() -> None:
    for graph in all_graphs():
        edges = edges_of(graph)
        for most in (1, 2, 3):
            kept = bounded(edges, NODES, most, STREAM)
            had = torch.bincount(edges[0], minlength=NODES)
            assert torch.equal(torch.bincount(kept[0], minlength=NODES), had.clamp(max=most))
            assert {*zip(*kept.tolist(), strict=True)} <= {*zip(*edges.tolist(), strict=True)}


def test_which_edges_a_node_keeps_is_drawn_evenly() -> None:
    edges = edges_of(((0, 1), (0, 2), (0, 3)))
    stream = Secret.of_simulation(1, "b").stream("degrees")
    kept = [bounded(edges, NODES, 1, stream) for _ in range(3000)]
    targets = np.array([int(found[1][found[0] == 0]) for found in kept])
    assert all(abs((targets == node).mean() - 1 / 3) < 0.03 for node in (1, 2, 3))


# ---- at a client

SPEC = ModelSpec(GAP(hidden=8, dim=4, hops=2))


def client_of(data: Graph | None = None, spec: ModelSpec = SPEC) -> tuple[GraphClient, Any]:
    client = toy_client(data, model=spec)
    encoder = {name: slot.clone() for name, slot in client.model.state_dict().items() if "encoder" in name}
    return client, encoder


def summed(hiding: NoisySums | None, data: Graph | None = None) -> Tensor:
    client, encoder = client_of(data)
    found = with_sums(client, (memory_of_sums(encoder, client, hiding),), hiding).graph
    assert isinstance(found, SummedRows) and found.num_edges == 0 and isinstance(found.x, Tensor)
    return found.x


def test_without_noise_it_is_the_network_without_noise_to_the_bit() -> None:
    client, _ = client_of()
    network = network_of(client.model, "GAP")
    assert network is not None
    plain = network.summed(client.prepared.graph, None)
    assert torch.equal(summed(None), plain)
    assert torch.equal(summed(NoisySums(0.0)), plain)
    assert torch.equal(summed(NoisySums(0.0, 100)), plain)


@pytest.mark.parametrize(("hiding", "spread"), [(NoisySums(3.0), 6.0), (NoisySums(0.5, 8), 2.0)])
def test_the_noise_on_each_hop_is_what_is_promised(
    hiding: NoisySums, spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # s = z * sensitivity * sqrt(hops): 3 sqrt(2) sqrt(2), and 0.5 sqrt(8) sqrt(2)
    assert hiding.spread(2) == pytest.approx(spread)
    data = replace(toy_graph(num_nodes=4000), edge_index=torch.empty(2, 0, dtype=torch.int64))
    monkeypatch.setattr("isthmus.models.gnn.gap.unit_rows", lambda rows: rows)
    found = summed(hiding, data)  # without edges, the sums are noise alone
    assert float(found[:, 4:8].std()) == pytest.approx(spread, rel=0.02)
    assert float(found[:, 8:].std()) == pytest.approx(spread, rel=0.02)
    assert abs(float((found[:, 4:8] * found[:, 8:]).mean())) < 0.05 * spread**2  # one hop's says nothing of another's


def test_they_are_made_once_and_again_to_the_bit_after_a_restart() -> None:
    hiding = NoisySums(1.0)
    client, encoder = client_of()
    memory = (memory_of_sums(encoder, client, hiding),)
    first = with_sums(client, memory, hiding)
    assert with_sums(client, memory, hiding) is first
    again, _ = client_of()
    assert torch.equal(with_sums(again, tuple([*memory]), hiding).graph.x, first.graph.x)  # type: ignore[arg-type]


def test_the_encoder_that_they_are_made_with_is_the_one_that_is_remembered() -> None:
    client, encoder = client_of()
    memory = [memory_of_sums(encoder, client, None)]
    before = with_sums(client, memory, None).graph.x
    with torch.no_grad():
        for slot in client.model.parameters():
            slot.add_(1.0)  # what the module held is nobody's: others use it too
    again = with_sums(client, [*memory], None).graph.x
    assert torch.equal(before, again)  # type: ignore[arg-type]


@pytest.mark.parametrize("change", ["edges", "features"])
def test_other_data_get_no_sums_with_the_same_noise(change: str) -> None:
    hiding = NoisySums(1.0)
    data = toy_graph()
    client, encoder = client_of(data)
    memory = memory_of_sums(encoder, client, hiding)
    other = replace(data, edge_index=data.edge_index[:, 2:]) if change == "edges" else replace(data, x=2 * data.x)
    restarted, _ = client_of(other)
    with pytest.raises(BadInput, match="the same noise on both would show the difference"):
        with_sums(restarted, [memory], hiding)


def test_another_graph_gets_other_noise_where_the_secret_is_a_silo_s_own() -> None:
    keys = []
    for data in (toy_graph(), replace(toy_graph(), edge_index=toy_graph().edge_index[:, 2:])):
        client, encoder = client_of(data)
        client.secret = Secret(b"s" * 32)
        keys.append(memory_of_sums(encoder, client, NoisySums(1.0))["key"])
    assert not torch.equal(*keys)


def test_edges_have_no_part_in_what_the_encoder_learns_from() -> None:
    client, _ = client_of()
    found = own_rows(client.prepared)
    assert isinstance(found.graph, OwnRows) and found.graph.num_edges == 0
    assert own_rows(client.prepared) is found


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (lambda data: {"edge_weight": torch.ones(data.num_edges)}, "the edges have weights"),
        (lambda data: {"edge_index": torch.cat([data.edge_index, data.edge_index[:, :1]], 1)}, "more than once"),
    ],
)
def test_what_an_edge_could_change_more_by_is_refused(changes: Any, words: str) -> None:
    data = toy_graph()
    client, encoder = client_of(replace(data, **changes(data)))
    with pytest.raises(BadInput, match=words):
        memory_of_sums(encoder, client, NoisySums(1.0))
    memory_of_sums(encoder, client, None)  # without a promise there is nothing to break


def test_nodes_with_more_edges_than_the_noise_is_for_are_refused_or_cut() -> None:
    client, encoder = client_of()
    most = int(torch.bincount(client.data.edge_index[0]).max())
    with pytest.raises(BadInput, match=f"a node has {most} edges, and the noise hides one with 1 at most"):
        memory_of_sums(encoder, client, NoisySums(1.0, 1))
    memory_of_sums(encoder, client, NoisySums(1.0, most))
    cut = NoisySums(0.0, 1, cut=True)
    seen: list[Tensor] = []

    def spy(edges: Tensor, *rest: Any) -> Tensor:
        seen.append(bounded(edges, *rest))
        return seen[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noisy_sums, "bounded", spy)
        with_sums(client, [memory_of_sums(encoder, client, cut)], cut)
    assert int(torch.bincount(seen[0][0]).max()) == 1


def test_only_the_network_alone_is_one_whose_sums_can_be_made_once() -> None:
    with_head, _ = client_of(spec=ModelSpec(GAP(), decoder=MLPDecoder()))
    assert network_of(with_head.model, "GAP") is None
    assert network_of(toy_client().model, "GAP") is None

    class Other(GAPStack):
        pass

    client, _ = client_of()
    client.model.gnn = Other(GAP(), 3, 2)
    assert network_of(client.model, "GAP") is None
