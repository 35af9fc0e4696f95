from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from isthmus.algorithms import GCFL, FedAvg, GCFLPlus
from isthmus.algorithms.fedavg import ModelUpdate, TrainModel
from isthmus.algorithms.gcfl import Cluster, GCFLState, UseModel, minimum_cut
from isthmus.core.codec import decode, encode
from isthmus.core.errors import CourseFailed
from isthmus.core.exposure import exposure
from isthmus.core.protocol import Algorithm, EvaluateModel, Failure, KeepBest, Kept, ModelState, Request
from isthmus.core.random import UniformSampling
from isthmus.core.record import Params, Record, State
from isthmus.data.graph import Graph
from isthmus.learn.batching import NeighborBatch
from isthmus.learn.optimizers import SGD, Adam
from isthmus.models import GCN, SAGE, ModelSpec
from isthmus.runs.simulation import Scenario
from isthmus.testing import ScriptedClients, check_algorithm, toy_client, toy_course, toy_graph, toy_scenario
from isthmus.testing.traces import Trace, require_close, require_same, trace_course
from tests.algorithms.reference import assert_equal

# ---- scripted clients that pull where they are told


@dataclass
class Pulls:
    """Clients that add a fixed update to the model they get, in rounds that are run by hand."""

    algorithm: GCFL
    updates: dict[str, list[float]]
    weights: Mapping[str, float]

    def __post_init__(self) -> None:
        self.clients = ScriptedClients(self._answer, tuple(self.updates))
        self.models: dict[str, Params] = {}
        self.missing: set[str] = set()
        self.notes: list[str] = []
        self.round = 0
        self.start = {"w": torch.tensor([1.0, 1.0]), "seen": torch.tensor([0.0])}
        self.state: GCFLState = self.algorithm.setup(self._federation(None))

    def _federation(self, cohort: Any) -> Any:
        fed = self.clients.federation(self.start, buffers=("seen",), cohort=cohort, round=self.round)
        fed._note = self.notes.append
        return fed

    def _answer(self, client: str, request: Request[Any]) -> Record:
        if isinstance(request, UseModel):
            self.models[client] = request.params
            return Kept()
        assert isinstance(request, TrainModel)
        if client in self.missing:
            return Failure(client, "lost", "gone")
        update = torch.tensor(self.updates[client])
        params = {"w": request.params["w"] + update, "seen": torch.tensor([100.0 * float(update[0])])}
        return ModelUpdate(params, self.weights.get(client, 1.0))

    def advance(self, *cohort: str, rounds: int = 1) -> GCFLState:
        for _ in range(rounds):
            self.round += 1
            self.state = self.algorithm.round(self.state, self._federation(cohort or None))
        return self.state

    @property
    def members(self) -> set[tuple[str, ...]]:
        return {cluster.members for cluster in self.state.clusters}


QUICK: dict[str, Any] = {"eps_1": 0.1, "eps_2": 0.5, "warmup_rounds": 0}
TWO_GROUPS = {"a": [1.0, 0.1], "b": [-1.0, 0.0], "c": [1.0, -0.1], "d": [-1.0, 0.1], "e": [1.0, 0.0], "f": [-1.0, -0.1]}
ONE_GROUP = {"a": [1.0, 0.1], "b": [1.0, 0.0], "c": [1.0, -0.1], "d": [0.9, 0.1]}


def test_two_planted_groups_are_split() -> None:
    pulls = Pulls(GCFL(**QUICK), TWO_GROUPS, {})
    pulls.advance()
    assert pulls.members == {("a", "c", "e"), ("b", "d", "f")}
    assert len(pulls.notes) == 1 and "round 1" in pulls.notes[0] and "a, c, e" in pulls.notes[0]
    pulls.advance(rounds=3)  # neither part pulls apart any further
    assert pulls.members == {("a", "c", "e"), ("b", "d", "f")}


