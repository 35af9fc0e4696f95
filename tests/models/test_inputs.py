from __future__ import annotations

import pytest
import torch

from isthmus.models.inputs import GraphInput, stack_graphs
from isthmus.models.sparse import SparseMatrix, dense

from .toys import sparse, toy


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
    with pytest.raises(ValueError, match=r"'gnc'; known: gcn, mean, sum. Did you mean 'gcn'"):
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
