from __future__ import annotations

import pytest
import torch

from isthmus.core.random import seeded
from isthmus.models import GNNS, ModelSpec
from isthmus.models.inputs import GraphInput, stack_graphs
from isthmus.models.products.sparse import SparseMatrix, dense

from .toys import cotangent, randomise, sparse, toy


def test_operators_are_built_once() -> None:
    graph = toy("mixed")
    assert graph.operator("gcn") is graph.operator("gcn")
    assert graph.operator("gcn") is not graph.operator("sum")
    assert graph.attention(2)[0] is graph.attention(2)[0]
    assert graph.attention(2)[0] is not graph.attention(3)[0]
    assert graph.pooling(True) is graph.pooling(True)
    assert graph.pooling(True) is not graph.pooling(False)


def test_other_features_keep_the_operators_and_other_edges_do_not() -> None:
    graph = toy("weighted")
    operator = graph.operator("gcn")
    assert graph.replace(x=torch.zeros(7, 2)).operator("gcn") is operator
    fewer = graph.replace(edge_index=graph.edge_index[:, :3], edge_weight=None)
    assert fewer.num_edges == 3 and fewer.operator("gcn").pattern.nnz == 3 + 7
    assert graph.replace(edge_weight=None).operator("gcn") is not operator
    more = graph.replace(x=torch.zeros(9, 5))
    assert more.operator("gcn").shape == (9, 9)
    assert graph.operator("gcn") is operator


def test_what_is_made_of_something_is_made_once_of_each_such_thing() -> None:
    graph, first, second = GraphInput(torch.ones(2, 1), torch.zeros(2, 0, dtype=torch.int64)), object(), object()
    made = [graph.once("what", of, make) for of, make in ((first, lambda: 1), (first, lambda: 2), (second, lambda: 3))]
    assert made == [1, 1, 3] and graph.once("what", second, lambda: 4) == 3


def test_another_batch_counts_its_own_graphs() -> None:
    graph = toy("mixed").replace(batch=torch.tensor([0, 0, 0, 1, 1, 1, 1]))
    assert graph.num_graphs == 2
    assert graph.replace(batch=torch.arange(7)).num_graphs == 7
    assert graph.replace(batch=torch.arange(7), num_graphs=8).num_graphs == 8
    assert toy("mixed").num_graphs == 1


def test_sparse_features_are_wrapped_once_and_multiply_alike() -> None:
    graph = toy("mixed")
    wrapped = sparse(graph)
    assert isinstance(wrapped.x, SparseMatrix)
    assert wrapped.replace(edge_weight=None).x is wrapped.x
    weight = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(wrapped.features_times(weight), graph.x @ weight)
    torch.testing.assert_close(graph.features_times(weight), graph.x @ weight)