@pytest.mark.parametrize(
    ("rise", "few"),
    [(0.0, 2), (0.2, 2), (0.6, 1)],
    ids=["opposite", "nearly opposite", "too near each other"],
)
def test_unequal_planted_groups_are_split_if_they_are_far_enough_apart(rise: float, few: int) -> None:
    """Two clients against five, of the same weight together: found as long as 5 (1 + cos) < 2."""
    updates = {name: [1.0 if name in "ab" else -1.0, rise] for name in "abcdefg"}
    cosine = (rise**2 - 1.0) / (rise**2 + 1.0)
    assert (5.0 * (1.0 + cosine) < 2.0) == (few == 2)
    pulls = Pulls(GCFL(eps_1=0.7, eps_2=0.9, warmup_rounds=0), updates, {"a": 2.5, "b": 2.5})
    pulls.advance()
    smaller, larger = sorted(pulls.members, key=len)
    assert len(smaller) == few and set(smaller) <= {"a", "b"} and len(larger) == 7 - few


@settings(deadline=None, max_examples=80)
@given(st.integers(2, 6), st.integers(2, 6), st.floats(-0.2, 1.0), st.floats(-1.0, 0.9))
def test_when_two_groups_are_found_by_one_plus_cosine(p: int, q: int, within: float, across: float) -> None:
    """The rule in GCFL's docstring, of cosines that need not belong to vectors."""
    gap = 1.0 + within - max(p, q) * (1.0 + across)
    assume(abs(gap) > 1e-6)
    group = torch.arange(p + q) < p
    weights = torch.where(group[:, None] == group[None, :], 1.0 + within, 1.0 + across)
    sides = minimum_cut(weights)
    if gap > 0:
        assert sorted(sides) == [list(range(p)), list(range(p, p + q))]
    else:
        assert min(map(len, sides)) == 1


def test_one_group_is_not_split() -> None:
    pulls = Pulls(GCFL(**QUICK), ONE_GROUP, {})
    pulls.advance(rounds=5)
    assert pulls.members == {("a", "b", "c", "d")} and not any("cut in two" in note for note in pulls.notes)


def test_every_cluster_takes_the_mean_of_its_own_clients() -> None:
    weights = {"a": 1.0, "c": 3.0, "e": 2.0, "b": 2.0, "d": 2.0, "f": 2.0}
    pulls = Pulls(GCFL(**QUICK), TWO_GROUPS, weights)
    pulls.advance()
    up = torch.tensor([1.0 + 1.0, 1.0 + (0.1 * 1 - 0.1 * 3) / 6])
    down = torch.tensor([1.0 - 1.0, 1.0])
    for name in "ace":
        torch.testing.assert_close(pulls.models[name]["w"], up)
    for name in "bdf":
        torch.testing.assert_close(pulls.models[name]["w"], down)
    torch.testing.assert_close(pulls.models["a"]["seen"], torch.tensor([100.0]))
    torch.testing.assert_close(pulls.state.params["w"], (up + down) / 2)  # both weigh 6
    pulls.advance()  # each trains its own from here on
    torch.testing.assert_close(pulls.models["a"]["w"], 2 * up - torch.ones(2))
    torch.testing.assert_close(pulls.models["b"]["w"], 2 * down - torch.ones(2))


def test_the_global_model_is_the_mean_of_the_clusters_by_the_weights_of_their_clients() -> None:
    updates = {"a": [2.0, 0.0], "b": [2.0, 0.0], "c": [-1.0, 0.0], "d": [-1.0, 0.0]}
    pulls = Pulls(GCFL(**QUICK), updates, {"c": 2.0, "d": 2.0})
    pulls.advance("a", "c")
    pulls.advance("b", "d")
    assert pulls.members == {("a", "b"), ("c", "d")}
    (up,), (down,) = ([c.params["w"] for c in pulls.state.clusters if name in c.members] for name in "ac")
    torch.testing.assert_close(pulls.state.params["w"], (2 * up + 4 * down) / 6)
    assert not torch.allclose(pulls.state.params["w"], (up + down) / 2)


