"""A graph of the server's own: whose answers FLTrust goes by, in simulation and between sites."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import isthmus
from isthmus.algorithms import ALGORITHMS, FedAvg, Scaffold
from isthmus.algorithms.fedavg import TrainModel
from isthmus.attacks.poisoning import SignFlip
from isthmus.config.course import Course
from isthmus.config.load import course_digest, course_to_yaml, load_course
from isthmus.core.errors import BadInput, CourseFailed
from isthmus.core.folding import FLTrust
from isthmus.core.folding.changes import change_of
from isthmus.core.folds import Answer, weighted_mean
from isthmus.core.guards.guard import AtServer
from isthmus.core.outside import parse_yaml
from isthmus.core.protocol import Known, Position
from isthmus.core.random import Secret
from isthmus.core.record import Record, State
from isthmus.data.folders.own_kinds import kind_for
from isthmus.privacy import RobustFold
from isthmus.runs.server_graph import drawn_share
from isthmus.runs.simulation import Scenario, Simulation
from isthmus.sites.courses.site_course import SiteCourse
from isthmus.testing import toy_course, toy_graph, toy_scenario, toy_world, trace_course, trace_sites
from isthmus.testing.hostile.sites import SitesHere
from isthmus.testing.traces import Trace, require_close, require_same
from tests.core.toys import update
from tests.privacy.checking.toys import ask
from tests.quick import quick

GUARD = RobustFold(FLTrust(root="server"))
SHARE = 0.3


def course(**changes: Any) -> Course:
    words = {"num_clients": 4, "rounds": 3, "guards": (GUARD,), "server_share": SHARE, "runtime": "loop", **changes}
    return toy_course(words.pop("algorithm", FedAvg(local_steps=1)), **words)


def as_a_client(algorithm: Any) -> Trace:
    """Run a course in which the server's graph is a client's, whose own change does not count."""
    scenario = toy_scenario(4)
    parts = {**scenario.parts, "root": drawn_share(course(), scenario.whole)}
    words = course(algorithm=algorithm, num_clients=5, server_share=0.0, guards=(RobustFold(FLTrust(root="root")),))
    return trace_course(words, Scenario(scenario.whole, parts))


# ---- in simulation


@pytest.mark.parametrize("runtime", ["loop", "strict", "auto"])
def test_it_is_the_fold_with_a_trusted_client_on_the_same_graph(runtime: str) -> None:
    """The root's random numbers are those of its name, so without dropout they are the same course."""
    plain = replace(course().model.gnn, dropout=0.0)  # type: ignore[union-attr]
    model = replace(course().model, gnn=plain)  # type: ignore[type-var]
    scenario = toy_scenario(4)
    own = trace_course(course(model=model, runtime=runtime), scenario)
    parts = {**scenario.parts, "root": drawn_share(course(), scenario.whole)}
    words = course(model=model, num_clients=5, server_share=0.0, guards=(RobustFold(FLTrust(root="root")),))
    client = trace_course(words, Scenario(scenario.whole, parts))
    assert own.ended_by is None and client.ended_by is None
    require_close({"it": own.state}, {"it": client.state}, "the server's own and a client's", 1e-5)
    assert "server" not in own.clients
    assert all("server" not in report.cohort and "server" not in report.evaluations for report in own.rounds)


def test_every_change_of_the_model_is_what_the_papers_box_says_of_the_servers_own() -> None:
    trace = trace_course(course(rounds=1), toy_scenario(4))
    simulation = Simulation(course(rounds=1), toy_scenario(4))
    own = simulation.own
    assert own is not None
    request = TrainModel(trace.initial)
    reply, _ = own.answer(Position(0, 1, 0), request, {})
    g0 = change_of(reply, request)
    total, trust_in_all = torch.zeros_like(g0), 0.0
    for message in trace.messages:
        if isinstance(message.request, TrainModel):
            g = change_of(message.outcome.reply, message.request)  # type: ignore[arg-type]
            trust = max(0.0, float(g @ g0) / float(g.norm() * g0.norm()))
            total, trust_in_all = total + trust * g0.norm() / g.norm() * g, trust_in_all + trust
    state: Any = trace.state
    moved = torch.cat([(state.params[n].double() - t.double()).reshape(-1) for n, t in trace.initial.items()])
    assert torch.allclose(moved, total / trust_in_all, atol=1e-6)


