from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus import run
from isthmus.algorithms import FedAvg, FedGRL, FedRep
from isthmus.algorithms.fedavg import TrainModel
from isthmus.algorithms.fedrep import only
from isthmus.core.codec import decode, encode
from isthmus.core.errors import BadInput
from isthmus.core.random import UniformSampling
from isthmus.core.record import Params, State
from isthmus.data.graph import Graph
from isthmus.learn.batching import NeighborBatch
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.optimizers import SGD, Adam, read_params
from isthmus.models import GCN, SAGE, DotDecoder, MLPDecoder, ModelSpec
from isthmus.runs.folder import RunFolder, load_model_file
from isthmus.testing import check_algorithm, toy_client, toy_course, toy_scenario
from isthmus.testing.traces import require_same, trace_course

from .reference import assert_close, assert_equal, gradients

HEAD = ("gnn.layers.1.weight", "gnn.layers.1.bias")
HEADED = ModelSpec(GCN(hidden=5, dropout=0.5, batch_norm=True), decoder=MLPDecoder(hidden=4))


def two_part_client(**fields: Any) -> tuple[GraphClient, Params]:
    """Return a client that keeps the last layer of a GCN, and the body it shares."""
    client = toy_client(**fields)
    whole = read_params(client.model)
    client.own = {name: whole[name] for name in HEAD}
    return client, {name: tensor for name, tensor in whole.items() if name not in HEAD}


def phases(graph: Graph, start: Params, algorithm: FedRep, head: tuple[str, ...]) -> Params:
    """The two phases of the paper's client, densely."""
    lr, decay = algorithm.optimizer.lr, algorithm.optimizer.weight_decay
    params = dict(start)
    for steps, moves in ((algorithm.head_steps, True), (algorithm.local_steps, False)):
        for _ in range(steps):
            grads = gradients(graph, params)
            params = {n: t - lr * (grads[n] + decay * t) if (n in head) == moves else t for n, t in params.items()}
    return params


def test_a_round_is_the_papers() -> None:
    client, body = two_part_client()
    algorithm = FedRep(head_steps=5, local_steps=2, optimizer=SGD(lr=0.2, weight_decay=0.01))
    start = {**body, **client.own}
    reply = algorithm.train(TrainModel(body), client)
    expected = phases(client.data, start, algorithm, HEAD)
    assert_close(reply.params, {name: expected[name] for name in body}, 1e-5)
    assert_close(client.state["personal"], {name: expected[name] for name in HEAD}, 1e-5)
    assert reply.weight == client.num_examples
    # The next round begins with the head of this one.
    again = algorithm.train(TrainModel(body), client)
    second = phases(client.data, {**body, **{n: expected[n] for n in HEAD}}, algorithm, HEAD)
    assert_close(again.params, {name: second[name] for name in body}, 1e-5)


def test_training_one_after_the_other_is_not_training_both_at_once() -> None:
    (first, body), (second, _) = two_part_client(), two_part_client()
    optimizer = SGD(lr=0.2)
    fedrep = FedRep(head_steps=2, local_steps=2, optimizer=optimizer).train(TrainModel(body), first)
    fedper = FedAvg(local_steps=2, optimizer=optimizer).train(TrainModel(body), second)
    assert max(float((fedrep.params[n] - t).abs().max()) for n, t in fedper.params.items()) > 1e-4


def test_the_second_phase_is_fedavg_under_a_head_that_stands_still() -> None:
    client, body = two_part_client()
    algorithm = FedRep(head_steps=3, local_steps=3, optimizer=SGD(lr=0.2))
    after = algorithm.train(TrainModel(body), client)
    other, _ = two_part_client()
    other.own = client.state["personal"]
    names = [name for name, _ in other.model.named_parameters()]
    still = only(SGD(lr=0.2), [name in body for name in names])
    expected = FedAvg(local_steps=3, optimizer=still).train(TrainModel(body), other)
    assert_equal(after.params, expected.params)
    assert_equal(other.state["personal"], client.state["personal"])


def test_batch_norm_statistics_of_the_body_are_those_of_the_second_phase() -> None:
    model = ModelSpec(GCN(hidden=5, dropout=0.0, batch_norm=True))
    found = []
    for head_steps in (1, 6):
        client, body = two_part_client(model=model)
        algorithm = FedRep(head_steps=head_steps, local_steps=1, optimizer=SGD(lr=0.1))
        found.append(algorithm.train(TrainModel(body), client).params["gnn.norms.0.running_mean"])
    torch.testing.assert_close(found[0], found[1])
    assert bool(found[0].any())