def test_clients_are_sent_their_clusters_model_and_the_same_object_within_a_cluster() -> None:
    pulls = Pulls(GCFL(**QUICK), TWO_GROUPS, {})
    pulls.advance(rounds=2)
    requests = [(c, r) for c, r in pulls.clients.sent if isinstance(r, TrainModel)][-6:]
    by_client = dict(requests)
    assert by_client["a"] is by_client["c"] is by_client["e"]
    assert by_client["b"] is by_client["d"] is not by_client["a"]


@pytest.mark.parametrize(
    ("eps_1", "eps_2", "splits"),
    [(0.1, 0.5, True), (0.1, 1.2, False), (0.001, 0.5, False), (0.0, 0.5, False)],
    ids=["both hold", "nobody goes far", "the mean moves", "never"],
)
def test_both_bounds_must_hold(eps_1: float, eps_2: float, splits: bool) -> None:
    updates = {**TWO_GROUPS, "a": [1.0, 0.2]}  # the mean is (0, 0.1 / 6), the longest sqrt(1.04)
    pulls = Pulls(GCFL(eps_1=eps_1, eps_2=eps_2, warmup_rounds=0), updates, {})
    pulls.advance()
    assert (len(pulls.state.clusters) == 2) == splits


def test_the_first_cut_that_is_not_made_is_explained_once() -> None:
    updates = {**TWO_GROUPS, "a": [1.0, 0.2]}  # the mean is (0, 0.1 / 6), the longest sqrt(1.04)
    fields: dict[str, Any] = {"eps_1": 0.001, "eps_2": 0.5}
    pulls = Pulls(GCFL(**fields, warmup_rounds=2), updates, {})
    pulls.advance(rounds=2)
    assert not pulls.notes
    pulls.advance(rounds=3)
    (note,) = pulls.notes
    assert note.startswith("round 3: ") and "mean update has the norm 0.0167, the largest update 1.02;" in note
    assert "below eps_1 = 0.001" in note and "above eps_2 = 0.5" in note
    plus = Pulls(GCFLPlus(**fields, warmup_rounds=0, num_norms=3), updates, {})  # enough is known after three rounds
    plus.advance(rounds=5)
    assert [note.split(":")[0] for note in plus.notes] == ["round 3"]
    late = Pulls(GCFL(**fields, warmup_rounds=0), updates, {})
    for asked in ("abcde", "abcde", "abf", "abcdef"):  # f is heard in the third round
        late.advance(*asked)
    assert [note.split(":")[0] for note in late.notes] == ["round 3"]


def test_bounds_that_never_cut_are_not_explained() -> None:
    for fields in ({"eps_1": 0.0}, {"min_clients": 7}, {"warmup_rounds": 9}):
        pulls = Pulls(GCFL(**{"warmup_rounds": 0, "eps_1": 0.001, **fields}), TWO_GROUPS, {})
        pulls.advance(rounds=3)
        assert not pulls.notes


def test_the_mean_update_is_weighted_and_buffers_do_not_count() -> None:
    algorithm = GCFL(**QUICK)
    updates = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([-1.0, 0.0])}
    assert algorithm.pulls_apart(updates, {"a": 1.0, "b": 3.0})
    assert not algorithm.pulls_apart(updates, {"a": 1.0, "b": 1.0})
    pulls = Pulls(algorithm, TWO_GROUPS, {})
    pulls.advance("a", "c")
    assert pulls.state.trails["a"].tolist() == pytest.approx([1.0, 0.1])


