"""Edges and nodes that are hidden by noise on sums: how much there is, whole courses, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus import FedAvg, FedGAP, FedProGAP, run
from isthmus.core.exposure import exposure
from isthmus.core.guards.line import line_problem
from isthmus.core.protocol import Position
from isthmus.core.record import Params, State
from isthmus.learn.batching import NeighborBatch
from isthmus.learn.optimizers import SGD
from isthmus.models import GAP, GCN, MLPDecoder, ModelSpec, ProGAP, SumReadout
from isthmus.privacy.accounting.gaussian import delta_of, epsilon_of
from isthmus.privacy.accounting.releases import Releases, spent
from isthmus.privacy.noise.example_dp import ExampleDP
from isthmus.privacy.noise.graph_dp import EdgeDP, NodeDP
from isthmus.runs.journal import read_journal
from isthmus.testing import check_guard, toy_course, toy_scenario, trace_course

from .test_client_dp import REQUEST, half

METHOD = FedGAP(local_steps=2, encoder_rounds=2, weighting="uniform", optimizer=SGD(lr=0.2))
STAGES = FedProGAP(local_steps=2, stage_rounds=2, weighting="uniform", optimizer=SGD(lr=0.2))
# Each with how many rounds there are in its setup: two of the encoder, and of each of two stages before the last.
METHODS = {"gap": (METHOD, 2), "progap": (STAGES, 4)}
NODES = NodeDP(clip=0.5, noise=1.0, fraction=0.5, steps=2, sum_noise=2.0, max_degree=20)


# ---- how much noise


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-5), (4.0, 1e-5), (8.0, 1e-7)])
@pytest.mark.parametrize("hops", [1, 2, 5])
def test_the_noise_of_all_hops_together_is_just_enough_for_an_edge(epsilon: float, delta: float, hops: int) -> None:
    spread = EdgeDP(epsilon, delta).noisy_sums.spread(hops)
    # an edge moves each hop by sqrt(2): `hops` Gaussian releases, each with mu = sqrt(2) / spread
    mu = math.sqrt(hops * 2.0) / spread
    assert delta_of(mu, epsilon) == pytest.approx(delta, rel=1e-6)
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-6)


def test_the_noise_is_that_of_gap_where_an_edge_is_counted_in_both_directions() -> None:
    # GAP's own: one direction, so that a hop changes by 1. What it calls epsilon 4 is 6 of an undirected edge.
    spread = EdgeDP(4.0).noisy_sums.spread(2) / math.sqrt(2.0)
    assert epsilon_of(math.sqrt(2.0) / spread, 1e-5) == pytest.approx(4.0, rel=1e-6)
    assert epsilon_of(math.sqrt(2.0 * 2.0) / spread, 1e-5) == pytest.approx(5.992, abs=1e-3)


def test_the_account_of_nodes_is_that_of_dp_accounting_for_steps_and_sums_together() -> None:
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-3)
    accountant.compose(dp.PoissonSampledDpEvent(0.5, dp.GaussianDpEvent(1.0)), 2 * 7)
    # each of three hops: noise 2 sqrt(20 * 3) on what changes by sqrt(20)
    accountant.compose(dp.GaussianDpEvent(NODES.noisy_sums.spread(3) / math.sqrt(20)), 3)
    assert NODES.epsilon_of(7, 0) == pytest.approx(accountant.get_epsilon(1e-5), abs=0.01)
    assert spent([Releases(1.0, 14, 0.5)], 1e-5) < NODES.epsilon_of(7, 0)


# ---- whole courses


def values(network: str, *guards: Any, **changes: Any) -> Params:
    method: Any = METHODS[network][0]
    found: Params = method.global_params(
        trace_course(toy_course(method, guards=guards, **changes), toy_scenario()).state
    )
    return found


@pytest.mark.parametrize("runtime", ["loop", "strict", "auto"])
@pytest.mark.parametrize("network", METHODS)
def test_without_noise_it_is_no_guard_to_the_bit(network: str, runtime: str) -> None:
    plain, behind = (values(network, *guards, runtime=runtime) for guards in ((), (EdgeDP(epsilon=None),)))
    assert all(torch.equal(plain[name], behind[name]) for name in plain)


@pytest.mark.parametrize("network", METHODS)
@pytest.mark.parametrize("runtime", ["loop", "strict"])
def test_noise_is_drawn_once_whatever_the_runtime(network: str, runtime: str) -> None:
    loop, other, plain = (
        values(network, *guards, runtime=kind)
        for kind, guards in (("loop", (EdgeDP(),)), (runtime, (EdgeDP(),)), (runtime, ()))
    )
    assert all(torch.equal(loop[name], other[name]) for name in loop)
    assert not all(torch.allclose(loop[name], plain[name], atol=1e-3) for name in loop)


@pytest.mark.parametrize("network", METHODS)
def test_steps_that_hide_nothing_and_sums_without_noise_are_full_batches(network: str) -> None:
    still = ModelSpec({"gap": GAP(hidden=5, dim=4, dropout=0.0), "progap": ProGAP(dim=4)}[network])
    loose = NodeDP(clip=1e6, noise=0.0, fraction=1.0, steps=2, sum_noise=0.0, max_degree=100)
    plain, behind = values(network, model=still), values(network, loose, model=still)
    assert all(torch.allclose(plain[name], behind[name], atol=1e-5) for name in plain)


@pytest.mark.slow
@pytest.mark.parametrize("guard", [EdgeDP(epsilon=4.0), NODES], ids=["edges", "nodes"])
@pytest.mark.parametrize("network", METHODS)
def test_they_keep_to_what_every_guard_must_keep_to(network: str, guard: Any) -> None:
    check_guard(guard, algorithms=(METHODS[network][0],))


@pytest.mark.parametrize("network", METHODS)
def test_an_edge_s_epsilon_is_spent_once_whatever_the_number_of_rounds(network: str, tmp_path: Path) -> None:
    made = toy_course(METHODS[network][0], guards=(EdgeDP(epsilon=2.5),), rounds=5)
    result = run(made, run_dir=tmp_path / "run", scenario=toy_scenario())
    rounds = [event for event in read_journal(tmp_path / "run" / "journal.jsonl") if event["event"] == "round"]
    assert [event["spent"] for event in rounds] == [{"epsilon of edges": 2.5}] * 5
    assert "| epsilon of edges " in (tmp_path / "run" / "report.md").read_text()
    assert sum("sums over neighbours get noise" in note for note in result.notes) == 1


@pytest.mark.parametrize("network", METHODS)
def test_a_node_s_budget_ends_the_course_and_counts_the_setup_s_steps_and_the_sums(
    network: str, tmp_path: Path
) -> None:
    method, before = METHODS[network]
    guard = replace(NODES, noise=4.0, sum_noise=4.0, epsilon=3.0)
    made = toy_course(method, guards=(guard,), rounds=60)
    run(made, run_dir=tmp_path / "run", scenario=toy_scenario())
    rounds = [event for event in read_journal(tmp_path / "run" / "journal.jsonl") if event["event"] == "round"]
    told = [event["spent"]["epsilon of nodes"] for event in rounds]
    # rounds of the setup, and then one more each round
    assert told == pytest.approx([guard.epsilon_of(before + t, 0) for t in range(1, len(told) + 1)])
    assert told[-1] <= 3.0 < guard.epsilon_of(before + 1 + len(told), 0) and len(told) < 60


def test_only_what_learns_is_charged() -> None:
    memories: dict[str, State] = {}
    half(NODES, "ab", memories=memories, at=Position(0, 1, 0)).sent(dict.fromkeys("ab", REQUEST))
    (memory,) = memories.values()
    assert NODES.spent(memory) == {"epsilon of nodes": NODES.epsilon_of(1, 0)}


@pytest.mark.parametrize("method", [FedGAP, FedProGAP])
def test_who_sees_what_is_told(method: Any) -> None:
    by_name = {exchange.request: exchange for exchange in exposure(method, (EdgeDP(),))}
    assert [*by_name] == ["TrainModel", "SumNeighbors", "EvaluateModel", "KeepBest"]
    assert by_name["TrainModel"].wire_up.endswith("made of noisy sums over neighbours")
    assert by_name["TrainModel"].server_sees == "only the fold"
    assert by_name["SumNeighbors"].server_sees == "nothing but a receipt"
    nodes = {exchange.request: exchange for exchange in exposure(method, (NODES,))}
    assert nodes["TrainModel"].wire_up.endswith("made by noisy steps on noisy sums over neighbours")


# ---- what is refused


class OfOnesOwn(FedGAP):
    """A method that may look at edges again: its parent's word is not its own."""


