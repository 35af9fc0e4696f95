from __future__ import annotations

import pytest
import torch

from isthmus.core.protocol import Position
from isthmus.learn.batching import FullBatch, NeighborBatch
from isthmus.learn.graph_client import GraphClient, check_local_steps
from isthmus.learn.optimizers import SGD, StepDecay, read_params
from isthmus.learn.tasks.node_classification import NodeClassification
from isthmus.models import GCN, ModelSpec
from isthmus.testing import toy_client, toy_graph

POSITIONS = [Position(0, 1, 0), Position(1, 1, 0), Position(0, 2, 0), Position(0, 1, 1)]


def draw(client_id: str, position: Position, purpose: str = "fit") -> list[float]:
    client = toy_client(toy_graph(8), id=client_id)
    client.position = position
    return torch.rand(3, generator=client.generator(purpose)).tolist()


def test_a_random_stream_depends_on_seed_round_exchange_client_and_purpose() -> None:
    streams = [draw("a", position) for position in POSITIONS]
    streams += [draw("b", POSITIONS[0]), draw("a", POSITIONS[0], "other")]
    assert len({tuple(stream) for stream in streams}) == len(streams)


def test_a_random_stream_depends_on_nothing_else() -> None:
    torch.manual_seed(1)
    first = draw("a", POSITIONS[0])
    torch.manual_seed(2)
    assert draw("a", POSITIONS[0]) == first


def test_training_is_the_same_at_the_same_place_and_another_elsewhere() -> None:
    client = toy_client(model=ModelSpec(GCN(hidden=5, dropout=0.5)))
    params = read_params(client.model)
    found = []
    for position in [*POSITIONS, POSITIONS[0]]:
        client.position = position
        found.append(client.fit(params, steps=2, optimizer=SGD(lr=0.1)).params["gnn.layers.0.weight"])
    assert torch.equal(found[0], found[-1])
    assert all(not torch.equal(found[0], other) for other in found[1:-1])


def test_a_step_is_a_batch_or_an_epoch() -> None:
    client = toy_client(batching=NeighborBatch(10, (2, 2)))  # 24 training nodes: three batches
    params = read_params(client.model)
    assert client.fit(params, steps=2, optimizer=SGD()).steps == 2
    assert client.fit(params, steps=2, step_unit="epoch", optimizer=SGD()).steps == 6
    full = toy_client()
    assert full.fit(params, steps=2, step_unit="epoch", optimizer=SGD()).steps == 2


def test_the_learning_rate_follows_the_schedule_and_round_zero_counts_as_one() -> None:
    client = toy_client()
    params = read_params(client.model)
    optimizer = SGD(lr=0.4, schedule=StepDecay(every=1, gamma=0.5))
    moves = []
    for round in (0, 1, 2, 3):
        client.position = Position(0, round, 0)
        after = client.fit(params, steps=1, optimizer=optimizer).params
        moves.append(after["gnn.layers.0.weight"] - params["gnn.layers.0.weight"])
    assert torch.equal(moves[0], moves[1])
    torch.testing.assert_close(moves[2], moves[1] / 2, atol=1e-7, rtol=1e-5)
    torch.testing.assert_close(moves[3], moves[1] / 4, atol=1e-7, rtol=1e-5)


def test_sizes_are_those_of_the_data() -> None:
    graph = toy_graph(20, unlabelled_fraction=0.4)
    client = toy_client(graph)
    assert client.num_nodes == 20
    assert client.num_examples == int((graph.mask("train") & (graph.y >= 0)).sum()) < 10


def test_other_clients_know_a_node_by_its_id_in_the_whole_graph_unless_told_otherwise() -> None:
    part = toy_graph(20).subgraph(torch.tensor([3, 17, 5]))
    assert toy_client(part).node_keys is part.node_ids


def test_a_client_whose_data_has_no_nodes_of_its_own_has_no_keys() -> None:
    client = GraphClient("a", object(), NodeClassification(), torch.nn.Identity(), FullBatch())
    assert client.node_keys is None


def test_evaluate_and_predict_use_the_model_that_is_given() -> None:
    client, other = toy_client(), toy_client(seed=3)
    mine, theirs = read_params(client.model), read_params(other.model)
    first, counts = client.evaluate(mine, ("val", "test"))
    second, _ = client.evaluate(theirs, ("val", "test"))
    assert first["val"]["loss"] != second["val"]["loss"]
    assert second == other.evaluate(theirs, ("val", "test"))[0]
    assert counts == {"val": 12, "test": 12}
    assert torch.equal(client.predict(theirs).probabilities, other.predict(theirs).probabilities)


def test_the_amount_of_training_must_make_sense() -> None:
    check_local_steps(1, "epoch")
    with pytest.raises(ValueError, match="local_steps is 0; it must be at least 1"):
        check_local_steps(0, "batch")
    with pytest.raises(ValueError, match="step_unit is 'round'; choose from batch, epoch"):
        check_local_steps(1, "round")