def test_no_cut_before_the_warmup_is_over_or_among_too_few() -> None:
    pulls = Pulls(GCFL(**{**QUICK, "warmup_rounds": 3}), TWO_GROUPS, {})
    pulls.advance(rounds=3)
    assert len(pulls.state.clusters) == 1
    pulls.advance()
    assert len(pulls.state.clusters) == 2
    pair = {"a": [1.0, 0.0], "b": [-1.0, 0.0]}
    few, enough = Pulls(GCFL(**QUICK), pair, {}), Pulls(GCFL(**QUICK, min_clients=2), pair, {})
    assert len(few.advance().clusters) == 1
    assert len(enough.advance().clusters) == 2


def test_clusters_are_cut_again_when_they_pull_apart_later() -> None:
    pulls = Pulls(GCFL(**QUICK), {k: [s, t] for k, s, t in _four_corners()}, {})
    pulls.advance()
    assert len(pulls.state.clusters) == 2
    pulls.updates = {k: [0.0, 2.0 * t] for k, _, t in _four_corners()}  # now only the second number tells them apart
    pulls.advance(rounds=2)
    assert pulls.members == {("ne0", "ne1"), ("nw0", "nw1"), ("se0", "se1"), ("sw0", "sw1")}


def _four_corners() -> list[tuple[str, float, float]]:
    corners = {"ne": (2.0, 0.5), "nw": (-2.0, 0.5), "se": (2.0, -0.5), "sw": (-2.0, -0.5)}
    return [(f"{name}{i}", s, t) for name, (s, t) in corners.items() for i in range(2)]


# ---- absent, failing and idle clients


def test_an_absent_client_goes_by_its_last_update() -> None:
    pulls = Pulls(GCFL(**QUICK), TWO_GROUPS, {})
    pulls.advance("a", "c", "e", "f")  # the mean moves, so nothing is cut
    assert len(pulls.state.clusters) == 1
    pulls.advance("a", "b", "c", "d")  # e and f are away
    assert pulls.members == {("a", "c", "e"), ("b", "d", "f")}
    assert torch.equal(pulls.models["e"]["w"], pulls.models["a"]["w"])  # they are told as well


def test_a_client_that_was_never_heard_puts_the_cut_off() -> None:
    pulls = Pulls(GCFL(**QUICK), TWO_GROUPS, {})
    pulls.missing = {"f"}
    pulls.advance("a", "b", "c", "d", "f")
    assert len(pulls.state.clusters) == 1
    pulls.missing = set()
    pulls.advance("a", "b", "c", "d", "f")
    assert len(pulls.state.clusters) == 1  # e has not been asked yet
    pulls.advance()
    assert pulls.members == {("a", "c", "e"), ("b", "d", "f")}


def test_a_side_of_which_nobody_was_asked_starts_with_the_mean_of_both() -> None:
    updates = {"a": [0.0, 1.05], "b": [0.0, -1.0], "c": [-3.0, 0.0]}
    pulls = Pulls(GCFLPlus(**QUICK, num_norms=1), updates, {"c": 2.0})
    pulls.advance("c")
    pulls.advance("a", "b")  # they pull apart and go equally far; c, which is away, went farther
    assert pulls.members == {("a", "b"), ("c",)}
    for name in "abc":
        torch.testing.assert_close(pulls.models[name]["w"], torch.tensor([-2.0, 1.025]))


def test_a_cluster_nobody_of_which_was_asked_keeps_its_model() -> None:
    pulls = Pulls(GCFL(**QUICK), TWO_GROUPS, {})
    pulls.advance()
    before = pulls.models["b"]["w"]
    pulls.advance("a", "c")
    assert torch.equal(pulls.models["b"]["w"], before)
    assert not torch.equal(pulls.models["e"]["w"], before)


def test_clients_without_examples_go_to_the_heavier_side_and_leave_no_trace() -> None:
    updates = {**TWO_GROUPS, "idle": [50.0, 50.0]}
    weights = {"idle": 0.0, "b": 2.0, "a": 2.0, "c": 1.0, "e": 1.0, "d": 1.5, "f": 0.5 + 1e-6}
    pulls = Pulls(GCFL(**QUICK), updates, weights)
    pulls.advance()
    assert pulls.members == {("a", "c", "e"), ("b", "d", "f", "idle")}
    assert "idle" not in pulls.state.trails
    with pytest.raises(CourseFailed, match="no client in the cohort has training examples"):
        pulls.advance("idle")


