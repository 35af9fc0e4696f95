"""What single methods send: solved where equations have one solution, read where rows say it, and refused elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from isthmus.algorithms import GFLAPPNP, FedAvg, FedGL, FedGNN, FedSagePlus
from isthmus.algorithms.fedavg import ModelUpdate, TrainModel
from isthmus.algorithms.fedgnn import TABLE
from isthmus.algorithms.fedsage import foreign_gradients
from isthmus.algorithms.fedsage.messages import GeneratorView, ShareGenerator
from isthmus.algorithms.fedsage.neighbor_generation import FeatureGenerator, nearest_rows
from isthmus.attacks.attack import Attack, Case, Message, NothingSeen, Seen
from isthmus.attacks.listening import heard
from isthmus.attacks.methods.generated_features import GeneratedFeatures, generated
from isthmus.attacks.methods.generated_nodes import GeneratedNodes
from isthmus.attacks.methods.hidden_gradients import HiddenGradients, read
from isthmus.attacks.methods.labels_from_rows import LabelsFromRows
from isthmus.attacks.methods.peers_nearest import PeersNearest, nearest_sums
from isthmus.attacks.methods.rated_items import RatedItems
from isthmus.attacks.methods.users_by_embeddings import UsersByEmbeddings
from isthmus.core.protocol import Position
from isthmus.learn.optimizers import read_params
from isthmus.testing import toy_client, toy_course, toy_graph, toy_scenario
from tests.attacks.methods.courses import RATINGS, gfl_course, hosts_scenario, ratings_scenario


def scored(attack: Attack, case: Case, seen: Seen | None = None) -> dict[str, float]:
    known = attack.known(case)
    return attack.scores(attack.guess(seen or heard(attack, case), known), attack.truth(case, known))


# ---- FedSage+


def view_of(nodes: int, latent: int = 6, hidden: int = 24, slots: int = 2, columns: int = 6) -> GeneratorView:
    draw = torch.Generator().manual_seed(3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = FeatureGenerator(latent, hidden, slots, columns)
    counts = torch.randint(1, slots + 1, (nodes,), generator=draw)
    return GeneratorView(read_params(model), torch.randn(nodes, latent, generator=draw), counts)


def test_few_generated_neighbours_are_equations_with_one_solution_and_many_are_not() -> None:
    peers = [toy_client(toy_graph(20, seed=seed), id=f"peer-{seed}") for seed in (1, 2)]
    view = view_of(8)
    each = [foreign_gradients(view, peer) for peer in peers]
    total = {name: each[0][name] + each[1][name] for name in each[0]}
    found = nearest_sums(view, total, 2, 1e-4)
    rows = generated(view)
    place = 0
    assert len(found) == 2
    for slot, solved in enumerate(found):
        number = int((view.counts > slot).sum())
        mine = rows[place : place + number]
        place += number
        wanted = sum(peer.data.x[nearest_rows(mine, peer.prepared.graph.x)] for peer in peers)
        assert torch.allclose(solved.float(), torch.as_tensor(wanted), atol=1e-3)
    many = view_of(60)
    assert nearest_sums(many, {n: torch.zeros_like(t) for n, t in many.params.items()}, 2, 1e-4) == []


def test_a_node_is_named_whose_features_are_in_a_solution() -> None:
    x = torch.zeros(5, 6)
    x[0, :2], x[1, 2:4], x[2, 1:3], x[3, 5] = 1.0, 1.0, 1.0, 1.0  # the last node has nothing
    found = PeersNearest()._fitting(torch.tensor([[1.0, 1.0, 1.0, 1.0, 0.1, 0.2]]), x)
    assert found.tolist() == [True, True, True, False, False]


def test_who_gets_back_what_one_peer_found_names_its_nodes() -> None:
    scenario = toy_scenario(2, num_nodes=30, num_common=0, sparse=True)
    algorithm = FedSagePlus(num_generated=2, pretrain_steps=3, latent=8, hidden=64, max_nodes=6)
    case = Case(toy_course(algorithm, num_clients=2, rounds=1, runtime="auto"), scenario)
    found = scored(PeersNearest(condition=1e-5), case)
    assert found["precision"] > 0.8 and found["recall"] > 0.0


def test_what_a_generator_gives_most_of_is_taken_for_its_clients() -> None:
    scenario = toy_scenario(2, num_nodes=10, num_common=0, sparse=True)
    case = Case(toy_course(FedSagePlus(), num_clients=2), scenario)
    attack, messages = GeneratedFeatures(), []
    known = attack.known(case)
    for client, part in scenario.parts.items():
        has = (part.x.to_dense() != 0).any(dim=0).float()
        view = view_of(8, columns=40)
        params = {name: torch.zeros_like(tensor) for name, tensor in view.params.items()}
        params["slot_bias"] = has.expand(2, -1)
        request = {client: ShareGenerator(6, 24, 2)}
        messages.append(Message(Position(0, 0, 1), request, replace(view, params=params)))
    seen = Seen(case.course, case.clients, {}, {}, tuple(messages))
    truth = attack.truth(case, known)
    mine, prior = (
        attack.scores(attack.guess(seen, known), truth),
        attack.scores(attack.prior(known, case.clients), truth),
    )
    assert mine["auc"] > 0.99 > prior["auc"]
    with pytest.raises(NothingSeen, match="no generator of client-0"):
        attack.guess(replace(seen, messages=()), known)


def test_nodes_that_are_like_a_generated_row_are_taken_for_its_clients() -> None:
    scenario = toy_scenario(2, num_nodes=10, num_common=0)
    case = Case(toy_course(FedSagePlus(), num_clients=2), scenario)
    attack, known = GeneratedNodes(), scenario.whole.x.double()
    messages = []
    for client, part in scenario.parts.items():
        slots, columns = part.num_nodes, part.num_features
        view = view_of(1, slots=slots, columns=columns)  # one node that is given each of the client's as a neighbour
        params = {name: torch.zeros_like(tensor) for name, tensor in view.params.items()}
        params["slot_bias"] = 3.0 * part.x + (1.0 - 3.0) * known.mean(dim=0).float()
        reply = replace(view, params=params, counts=torch.tensor([slots]))
        messages.append(Message(Position(0, 0, 1), {client: ShareGenerator(6, 24, slots)}, reply))
    seen = Seen(case.course, case.clients, {}, {}, tuple(messages))
    mean, found = known.mean(dim=0), attack.guess(seen, attack.known(case)).view(2, -1)
    likeness = [
        [max(_cosine(known[node] - mean, row.double() - mean) for row in part.x) for node in range(len(known))]
        for part in scenario.parts.values()
    ]
    wanted = torch.tensor(likeness, dtype=torch.float64)
    assert torch.allclose(found, wanted - wanted.mean(dim=0), atol=1e-5)
    assert scored(attack, case, seen)["auc"] == 1.0
    truth = attack.truth(case, known).view(2, -1)
    assert [set(row.nonzero().flatten().tolist()) for row in truth] == [
        set(part.node_ids.tolist()) for part in scenario.parts.values()
    ]


def _cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(one @ other / (one.norm() * other.norm()))


# ---- FedGNN


def test_rows_that_move_in_every_round_are_told_from_drawn_ones() -> None:
    case = Case(toy_course(FedGNN(), num_clients=2, **RATINGS), ratings_scenario())
    attack = RatedItems()
    known = attack.known(case)
    truth = torch.zeros(2, len(known), dtype=torch.bool)
    truth[:, known > 0] = attack.truth(case, known).view(2, -1)
    draw = torch.Generator().manual_seed(0)
    messages = []
    for number in range(1, 13):
        for place, client in enumerate(case.clients):
            sent = torch.zeros(len(known), 3)
            back = sent.clone()
            back[truth[place] | (torch.rand(len(known), generator=draw) < 0.5)] = 1.0
            request = {client: TrainModel({TABLE: sent})}
            messages.append(Message(Position(0, number, 0), request, ModelUpdate({TABLE: back}, 1.0)))
    seen = Seen(case.course, case.clients, {}, {}, tuple(messages))
    assert scored(attack, case, seen)["auc"] == 1.0
    first = replace(seen, messages=tuple(messages[:2]))
    assert scored(attack, case, first)["auc"] < 1.0


def test_in_a_course_pseudo_items_hide_rows_for_a_round_and_not_for_many() -> None:
    course = toy_course(FedGNN(pseudo_items=8, expand_every=0), num_clients=2, **{**RATINGS, "rounds": 8})
    case = Case(course, ratings_scenario())
    assert scored(RatedItems(rounds=8), case)["auc"] > scored(RatedItems(rounds=1), case)["auc"]
    assert scored(RatedItems(rounds=8), case)["auc"] > 0.99


def test_users_are_named_by_their_embeddings_and_noise_stops_it() -> None:
    case = Case(toy_course(FedGNN(), num_clients=2, **RATINGS), ratings_scenario())
    assert scored(UsersByEmbeddings(), case)["f1"] == 1.0
    noisy = replace(case, course=replace(case.course, algorithm=FedGNN(embedding_noise=1.0)))
    assert scored(UsersByEmbeddings(), noisy)["recall"] == 0.0


def test_embeddings_are_made_by_the_model_that_was_sent() -> None:
    case, attack = Case(toy_course(FedGNN(), num_clients=2, **RATINGS), ratings_scenario()), UsersByEmbeddings()
    known, seen = attack.known(case), heard(attack, case)
    params = seen.messages[0].request.params  # type: ignore[attr-defined]
    twice = {name: 2.0 * tensor for name, tensor in params.items()}
    assert torch.allclose(attack._made(seen, known, twice), 2.0 * attack._made(seen, known, params))


# ---- GFL-APPNP


def test_gradients_of_one_sample_are_its_features() -> None:
    case = Case(gfl_course(), hosts_scenario())
    assert scored(HiddenGradients(), case)["above 0.99"] > 0.95
    noisy = replace(case, course=gfl_course(noise_std=1.0))
    assert scored(HiddenGradients(), noisy)["above 0.99"] < 0.2


def test_the_direction_is_that_of_an_outer_product() -> None:
    x, back = torch.randn(4, 7), torch.randn(4, 2, 5)
    outer = torch.einsum("nf,nco->ncof", x, back)  # (nodes, classes - 1, outputs, features)
    for gradients in ({"w": outer}, {"b": torch.ones(4, 2, 5), "w": outer.transpose(2, 3)}):
        found = read(gradients, 7)
        assert torch.nn.functional.cosine_similarity(found, x.double()).abs().min() > 1 - 1e-6


# ---- rows


def test_labels_are_what_rows_say() -> None:
    case = Case(toy_course(FedGL(), rounds=1), toy_scenario(3))
    attack = LabelsFromRows()
    known, seen = attack.known(case), heard(attack, case)
    truth = attack.truth(case, known)

    def saying(rows: dict[str, torch.Tensor]) -> Seen:
        messages = []
        for message in seen.messages:
            if len(message.clients) == 1 and hasattr(message.reply, "view"):
                view = replace(message.reply.view, predictions=rows[message.clients[0]])
                messages.append(replace(message, reply=replace(message.reply, view=view)))
        return replace(seen, messages=tuple(messages))

    right = {client: torch.nn.functional.one_hot(labels, 3).float() for client, labels in truth.items()}
    wrong = {client: rows.roll(1, dims=1) for client, rows in right.items()}
    assert scored(attack, case, saying(right)) == {"accuracy": 1.0}
    assert scored(attack, case, saying(wrong)) == {"accuracy": 0.0}
    usual = torch.bincount(case.scenario.whole.y).argmax()
    every = torch.cat([part.y for part in case.scenario.parts.values()])
    prior = attack.scores(attack.prior(known, case.clients), truth)["accuracy"]
    assert prior == pytest.approx(float((every == usual).float().mean()))


@pytest.mark.parametrize(
    "attack",
    [
        GeneratedFeatures(),
        GeneratedNodes(),
        PeersNearest(),
        RatedItems(),
        UsersByEmbeddings(),
        HiddenGradients(),
        LabelsFromRows(),
    ],
    ids=lambda attack: type(attack).__name__,
)
def test_what_a_method_does_not_send_is_refused_and_without_messages_nothing_is_seen(attack: Attack) -> None:
    assert "FedAvg" in attack.problem(toy_course(FedAvg()))
    algorithms: dict[str, Any] = {"R": FedGNN(), "U": FedGNN(), "H": GFLAPPNP(), "L": FedGL()}
    algorithm = algorithms.get(type(attack).__name__[0], FedSagePlus())
    ratings = RATINGS if isinstance(algorithm, FedGNN) else {}
    assert not attack.problem(toy_course(algorithm, **ratings))
    case = Case(toy_course(algorithm), toy_scenario(3))
    if not isinstance(attack, RatedItems | UsersByEmbeddings):
        blind = Seen(case.course, case.clients, {}, {}, ())
        with pytest.raises(NothingSeen):
            attack.guess(blind, attack.known(case))
