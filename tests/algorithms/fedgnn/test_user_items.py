"""Who rated what, hashed names, matching of clients, and graphs with other clients' users, against plain loops."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from isthmus.algorithms.fedgnn.user_items import (
    ExpandedModel,
    SharedUsers,
    embedded,
    expanded,
    interactions,
    located,
    matched,
    table_name,
    table_rows,
    tokens,
    used_columns,
)
from isthmus.core.errors import BadInput
from isthmus.core.random import Secret, seeded, torch_generator
from isthmus.data.link_graph import LinkGraph
from isthmus.learn.batching import FullBatch
from isthmus.learn.tasks import LinkClassification, LinkPrediction
from isthmus.learn.tasks.link_task import LinkTask
from isthmus.models import GCN, CategoricalEncoder, HadamardMLPDecoder, LinearEncoder, Model, ModelSpec
from tests.learn.tasks.link_toys import toy_facts, toy_ratings


def model_for(data: LinkGraph, encoder: bool = True, categorical: bool = False, activate: bool = False) -> Model:
    spec = CategoricalEncoder(4) if categorical else LinearEncoder(4)
    with seeded(0, "model"):
        return ModelSpec(
            GCN(hidden=6, dropout=0.0),
            encoder=spec if encoder else None,
            decoder=HadamardMLPDecoder(hidden=5),
            activate=activate,
        ).build(data.num_features, data.num_classes)


def sparse(data: LinkGraph) -> LinkGraph:
    return replace(data, x=torch.where(data.x > 0, data.x, 0.0).to_sparse_csr())


# ---- interactions


def test_interactions_are_the_training_links_between_users_and_items() -> None:
    data = toy_ratings(num_links=40)
    train = data.mask("train")
    expected = {(u, i) for (u, i), used in zip(data.links.t().tolist(), train.tolist(), strict=True) if used}
    user, item = interactions(data)
    pairs = list(zip(user.tolist(), item.tolist(), strict=True))
    assert pairs == sorted(expected) and len(expected) < int(train.sum())  # some pairs are there twice
    turned = replace(data, links=data.links.flip(0))
    assert all(torch.equal(a, b) for a, b in zip(interactions(turned), (user, item), strict=True))


def test_links_within_a_side_and_data_without_sides_have_no_interactions() -> None:
    data = toy_ratings()
    within = torch.cat([data.links[:, :3], torch.tensor([[0, 6], [1, 7]])], dim=1)
    part = replace(
        data, links=within, label=data.label[:5], link_ids=data.link_ids[:5], masks={"train": torch.ones(5).bool()}
    )
    user, item = interactions(part)
    assert set(zip(user.tolist(), item.tolist(), strict=True)) == set(map(tuple, data.links[:, :3].t().tolist()))
    for other in (toy_facts(), "no graph", replace(data, node_attributes={})):
        assert len(interactions(other)[0]) == len(interactions(other)[1]) == 0


# ---- names


def test_tokens_are_keyed_hashes_that_match_for_the_same_keys_alone() -> None:
    keys = torch.tensor([5, -7, 105_113, 2**62])
    found = tokens(keys, b"secret")
    for key, token in zip(keys.tolist(), found.tolist(), strict=True):
        digest = hmac.new(b"secret", str(key).encode(), hashlib.sha256).digest()
        assert token == int.from_bytes(digest[:8], "big", signed=True)
    every = tokens(torch.arange(5000), b"secret")
    assert len(every.unique()) == 5000 and not set(every.tolist()) & set(range(5000))
    assert not set(every.tolist()) & set(tokens(torch.arange(5000), b"another").tolist())
    half = tokens(torch.arange(2500, 7500), b"secret")
    assert set(every.tolist()) & set(half.tolist()) == set(every[2500:].tolist())


# ---- matching


def shared_by(pairs: dict[str, list[list[int]]]) -> dict[str, SharedUsers]:
    """Each client's users as lists of the items they rated; embeddings are all different."""
    found, count = {}, 0
    for name, users in pairs.items():
        rows = torch.arange(count, count + len(users)).float()[:, None].repeat(1, 3)
        count += len(users)
        user = [k for k, items in enumerate(users) for _ in items]
        item = [i for items in users for i in items]
        found[name] = SharedUsers(rows, torch.tensor(user, dtype=torch.int64), torch.tensor(item, dtype=torch.int64))
    return found


def edges_of(each: SharedUsers) -> set[tuple[float, int]]:
    return {(float(each.embeddings[u, 0]), i) for u, i in zip(each.user.tolist(), each.item.tolist(), strict=True)}


def plain_matches(shared: dict[str, SharedUsers]) -> dict[str, set[tuple[float, int]]]:
    found: dict[str, set[tuple[float, int]]] = {}
    for name, mine in shared.items():
        found[name] = set()
        for other, theirs in shared.items():
            if other == name:
                continue
            for embedding, item in edges_of(theirs):
                if item in mine.item.tolist():
                    found[name].add((embedding, item))
    return found