OWN = OfOnesOwn(local_steps=2, weighting="uniform")
GAP_SPEC = ModelSpec(GAP(hidden=5, dim=4))


@pytest.mark.parametrize("guard", [EdgeDP(), NODES], ids=["edges", "nodes"])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"algorithm": FedAvg(local_steps=2, weighting="uniform"), "model": GAP_SPEC},
            "FedAvg looks at edges in every",
        ),
        ({"algorithm": OWN, "model": GAP_SPEC}, "OfOnesOwn (looks at edges|is not known to send)"),
        ({"model": ModelSpec(GCN(hidden=5))}, "the network GCN has no sums that could be made once by FedGAP"),
        ({"model": ModelSpec(ProGAP())}, "ProGAP has no sums .* by FedGAP; set model.gnn.name=gap"),
        ({"model": GAP_SPEC, "algorithm": STAGES}, "GAP has no sums .* by FedProGAP; set model.gnn.name=progap"),
        ({"model": replace(GAP_SPEC, decoder=MLPDecoder())}, "model.decoder is set"),
        ({"batching": NeighborBatch(8, (2, 2))}, "leave batching.name at full"),
        ({"model": replace(GAP_SPEC, decoder=MLPDecoder(), readout=SumReadout())}, "model.decoder is set"),
    ],
)
def test_courses_that_look_at_edges_in_another_way_are_refused(guard: Any, changes: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        toy_course(
            changes.get("algorithm", METHOD), guards=(guard,), **{k: v for k, v in changes.items() if k != "algorithm"}
        )


def test_a_node_s_examples_count_alike_whoever_has_how_many() -> None:
    with pytest.raises(ValueError, match="weighting=uniform"):
        toy_course(replace(METHOD, weighting="examples"), guards=(NODES,))
    toy_course(replace(METHOD, weighting="examples"), guards=(EdgeDP(),))  # no edge has a part in it


def test_clients_with_higher_degrees_than_promised_answer_with_an_error() -> None:
    trace = trace_course(toy_course(METHOD, guards=(replace(NODES, max_degree=1),)), toy_scenario())
    assert trace.ended_by is not None and "the noise hides one with 1 at most" in str(trace.ended_by)
    assert (
        trace_course(toy_course(METHOD, guards=(replace(NODES, max_degree=1, cut=True),)), toy_scenario()).ended_by
        is None
    )


def test_two_guards_that_say_how_clients_learn_are_refused() -> None:
    assert "both say how clients learn" in line_problem((NODES, EdgeDP()))
    assert "both say how clients learn" in line_problem((NODES, ExampleDP()))
    assert line_problem((EdgeDP(), ExampleDP())) == ""


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: EdgeDP(epsilon=0.0), "epsilon is 0.0; it must be positive, or null"),
        (lambda: EdgeDP(delta=0.0), "delta is 0.0; it must be between 0 and 1"),
        (lambda: NodeDP(sum_noise=-1.0), "sum_noise is -1.0; it must be at least 0"),
        (lambda: NodeDP(max_degree=0), "max_degree is 0; it must be at least 1"),
        (lambda: NodeDP(clip=-1.0), "clip is -1.0; it must be positive"),
    ],
)
def test_fields_that_cannot_be_are_refused(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