def test_errors_say_what_was_found() -> None:
    x, edges = torch.zeros(3, 2), torch.tensor([[0, 1], [1, 0]])
    with pytest.raises(ValueError, match=r"edge_index has shape \(3, 2\)"):
        GraphInput(x, torch.zeros(3, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match="edge_weight has 3 rows; it must have 2"):
        GraphInput(x, edges, torch.ones(3))
    with pytest.raises(ValueError, match="batch has 2 rows; it must have 3"):
        GraphInput(x, edges, batch=torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="operators are constants"):
        GraphInput(x, edges, torch.ones(2, requires_grad=True))
    with pytest.raises(ValueError, match=r"'gnc'; known: gcn, mean, sum, sum with self. Did you mean 'gcn'"):
        GraphInput(x, edges).operator("gnc")
    looped = GraphInput(x, torch.tensor([[0, 1], [0, 2]]))
    for build in (lambda: looped.operator("sum"), looped.attention):
        with pytest.raises(ValueError, match="1 self-loops"):
            build()
    with pytest.raises(ValueError, match="outside"):
        GraphInput(x, torch.tensor([[0], [3]])).operator("sum")


def test_repr_tells_inputs_apart() -> None:
    assert repr(toy("mixed")) == "GraphInput(7 nodes, 5 dense features, 14 directed edges)"
    assert repr(sparse(toy("weighted"))) == "GraphInput(7 nodes, 5 sparse features, 14 weighted directed edges)"
    assert repr(toy("mixed").replace(batch=torch.arange(7))).endswith("7 graphs)")


# ---- many graphs side by side


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize(
    "names",
    [("mixed", "one_node", "no_edges"), ("weighted", "mixed"), ("one_node", "weighted", "weighted")],
    ids="-".join,
)
def test_graphs_side_by_side_keep_their_rows_and_their_operators(names: tuple[str, ...], is_sparse: bool) -> None:
    graphs = [sparse(toy(name)) if is_sparse else toy(name) for name in names]
    stacked, rows = stack_graphs(graphs)
    assert rows == 7 and stacked.num_nodes == 7 * len(names)
    assert isinstance(stacked.x, SparseMatrix) == is_sparse
    x = dense(stacked.x).view(len(names), rows, -1)
    for operator in ("gcn", "mean", "sum"):
        whole = stacked.operator(operator).to_dense()
        for k, graph in enumerate(graphs):
            mine = slice(k * rows, k * rows + graph.num_nodes)
            torch.testing.assert_close(whole[mine, mine], graph.operator(operator).to_dense())
            whole[mine, mine] = 0.0
            whole.view(-1)[:: len(whole) + 1][mine.stop : (k + 1) * rows] = 0.0  # padding sees at most itself
        assert not whole.any()
    for k, graph in enumerate(graphs):
        assert torch.equal(x[k, : graph.num_nodes], dense(graph.x))
        assert not x[k, graph.num_nodes :].any()


def test_sparse_features_become_dense_where_not_all_are_sparse() -> None:
    graphs = [sparse(toy("mixed")), toy("one_node")]
    stacked, _ = stack_graphs(graphs)
    assert torch.equal(dense(stacked.x)[:7], dense(graphs[0].x))
    assert not isinstance(stacked.x, SparseMatrix)


# ---- with an inferred structure


def structure(num_nodes: int, value: float = 0.5) -> SparseMatrix:
    ends = torch.arange(num_nodes)
    return SparseMatrix.from_edges(
        torch.stack([ends, ends.flip(0)]), torch.full((num_nodes,), value), (num_nodes, num_nodes)
    )


def test_the_operators_of_the_edges_and_those_with_a_structure_are_both_built_once_and_kept_apart() -> None:
    graph = toy("weighted")
    with_one = graph.replace(complement=structure(7))
    with_other = with_one.replace(complement=structure(7, 0.25))
    for name in ("gcn", "mean", "sum"):
        own, one, other = (each.operator(name) for each in (graph, with_one, with_other))
        assert graph.operator(name) is own and with_one.operator(name) is one and with_other.operator(name) is other
        assert not torch.equal(own.to_dense(), one.to_dense()) and not torch.equal(one.to_dense(), other.to_dense())
        assert with_one.replace(complement=None).operator(name) is own
        assert with_one.replace(x=torch.zeros(7, 2)).operator(name) is one
    for heads in (1, 2):
        pattern, factor = with_one.attention(heads)
        for again in (with_one, with_one.replace(x=torch.zeros(7, 2))):
            assert again.attention(heads)[0] is pattern and again.attention(heads)[1] is factor
        assert graph.attention(heads)[1] is None and factor is not None
        assert not torch.equal(with_other.attention(heads)[1], factor)  # type: ignore[arg-type]
        assert with_other.replace(complement=None).attention(heads)[0] is graph.attention(heads)[0] is not pattern
    assert with_one.pooling(True) is graph.pooling(True)


def test_other_edges_under_the_same_structure_have_operators_of_their_own() -> None:
    graph = toy("mixed").replace(complement=structure(7))
    before = graph.operator("sum").to_dense()
    fewer = graph.replace(edge_index=graph.edge_index[:, :3])
    assert fewer.complement is graph.complement
    assert not torch.equal(fewer.operator("sum").to_dense(), before)
    torch.testing.assert_close(graph.operator("sum").to_dense(), before)


def test_a_structure_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"complement is SparseMatrix\(6 x 6.*; it must be 7 x 7"):
        toy("mixed").replace(complement=structure(6))
    with pytest.raises(ValueError, match="it must be 9 x 9"):
        toy("mixed").replace(complement=structure(7)).replace(x=torch.zeros(9, 5))


def test_loops_and_unknown_operators_are_refused_with_a_structure_too() -> None:
    looped = GraphInput(torch.zeros(3, 2), torch.tensor([[0, 1], [0, 2]]), complement=structure(3))
    for build in (lambda: looped.operator("mean"), looped.attention):
        with pytest.raises(ValueError, match="1 self-loops"):
            build()
    with pytest.raises(ValueError, match="'gnc'; known: gcn, mean, sum"):
        toy("mixed").replace(complement=structure(7)).operator("gnc")


# ---- with only some of the edges


def kept_edges(graph: GraphInput, seed: int = 0, rate: float = 0.5) -> torch.Tensor:
    """Return edges that count, drawn for each direction by itself: who sees whom need not be mutual."""
    return torch.rand(graph.num_edges, generator=torch.Generator().manual_seed(seed)) >= rate