def test_a_client_that_joins_later_is_put_into_the_first_cluster() -> None:
    pulls = Pulls(GCFL(**QUICK), TWO_GROUPS, {})
    pulls.advance()
    pulls.clients._clients = (*pulls.clients.clients, "late")
    pulls.updates = {**pulls.updates, "late": [1.0, 0.0]}
    pulls.advance()
    assert "late" in pulls.state.clusters[0].members and "late" in pulls.models


# ---- GCFL+


def sequences(algorithm: GCFLPlus, rows: Mapping[str, list[float]]) -> Pulls:
    """Clients whose updates have these lengths round by round; directions cancel out."""
    pulls = Pulls(algorithm, {name: [0.0, 0.0] for name in rows}, {})
    for step in range(len(next(iter(rows.values())))):
        signs = {name: 1.0 if i % 2 else -1.0 for i, name in enumerate(rows)}
        pulls.updates = {name: [signs[name] * row[step], 0.0] for name, row in rows.items()}
        pulls.advance()
    return pulls


FADING = [2.0, 1.0, 0.5, 0.3]
STEADY = [1.4, 1.4, 1.4, 1.4]


def test_plus_splits_two_planted_groups_by_their_norms_whatever_their_directions() -> None:
    rows = {"a": FADING, "b": FADING, "c": FADING, "d": FADING, "e": STEADY, "f": STEADY, "g": STEADY, "h": STEADY}
    pulls = sequences(GCFLPlus(**QUICK, num_norms=4), rows)
    assert pulls.members == {("a", "b", "c", "d"), ("e", "f", "g", "h")}
    by_direction = sequences(GCFLPlus(**QUICK, num_norms=5), rows)
    assert len(by_direction.state.clusters) == 1  # one norm short


def test_plus_does_not_split_one_group() -> None:
    pulls = Pulls(GCFLPlus(**QUICK, num_norms=3), ONE_GROUP, {})
    pulls.advance(rounds=8)
    assert len(pulls.state.clusters) == 1


def test_plus_starts_to_count_anew_after_a_cut() -> None:
    pulls = Pulls(GCFLPlus(**QUICK, num_norms=2), {**TWO_GROUPS, "a": [2.0, 0.1], "b": [-2.0, 0.0]}, {})
    pulls.advance(rounds=2)
    assert len(pulls.state.clusters) == 2 and pulls.state.trails == {}
    pulls.advance()
    assert {len(trail) for trail in pulls.state.trails.values()} == {1}


def test_plus_keeps_the_last_norms_only() -> None:
    pulls = Pulls(GCFLPlus(**QUICK, num_norms=3), ONE_GROUP, {})
    for scale in (1.0, 2.0, 3.0, 4.0, 5.0):
        pulls.updates = {name: [scale, 0.0] for name in ONE_GROUP}
        pulls.advance()
    assert pulls.state.trails["a"].tolist() == pytest.approx([3.0, 4.0, 5.0])


def test_standardized_sequences_are_compared_by_their_course_not_their_level() -> None:
    rows = torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0], [3.0, 2.0, 1.0]], dtype=torch.float64)
    plain = GCFLPlus().similarities(rows)
    scaled = GCFLPlus(standardize=True).similarities(rows)
    assert plain[0, 2] > plain[0, 1]
    assert scaled[0, 1] > scaled[0, 2]
    assert float(scaled[0, 1]) == pytest.approx(float(scaled.max()))
    still = GCFLPlus(standardize=True).similarities(torch.ones(3, 4))
    assert bool(torch.isfinite(still).all())