def test_matching_gives_each_client_exactly_the_users_and_edges_of_common_items() -> None:
    draw = torch_generator(0, "matching")
    pairs = {}
    for name in "abcd":
        users = [
            sorted(set(torch.randint(15, (int(n),), generator=draw).tolist()))
            for n in torch.randint(1, 5, (4,), generator=draw)
        ]
        pairs[name] = users
    pairs["empty"] = []
    pairs["alone"] = [[99], [98]]
    shared = shared_by(pairs)
    found = matched(shared, None, torch_generator(1))
    expected = plain_matches(shared)
    assert {name: edges_of(each) for name, each in found.items()} == expected
    for name, each in found.items():
        reached = {embedding for embedding, _ in expected[name]}
        assert sorted(each.embeddings[:, 0].tolist()) == sorted(reached)  # every user once, and no other
        assert len(each.user) == len(expected[name])
    assert len(found["empty"].user) == len(found["alone"].embeddings) == 0 and found["a"].user.numel() > 3


def test_users_of_others_come_in_a_random_order_and_a_limit_draws_them_evenly() -> None:
    shared = shared_by({"a": [[1]], "b": [[1], [1], [1]], "c": [[1, 2], [1]]})
    counts, orders = torch.zeros(6), set()
    draw = torch_generator(0)
    for _ in range(500):
        found = matched(shared, 2, draw)["a"]
        assert len(found.embeddings) == 2 and edges_of(found) <= plain_matches(shared)["a"]
        counts[found.embeddings[:, 0].long()] += 1
        orders.add(tuple(found.embeddings[:, 0].tolist()))
    assert counts[0] == 0 and len(orders) == 20
    assert float((counts[1:] - 200).square().sum() / 200) < 18.5  # chi square, 4 degrees, 0.1 %