def without(graph: GraphInput, kept: torch.Tensor) -> GraphInput:
    """The graph with the other edges taken out, made anew."""
    weight = None if graph.edge_weight is None else graph.edge_weight[kept]
    return GraphInput(graph.x, graph.edge_index[:, kept], weight, complement=graph.complement)


def loose(num_nodes: int) -> SparseMatrix:
    """A structure that is not symmetric, with a diagonal, an entry beside an edge's and an empty row."""
    draw = torch.Generator().manual_seed(5)
    weights = torch.rand(num_nodes, num_nodes, generator=draw) * (
        torch.rand(num_nodes, num_nodes, generator=draw) < 0.4
    )
    weights[1:2] = 0.0
    return SparseMatrix.from_csr(weights.to_sparse_csr())


KEPT = {"none": 1.0, "a few": 0.8, "half": 0.5, "most": 0.2, "all": 0.0}


@pytest.mark.parametrize("rate", KEPT.values(), ids=KEPT)
@pytest.mark.parametrize("complement", [False, True], ids=["edges", "with a structure"])
@pytest.mark.parametrize("name", ["mixed", "weighted", "no_edges", "one_node"])
@pytest.mark.parametrize("operator", ["gcn", "mean", "sum"])
def test_operators_of_kept_edges_are_those_of_a_graph_without_the_others(
    operator: str, name: str, complement: bool, rate: float
) -> None:
    graph = toy(name)
    if complement:
        graph = graph.replace(complement=loose(graph.num_nodes))
    kept = kept_edges(graph, rate=rate)
    found = graph.replace(kept=kept).operator(operator).to_dense()
    torch.testing.assert_close(found, without(graph, kept).operator(operator).to_dense())
    assert bool(torch.isfinite(found).all())


def attention_weights(graph: GraphInput, heads: int) -> torch.Tensor:
    """Return the factor on each exponential as a dense matrix; edges, loops and structure add up."""
    pattern, factor = graph.attention(heads)
    values = torch.ones(pattern.nnz) if factor is None else factor.exp()
    return SparseMatrix(pattern, values).to_dense()


@pytest.mark.parametrize("rate", KEPT.values(), ids=KEPT)
@pytest.mark.parametrize("complement", [False, True], ids=["edges", "with a structure"])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("name", ["mixed", "weighted", "no_edges", "one_node"])
def test_attention_over_kept_edges_is_that_of_a_graph_without_the_others(
    name: str, heads: int, complement: bool, rate: float
) -> None:
    graph = toy(name)
    if complement:
        graph = graph.replace(complement=loose(graph.num_nodes))
    kept = kept_edges(graph, rate=rate)
    view = graph.replace(kept=kept)
    torch.testing.assert_close(attention_weights(view, heads), attention_weights(without(graph, kept), heads))