def test_similarities_by_hand() -> None:
    cosines = GCFL().similarities(torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]]))
    torch.testing.assert_close(
        cosines, torch.tensor([[2.0, 1.0, 0.0], [1.0, 2.0, 1.0], [0.0, 1.0, 2.0]], dtype=torch.float64)
    )
    distances = GCFLPlus().similarities(torch.tensor([[0.0, 0.0], [1.0, 1.0], [3.0, 3.0]]))
    root = 2**0.5
    torch.testing.assert_close(
        distances,
        torch.tensor(
            [[3 * root, 2 * root, 0.0], [2 * root, 3 * root, root], [0.0, root, 3 * root]], dtype=torch.float64
        ),
    )


# ---- minimum cut


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 7), st.integers(0, 2**31))
def test_the_cut_is_the_cheapest_of_all(number: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(number, number, generator=generator, dtype=torch.float64)
    weights = weights * (torch.rand(number, number, generator=generator) > 0.2)  # some are not tied at all
    weights = torch.minimum(weights, weights.t())
    kept = weights.clone()

    def price(side: set[int]) -> float:
        return sum(float(weights[i, j]) for i in side for j in range(number) if j not in side)

    first, second = minimum_cut(weights)
    assert first and second and sorted(first + second) == list(range(number))
    assert torch.equal(weights, kept)
    others = [set(side) for size in range(1, number) for side in combinations(range(number), size)]
    assert price(set(first)) == pytest.approx(min(map(price, others)))


# ---- courses


def states(trace: Trace) -> dict[int, Any]:
    return {round: standing.state for round, standing in trace.standings.items()}


@pytest.mark.meet(1)
@pytest.mark.parametrize("kind", [GCFL, GCFLPlus])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"model": ModelSpec(SAGE(hidden=5, batch_norm=True)), "batching": NeighborBatch(8, (2, 2))},
        {"num_clients": 4, "sampling": UniformSampling(fraction=0.5)},
    ],
    ids=["full", "sampled", "half"],
)
@pytest.mark.parametrize("optimizer", [SGD(lr=0.2, momentum=0.9), Adam(lr=0.01)], ids=["sgd", "adam"])
def test_without_a_cut_it_is_fedavg_to_the_bit(kind: type[GCFL], fields: dict[str, Any], optimizer: Any) -> None:
    scenario = toy_scenario(fields.get("num_clients", 3))
    fedavg = trace_course(toy_course(FedAvg(optimizer=optimizer), **fields), scenario)
    algorithm = kind(eps_1=0.0, warmup_rounds=0, optimizer=optimizer)
    gcfl = trace_course(toy_course(algorithm, **fields), scenario)
    for round, state in states(fedavg).items():
        assert_equal(states(gcfl)[round].params, state.params)
    assert [report.evaluations for report in fedavg.rounds] == [report.evaluations for report in gcfl.rounds]
    assert [len(state.clusters) for state in states(gcfl).values()] == [1] * 4


def apart(num_pairs: int = 2, quieter: float = 1.0) -> Scenario:
    """Clients of two kinds on the same graphs: the second kind calls every class by another's name.

    The features of the last pair are multiplied by `quieter`.
    """
    graphs = [toy_graph(24, seed=seed) for seed in range(num_pairs)]
    graphs[-1] = replace(graphs[-1], x=quieter * graphs[-1].x)
    swapped = [replace(graph, y=(graph.y + 1) % 3) for graph in graphs]
    parts: dict[str, Graph] = {}
    for i, (one, other) in enumerate(zip(graphs, swapped, strict=True)):
        parts[f"one-{i}"], parts[f"other-{i}"] = one, other
    return Scenario(graphs[0], parts)


STILL = ModelSpec(GCN(hidden=8, dropout=0.0))
LEARN: dict[str, Any] = {"local_steps": 4, "optimizer": SGD(lr=0.3)}


