"""FedGNN: perturbed updates, pseudo-interacted items, and graphs that grow by other clients' users."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import isthmus
from isthmus.algorithms import FedAvg, FedGNN
from isthmus.algorithms.fedavg import ModelUpdate, TrainModel
from isthmus.algorithms.fedgnn import SharedUsers, ShareUsers, UseNeighbors
from isthmus.algorithms.fedgnn.user_items import ExpandedModel, expanded, interactions
from isthmus.config.course import Course
from isthmus.core.codec import decode
from isthmus.core.errors import BadInput
from isthmus.core.exposure import exposure
from isthmus.core.protocol import EvaluateModel, KeepBest, Kept, ModelState, Position, Request
from isthmus.core.random import UniformSampling
from isthmus.core.record import Params, Record, State, leaves
from isthmus.core.training import weighted_metric
from isthmus.data.link_graph import LinkGraph
from isthmus.data.splitters import SPLITTERS
from isthmus.data.zoo.cross_scenario import CSR
from isthmus.data.zoo.links_of import HashedIds
from isthmus.learn.batching import Batching, FullBatch, LinkBatch, NeighborBatch
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.optimizers import SGD, Adam, Cosine, load_params, read_params
from isthmus.learn.tasks import LinkClassification
from isthmus.models import GCN, SAGE, CategoricalEncoder, HadamardMLPDecoder, LinearEncoder, ModelSpec
from isthmus.runs.simulation import Scenario, Simulation
from isthmus.testing import CHECKS, ScriptedClients, conformance, toy_course, toy_scenario
from isthmus.testing.traces import Trace, trace_course
from tests.learn.tasks.link_toys import toy_ratings

OFF: dict[str, Any] = {"clip": None, "noise": 0.0, "pseudo_items": 0, "expand_every": 0}
PLAIN: dict[str, Any] = {"clip": None, "noise": 0.0, "pseudo_items": 0}
MODEL = ModelSpec(GCN(hidden=5, dropout=0.5), encoder=LinearEncoder(4), decoder=HadamardMLPDecoder(hidden=4))
TABLE = replace(MODEL, encoder=CategoricalEncoder(4))


def link_scenario(
    num_clients: int = 3, *, ids: bool = False, client_without_training: bool = False, **other: Any
) -> Scenario:
    """Return ratings dealt to clients one by one, so that they have users and items in common."""
    whole = toy_ratings(num_users=12, num_items=20, num_links=40 * num_clients)
    if ids:
        whole = replace(whole, x=torch.eye(32).to_sparse_csr())
    deal = torch.randint(num_clients, (whole.num_items,), generator=torch.Generator().manual_seed(1))
    parts = whole.divide([(deal == k).nonzero().flatten() for k in range(num_clients)])
    if client_without_training:
        masks = parts[-1].masks
        parts[-1] = parts[-1].with_masks({**masks, "train": torch.zeros_like(masks["train"])})
    return Scenario(whole, {f"client-{k}": part for k, part in enumerate(parts)})  # type: ignore[arg-type,misc]


def course_of(algorithm: FedAvg, model: ModelSpec = MODEL, **changes: Any) -> Course:
    return toy_course(algorithm, task=LinkClassification(), model=model, **changes)


def run(algorithm: FedAvg, model: ModelSpec = MODEL, scenario: Scenario | None = None, **changes: Any) -> Trace:
    trace = trace_course(course_of(algorithm, model, **changes), scenario or link_scenario())
    assert trace.ended_by is None, trace.ended_by
    assert not any(report.failures for report in trace.exchanges)
    return trace


def client_of(model: ModelSpec = MODEL, ids: bool = False, name: str = "client-0") -> GraphClient:
    client = Simulation(course_of(FedGNN(), model), link_scenario(ids=ids)).clients[name]
    client.position = Position(5, 1, 0)
    return client


# ---- the special case


@pytest.mark.parametrize("model", [MODEL, TABLE], ids=["features", "table"])
def test_with_everything_off_it_is_fedavg_to_the_bit(model: ModelSpec) -> None:
    scenario = link_scenario(ids=model is TABLE)
    fields: dict[str, Any] = {"local_steps": 3, "optimizer": SGD(lr=0.1, weight_decay=1e-3, momentum=0.5)}
    for course in ({}, {"sampling": UniformSampling(fraction=0.5)}):
        ours = run(FedGNN(**fields, **OFF), model, scenario, **course)
        theirs = run(FedAvg(**fields), model, scenario, **course)
        for round, standing in theirs.standings.items():
            mine = ours.standings[round].state.params  # type: ignore[attr-defined]
            for name, tensor in standing.state.params.items():  # type: ignore[attr-defined]
                assert torch.equal(mine[name], tensor)
        assert [r.evaluations for r in ours.rounds] == [r.evaluations for r in theirs.rounds]


def test_on_nodes_with_everything_off_it_is_fedavg_to_the_bit() -> None:
    for keep in (False, True):
        fields: dict[str, Any] = {"optimizer": SGD(lr=0.1, momentum=0.5), "keep_moments": keep}
        ours = trace_course(toy_course(FedGNN(local_steps=4, **fields, **OFF)), toy_scenario())
        theirs = trace_course(toy_course(FedAvg(local_steps=4, **fields)), toy_scenario())
        assert ours.ended_by is theirs.ended_by is None
        for name, tensor in theirs.standings[3].state.params.items():  # type: ignore[attr-defined]
            assert torch.equal(ours.standings[3].state.params[name], tensor)  # type: ignore[attr-defined]


@pytest.mark.parametrize("field", ["clip", "noise", "pseudo_items", "expand_every"])
def test_each_part_alone_changes_the_result(field: str) -> None:
    values = {"clip": 1e-3, "noise": 0.1, "pseudo_items": 5, "expand_every": 1}
    scenario = link_scenario(ids=True)
    off = run(FedGNN(**OFF), TABLE, scenario)
    on = run(FedGNN(**{**OFF, field: values[field]}), TABLE, scenario)
    before, after = off.standings[3].state.params, on.standings[3].state.params  # type: ignore[attr-defined]
    assert any(not torch.equal(before[name], after[name]) for name in before)


# ---- conformance


LINK_CHECKS = [name for name in CHECKS if name not in ("frozen", "repr", "docstrings")]  # those have no clients


@pytest.mark.parametrize("check", LINK_CHECKS)
def test_it_keeps_to_the_rules_on_users_and_items(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "toy_scenario", lambda *a, **k: link_scenario(*a, ids=True, **k))
    algorithm = FedGNN(pseudo_items=3, expand_every=2, max_neighbors=6, embedding_noise=0.01)
    CHECKS[check](algorithm, course_of(algorithm, TABLE, rounds=2))


@pytest.mark.parametrize("ids", [False, True], ids=["features", "table"])
@pytest.mark.parametrize("batching", [FullBatch(), LinkBatch(8)], ids=["full", "batches"])
def test_clients_train_on_their_expanded_graphs_together(batching: Batching, ids: bool) -> None:
    algorithm = FedGNN(**PLAIN, expand_every=2, local_steps=2, step_unit="epoch", optimizer=SGD(lr=0.1))
    scenario = link_scenario(4, ids=ids, client_without_training=True)
    course = course_of(algorithm, TABLE if ids else MODEL, rounds=2, batching=batching, num_clients=4)
    CHECKS["stacked_equals_loop"](algorithm, course, scenarios=[scenario])  # type: ignore[call-arg]
    trace = trace_course(replace(course, runtime="auto"), scenario)
    assert trace.pausing.together["Fit"] == 6 and "Fit" not in trace.notes


# ---- the server half


def scripted(replies: dict[str, SharedUsers], params: Params, **fields: Any) -> tuple[ScriptedClients, FedGNN]:
    def answer(client: str, request: Request[Any]) -> Record:
        if isinstance(request, ShareUsers):
            return replies[client]
        return Kept() if isinstance(request, UseNeighbors) else ModelUpdate({"w": torch.ones(1)}, 2.0)

    return ScriptedClients(answer, tuple(replies)), FedGNN(**fields)


def users(rows: list[float], pairs: list[tuple[int, int]], width: int = 2) -> SharedUsers:
    user, item = (torch.tensor([pair[end] for pair in pairs], dtype=torch.int64) for end in (0, 1))
    return SharedUsers(torch.tensor(rows)[:, None].repeat(1, width), user, item)


def test_the_sequence_of_messages_and_who_gets_which_users() -> None:
    replies = {"a": users([1.0, 2.0], [(0, 70), (1, 71)]), "b": users([3.0], [(0, 70), (0, 99)]), "c": users([], [])}
    clients, algorithm = scripted(replies, {"w": torch.zeros(1)}, expand_every=2)
    params = {"w": torch.zeros(1)}
    after = algorithm.round(ModelState(params), clients.federation(params, cohort=("a",)))
    kinds = [(client, type(request).__name__) for client, request in clients.sent]
    assert kinds == [
        *((c, "ShareUsers") for c in "abc"),  # also those outside the cohort
        *((c, "UseNeighbors") for c in "abc"),
        ("a", "TrainModel"),
    ]
    sent = {client: request for client, request in clients.sent if isinstance(request, UseNeighbors)}
    assert sent["a"].embeddings.tolist() == [[3.0, 3.0]] and sent["a"].item.tolist() == [70]  # nothing of item 99
    assert sent["b"].embeddings.tolist() == [[1.0, 1.0]] and sent["b"].item.tolist() == [70]
    assert len(sent["c"].embeddings) == 0
    assert torch.equal(after.params["w"], torch.ones(1))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"expand_every": 0}, []),
        ({"expand_every": 1}, [1, 2, 3, 4, 5, 6, 7]),
        ({"expand_every": 3}, [1, 4, 7]),
        ({"expand_every": 2, "warmup_rounds": 2}, [3, 5, 7]),
        ({"expand_every": 10, "warmup_rounds": 7}, []),
    ],
)
def test_graphs_are_expanded_in_the_rounds_that_the_fields_say(fields: dict[str, int], expected: list[int]) -> None:
    params = {"w": torch.zeros(1)}
    found = []
    for round in range(1, 8):
        clients, algorithm = scripted({"a": users([1.0], [(0, 7)])}, params, **fields)
        algorithm.round(ModelState(params), clients.federation(params, round=round))
        if any(isinstance(request, ShareUsers) for _, request in clients.sent):
            found.append(round)
    assert found == expected


def test_users_of_another_width_than_those_of_most_clients_are_left_out_and_named() -> None:
    replies = {"a": users([1.0], [(0, 7)], width=3), "b": users([1.0], [(0, 7)]), "c": users([1.0], [(0, 7)])}
    clients, algorithm = scripted(replies, {})
    algorithm.round(ModelState({}), clients.federation({}))
    failures = [failure for report in clients.reports for failure in report.failures]
    assert [(failure.client, failure.kind) for failure in failures] == [("a", "malformed")]
    assert {client for client, request in clients.sent if isinstance(request, UseNeighbors)} == {"b", "c"}


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (replace(users([1.0], [(0, 7)]), embeddings=torch.zeros(3)), r"embeddings has shape \(3,\)"),
        (replace(users([1.0], [(0, 7)]), embeddings=torch.zeros(1, 2).long()), "of floats"),
        (replace(users([1.0], [(0, 7)]), user=torch.tensor([0, 0])), r"user has shape \(2,\)"),
        (replace(users([1.0], [(0, 7)]), item=torch.tensor([0.5])), "item has shape"),
        (users([1.0], [(1, 7)]), "user names rows 1 to 1 of 1 embeddings"),
    ],
)
def test_malformed_users_are_named(reply: SharedUsers, message: str) -> None:
    assert re.search(message, ShareUsers({}).problem(reply))
    assert ShareUsers({}).problem(users([1.0], [(0, 7)])) == ShareUsers({}).problem(users([], [])) == ""


def test_the_server_sees_updates_folded_and_users_each() -> None:
    found = {each.request: each.server_sees for each in exposure(FedGNN)}
    assert found["TrainModel"] == "only the fold" and found["ShareUsers"] == "each client's"
    assert found["UseNeighbors"] == "nothing but a receipt"


# ---- what is said


def test_the_privacy_bound_is_noted_as_the_paper_states_it() -> None:
    assert FedGNN(clip=0.1, noise=0.2).epsilon == 1.0 and FedGNN(clip=0.3, noise=0.2).epsilon == pytest.approx(3.0)
    assert FedGNN(clip=None).epsilon == FedGNN(noise=0.0).epsilon == math.inf
    said = run(FedGNN(clip=0.1, noise=0.05)).said
    assert any("4-differentially private: 2 delta / lambda = 2 * 0.1 / 0.05" in note for note in said)
    assert any("no bound on epsilon: clip is None and noise is 0" in note for note in run(FedGNN(**PLAIN)).said)


def test_notes_say_where_there_is_nothing_to_hide_or_to_expand_by() -> None:
    assert any("no table of embeddings (encoder.weight" in note for note in run(FedGNN()).said)
    said = run(FedGNN(expand_every=1), TABLE, link_scenario(ids=True)).said
    assert not any("no table" in note for note in said)
    assert sum("the first expansion gave 3 of 3 clients users of others" in note for note in said) == 1
    nodes = trace_course(toy_course(FedGNN()), toy_scenario())
    assert any("no client has users and items" in note and "FedAvg with perturbed" in note for note in nodes.said)
    assert not any("neighbors" in decode(memory, State) for memory in nodes.memories[3].values())
    whole: Any = link_scenario().whole
    apart = [
        torch.tensor([int(i) for i in range(whole.num_items) if int(whole.links[1, i]) % 3 == k]) for k in range(3)
    ]
    parts = dict(zip("abc", whole.divide(apart), strict=True))
    said = run(FedGNN(), scenario=Scenario(whole, parts)).said
    assert any("no two clients have a rated item in common" in note for note in said)


# ---- what crosses


def of_kind(trace: Trace, kind: type[Request[Any]]) -> dict[str, Any]:
    return {m.client: m for m in trace.messages if isinstance(m.request, kind)}


def test_clients_get_exactly_the_users_that_a_plain_loop_finds() -> None:
    scenario = link_scenario()
    trace = run(FedGNN(**PLAIN, expand_every=5), scenario=scenario)
    parts: dict[str, LinkGraph] = scenario.parts  # type: ignore[assignment]
    model = Simulation(course_of(FedGNN()), scenario).model
    load_params(model, trace.initial)
    layer: Any = model.encoder.layers[0]  # type: ignore[union-attr,index]
    for name, mine in parts.items():
        rated = {int(mine.node_ids[i]) for i in interactions(mine)[1]}
        expected = set()
        for other, theirs in parts.items():
            for user, item in zip(*(ends.tolist() for ends in interactions(theirs)), strict=True):
                if other != name and int(theirs.node_ids[item]) in rated:
                    row = (theirs.x[user] @ layer.weight + layer.bias).detach()
                    expected.add((other, user, tuple(round(v, 4) for v in row.tolist()), int(theirs.node_ids[item])))
        memory: Any = decode(trace.memories[3][name], State)["neighbors"]
        rows = [tuple(round(v, 4) for v in row) for row in memory["embeddings"].tolist()]
        found = sorted(
            (rows[user], int(mine.node_ids[item]))
            for user, item in zip(memory["user"].tolist(), memory["item"].tolist(), strict=True)
        )
        assert found == sorted((row, item) for _, _, row, item in expected)
        assert len(rows) == len({(other, user) for other, user, _, _ in expected}) > 0


def test_no_raw_id_and_no_feature_is_in_any_message() -> None:
    scenario = link_scenario()
    trace = run(FedGNN(**PLAIN, expand_every=1), scenario=scenario)
    ids = set(range(32))
    features = set(map(tuple, scenario.whole.x.tolist()))  # rows of three numbers
    seen = 0
    for message in trace.messages:
        for record in (message.request, message.outcome.reply):
            for path, leaf in leaves(record).items():
                if not isinstance(leaf, Tensor):
                    continue
                if leaf.is_floating_point():
                    flat = leaf.flatten().tolist()
                    assert not features & set(zip(flat, flat[1:], flat[2:], strict=False)), path
                elif path == ".item":
                    seen += len(leaf)
                    assert not ids & set(leaf.tolist())
                else:
                    assert path == ".user"  # rows of the message itself
    assert seen > 50


def test_ratings_of_validation_and_test_are_in_no_message() -> None:
    scenario = link_scenario()
    trace = run(FedGNN(expand_every=1), scenario=scenario)
    for name, message in of_kind(trace, ShareUsers).items():
        part: Any = scenario.parts[name]
        train = part.mask("train")
        assert len(message.outcome.reply.item) == len(set(map(tuple, part.links[:, train].t().tolist())))


def test_uploads_move_the_rows_of_used_and_pseudo_items_alone() -> None:
    client = client_of(TABLE, ids=True)
    used = set(client.data.links[:, client.data.mask("train")].flatten().tolist())
    columns = {int(client.data.node_ids[node]) for node in used}
    start = read_params(client.model)
    seen = set()
    for round in range(1, 30):
        client.position = Position(5, round, 0)
        sent = FedGNN(pseudo_items=2).train(TrainModel(start), client).params["encoder.weight"]
        moved = {row for row in range(32) if not torch.equal(sent[row], start["encoder.weight"][row])}
        assert columns <= moved and len(moved) == len(columns) + 2
        seen |= moved - columns
    assert len(seen) > 2  # other ones in every round
    none = FedGNN(pseudo_items=0).train(TrainModel(start), client).params["encoder.weight"]
    assert {row for row in range(32) if not torch.equal(none[row], start["encoder.weight"][row])} == columns


def test_clipping_and_noise_are_in_units_of_the_rounds_learning_rate() -> None:
    client = client_of()
    optimizer = SGD(lr=0.4, schedule=Cosine(rounds=10))
    start = read_params(client.model)
    client.position = Position(5, 5, 0)
    lr = 0.4 * Cosine(rounds=10).factor(5)
    raw = FedAvg(local_steps=2, optimizer=optimizer).train(TrainModel(start), client).params
    clipped = (
        FedGNN(**{**OFF, "clip": 0.01}, local_steps=2, optimizer=optimizer).train(TrainModel(start), client).params
    )
    for name, w in start.items():
        torch.testing.assert_close(clipped[name], w + (raw[name] - w).clamp(-lr * 0.01, lr * 0.01))
    noises = []
    for round in range(300):
        client.position = Position(round, 5, 0)
        before, after = {"w": torch.zeros(100)}, {"w": torch.ones(100)}
        noises.append(FedGNN(**{**OFF, "noise": 0.5}, optimizer=optimizer).protected(before, after, client)["w"] - 1.0)
    found = torch.cat(noises).double()
    assert float(found.square().mean()) == pytest.approx(2 * (lr * 0.5) ** 2, rel=0.05)
    assert float(found.abs().mean()) == pytest.approx(lr * 0.5, rel=0.03)


def test_users_embeddings_can_be_made_vague() -> None:
    client = client_of()
    start = read_params(client.model)
    plain = FedGNN().share_users(ShareUsers(start), client)
    vague = FedGNN(embedding_noise=0.5).share_users(ShareUsers(start), client)
    assert torch.equal(plain.item, vague.item) and torch.equal(plain.user, vague.user)
    assert 0.1 < float((plain.embeddings - vague.embeddings).abs().mean()) < 1.5


# ---- the client half


def with_neighbors(client: GraphClient) -> SharedUsers:
    """Give a client two users of others, and return them with nodes in the place of tokens."""
    algorithm = FedGNN()
    shared = algorithm.share_users(ShareUsers(read_params(client.model)), client)
    tokens = shared.item.unique()[:3]
    rows = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    algorithm.use_neighbors(UseNeighbors(rows, torch.tensor([0, 0, 1]), tokens), client)
    memory: Any = client.state["neighbors"]
    return SharedUsers(**memory)


def test_a_step_goes_down_the_gradient_of_the_loss_on_the_expanded_graph() -> None:
    model = replace(MODEL, gnn=GCN(hidden=5, dropout=0.0))
    client = client_of(model)
    others = with_neighbors(client)
    start = read_params(client.model)
    sent = FedGNN(**PLAIN, optimizer=SGD(lr=0.3)).train(TrainModel(start), client).params
    load_params(client.model, start)
    task, whole = client.task, expanded(client.prepared, others)
    batch = next(task.batches(whole, FullBatch(), torch.Generator()))
    loss = task.loss(ExpandedModel(client.model, others.embeddings), batch, torch.Generator())
    named = dict(client.model.named_parameters())
    grads = torch.autograd.grad(loss, list(named.values()))
    for (name, w), grad in zip(named.items(), grads, strict=True):
        torch.testing.assert_close(sent[name], w.detach() - 0.3 * grad)
    plain = FedAvg(local_steps=1, optimizer=SGD(lr=0.3)).train(TrainModel(start), client).params
    assert any(not torch.allclose(sent[name], plain[name], atol=1e-6) for name in start)


def test_clients_are_evaluated_on_their_expanded_graphs_and_the_best_rounds_users_come_back() -> None:
    client = client_of()
    start, algorithm = read_params(client.model), FedGNN()
    plain = algorithm.evaluate(EvaluateModel(start, ("train", "val"), "accuracy", False), client)
    algorithm.keep_best(KeepBest(), client)  # a best round without users of others
    others = with_neighbors(client)
    found = algorithm.evaluate(EvaluateModel(start, ("train", "val"), "accuracy", False), client)
    load_params(client.model, start)
    model, whole = ExpandedModel(client.model, others.embeddings), expanded(client.prepared, others)
    assert (found.metrics, found.counts) == client.task.evaluate(model, whole, ("train", "val"))
    assert found.metrics != plain.metrics
    best = EvaluateModel(start, ("train", "val"), "accuracy", True)
    assert algorithm.evaluate(best, client).metrics == plain.metrics
    algorithm.keep_best(KeepBest(), client)
    client.state = {"best": client.state["best"]}
    assert algorithm.evaluate(best, client).metrics == found.metrics


def test_new_users_of_others_replace_the_old_ones_and_none_removes_them() -> None:
    client = client_of()
    with_neighbors(client)
    empty = torch.empty(0, dtype=torch.int64)
    FedGNN().use_neighbors(UseNeighbors(torch.empty(0, 4), empty, empty), client)
    assert "neighbors" not in client.state


def test_moments_are_kept_on_expanded_graphs_too() -> None:
    client = client_of()
    with_neighbors(client)
    algorithm = FedGNN(keep_moments=True, optimizer=SGD(lr=0.1, momentum=0.9))
    algorithm.train(TrainModel(read_params(client.model)), client)
    assert client.state["optimizer"]["step"] == 1


# ---- bad input


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"clip": 0.0}, "clip is 0.0; it must be positive, or null"),
        ({"clip": -1.0}, "clip is -1.0"),
        ({"noise": -0.1}, "noise is -0.1; it must be at least 0"),
        ({"embedding_noise": math.inf}, "embedding_noise is inf"),
        ({"pseudo_items": -1}, "pseudo_items is -1"),
        ({"expand_every": -1}, "expand_every is -1"),
        ({"warmup_rounds": -2}, "warmup_rounds is -2"),
        ({"max_neighbors": 0}, "max_neighbors is 0; it must be at least 1"),
        ({"local_steps": 0}, "local_steps is 0"),
    ],
)
def test_bad_fields_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FedGNN(**fields)


def ended(algorithm: FedGNN, model: ModelSpec, **changes: Any) -> str:
    return str(trace_course(course_of(algorithm, model, **changes), link_scenario()).ended_by)


def test_a_model_without_an_encoder_ends_the_course_with_the_reason() -> None:
    bare = replace(MODEL, encoder=None)
    assert "has no encoder, so they would be the features themselves; set model.encoder" in ended(FedGNN(), bare)
    run(FedGNN(expand_every=0), bare)


def test_statistics_of_batch_norm_are_refused_unless_nothing_is_perturbed() -> None:
    norm = replace(MODEL, gnn=SAGE(hidden=5, batch_norm=True))
    assert "perturbs gradients; use a model without batch norm" in ended(FedGNN(), norm)
    run(FedGNN(**PLAIN), norm)
    run(FedGNN(), norm, shared=("encoder.*", "gnn.layers.*", "decoder.*"))


def test_sampled_neighbourhoods_are_refused_where_graphs_are_expanded() -> None:
    batching = NeighborBatch(8, (2, 2))
    assert "use batching.name=full or links" in ended(FedGNN(), MODEL, batching=batching)
    run(FedGNN(expand_every=0), batching=batching)


def test_a_client_without_keys_says_how_to_get_them() -> None:
    client = client_of()
    client.node_keys = None
    with pytest.raises(BadInput, match=r"client-0 cannot say which of its items others have too.*--id-secret-file"):
        FedGNN().share_users(ShareUsers(read_params(client.model)), client)


def test_items_that_a_client_does_not_have_are_refused() -> None:
    client = client_of()
    with pytest.raises(BadInput, match="1 of 1 pairs name an item that this client does not have"):
        FedGNN().use_neighbors(UseNeighbors(torch.zeros(1, 4), torch.tensor([0]), torch.tensor([12])), client)


# ---- a whole course


def test_it_learns_on_expanded_graphs_with_some_noise() -> None:
    algorithm = FedGNN(clip=10.0, noise=0.05, pseudo_items=3, expand_every=5, optimizer=Adam(lr=0.05), local_steps=3)
    model = replace(TABLE, gnn=GCN(hidden=8, dropout=0.0))
    trace = run(algorithm, model, link_scenario(ids=True), rounds=15)
    losses = [weighted_metric(report.evaluations, "train", "loss") for report in trace.rounds]
    assert losses[-1] < 0.75 * losses[0]


def test_a_course_on_hashed_ids_is_scored_by_the_clients_where_graphs_are_expanded() -> None:
    course = Course(
        dataset=HashedIds(dataset=CSR(num_users=60, num_items=40, num_interactions=600)),
        task=LinkClassification(),
        splitter=SPLITTERS["instance_space"](),
        num_clients=3,
        rounds=2,
        model=TABLE,
        algorithm=FedGNN(),
    )
    assert set(isthmus.run(course).metrics) == {"global_model/local_graph"}
    for algorithm in (FedGNN(expand_every=0), FedGNN(warmup_rounds=2)):
        assert "global_model/global_graph" in isthmus.run(replace(course, algorithm=algorithm)).metrics


def test_data_without_users_are_scored_on_the_whole_graph_as_with_fedavg() -> None:
    bare = FedGNN(clip=None, noise=0.0, pseudo_items=0, local_steps=2, optimizer=SGD(lr=0.2))
    still = ModelSpec(GCN(hidden=5, dropout=0.0))
    found, plain = (
        isthmus.run(toy_course(algorithm, model=still), scenario=toy_scenario())
        for algorithm in (bare, FedAvg(local_steps=2, optimizer=SGD(lr=0.2)))
    )
    assert any("no graph is expanded" in note for note in found.notes)
    assert found.metrics == plain.metrics and "global_model/global_graph" in found.metrics
    assert found.client_scores == plain.client_scores
