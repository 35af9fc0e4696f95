from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from isthmus.core.random import seeded
from isthmus.models import ModelSpec, ProGAP
from isthmus.models.gnn.gap import OwnRows
from isthmus.models.gnn.progap import ProGAPStack, StageRows

from ..toys import FEATURES, TOYS, assert_close, randomise, sparse, toy

HOPS = 2


def made(**fields: int) -> ProGAPStack:
    module = ProGAP(**{"hidden": 8, "dim": 4, "hops": HOPS, **fields}).build(FEATURES, 3)  # type: ignore[arg-type]
    randomise(module)
    return module


def through(module: ProGAPStack, stage: int, rows: Tensor) -> Tensor:
    for layer in module.bases[stage].layers:  # type: ignore[union-attr]
        rows = functional.selu(rows @ layer.weight + layer.bias)  # type: ignore[operator]
    return rows


def scored(module: ProGAPStack, embeddings: list[Tensor]) -> Tensor:
    """Return the scores of a stage by a head of its own: the part of the head's weights that its embeddings meet."""
    h = torch.cat([functional.normalize(rows) for rows in embeddings], dim=1)
    (only,) = module.head.layers
    return h @ only.weight[: h.shape[1]] + only.bias  # type: ignore[index,operator]


def adjacency(graph) -> Tensor:
    a = torch.zeros(graph.num_nodes, graph.num_nodes)
    weight = torch.ones(graph.num_edges) if graph.edge_weight is None else graph.edge_weight
    return a.index_put_((graph.edge_index[1], graph.edge_index[0]), weight, accumulate=True)


@pytest.mark.parametrize("which", TOYS)
@pytest.mark.parametrize("hops", [0, 1, 3])
@pytest.mark.parametrize("base_layers", [1, 2])
def test_the_network_is_its_formula_by_dense_matrices(which: str, hops: int, base_layers: int) -> None:
    graph, module = toy(which), made(hops=hops, base_layers=base_layers)
    a, embeddings = adjacency(graph), [through(module, 0, graph.x)]
    for stage in range(1, hops + 1):
        embeddings.append(through(module, stage, functional.normalize(a @ functional.normalize(embeddings[-1]))))
    assert_close(module(graph, None), scored(module, embeddings))


@pytest.mark.parametrize("wrap", [lambda graph: graph, sparse])
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_stage_reads_the_sums_that_were_made_and_no_edge(wrap, stage: int) -> None:
    graph, module = toy("mixed"), made()
    draw = torch.Generator().manual_seed(1)
    sums = torch.randn(graph.num_nodes, 4 * stage, generator=draw)
    wrapped = wrap(graph)
    view = StageRows(wrapped.x, graph.edge_index, sums=sums) if stage else OwnRows(wrapped.x, graph.edge_index)
    embeddings = [through(module, k, rows) for k, rows in enumerate([graph.x, *sums.split(4, dim=1)][: stage + 1])]
    assert_close(module(view, None), scored(module, embeddings))


def test_a_stage_moves_its_bases_and_its_part_of_the_head_and_nothing_else() -> None:
    graph, module = toy("mixed"), made()
    view = StageRows(graph.x, graph.edge_index[:, :0], sums=torch.ones(graph.num_nodes, 4))
    named = dict(module.named_parameters())
    grads = torch.autograd.grad(module(view, None).square().sum(), [*named.values()], allow_unused=True)
    moved = {name for name, grad in zip(named, grads, strict=True) if grad is not None and bool(grad.any())}
    assert moved == {name for name in named if not name.startswith("bases.2.")}
    head = dict(zip(named, grads, strict=True))["head.layers.0.weight"]
    assert head is not None and head[:8].any() and not head[8:].any()
    assert module.idle(0) == ("bases.1.", "bases.2.") and module.idle(1) == ("bases.2.",) and module.idle(2) == ()


def test_sums_are_made_one_after_the_other_each_of_the_embedding_before_it() -> None:
    graph, module = toy("mixed"), made()
    a, seen = adjacency(graph), list[Tensor]()

    def blur(sums: Tensor) -> Tensor:
        seen.append(sums)
        return sums + 10.0

    first = module.with_sums(OwnRows(graph.x, graph.edge_index[:, :0]), graph, blur)
    second = module.with_sums(first, graph, blur)
    assert_close(seen[0], a @ functional.normalize(through(module, 0, graph.x)))
    s_1 = functional.normalize(seen[0] + 10.0)
    assert_close(seen[1], a @ functional.normalize(through(module, 1, s_1)))
    assert second.sums is not None and second.num_edges == 0 and second.x is graph.x
    assert_close(second.sums, torch.cat([s_1, functional.normalize(seen[1] + 10.0)], dim=1))
    assert len(module.summed_by) == HOPS


def test_without_noise_and_with_the_bases_as_they_were_the_last_stage_is_the_whole_network() -> None:
    graph, module = toy("mixed"), made()
    view = OwnRows(graph.x, graph.edge_index[:, :0])
    for _ in range(HOPS):
        view = module.with_sums(view, graph, lambda sums: sums)
    assert_close(module(view, None), module(graph, None))


def test_some_nodes_read_what_is_theirs() -> None:
    graph = toy("mixed")
    view = StageRows(graph.x, graph.edge_index, sums=torch.arange(graph.num_nodes).float().reshape(-1, 1))
    found = view.of_nodes(graph.x[[3, 1]], [3, 1])
    assert isinstance(found, StageRows) and found.num_edges == 0
    assert torch.equal(found.sums, torch.tensor([[3.0], [1.0]])) and torch.equal(found.x, graph.x[[3, 1]])


def test_a_model_by_name_has_its_parameters_where_methods_look_for_them() -> None:
    with seeded(0):
        model = ModelSpec(ProGAP(dim=4)).build(FEATURES, 3)
    assert {name.split(".")[1] for name in model.state_dict()} == {"bases", "head"}


def test_all_bases_together_are_bounded() -> None:
    ProGAP(hops=9, base_layers=200)
    with pytest.raises(ValueError, match="base_layers is 201; with 9 hops it must be at most 200"):
        ProGAP(hops=9, base_layers=201)


@pytest.mark.parametrize("field", ["hidden", "dim", "base_layers", "layers"])
def test_counts_are_at_least_one(field: str) -> None:
    with pytest.raises(ValueError, match=f"^{field} is 0; it must be"):
        ProGAP(**{field: 0})