def between(scenario: Scenario, fields: dict[str, Any]) -> float:
    """A bound between the norm of the mean update and the longest, in the last round of FedAvg."""
    trace = trace_course(toy_course(FedAvg(**LEARN), **fields), scenario)
    rounds = states(trace)
    start = rounds[trace.last - 1].params
    replies = [m.outcome.reply for m in trace.messages if isinstance(m.request, TrainModel)][-len(trace.clients) :]
    flat = [torch.cat([(r.params[n] - w).flatten() for n, w in start.items()]) for r in replies]  # type: ignore[union-attr]
    low, high = float(torch.stack(flat).mean(dim=0).norm()), max(float(u.norm()) for u in flat)
    assert low < 0.8 * high
    return (low * high) ** 0.5


def test_on_graphs_two_kinds_of_clients_are_told_apart_and_do_better_for_it() -> None:
    scenario = apart()
    fields: dict[str, Any] = {"num_clients": 4, "model": STILL, "rounds": 12}
    bound = between(scenario, fields)
    trace = trace_course(toy_course(GCFL(eps_1=bound, eps_2=bound, warmup_rounds=3, **LEARN), **fields), scenario)
    last = states(trace)[12]
    assert len(last.clusters) >= 2 and any("cut in two" in note for note in trace.said)
    kinds = [{client.split("-")[0] for client in cluster.members} for cluster in last.clusters]
    assert all(len(kind) == 1 for kind in kinds)
    fedavg = trace_course(toy_course(FedAvg(**LEARN), **fields), scenario)
    better, worse = (_accuracy(t) for t in (trace, fedavg))
    assert better > worse + 0.1


def test_on_graphs_plus_tells_clients_apart_by_how_far_they_go() -> None:
    """One client of each kind has small features, and so makes shorter updates than the other."""
    scenario = apart(quieter=0.3)
    fields: dict[str, Any] = {"num_clients": 4, "model": STILL, "rounds": 8}
    bound = between(scenario, fields)
    algorithm = GCFLPlus(num_norms=4, eps_1=bound, eps_2=bound, warmup_rounds=3, **LEARN)
    trace = trace_course(toy_course(algorithm, **fields), scenario)
    assert {cluster.members for cluster in states(trace)[8].clusters} == {("one-0", "other-0"), ("one-1", "other-1")}
    assert sum("cut in two" in note for note in trace.said) == 1


def _accuracy(trace: Trace) -> float:
    return sum(e.metrics["train"]["accuracy"] for e in trace.rounds[-1].evaluations.values()) / len(trace.clients)


def splitting_course(**changes: Any) -> tuple[Any, Scenario]:
    scenario = apart()
    fields: dict[str, Any] = {"num_clients": 4, "model": STILL, "rounds": 6}
    bound = between(scenario, fields)
    algorithm = GCFL(eps_1=bound, eps_2=bound, warmup_rounds=2, **LEARN)
    return toy_course(algorithm, **{**fields, **changes}), scenario


def test_a_course_that_splits_is_the_same_in_every_runtime_and_after_a_resume() -> None:
    course, scenario = splitting_course()
    loop = trace_course(course, scenario)
    assert len(states(loop)[6].clusters) >= 2 and len(states(loop)[2].clusters) == 1
    strict = trace_course(replace(course, runtime="strict"), scenario)
    require_same(loop.values(), strict.values(), "strict")
    together = trace_course(replace(course, runtime="auto"), scenario)
    assert together.together["TrainModel"] > 0 and not together.notes
    require_close(loop.values(), together.values(), "together")
    for round in (2, 4):  # before the cut, and after it
        resumed = trace_course(course, scenario, resume_from=(loop, round))
        require_same(loop.values(), resumed.values(), f"resumed after round {round}")