def test_even_most_clients_cannot_turn_the_model_round() -> None:
    scenario, wrong = toy_scenario(4), SignFlip(("client-0", "client-1", "client-3"), times=50.0)
    trusted = trace_course(course(guards=(wrong, GUARD), rounds=1), scenario)
    mean = trace_course(course(guards=(wrong,), rounds=1, server_share=0.0), scenario)
    honest = trace_course(course(guards=(), rounds=1), scenario)
    moved = {}
    for name, trace in (("trusted", trusted), ("mean", mean), ("honest", honest)):
        state: Any = trace.state
        moved[name] = torch.cat([(state.params[n] - t).reshape(-1) for n, t in trace.initial.items()])
    assert float(moved["trusted"] @ moved["honest"]) > 0.0
    assert float(moved["mean"] @ moved["honest"]) < 0.0


class Echo:
    """A server's own client that says the same, with a weight of a hundred, and remembers how often it was asked."""

    def answer(self, position: Position, request: Any, memory: State) -> tuple[Record, State]:
        return update([1.0, 1.0], 100.0), {"asked": memory.get("asked", 0) + 1}


def test_what_clients_count_for_together_is_without_the_servers_own() -> None:
    """SCAFFOLD's variate moves by the share of the weight that was heard."""
    memories: dict[str, State] = {}
    secret = Secret.of_simulation(0, "server")
    at = AtServer(Position(0, 1, 0), "entry", ("a", "b"), True, Known(), secret, print, memories, own=Echo())
    for number in (1, 2):
        fold = GUARD.fold(weighted_mean, at)
        total = fold.start()
        request = ask([0.0, 0.0])
        for client, row, weight in (("a", [2.0, 2.0], 3.0), ("b", [0.5, 0.5], 5.0)):
            fold.add_answer(total, update(row, weight), request, client)
        found: Any = fold.finish(total)
        assert found.weight == 8.0
        assert found.params["w"].tolist() == pytest.approx([1.0, 1.0])  # both go its way, and count as far as it went
        assert memories["entry"]["server"] == {"asked": number}
    assert GUARD.fold(weighted_mean, replace(at, own=None)).start() == []
    nobody = GUARD.fold(weighted_mean, replace(at, own=None))
    with pytest.raises(CourseFailed, match="FLTrust asks the server's own graph what Ask asks, and it has none"):
        nobody.finish([Answer(update([1.0, 1.0]), ask([0.0, 0.0]), "a")])
    with pytest.raises(CourseFailed, match="each client was asked something else"):
        GUARD.fold(weighted_mean, at).finish([Answer(update([1.0, 1.0]), ask([0.0, 0.0]), c) for c in "ab"])


@pytest.mark.parametrize("algorithm", [FedAvg(local_steps=1), Scaffold(local_steps=1)], ids=["fedavg", "scaffold"])
def test_a_resume_goes_on_with_what_the_servers_client_remembers_to_the_bit(algorithm: Any) -> None:
    made = course(algorithm=algorithm)
    whole = trace_course(made, toy_scenario(4))
    for round in range(3):
        again = trace_course(made, toy_scenario(4), resume_from=(whole, round))
        require_same(whole.values(), again.values(), f"resumed after round {round}")


@pytest.mark.parametrize("name", [name for name, kind in ALGORITHMS.items() if "fold" in kind.__dataclass_fields__])
def test_every_method_runs_with_it_or_is_refused_by_the_request_that_stands_in_the_way(name: str) -> None:
    try:
        made = course(algorithm=quick(name), rounds=2)
    except ValueError as error:
        assert "are asked more than what is folded (" in str(error)
        assert name in (
            "fedgap",
            "fedprogap",
            "fedgl",
            "fedgnn",
            "fedgrl",
            "fedsage_plus",
            "gcfl",
            "gcfl_plus",
            "gfl_appnp",
        )
        return
    trace = trace_course(made, toy_scenario(4))
    assert trace.ended_by is None, trace.ended_by


def test_a_scenario_may_say_what_the_server_has() -> None:
    scenario, own = toy_scenario(4), toy_graph(20, seed=5)
    simulation = Simulation(course(), replace(scenario, server=own))
    assert simulation.own is not None and simulation.own.client.data is own
    assert Simulation(course(server_share=0.0, guards=()), replace(scenario, server=own)).own is None
    drawn = Simulation(course(), scenario).own.client.data  # type: ignore[union-attr]
    assert drawn.num_nodes == round(SHARE * scenario.whole.num_nodes)
    assert not torch.equal(drawn.node_ids, drawn_share(course(seed=1), scenario.whole).node_ids)
    assert torch.equal(drawn.node_ids, drawn_share(course(), scenario.whole).node_ids)


