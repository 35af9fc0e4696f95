"""What a silo does not do for a server, and a server not for a silo: each of these cost gigabytes, or did any work."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch

from isthmus.algorithms import GFLAPPNP, FedAvg, FedGL, FedGNN, FedSagePlus, PFedMe, Scaffold
from isthmus.algorithms.fedgl import Guidance, NodeList, ShareNodes, TrainWithGuidance
from isthmus.algorithms.fedgnn import UseNeighbors
from isthmus.algorithms.fedsage import (
    GeneratorView,
    GradeGenerators,
    PretrainGenerator,
    ShareGenerator,
    UpdateGenerator,
)
from isthmus.algorithms.gfl_appnp import KeepOwnWeights, NeighborList, ReceiveAggregates, ShareNeighbors
from isthmus.algorithms.scaffold import TrainCorrected
from isthmus.core.codec import PREFIX, decode, encode, pack
from isthmus.core.errors import BadInput, BadMessage
from isthmus.core.federation.judging import judged
from isthmus.core.protocol import EvaluateModel, Evaluation, Failure, Holdings, Known, Position
from isthmus.core.record import check_value
from isthmus.learn.optimizers import read_params
from isthmus.runtime.envelope import Answer, Envelope
from isthmus.runtime.remote import RemoteRuntime
from isthmus.sites.silo.policy import MAX_DEPTH_OF_ALL, Policy
from isthmus.testing import toy_client, toy_course
from isthmus.testing.hostile.forging import altered, forged
from tests.algorithms.fedgnn.test_fedgnn import client_of

CLIENT = toy_client()
NODES = CLIENT.num_nodes
PARAMS = read_params(CLIENT.model)


def no_guidance() -> Guidance:
    empty = torch.zeros(0, dtype=torch.int32)
    return Guidance(
        torch.full((NODES,), -1, dtype=torch.int32), torch.zeros(NODES + 1, dtype=torch.int32), empty, torch.zeros(0)
    )


# ---- a server, against a silo


@pytest.mark.parametrize(
    ("field", "value", "part"),
    [
        ("start", torch.tensor([0] * NODES + [2**31 - 1], dtype=torch.int32), "rows lie from 0 to 2147483647 of 0"),
        ("start", torch.zeros(NODES + 1, dtype=torch.int64), "lists of int32"),
        ("start", torch.zeros(3, dtype=torch.int32), f"with 3 beginnings of rows, not {NODES}"),
        ("labels", torch.zeros(16_000_000, 0, dtype=torch.int32), "lists of int32"),
        ("labels", torch.zeros(0, dtype=torch.int32), "it is about 0 nodes"),
        ("weights", torch.ones(2), "one of as many numbers"),
    ],
)
def test_guidance_that_would_take_any_memory_is_refused(field: str, value: Any, part: str) -> None:
    odd = replace(no_guidance(), **{field: value})
    with pytest.raises(BadInput, match=f"the guidance cannot be used: .*{part}"):
        FedGL().train(TrainWithGuidance(PARAMS, odd), CLIENT)


def test_guidance_with_neighbours_that_are_not_there_is_refused() -> None:
    start = torch.ones(NODES + 1, dtype=torch.int32)
    start[0] = 0
    for number in (NODES, -1):
        odd = replace(
            no_guidance(), start=start, neighbors=torch.tensor([number], dtype=torch.int32), weights=torch.ones(1)
        )
        assert f"neighbors is from {number}" in odd.problem(NODES)
    backwards = replace(odd, start=start.flip(0), neighbors=torch.tensor([0], dtype=torch.int32))
    assert "rows lie from 1 to 0" in backwards.problem(NODES)
    assert no_guidance().problem(NODES) == ""


def view_of(algorithm: FedSagePlus, client: Any) -> GeneratorView:
    algorithm.pretrain(PretrainGenerator(PARAMS), client)
    return algorithm.share_generator(
        ShareGenerator(algorithm.latent, algorithm.hidden, algorithm.num_generated), client
    )


def test_views_whose_shapes_ask_for_any_work_are_refused() -> None:
    algorithm, client = FedSagePlus(pretrain_steps=1), toy_client()
    view = view_of(algorithm, client)
    assert algorithm.grade(GradeGenerators({"peer": view}), client).weight == 1.0
    wide = replace(view, inputs=torch.zeros(0, 2**20), counts=torch.zeros(0, dtype=torch.int64))
    slots = replace(view, params={**view.params, "slot_weight": torch.zeros(10_000, 64, 6)})
    for odd in (wide, slots):
        with pytest.raises(BadInput, match="the view of 'peer' is none of this course"):
            algorithm.grade(GradeGenerators({"peer": odd}), client)


def test_gradients_of_other_shapes_than_the_generators_are_refused() -> None:
    algorithm, client = FedSagePlus(pretrain_steps=1), toy_client()
    view = view_of(algorithm, client)
    odd = {**view.params, "slot_weight": torch.zeros(20_000, 1, 1, 1)}
    with pytest.raises(BadInput, match="do not belong to client-0's generator: gradients"):
        algorithm.update(UpdateGenerator(odd), client)
    algorithm.update(UpdateGenerator(view.params), client)


def test_a_variate_of_other_shapes_than_the_models_is_refused() -> None:
    zeros = {name: torch.zeros_like(tensor) for name, tensor in PARAMS.items()}
    first = next(iter(zeros))
    for odd in ({**zeros, first: torch.zeros(20_000, 1, 1)}, {**zeros, "another": torch.zeros(1)}):
        with pytest.raises(BadInput, match="control variate does not belong to this model"):
            Scaffold().train(TrainCorrected(PARAMS, odd), toy_client())


@pytest.mark.parametrize("own", [torch.zeros(20_000, 1, 1), torch.zeros(NODES, NODES, dtype=torch.int64)])
def test_a_part_of_the_mixing_for_other_nodes_is_refused(own: torch.Tensor) -> None:
    with pytest.raises(BadInput, match=f"hosts {NODES} nodes; its part of A~ cannot have the shape"):
        GFLAPPNP().keep_own_weights(KeepOwnWeights(own), toy_client())


def test_aggregates_for_other_nodes_or_parameters_are_refused() -> None:
    algorithm, client = GFLAPPNP(), toy_client()
    name, slot = next(iter(PARAMS.items()))
    trained = int(client.num_examples)
    fitting = torch.zeros(trained, 2, *slot.shape)
    algorithm.receive(ReceiveAggregates(torch.zeros(NODES, 3), {name: fitting}), client)
    with pytest.raises(BadInput, match="their C cannot have the shape"):
        algorithm.receive(ReceiveAggregates(torch.zeros(20_000, 1, 1), {}), client)
    for odd in ({name: fitting[:1]}, {name: torch.zeros(trained, 2, 20_000, 1, 1)}, {"another": fitting}):
        with pytest.raises(BadInput, match="grad C of"):
            algorithm.receive(ReceiveAggregates(torch.zeros(NODES, 3), odd), client)


@pytest.mark.parametrize(
    ("embeddings", "user"),
    [(torch.zeros(16_000_000, 0), 0), (torch.zeros(5, 4), 0), (torch.zeros(1, 4), 7), (torch.zeros(1, 0), 0)],
)
def test_users_that_nothing_is_said_of_are_refused(embeddings: torch.Tensor, user: int) -> None:
    request = UseNeighbors(embeddings, torch.tensor([user]), torch.tensor([0]))
    with pytest.raises(BadInput, match="the other clients' users cannot be used"):
        FedGNN().use_neighbors(request, client_of())


def test_a_split_is_measured_once() -> None:
    request = EvaluateModel({}, ("val", "train"), "accuracy", False)
    odd = altered(request, splits=("val",) * 1000)
    with pytest.raises(BadMessage, match="splits names 1000, of which 1 are different"):
        decode(forged(odd), EvaluateModel)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"client_settings": {"a": {"local_steps": 10**9}}}, "client_settings.a.local_steps is 1000000000"),
        ({"algorithm": PFedMe(local_steps=1000, inner_steps=1000)}, "algorithm.local_steps x inner_steps is 1000000"),
        (
            {"client_settings": {f"s{k}": {"model.gnn.layers": 1000} for k in range(5)}},
            f"the models of all clients have 5002 layers and the like, this silo allows {MAX_DEPTH_OF_ALL}",
        ),
        ({"client_settings": {"a": {"batching.name": "neighbor", "batching.fanouts": [10**12]}}}, "batching.fanouts"),
    ],
    ids=["steps of one", "steps within steps", "layers of all", "batches of one"],
)
def test_what_a_policy_bounds_is_bounded_for_single_clients_too(changes: dict[str, Any], part: str) -> None:
    course = replace(toy_course(FedAvg()), **changes)
    assert part in Policy().refusal(course, ("a", "b", "c"))


# ---- a silo, against the server


def test_a_reply_about_more_nodes_than_the_client_holds_is_refused() -> None:
    known = Known({"a": Holdings(10, {})})
    many = torch.arange(11)
    found = judged("a", NodeList(many, ("x",)), ShareNodes(), NodeList, known)
    assert isinstance(found, Failure) and "NodeList is about 11 nodes; the client holds 10 nodes" in found.reason
    assert isinstance(judged("a", NodeList(many[:10], ("x",)), ShareNodes(), NodeList, known), NodeList)
    empty, none = torch.zeros(0, dtype=torch.int64), torch.zeros(0)
    lists = NeighborList(many, empty, empty, none, torch.ones(11, dtype=torch.bool))
    assert isinstance(judged("a", lists, ShareNeighbors(), NeighborList, known), Failure)


def test_an_answer_to_another_message_is_refused_and_a_second_one_is_not_heard() -> None:
    reply = encode(Evaluation({}, {}))

    class Wire:
        holdings: ClassVar[dict[str, Holdings]] = {}

        def __init__(self, *questions: str | None) -> None:
            self.questions = questions

        def send(self, messages: Any, timeout_seconds: float | None) -> Any:
            for site, message in messages.items():
                asked: Envelope = decode(message, Envelope)
                for question in self.questions:
                    yield site, encode(Answer(pack(reply), None, "", asked.question if question is None else question))

    request = EvaluateModel({}, ("val",), "accuracy", False)

    def outcome(wire: Wire) -> Any:
        (found,) = RemoteRuntime("c", ["a"], wire).exchange(Position(0, 1, 0), {"a": request}, None)
        return found.reply

    assert outcome(Wire("0" * 32)) == Failure("a", "malformed", "it answers another message than the one that was sent")
    assert outcome(Wire("")).kind == "malformed"
    assert outcome(Wire(None, "0" * 32)) == Evaluation({}, {})


def test_no_two_messages_have_one_name() -> None:
    names: list[str] = []

    class Wire:
        holdings: ClassVar[dict[str, Holdings]] = {}

        def send(self, messages: Any, timeout_seconds: float | None) -> Any:
            names.extend(decode(message, Envelope).question for message in messages.values())
            return iter(())

    runtime = RemoteRuntime("c", ["a", "b"], Wire())
    request = EvaluateModel({}, ("val",), "accuracy", False)
    for _ in range(3):
        list(runtime.exchange(Position(0, 1, 0), {"a": request, "b": request}, None))
    assert len(names) == 6 == len(set(names)) and all(len(name) == 32 for name in names)


def test_refusing_too_many_values_takes_little_memory() -> None:
    text = json.dumps({"value": [["k", "v"]] * 20_000, "tensors": []}).encode()
    message = PREFIX.pack(b"ISTH", 1, 0, len(text)) + text
    tracemalloc.start()
    try:
        with pytest.raises(BadMessage, match="values, the limit is"):
            decode(message, Any, max_values=1000)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(message)
    finally:
        tracemalloc.stop()


def test_the_place_of_a_number_that_is_no_float_is_told_in_words() -> None:
    with pytest.raises(BadMessage, match=r"^state\['w'\]: found a whole number"):
        check_value({"w": 2**1100}, dict[str, float], "state")