@pytest.mark.parametrize("inner", [SGD(lr=0.1, momentum=0.9, weight_decay=0.1), Adam(lr=0.1)], ids=["sgd", "adam"])
def test_only_moves_what_it_should_and_keeps_no_state_of_the_rest(inner: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(3, generator=generator) for _ in range(3)]
    grads = [torch.randn(3, generator=generator) for _ in range(3)]
    mine, alone = [p.clone() for p in params], [params[0].clone(), params[2].clone()]
    optimizer = only(inner, [True, False, True])
    state, other = optimizer.start(mine), inner.start(alone)
    for _ in range(3):
        optimizer.step(mine, [g.clone() for g in grads], state, 0.1)
        inner.step(alone, [grads[0].clone(), grads[2].clone()], other, 0.1)
    assert torch.equal(mine[1], params[1]) and torch.equal(mine[0], alone[0]) and torch.equal(mine[2], alone[1])
    assert encode(state) == encode(other)


# ---- courses


def test_heads_stay_by_default_and_are_saved(tmp_path: Path) -> None:
    result = run(toy_course(FedRep(), model=HEADED), scenario=toy_scenario(), run_dir=tmp_path / "run")
    assert not [name for name in result.params if name.startswith("decoder.")]
    heads = {tuple(params["decoder.layers.1.weight"].flatten().tolist()) for params in result.client_params.values()}
    assert len(heads) == 3
    folder = RunFolder.open(tmp_path / "run")
    for client, params in result.client_params.items():
        assert_equal(load_model_file(folder.client_model(client))[0], params)
        assert all(torch.equal(params[name], tensor) for name, tensor in result.params.items())


def test_the_head_is_whatever_is_not_shared() -> None:
    trace = trace_course(toy_course(FedRep(), model=HEADED, shared=("*", "!decoder.*", "!*.norms.*")), toy_scenario())
    assert trace.ended_by is None
    for message in trace.messages:
        assert b"decoder" not in encode(message.request) and b"norms" not in encode(message.outcome.reply)
    memory: State = decode(trace.memories[trace.last]["client-0"], State)
    assert {name.split(".")[1] for name in memory["personal"]} == {"layers", "norms"}


def test_an_absent_client_keeps_its_head() -> None:
    fields: dict[str, Any] = {"num_clients": 4, "sampling": UniformSampling(fraction=0.5), "rounds": 4}
    trace = trace_course(toy_course(FedRep(), **fields), toy_scenario(4))
    changed = 0
    for client in trace.clients:
        for report in trace.rounds:
            before, after = (decode(trace.memories[r][client], State) for r in (report.round - 1, report.round))
            if client not in report.cohort:
                assert_equal(before.get("personal", {}), after.get("personal", {}))
            else:
                changed += 1
    assert changed == 8


def test_kept_moments_go_on_through_bytes() -> None:
    algorithm = FedRep(keep_moments=True, optimizer=Adam(lr=0.01), head_steps=2)
    course = toy_course(algorithm, model=ModelSpec(SAGE(hidden=5), decoder=MLPDecoder(hidden=4)))
    course = replace(course, batching=NeighborBatch(8, (2, 2)))
    loop, strict = (trace_course(replace(course, runtime=runtime), toy_scenario()) for runtime in ("loop", "strict"))
    require_same(loop.values(), strict.values(), "loop and strict")
    memory: State = decode(loop.memories[loop.last]["client-0"], State)
    assert memory["head_optimizer"]["step"] == 6 and memory["optimizer"]["step"] == 12
    fresh = trace_course(replace(course, algorithm=replace(algorithm, keep_moments=False)), toy_scenario())
    assert "optimizer" not in decode(fresh.memories[3]["client-0"], State)


@pytest.mark.slow
def test_another_configuration_passes_all_checks() -> None:
    check_algorithm(FedRep(head_steps=1, local_steps=3, weighting="uniform", optimizer=SGD(lr=0.1, momentum=0.5)))


# ---- bad input


def test_a_course_that_shares_heads_is_refused() -> None:
    client = toy_client()
    with pytest.raises(BadInput, match=r'heads stay with the clients; leave shared out, or end it with "!decoder'):
        FedRep().train(TrainModel(read_params(client.model)), client)
    with pytest.raises(BadInput, match="leave shared out"):  # before the first round
        run(toy_course(FedRep(), shared=("*",)), scenario=toy_scenario())
    with pytest.raises(ValueError, match=r"model.decoder is null, but with FedRep"):
        toy_course(FedRep(), model=ModelSpec(GCN(hidden=5)))


@pytest.mark.parametrize("algorithm", [FedRep(), FedGRL()])
def test_a_decoder_without_parameters_is_no_head(algorithm: FedRep | FedGRL) -> None:
    words = f"'dot', which has no parameters, but with {type(algorithm).__name__} every client has a head .* for links"
    with pytest.raises(ValueError, match=words):
        toy_course(algorithm, model=ModelSpec(GCN(hidden=5), decoder=DotDecoder()))


def test_bad_fields_are_refused() -> None:
    with pytest.raises(ValueError, match="head_steps is 0; it must be at least 1"):
        FedRep(head_steps=0)
    with pytest.raises(ValueError, match="local_steps is 0"):
        FedRep(local_steps=0)
