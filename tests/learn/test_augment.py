"""Views of graphs: what is removed, how often, from which stream; many clients' views are each client's own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from isthmus.core.random import torch_generator
from isthmus.learn.augment import Augmentation, masked, thinned, views_together
from isthmus.learn.tasks import NodeClassification
from isthmus.learn.tasks.task import StackedData
from isthmus.learn.together.layouts import CompactRows, FullRows
from isthmus.learn.together.stacked_features import StackedFeatures
from isthmus.models.dropout import Streams
from isthmus.models.inputs import GraphInput
from isthmus.models.products.sparse import SparseMatrix, dense
from isthmus.testing import toy_graph

NO_EDGES = torch.zeros(2, 0, dtype=torch.int64)


def stream(seed: int = 0) -> torch.Generator:
    return torch_generator(seed, "views")


def ring(number: int, features: int) -> GraphInput:
    """A ring, whose edges are given in a muddled order: one direction of an edge far from the other."""
    first = torch.arange(number)
    pairs = torch.stack([first, (first + 1) % number])
    both = torch.cat([pairs, pairs.flip(0)], dim=1)
    x = 1.0 + torch.rand(number, features, generator=stream(9))
    return GraphInput(x, both[:, torch.randperm(2 * number, generator=stream(8))])


def kept_pairs(graph: GraphInput, view: GraphInput) -> set[tuple[int, int]]:
    assert view.kept is not None and torch.equal(view.edge_index, graph.edge_index)
    return {(int(a), int(b)) for a, b in graph.edge_index[:, view.kept].t()}


# ---- one view


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8, 0.99])
def test_edges_are_removed_at_the_rate(rate: float) -> None:
    """Within four standard deviations of a binomial of 4,000 edges."""
    graph = ring(4000, 1)
    view = Augmentation(edges=rate, features=0.0).view(graph, stream())
    removed = 4000 - len(kept_pairs(graph, view)) / 2
    assert abs(removed - 4000 * rate) <= 4 * (4000 * rate * (1 - rate)) ** 0.5
    assert view.x is graph.x


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
def test_columns_are_masked_at_the_rate(rate: float) -> None:
    graph = ring(3, 4000)
    view = Augmentation(edges=0.0, features=rate).view(graph, stream())
    masked_columns = (dense(view.x) == 0).all(dim=0)
    assert abs(int(masked_columns.sum()) - 4000 * rate) <= 4 * (4000 * rate * (1 - rate)) ** 0.5
    assert view.kept is None


def test_both_rates_hold_at_once_and_apart_from_each_other() -> None:
    graph = ring(2000, 2000)
    view = Augmentation(edges=0.8, features=0.3).view(graph, stream())
    assert len(kept_pairs(graph, view)) / 4000 == pytest.approx(0.2, abs=0.04)
    assert float((dense(view.x)[0] == 0).float().mean()) == pytest.approx(0.3, abs=0.045)


def test_both_directions_of_an_edge_go_together() -> None:
    graph = ring(200, 1)
    pairs = kept_pairs(graph, Augmentation(edges=0.5, features=0.0).view(graph, stream()))
    assert 0 < len(pairs) < 400
    assert all((b, a) in pairs for a, b in pairs)


def test_edges_go_each_by_itself() -> None:
    """Neighbouring edges of the ring are both kept in a quarter of the cases, not in half of them."""
    graph = ring(2000, 1)
    pairs = kept_pairs(graph, Augmentation(edges=0.5, features=0.0).view(graph, stream()))
    both = sum((k, (k + 1) % 2000) in pairs and ((k + 1) % 2000, (k + 2) % 2000) in pairs for k in range(2000))
    assert both == pytest.approx(500, abs=80)


def test_a_column_is_masked_for_all_nodes_and_the_others_are_as_they_were() -> None:
    graph = ring(50, 60)
    x = dense(graph.x)
    found = dense(Augmentation(edges=0.0, features=0.4).view(graph, stream()).x)
    gone = (found == 0).all(dim=0)
    assert 0 < int(gone.sum()) < 60
    assert torch.equal(found[:, ~gone], x[:, ~gone]) and not found[:, gone].any()


def test_sparse_and_dense_features_are_masked_alike() -> None:
    data = toy_graph(20, num_features=30)
    thin = torch.where(data.x > 1.5, data.x, 0.0)
    rule = Augmentation(edges=0.3, features=0.5)
    plain = rule.view(GraphInput(thin, data.edge_index), stream())
    wrapped = rule.view(GraphInput(thin.to_sparse_csr(), data.edge_index), stream())
    assert isinstance(wrapped.x, SparseMatrix) and isinstance(plain.x, Tensor)
    assert torch.equal(wrapped.x.to_dense(), plain.x) and not torch.equal(plain.x, thin)
    assert torch.equal(wrapped.kept, plain.kept)  # type: ignore[arg-type]


def test_the_sorted_structure_of_sparse_features_is_shared() -> None:
    x = SparseMatrix.from_csr(torch.eye(3).to_sparse_csr())
    found = masked(x, torch.tensor([True, False, True]))
    assert isinstance(found, SparseMatrix) and found.pattern is x.pattern
    assert found.to_dense().diagonal().tolist() == [1.0, 0.0, 1.0] and x.values.tolist() == [1.0] * 3


def test_without_rates_the_view_is_the_graph_itself_and_nothing_is_drawn() -> None:
    graph, draw = ring(5, 3), stream()
    before = draw.get_state()
    assert Augmentation(edges=0.0, features=0.0).view(graph, draw) is graph
    assert torch.equal(draw.get_state(), before)


def test_the_graph_is_left_as_it_was() -> None:
    graph = ring(9, 3)
    x, edges, operator = dense(graph.x).clone(), graph.edge_index.clone(), graph.operator("gcn").to_dense()
    view = Augmentation(edges=0.5, features=0.5).view(graph, stream())
    assert not torch.equal(view.operator("gcn").to_dense(), operator)
    assert torch.equal(dense(graph.x), x) and torch.equal(graph.edge_index, edges) and graph.kept is None
    assert torch.equal(graph.operator("gcn").to_dense(), operator)


def test_views_come_from_the_generator_alone() -> None:
    graph, rule = ring(60, 40), Augmentation(edges=0.5, features=0.5)
    torch.manual_seed(1)
    first, again, other = (rule.view(graph, stream(seed)) for seed in (0, 0, 1))
    assert torch.equal(first.kept, again.kept) and torch.equal(dense(first.x), dense(again.x))  # type: ignore[arg-type]
    assert not torch.equal(first.kept, other.kept)  # type: ignore[arg-type]
    assert not torch.equal(dense(first.x), dense(other.x))
    draw = stream()
    assert not torch.equal(rule.view(graph, draw).kept, rule.view(graph, draw).kept)  # type: ignore[arg-type]


def test_a_view_of_a_view_has_lost_what_either_removes() -> None:
    graph = ring(60, 40)
    rule, draw = Augmentation(edges=0.5, features=0.5), stream()
    first = rule.view(graph, draw)
    second = rule.view(first, draw)
    assert first.kept is not None and second.kept is not None
    assert not (second.kept & ~first.kept).any() and int(second.kept.sum()) < int(first.kept.sum())
    gone = [(dense(view.x) == 0).all(dim=0) for view in (first, second)]
    assert not (gone[0] & ~gone[1]).any() and int(gone[0].sum()) < int(gone[1].sum())


def test_thinned_by_hand() -> None:
    graph = GraphInput(torch.ones(3, 2), torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), torch.tensor([0.5, 0.5, 2.0, 2.0]))
    found = thinned(graph, torch.tensor([True, True, False, False]), torch.tensor([False, True]))
    assert found.operator("sum").to_dense().tolist() == [[0, 0.5, 0], [0.5, 0, 0], [0, 0, 0]]
    assert dense(found.x).tolist() == [[0, 1]] * 3
    assert thinned(graph, None, None) is graph


@pytest.mark.parametrize("graph", [GraphInput(torch.ones(4, 3), NO_EDGES), GraphInput(torch.ones(1, 3), NO_EDGES)])
def test_graphs_without_edges_have_views(graph: GraphInput) -> None:
    view = Augmentation(edges=0.5, features=0.0).view(graph, stream())
    assert torch.equal(view.operator("gcn").to_dense(), torch.eye(graph.num_nodes))
    assert view.attention(2)[0].nnz == 2 * graph.num_nodes


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, float("nan")])
@pytest.mark.parametrize("name", ["edges", "features"])
def test_rates_outside_are_refused(name: str, rate: float) -> None:
    with pytest.raises(ValueError, match=rf"{name} is {rate!r}; a rate of removal is at least 0 and below 1"):
        Augmentation(**{name: rate})
    Augmentation(**{name: 0.0}), Augmentation(**{name: 0.999})


def test_two_rules_can_be_told_apart() -> None:
    assert repr(Augmentation(0.2, 0.4)) == "Augmentation(edges=0.2, features=0.4)"
    assert Augmentation(0.2, 0.4) != Augmentation(0.4, 0.2)


# ---- many clients


def stacked(is_sparse: bool, weighted: bool = False) -> tuple[list[GraphInput], StackedData]:
    """Return ragged graphs, one of them without edges, and the same side by side."""
    options = {"num_features": 12, "sparse": is_sparse, "weighted": weighted}
    data = [toy_graph(size, seed=size, **options) for size in (9, 14, 5)]  # type: ignore[arg-type]
    graphs = [GraphInput(each.x, each.edge_index, each.edge_weight) for each in data]
    empty = torch.zeros(0) if weighted else None
    graphs[2] = graphs[2].replace(edge_index=NO_EDGES, edge_weight=empty)
    task = NodeClassification()
    prepared = [task.prepare(each) for each in data]
    for each, graph in zip(prepared, graphs, strict=True):
        each.graph = graph
    return graphs, task.stack(prepared)


def streams(data: StackedData) -> Streams:
    return Streams(lambda: generators(len(data.sizes)), data.sizes, data.rows, data.entries)


def generators(number: int) -> Sequence[torch.Generator]:
    return [stream(100 + k) for k in range(number)]


RULES = [Augmentation(0.6, 0.5), Augmentation(0.6, 0.0), Augmentation(0.0, 0.5), Augmentation(0.0, 0.0)]


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
def test_views_together_are_each_clients_own(is_sparse: bool, weighted: bool, rule: Augmentation) -> None:
    graphs, data = stacked(is_sparse, weighted)
    drawn, alone = streams(data), generators(3)
    for _ in range(2):  # the second goes on in the same streams
        together = views_together(rule, graphs, data, drawn)
        x = dense(together.x).view(3, data.rows, -1)
        whole = {name: together.operator(name).to_dense() for name in ("gcn", "mean", "sum")}
        for k, (graph, generator) in enumerate(zip(graphs, alone, strict=True)):
            own = rule.view(graph, generator)
            mine = slice(k * data.rows, k * data.rows + graph.num_nodes)
            assert torch.equal(x[k, : graph.num_nodes], dense(own.x))
            for name, operator in whole.items():
                torch.testing.assert_close(operator[mine, mine], own.operator(name).to_dense())
    assert data.graph.kept is None


def test_without_rates_views_together_are_the_data_itself() -> None:
    graphs, data = stacked(False)
    assert views_together(RULES[-1], graphs, data, streams(data)) is data.graph


@pytest.mark.parametrize("layout", [FullRows, CompactRows])
def test_features_in_other_columns_are_masked_as_they_would_be_alone(layout: type) -> None:
    """The clients' weights lie apart, or only the columns that occur: products with them tell what is masked."""
    graphs, data = stacked(True)
    assert isinstance(data.graph.x, SparseMatrix)
    form = layout(StackedFeatures(data.graph.x, 3))
    weight = torch.randn(12, 4, generator=stream(3))
    view = views_together(RULES[0], graphs, data.with_features(form.x), streams(data))
    found = view.x.matmul(form.live(weight)).view(3, data.rows, 4)  # type: ignore[union-attr]
    for k, (graph, generator) in enumerate(zip(graphs, generators(3), strict=True)):
        own = dense(RULES[0].view(graph, generator).x) @ weight
        torch.testing.assert_close(found[k, : graph.num_nodes], own)
