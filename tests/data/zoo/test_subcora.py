from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from isthmus.core.errors import BadInput
from isthmus.data.conventions import SPLITS
from isthmus.data.zoo import cora as module
from isthmus.data.zoo.cora import POOL, Cora, SubCora, training_set
from isthmus.data.zoo.csbm import is_connected


@pytest.mark.parametrize("seed", range(len(POOL)))
def test_the_recipe_is_followed(seed: int) -> None:
    cora, graph = Cora().load(Path()), SubCora(graph_seed=seed).load(Path())
    assert graph.num_nodes == 300 and graph.num_features == 1433 and graph.num_classes == 7
    sizes = {split: int(graph.masks[split].sum()) for split in SPLITS}
    assert 30 <= sizes["train"] <= 50 and sizes["val"] == sizes["train"]
    assert sizes["test"] == 300 - 2 * sizes["train"]
    assert int(torch.stack(list(graph.masks.values())).sum(dim=0).max()) == 1
    train = graph.subgraph(graph.masks["train"].nonzero().squeeze(1))
    assert is_connected(train.edge_index, train.num_nodes)
    counts = torch.bincount(train.y, minlength=7)
    assert int(counts.min()) > 0 and float(counts.double().std(unbiased=False)) <= 2.5
    source, target = cora.edge_index
    reached = torch.isin(torch.arange(cora.num_nodes), train.node_ids)
    for _ in range(2):
        reached[target[reached[source]]] = True
    assert bool(reached[graph.node_ids].all())
    induced = cora.subgraph(graph.node_ids)
    assert torch.equal(induced.edge_index, graph.edge_index) and torch.equal(induced.y, graph.y)


def test_seeds_differ_and_one_repeats() -> None:
    one, again, other = (SubCora(graph_seed=seed).load(Path()) for seed in (0, 0, 1))
    assert torch.equal(one.node_ids, again.node_ids) and not torch.equal(one.node_ids, other.node_ids)
    assert one.name == "subcora" and SubCora().present(Path())


def test_most_draws_have_no_training_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert training_set(Cora().load(Path()), np.random.default_rng(0)) is None
    monkeypatch.setattr(module, "POOL", (0,))
    with pytest.raises(BadInput, match="the seed 0 of graph_seed 0 draws no training set"):
        SubCora().load(Path())


def test_a_place_outside_the_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="graph_seed is 20; the pool has seeds 0 to 19"):
        SubCora(graph_seed=20)