@pytest.mark.parametrize("complement", [False, True], ids=["edges", "with a structure"])
@pytest.mark.parametrize("name", ["mixed", "weighted"])
@pytest.mark.parametrize("gnn", GNNS)
def test_every_model_sees_a_graph_without_the_other_edges(gnn: str, name: str, complement: bool) -> None:
    graph = toy(name)
    if complement:
        graph = graph.replace(complement=loose(7))
    kept = kept_edges(graph)
    with seeded(0, "model"):
        model = ModelSpec(GNNS[gnn](hidden=8)).build(5, 3)  # type: ignore[call-arg]
    randomise(model)
    outs = [model(each, None) for each in (graph.replace(kept=kept), without(graph, kept))]
    torch.testing.assert_close(outs[0], outs[1])
    slopes = [torch.autograd.grad(out, list(model.parameters()), cotangent(out)) for out in outs]
    for ours, theirs in zip(*slopes, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    if gnn not in ("mlp", "bias_free_mlp"):
        assert not torch.allclose(outs[0], model(graph, None), atol=1e-3)


def test_what_was_sorted_once_serves_all_views_of_a_graph() -> None:
    graph = toy("weighted")
    views = [graph.replace(kept=kept_edges(graph, seed)) for seed in range(3)]
    for name in ("gcn", "mean", "sum"):
        patterns = {id(view.operator(name).pattern) for view in (*views, graph)}
        assert len(patterns) == 1
    assert len({id(view.attention(2)[0]) for view in (*views, graph)}) == 1
    assert len({id(view.undirected_pairs()[0]) for view in (*views, graph)}) == 1
    assert views[0].pooling(True) is graph.pooling(True)


def test_operators_of_views_are_built_once_and_not_mixed_up() -> None:
    graph = toy("weighted")
    first, second = (graph.replace(kept=kept_edges(graph, seed)) for seed in range(2))
    structured = first.replace(complement=loose(7))
    for name in ("gcn", "mean", "sum"):
        # In an order in which one could take what another has built.
        found = {}
        for key, each in {"first": first, "graph": graph, "second": second, "structured": structured}.items():
            found[key] = each.operator(name)
            assert each.operator(name) is found[key] and each.replace(x=torch.zeros(7, 2)).operator(name) is found[key]
        dense_ones = [operator.to_dense() for operator in found.values()]
        assert all(not torch.equal(a, b) for k, a in enumerate(dense_ones) for b in dense_ones[:k])
        torch.testing.assert_close(found["graph"].to_dense(), toy("weighted").operator(name).to_dense())
        assert first.replace(kept=None).operator(name) is found["graph"]
        torch.testing.assert_close(
            structured.replace(kept=None).operator(name).to_dense(),
            graph.replace(complement=loose(7)).operator(name).to_dense(),
        )
        torch.testing.assert_close(
            structured.replace(complement=None).operator(name).to_dense(), found["first"].to_dense()
        )
        torch.testing.assert_close(
            first.replace(kept=second.kept).operator(name).to_dense(), found["second"].to_dense()
        )
    for heads in (1, 2):
        factors = [each.attention(heads)[1] for each in (first, second)]
        assert factors[0] is not None and first.attention(heads)[1] is factors[0]
        assert not torch.equal(*factors)  # type: ignore[arg-type]
        assert graph.attention(heads)[1] is None and first.replace(kept=None).attention(heads)[1] is None
        assert structured.attention(heads)[0] is not first.attention(heads)[0]
        assert first.replace(x=torch.zeros(7, 2)).attention(heads)[1] is factors[0]


def test_other_weights_under_the_same_kept_edges_have_operators_of_their_own() -> None:
    graph = toy("weighted")
    view = graph.replace(kept=kept_edges(graph))
    before = view.operator("sum").to_dense()
    assert graph.edge_weight is not None
    torch.testing.assert_close(view.replace(edge_weight=2.0 * graph.edge_weight).operator("sum").to_dense(), 2 * before)
    torch.testing.assert_close(view.operator("sum").to_dense(), before)


def test_kept_edges_of_another_number_are_refused() -> None:
    with pytest.raises(ValueError, match="kept has 13 rows; it must have 14"):
        toy("mixed").replace(kept=torch.ones(13, dtype=torch.bool))
    view = toy("mixed").replace(kept=torch.ones(14, dtype=torch.bool))
    with pytest.raises(ValueError, match="kept has 14 rows; it must have 3"):
        view.replace(edge_index=view.edge_index[:, :3])


def test_loops_are_refused_among_kept_edges_too() -> None:
    looped = GraphInput(torch.zeros(3, 2), torch.tensor([[0, 1], [0, 2]]), kept=torch.tensor([False, True]))
    for build in (lambda: looped.operator("sum"), looped.attention):
        with pytest.raises(ValueError, match="1 self-loops"):
            build()


@pytest.mark.parametrize("name", ["mixed", "weighted"])
def test_undirected_pairs_name_the_two_directions_of_an_edge_alike(name: str) -> None:
    graph = toy(name)
    order = torch.randperm(14, generator=torch.Generator().manual_seed(0))
    graph = GraphInput(graph.x, graph.edge_index[:, order])
    pair, number = graph.undirected_pairs()
    ends = [frozenset(edge) for edge in graph.edge_index.t().tolist()]
    assert number == len(set(ends)) == 7 and sorted(set(pair.tolist())) == list(range(7))
    for i in range(14):
        for j in range(14):
            assert (pair[i] == pair[j]) == (ends[i] == ends[j])


def test_undirected_pairs_of_edges_that_go_one_way_only_and_of_no_edges() -> None:
    one_way = GraphInput(torch.zeros(3, 1), torch.tensor([[0, 2, 1], [1, 1, 0]]))
    pair, number = one_way.undirected_pairs()
    assert number == 2 and pair[0] == pair[2] != pair[1]
    for name in ("no_edges", "one_node"):
        pair, number = toy(name).undirected_pairs()
        assert number == 0 and pair.shape == (0,)


def test_pairs_of_other_edges_are_found_anew() -> None:
    graph = toy("mixed")
    graph.undirected_pairs()
    assert graph.replace(edge_index=graph.edge_index[:, :3]).undirected_pairs()[1] == 3