def test_clients_are_evaluated_with_their_clusters_model() -> None:
    course, scenario = splitting_course()
    trace = trace_course(course, scenario)
    models = trace.models(course.algorithm)
    last = states(trace)[6]
    for cluster in last.clusters:
        for client in cluster.members:
            assert_equal(models[client], cluster.params)
    # The best round's are kept with it.
    best = states(trace)[trace.standings[6].best_round]
    for cluster in best.clusters:
        for client in cluster.members:
            memory: State = decode(trace.memories[6][client], State)
            assert_equal(memory["best"]["cluster"], cluster.params)


def test_a_client_that_was_told_nothing_before_the_best_round_falls_back_on_the_global_model() -> None:
    algorithm, client = GCFL(), toy_client()
    shared, own = {"w": torch.ones(1)}, {"w": torch.zeros(1)}
    assert algorithm.client_params(shared, client.state) is shared
    algorithm.keep_best(KeepBest(), client)
    algorithm.use(UseModel(own), client)
    assert algorithm.client_params(shared, client.state) is own
    assert algorithm.client_params(shared, algorithm.best_memory(client.state)) is shared
    algorithm.keep_best(KeepBest(), client)
    assert algorithm.client_params(shared, algorithm.best_memory(client.state)) is own


def test_with_personal_parameters_clusters_share_the_others() -> None:
    course, scenario = splitting_course(shared=("gnn.layers.0.*",))
    trace = trace_course(course, scenario)
    assert trace.ended_by is None and not any(report.failures for report in trace.exchanges)
    models = trace.models(course.algorithm)
    assert all("gnn.layers.1.weight" in model for model in models.values())
    assert all(cluster.params.keys() == states(trace)[6].params.keys() for cluster in states(trace)[6].clusters)


def test_the_server_sees_each_clients_update_and_says_so() -> None:
    for kind in (GCFL, GCFLPlus):
        sees = {exchange.request: exchange.server_sees for exchange in exposure(kind)}
        assert sees[TrainModel.__name__] == "each client's"
        assert sees[UseModel.__name__] == "nothing but a receipt"
        assert EvaluateModel.__name__ in sees


def test_the_state_is_a_record_that_survives_its_bytes() -> None:
    pulls = Pulls(GCFLPlus(**QUICK, num_norms=3), TWO_GROUPS, {})
    state = pulls.advance(rounds=2)
    again: GCFLState = decode(encode(state), GCFLState)
    assert encode(again) == encode(state)
    assert isinstance(state, ModelState) and isinstance(again.clusters[0], Cluster)


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [
        GCFL(eps_1=0.4, eps_2=0.4, warmup_rounds=0, min_clients=2),
        GCFLPlus(eps_1=0.4, eps_2=0.4, warmup_rounds=0, min_clients=2, num_norms=1),
    ],
    ids=["gcfl", "gcfl_plus"],
)
def test_configurations_that_split_toy_clients_pass_all_checks(algorithm: Algorithm[Any]) -> None:
    trace = trace_course(toy_course(algorithm), toy_scenario())
    assert len(states(trace)[3].clusters) > 1
    check_algorithm(algorithm)


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (GCFL, {"eps_1": 0.3, "eps_2": 0.1}, "eps_1 is 0.3 and eps_2 0.1"),
        (GCFL, {"eps_1": -0.1}, "eps_1 is -0.1"),
        (GCFL, {"eps_1": 0.0, "eps_2": 0.0}, "that must be positive"),
        (GCFL, {"eps_2": float("nan")}, "eps_2 nan"),
        (GCFL, {"min_clients": 1}, "min_clients is 1"),
        (GCFL, {"warmup_rounds": -1}, "warmup_rounds is -1"),
        (GCFLPlus, {"num_norms": 0}, "num_norms is 0; it must be at least 1"),
        (GCFLPlus, {"num_norms": 1, "standardize": True}, "num_norms is 1; it must be at least 2"),
        (GCFLPlus, {"local_steps": 0}, "local_steps is 0"),
    ],
)
def test_bad_fields_are_refused(kind: type[GCFL], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**fields)