def test_nobody_and_clients_without_users_are_matched_with_nothing() -> None:
    assert matched({}, None, torch_generator(0)) == {}
    none = SharedUsers(torch.empty(0, 0), torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    found = matched({"a": none, "b": none}, None, torch_generator(0))
    assert all(len(each.embeddings) == len(each.user) == len(each.item) == 0 for each in found.values())


def test_tokens_are_turned_into_nodes_and_foreign_ones_refused() -> None:
    items, own = torch.tensor([4, 7, 9]), torch.tensor([300, -5, 20])
    user, node = located(torch.tensor([0, 1, 1]), torch.tensor([20, 300, -5]), items, own)
    assert node.tolist() == [9, 4, 7] and user.tolist() == [0, 1, 1]
    with pytest.raises(BadInput, match="2 of 3 pairs name an item that this client does not have"):
        located(torch.tensor([0, 1, 1]), torch.tensor([20, 21, 9999]), items, own)


# ---- the expanded graph


def neighbors(data: LinkGraph, width: int = 4) -> SharedUsers:
    items = (data.node_attributes["side"] == 1).nonzero().flatten()
    rows = torch.randn(3, width, generator=torch_generator(0, "rows"))
    return SharedUsers(rows, torch.tensor([0, 0, 1, 2]), items[[0, 2, 2, 5]])


@pytest.mark.parametrize("csr", [False, True])
def test_expansion_adds_exactly_the_right_nodes_and_edges(csr: bool) -> None:
    data = sparse(toy_ratings()) if csr else toy_ratings()
    prepared, others = LinkClassification().prepare(data), neighbors(data)
    found = expanded(prepared, others)
    before, after = prepared.graph.edge_index, found.graph.edge_index
    assert found.graph.num_nodes == data.num_nodes + 3
    assert torch.equal(after[:, : before.shape[1]], before)  # so that `edge_of` stays right
    new = set(map(tuple, after[:, before.shape[1] :].t().tolist()))
    expected = set()
    for user, item in zip(others.user.tolist(), others.item.tolist(), strict=True):
        expected |= {(data.num_nodes + user, item), (item, data.num_nodes + user)}
    assert new == expected and after.shape[1] == before.shape[1] + len(expected)
    weight = torch.randn(data.num_features, 2, generator=torch_generator(0))
    torch.testing.assert_close(
        found.graph.features_times(weight),
        torch.cat([prepared.graph.features_times(weight), torch.zeros(3, 2)]),
    )


@pytest.mark.parametrize("activate", [False, True])
def test_the_expanded_model_reads_frozen_rows_behind_the_encoder(activate: bool) -> None:
    data = toy_ratings()
    prepared, others, model = LinkClassification().prepare(data), neighbors(data), model_for(data, activate=activate)
    found = expanded(prepared, others)
    h = ExpandedModel(model, others.embeddings).embed(found.graph, None)
    assert model.encoder is not None
    rows = torch.cat([model.encoder(prepared.graph, prepared.graph.x, None), others.embeddings])
    adjacency = torch.zeros(len(rows), len(rows))
    adjacency[found.graph.edge_index[1], found.graph.edge_index[0]] = 1.0
    adjacency += torch.eye(len(rows))
    scale = adjacency.sum(dim=1).rsqrt()
    operator = scale[:, None] * adjacency * scale
    first, second = model.gnn.layers  # type: ignore[misc]
    expected = operator @ ((operator @ rows @ first.weight + first.bias).relu() @ second.weight) + second.bias
    expected = expected.relu() if activate else expected
    torch.testing.assert_close(h, expected[: data.num_nodes])
    plain = model.embed(prepared.graph, None)
    assert h.shape == plain.shape and not torch.allclose(h, plain, atol=1e-3)


def test_without_users_of_others_the_expanded_model_is_the_model() -> None:
    data = toy_ratings()
    prepared, model = LinkClassification().prepare(data), model_for(data)
    none = SharedUsers(torch.empty(0, 4), torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    found = ExpandedModel(model, none.embeddings).embed(expanded(prepared, none).graph, None)
    assert torch.equal(found, model.embed(prepared.graph, None))


@pytest.mark.parametrize(
    "task",
    [LinkClassification(), LinkClassification(disjoint=True), LinkPrediction(metrics=("loss", "auc", "mrr"))],
    ids=repr,
)
def test_link_tasks_train_and_measure_with_the_expanded_model(task: LinkTask) -> None:
    data = toy_ratings(num_links=40)
    prepared, others = task.prepare(data), neighbors(data)
    with seeded(0, "model"):
        model = ModelSpec(
            GCN(hidden=6, dropout=0.0), encoder=LinearEncoder(4), decoder=HadamardMLPDecoder(hidden=5)
        ).build(data.num_features, task.output_dim(data))
    whole = expanded(prepared, others)
    batch = next(task.batches(whole, FullBatch(), torch_generator(0)))
    others.embeddings.requires_grad_(False)
    loss = task.loss(ExpandedModel(model, others.embeddings), batch, torch_generator(0))
    grads: tuple[Tensor, ...] = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    assert all(grad is not None and float(grad.abs().max()) > 0 for grad in grads)
    metrics, counts = task.evaluate(ExpandedModel(model, others.embeddings), whole, ("train", "val"))
    assert counts["train"] == task.count(data, "train") and metrics["val"].keys() <= set(task.metrics)


def test_rows_of_another_width_and_models_without_encoders_are_refused() -> None:
    data = toy_ratings()
    prepared, model = LinkClassification().prepare(data), model_for(data)
    others = neighbors(data, width=7)
    with pytest.raises(BadInput, match="embeddings of 7 numbers, this client's encoder gives 4"):
        ExpandedModel(model, others.embeddings).embed(expanded(prepared, others).graph, None)
    with pytest.raises(BadInput, match=r"has no encoder.*set model.encoder.*expand_every=0"):
        embedded(model_for(data, encoder=False), prepared.graph, torch.tensor([0]))


def test_users_are_shared_as_the_encoder_makes_them() -> None:
    data = toy_ratings()
    model = model_for(data)
    assert model.encoder is not None
    layer: Any = model.encoder.layers[0]  # type: ignore[index]
    found = embedded(model, LinkClassification().prepare(data).graph, torch.tensor([3, 1]))
    torch.testing.assert_close(found, (data.x @ layer.weight + layer.bias)[[3, 1]])
    assert not found.requires_grad


# ---- the table


@pytest.mark.parametrize("csr", [False, True])
def test_used_columns_are_those_with_an_entry(csr: bool) -> None:
    x = torch.tensor([[1.0, 0.0, 0.0, 2.0], [0.0, 3.0, 0.0, 0.0], [0.0, 0.0, 5.0, 0.0]])
    x = x.to_sparse_csr() if csr else x
    assert used_columns(x, torch.tensor([0, 1])).tolist() == [0, 1, 3]
    assert used_columns(x, torch.tensor([2])).tolist() == [2]
    assert used_columns(x, torch.empty(0, dtype=torch.int64)).tolist() == []


def test_the_table_is_the_categorical_encoder_and_its_rows_those_of_nodes_that_are_trained_on() -> None:
    plain = toy_ratings(num_items=30)
    data = replace(plain, x=torch.eye(plain.num_nodes).to_sparse_csr())
    model = model_for(data, categorical=True)
    params = dict(model.state_dict())
    assert table_name(model) == "encoder.weight" and params["encoder.weight"].shape == (data.num_nodes, 4)
    rows = table_rows(model, data, params, 5, Secret(bytes(32)).stream())
    assert rows is not None and len(rows.pseudo) == 5
    rated = set(data.links[:, data.mask("train")].flatten().tolist())
    assert set(rows.used.tolist()) == rated and not rated & set(rows.pseudo.tolist())
    assert table_rows(model, data, {}, 5, Secret(bytes(32)).stream()) is None  # it stays at the client
    assert (
        table_name(model_for(plain)) is None
        and table_rows(model_for(plain), plain, params, 5, Secret(bytes(32)).stream()) is None
    )
    assert table_name(torch.nn.Linear(2, 2)) is None
