from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from isthmus.core.random import seeded
from isthmus.models import GAP, ModelSpec
from isthmus.models.gnn.gap import GAPStack, OwnRows, SummedRows, unit_rows

from ..toys import FEATURES, TOYS, assert_close, randomise, sparse, toy


def made(**fields: int) -> GAPStack:
    module = GAP(**{"hidden": 8, "dim": 4, **fields}).build(FEATURES, 3)  # type: ignore[arg-type]
    randomise(module)
    return module


@pytest.mark.parametrize("which", TOYS)
@pytest.mark.parametrize("hops", [0, 1, 3])
def test_the_rows_are_those_of_the_formula_by_dense_matrices(which: str, hops: int) -> None:
    graph, module = toy(which), made(hops=hops)
    n = graph.num_nodes
    a = torch.zeros(n, n)
    weight = torch.ones(graph.num_edges) if graph.edge_weight is None else graph.edge_weight
    a.index_put_((graph.edge_index[1], graph.edge_index[0]), weight, accumulate=True)
    first, second = module.encoder.layers
    x = (graph.x @ first.weight + first.bias).relu() @ second.weight + second.bias  # type: ignore[operator]
    rows = [functional.normalize(x)]
    for _ in range(hops):
        rows.append(functional.normalize(a @ rows[-1]))
    assert_close(module.summed(graph, None), torch.cat(rows, dim=1))
    h = torch.cat(rows, dim=1)
    one, two = module.head.layers
    assert_close(module(graph, None), (h @ one.weight + one.bias).relu() @ two.weight + two.bias)  # type: ignore[operator]


def test_rows_are_never_longer_than_one() -> None:
    drawn = torch.randn(100_000, 3, generator=torch.Generator().manual_seed(0))
    sizes = 10.0 ** torch.randint(-30, 15, (100_000, 1), generator=torch.Generator().manual_seed(1))
    assert float(unit_rows(drawn * sizes).double().norm(dim=1).max()) <= 1.0
    assert not unit_rows(torch.zeros(2, 3)).any()


def test_rows_of_zeros_have_no_direction_that_could_be_learned() -> None:
    h = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    (slopes,) = torch.autograd.grad(unit_rows(h)[:, 0].sum(), [h])
    assert torch.allclose(slopes, torch.tensor([[0.0, 0.0], [0.128, -0.096]]), atol=1e-6)


def test_sums_that_were_made_before_are_read_as_they_are() -> None:
    graph, module = toy("mixed"), made()
    before = SummedRows(module.summed(graph, None), graph.edge_index[:, :0])
    assert torch.equal(module(before, None), module(graph, None))


@pytest.mark.parametrize("wrap", [lambda graph: graph, sparse])
def test_own_rows_are_the_graph_without_its_edges(wrap) -> None:
    graph, module = wrap(toy("mixed")), made()
    bare = OwnRows(graph.x, graph.edge_index[:, :0])
    assert torch.equal(module(bare, None), module(graph.replace(edge_index=graph.edge_index[:, :0]), None))
    # edges that a graph of the kind has by mistake are not looked at either
    assert torch.equal(module(OwnRows(graph.x, graph.edge_index), None), module(bare, None))


def test_what_is_put_on_the_sums_of_each_hop_is_there_before_the_next() -> None:
    graph, module = toy("mixed"), made(hops=2)
    seen: list[torch.Tensor] = []

    def blur(sums: torch.Tensor) -> torch.Tensor:
        seen.append(sums)
        return sums + 10.0

    found = module.summed(graph, None, blur)
    operator = graph.operator("sum")
    assert_close(seen[0], operator.matmul(found[:, :4]))
    assert_close(seen[1], operator.matmul(found[:, 4:8]))
    assert_close(found[:, 8:], unit_rows(seen[1] + 10.0))


def test_the_encoder_learns_through_the_head_where_there_are_no_sums() -> None:
    graph, module = toy("mixed"), made()
    out = module(OwnRows(graph.x, graph.edge_index), None)
    grads = dict(
        zip(
            dict(module.named_parameters()),
            torch.autograd.grad(out.square().sum(), [*module.parameters()]),
            strict=True,
        )
    )
    assert all(bool(grad.any()) for name, grad in grads.items() if name.startswith("encoder"))


def test_a_model_by_name_has_its_parameters_where_methods_look_for_them() -> None:
    with seeded(0):
        model = ModelSpec(GAP(hidden=8, dim=4)).build(FEATURES, 3)
    assert {name.split(".")[1] for name in model.state_dict()} == {"encoder", "head"}


@pytest.mark.parametrize("field", ["hidden", "dim", "encoder_layers", "layers"])
def test_counts_are_at_least_one(field: str) -> None:
    with pytest.raises(ValueError, match=f"^{field} is 0; it must be"):
        GAP(**{field: 0})