def test_a_graph_without_anything_to_train_on_and_a_client_of_its_name_are_refused() -> None:
    scenario = toy_scenario(4)
    bare = scenario.whole.with_masks(
        {split: torch.zeros(scenario.whole.num_nodes, dtype=torch.bool) for split in ("train", "val", "test")}
    )
    with pytest.raises(BadInput, match=r"the server's own graph \(.*\) has no example to train on: set a larger"):
        isthmus.run(course(), scenario=replace(scenario, server=bare))
    named = Scenario(scenario.whole, {"server": scenario.parts["client-0"], **scenario.parts})
    with pytest.raises(BadInput, match="a client is called 'server'"):
        isthmus.run(course(num_clients=5), scenario=named)


def test_what_the_server_cannot_answer_ends_the_course_with_the_reason() -> None:
    own = Simulation(course(), toy_scenario(4)).own
    assert own is not None
    with pytest.raises(CourseFailed, match="the server's own graph gave no answer to TrainModel: "):
        own.answer(Position(0, 1, 0), TrainModel({"no_such": torch.ones(2)}), {})


def test_it_is_a_key_of_a_course_and_changes_no_digest_where_it_is_not_used() -> None:
    words = ["num_clients=4", "guards=[{name: robust_fold, by: {name: fltrust, root: server}}]", "server_share=0.05"]
    made = load_course({}, words)
    assert made.guards == (GUARD,) and made.server_share == 0.05
    assert load_course(parse_yaml(course_to_yaml(made), "it")) == made
    assert course_digest(made) != course_digest(replace(made, server_share=0.1))
    assert course_digest(Course()) == "ce871cd230c2b8fd"


# ---- between sites


def written(graph: Any, folder: Path) -> Path:
    kind_for(type(graph)).write(graph, folder)
    return folder


def test_between_sites_it_is_the_simulation_to_the_bit_and_no_silo_hears_of_it(tmp_path: Path) -> None:
    world = toy_world()
    made = world.course(FedAvg(local_steps=2), guards=(GUARD,), server_share=SHARE, runtime="loop")
    own = world.scenario.whole.subgraph(torch.arange(0, 40, 2))
    graph = written(own, tmp_path / "own")
    found = trace_sites(made, world.silos(tmp_path), tmp_path / "run", graph=graph)
    assert found.ended_by is None
    result = isthmus.run(made, scenario=replace(world.scenario, server=own))
    require_same(dict(result.params), dict(found.params), "between sites and here")
    assert {report.num_clients for report in found.exchanges} == {3}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda own: replace(own, x=own.x[:, :4]), "is not as those of the silos: it has another version, other"),
        (lambda own: replace(own, class_names=("a", "b", "c")), "'b' is none of the class names 'class 0'"),
        (lambda own: own.with_masks({**own.masks, "train": own.mask("train") & False}), "has no example to train on"),
    ],
)
def test_a_graph_that_is_not_like_those_of_the_silos_is_refused_before_the_first_round(
    change: Any, problem: str, tmp_path: Path
) -> None:
    world = toy_world()
    made = world.course(FedAvg(local_steps=2), guards=(GUARD,), server_share=SHARE, runtime="loop")
    graph = written(change(world.scenario.whole.subgraph(torch.arange(30))), tmp_path / "own")
    found = trace_sites(made, world.silos(tmp_path), tmp_path / "run", graph=graph)
    assert isinstance(found.ended_by, BadInput)
    assert str(found.ended_by).startswith("the server's own graph ")
    assert problem in str(found.ended_by)
    assert not found.exchanges


def test_a_server_without_a_graph_takes_no_course_that_goes_by_one(tmp_path: Path) -> None:
    world = toy_world()
    made = world.course(FedAvg(local_steps=2), guards=(GUARD,), server_share=SHARE)
    silos = world.silos(tmp_path)
    with pytest.raises(BadInput, match="this server has no graph of its own: start it with isthmus serve --graph"):
        SiteCourse(made, SitesHere(silos), tuple(silos), tmp_path / "run", say=lambda text: None)
