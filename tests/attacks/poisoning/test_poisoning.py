"""Poisoning clients: what they send, worked out by hand; in every runtime; and what a poisoned run says of itself."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import isthmus
from isthmus.algorithms import FedAvg
from isthmus.attacks.poisoning import (
    POISONINGS,
    InnerProduct,
    LabelFlip,
    LittleIsEnough,
    Poisoning,
    RandomUpdate,
    Scaling,
    SignFlip,
    StaleReplies,
    Trigger,
    poisoned,
    run_poisoned,
)
from isthmus.attacks.poisoning.colluding import Colluding, PoisonedRuntime
from isthmus.attacks.poisoning.little_is_enough import largest_z
from isthmus.core.errors import BadInput
from isthmus.core.federation import Outcomes, apart
from isthmus.core.guards.guard import Guard
from isthmus.core.protocol import Position, Request, Requests
from isthmus.privacy import Quantise, SecureSum
from isthmus.runs.journal import read_journal
from isthmus.runs.simulation import Scenario
from isthmus.testing import toy_course, toy_graph, toy_scenario, trace_course
from isthmus.testing.traces import Trace, require_close, require_same
from tests.core.toys import Update, update
from tests.privacy.checking.toys import Ask, ask
from tests.quick import quick

WRONG = ("client-1", "client-3")


def course(**changes: Any) -> isthmus.Course:
    words = {"algorithm": FedAvg(local_steps=1), "num_clients": 4, "rounds": 3, "runtime": "loop", **changes}
    return toy_course(words.pop("algorithm"), **words)


@dataclass
class Seen:
    """A course, and what arrived of its clients."""

    trace: Trace
    messages: list[tuple[str, Position, Any, Any]]

    def replies(self, client: str) -> list[tuple[Any, Any]]:
        """Return what a client was asked to train, and what it answered, round by round."""
        found = [(request, reply) for name, _, request, reply in self.messages if name == client]
        return [(request, reply) for request, reply in found if type(request).__name__ == "TrainModel"]

    def sent(self, client: str, round: int) -> dict[str, Any]:
        """Return what a client's reply changed of what it was sent."""
        request, reply = self.replies(client)[round - 1]
        return {name: reply.params[name].double() - request.params[name].double() for name in reply.params}


def traced(*poisonings: Poisoning, **changes: Any) -> Seen:
    """Run a poisoned toy course and return what was seen."""
    made, scenario, _ = poisoned(course(**changes), toy_scenario(4), poisonings)
    messages: list[tuple[str, Position, Any, Any]] = []

    class Watched(PoisonedRuntime):
        """Looks at what arrives."""

        def exchange(self, position: Position, requests: Requests, timeout_seconds: float | None) -> Outcomes:
            for outcome in apart(self.runtime.exchange(position, requests, timeout_seconds)):
                messages.append((outcome.client, position, requests[outcome.client], outcome.reply))
                yield outcome

    def place(simulation: Any) -> Any:
        found = simulation.runtime
        for poisoning in poisonings:
            found = poisoning.of_runtime(found, made)
        return Watched(found, InnerProduct())

    trace = trace_course(made, scenario, place=place)
    assert trace.ended_by is None
    return Seen(trace, messages)


# ---- messages


@pytest.mark.parametrize(
    ("poisoning", "factor"),
    [
        (SignFlip(WRONG), -1.0),
        (SignFlip(WRONG, times=4.0), -4.0),
        (Scaling(WRONG, times=10.0), 10.0),
        (Scaling(WRONG, times=0.0), 0.0),
    ],
    ids=repr,
)
@pytest.mark.parametrize("runtime", ["loop", "strict", "auto"])
def test_flipped_and_scaled_changes_are_those_of_the_honest_client_times_a_factor(
    runtime: str, poisoning: Poisoning, factor: float
) -> None:
    honest, wrong = traced(runtime=runtime, rounds=1), traced(poisoning, runtime=runtime, rounds=1)
    for client in ("client-0", "client-1", "client-2", "client-3"):
        times = factor if client in WRONG else 1.0
        for name, change in honest.sent(client, 1).items():
            assert torch.allclose(wrong.sent(client, 1)[name], times * change, atol=1e-5)


def test_random_updates_are_gaussian_and_the_same_again() -> None:
    first, again = (traced(RandomUpdate(WRONG, scale=2.0), rounds=1) for _ in range(2))
    require_same(first.trace.values(), again.trace.values(), "the same noise")
    other = traced(RandomUpdate(WRONG, scale=2.0), rounds=1, seed=1)
    found = torch.cat([change.reshape(-1) for change in first.sent("client-1", 1).values()])
    assert not torch.equal(found, torch.cat([c.reshape(-1) for c in other.sent("client-1", 1).values()]))
    peer = torch.cat([change.reshape(-1) for change in first.sent("client-3", 1).values()])
    assert not torch.equal(found, peer)
    assert 1.3 < float(torch.cat([found, peer]).std()) < 2.7


def test_who_is_not_named_and_rounds_before_are_left_as_they_are() -> None:
    honest, wrong = traced(), traced(SignFlip(("client-1",), from_round=3))
    for round in (1, 2):
        require_same(honest.sent("client-1", round), wrong.sent("client-1", round), "before it began")
    assert not torch.equal(
        next(iter(honest.sent("client-1", 3).values())), next(iter(wrong.sent("client-1", 3).values()))
    )


def test_stale_replies_are_the_first_one_again() -> None:
    replies = [reply for _, reply in traced(StaleReplies(("client-1",))).replies("client-1")]
    assert len(replies) == 3
    for later in replies[1:]:
        assert all(torch.equal(later.params[n], t) for n, t in replies[0].params.items())


# ---- as one


def replaced(poisoning: Colluding, rows: dict[str, list[float]], start: list[float]) -> dict[str, list[float]]:
    """Return what is sent in the place of changes, by client."""
    requests: dict[str, Request[Any]] = dict.fromkeys(rows, ask(start))
    replies = {name: update((np.array(row) + start).tolist()) for name, row in rows.items()}
    found = poisoning.replaced(replies, requests)
    return {name: (np.array(reply.params["w"].tolist()) - start).tolist() for name, reply in found.items()}  # type: ignore[attr-defined]


HONEST = {"a": [1.0, 0.0], "b": [2.0, -1.0], "c": [3.0, 4.0]}


def test_a_little_is_the_mean_of_honest_changes_less_some_deviations() -> None:
    found = replaced(
        LittleIsEnough(("x", "y"), deviations=1.5), {**HONEST, "x": [9.0, 9.0], "y": [8.0, 8.0]}, [5.0, 5.0]
    )
    columns = list(zip(*HONEST.values(), strict=True))
    expected = [statistics.mean(column) - 1.5 * statistics.pstdev(column) for column in columns]
    assert found.keys() == {"x", "y"}
    for row in found.values():
        assert row == pytest.approx(expected, abs=1e-5)


def test_who_knows_only_the_colluding_makes_it_of_what_they_learned() -> None:
    mine = {"x": [9.0, 9.0], "y": [7.0, 5.0]}
    found = replaced(LittleIsEnough(("x", "y"), knowing="themselves", deviations=2.0), {**HONEST, **mine}, [0.0, 0.0])
    assert found["x"] == pytest.approx([8.0 - 2.0, 7.0 - 4.0], abs=1e-5)


@pytest.mark.parametrize(("n", "m"), [(50, 24), (10, 4), (10, 2), (51, 24), (3, 1)])
def test_the_papers_z_is_the_quantile_of_the_supporters_that_are_needed(n: int, m: int) -> None:
    share = (n - m - (math.floor(n / 2 + 1) - m)) / (n - m)
    wanted = max(0.0, statistics.NormalDist().inv_cdf(share))
    assert largest_z(n, m) == pytest.approx(wanted, abs=1e-9)
    assert largest_z(50, 24) == pytest.approx(1.43, abs=0.01)  # 24 of 26 are farther in


def test_an_inner_product_is_turned_by_the_opposite_of_the_mean() -> None:
    found = replaced(InnerProduct(("x",), epsilon=0.5), {**HONEST, "x": [100.0, 100.0]}, [1.0, 2.0])
    assert found["x"] == pytest.approx([-1.0, -0.5], abs=1e-5)


def test_replies_that_weigh_nothing_or_cannot_be_compared_are_no_part_of_it() -> None:
    requests: dict[str, Request[Any]] = dict.fromkeys("abcx", Ask({"w": torch.zeros(2)}))
    replies = {
        "a": update([1.0, 1.0]),
        "b": update([9.0, 9.0], weight=0.0),
        "c": Update({"w": torch.ones(3)}, 1.0),
        "x": update([5.0, 5.0]),
    }
    found: Any = InnerProduct(("x",), epsilon=1.0).replaced(replies, requests)
    assert found["x"].params["w"].tolist() == [-1.0, -1.0]
    assert not InnerProduct(("x",)).replaced({"x": replies["x"]}, requests)  # it knows nobody
    assert not InnerProduct(("z",)).replaced(replies, requests)


@pytest.mark.parametrize("runtime", ["loop", "strict", "auto"])
def test_in_a_course_all_of_them_send_what_is_made_of_the_others(runtime: str) -> None:
    honest = traced(runtime=runtime, rounds=1)
    wrong = traced(InnerProduct(WRONG, epsilon=2.0), runtime=runtime, rounds=1)
    state: Any = wrong.trace.state
    others = [client for client in honest.trace.clients if client not in WRONG]
    weights = {client: honest.replies(client)[0][1].weight for client in honest.trace.clients}
    total = sum(weights.values())
    for name, start in wrong.trace.initial.items():
        change = state.params[name].double() - start.double()
        changes = [honest.sent(client, 1)[name] for client in others]
        mu = torch.stack(changes).mean(dim=0)
        expected = sum(weights[c] * change for c, change in zip(others, changes, strict=True))
        expected = (expected - 2.0 * mu * sum(weights[c] for c in WRONG)) / total
        assert torch.allclose(change, expected, atol=1e-5)


@pytest.mark.parametrize("guard", [Quantise(), SecureSum()], ids=repr)
def test_what_others_send_cannot_be_known_where_it_is_coded_or_hidden(guard: Guard) -> None:
    with pytest.raises(BadInput, match="a guard of the course codes or hides that"):
        poisoned(course(guards=(guard,)), toy_scenario(4), (InnerProduct(WRONG),))
    poisoned(course(guards=(guard,)), toy_scenario(4), (SignFlip(WRONG),))


# ---- data


def test_flipped_labels_are_those_of_training_nodes_alone() -> None:
    honest = toy_scenario(4)
    wrong = LabelFlip(("client-1",), by=2).of_data(honest)
    assert wrong.whole is honest.whole and wrong.parts["client-0"] is honest.parts["client-0"]
    before, after = honest.parts["client-1"], wrong.parts["client-1"]
    train = before.mask("train")
    assert torch.equal(after.y[train], (before.y[train] + 2) % 3)
    assert torch.equal(after.y[~train], before.y[~train])


def test_nodes_without_a_label_have_none_after_it_either() -> None:
    graph = toy_graph(unlabelled_fraction=0.5)
    graph = replace(graph, masks={**graph.masks, "train": torch.ones(graph.num_nodes, dtype=torch.bool)})
    wrong = LabelFlip(("a",)).of_data(Scenario(graph, {"a": graph})).parts["a"]
    assert bool((wrong.y[graph.y < 0] == -1).all())


@pytest.mark.parametrize("sparse", [False, True])
def test_a_trigger_is_in_the_features_of_some_training_nodes_which_are_of_its_class(sparse: bool) -> None:
    honest = toy_scenario(4, sparse=sparse)
    wrong = Trigger(("client-3",), columns=(1, 4), target=2, fraction=0.5).of_data(honest)
    before, after = honest.parts["client-3"], wrong.parts["client-3"]
    nodes = before.mask("train").nonzero().flatten()
    marked = nodes[: round(0.5 * len(nodes))]
    assert bool((after.y[marked] == 2).all())
    x = after.x.to_dense()
    assert bool((x[marked][:, [1, 4]] == 1.0).all())
    others = torch.ones(len(x), dtype=torch.bool)
    others[marked] = False
    assert torch.equal(x[others], before.x.to_dense()[others]) and torch.equal(after.y[others], before.y[others])
    assert after.x.layout == before.x.layout


# ---- runs


def test_a_poisoned_run_says_so_and_without_poisonings_it_is_the_course_to_the_bit(tmp_path: Path) -> None:
    scenario = toy_scenario(4)
    plain, same = isthmus.run(course(), scenario=scenario), run_poisoned(course(), scenario=scenario)
    require_same(dict(plain.params), dict(same.params), "poisoned by nobody")
    assert plain.metrics == same.metrics and same.notes == plain.notes
    wrong = run_poisoned(
        course(), LabelFlip(WRONG), Scaling(WRONG, times=5.0), scenario=scenario, run_dir=tmp_path / "run"
    )
    told = [e["text"] for e in read_journal(tmp_path / "run" / "journal.jsonl") if e["event"] == "note"]
    assert [text for text in told if text.startswith("poisoned: ")] == [
        "poisoned: LabelFlip(clients=('client-1', 'client-3'), malicious=0, by=1)",
        "poisoned: Scaling(clients=('client-1', 'client-3'), malicious=0, from_round=1, times=5.0)",
    ]
    with pytest.raises(AssertionError):
        require_close(dict(plain.params), dict(wrong.params), "poisoned")


@pytest.mark.parametrize("name", POISONINGS)
def test_every_poisoning_changes_the_model_and_names_its_clients(name: str) -> None:
    kind = POISONINGS[name]
    scenario = toy_scenario(4)
    made = course(algorithm=quick("fedsage_plus")) if name == "wrong_gradients" else course()
    honest = isthmus.run(made, scenario=scenario)
    wrong = run_poisoned(made, kind(clients=WRONG), scenario=scenario)
    assert any(not torch.equal(tensor, wrong.params[name]) for name, tensor in honest.params.items())
    assert kind.position == "malicious client"
    assert repr(kind(clients=WRONG)) != repr(kind(clients=("client-0",)))
    with pytest.raises(BadInput, match=rf"{kind.__name__}.clients has 'client-9'; known: client-0, client-1"):
        run_poisoned(course(), kind(clients=("client-9",)), scenario=scenario)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: LittleIsEnough(deviations=-1.0), "deviations"),
        (lambda: LittleIsEnough(knowing="all"), "knowing"),
        (lambda: InnerProduct(epsilon=0.0), "epsilon"),
        (lambda: Trigger(columns=()), "columns"),
        (lambda: Trigger(fraction=0.0), "fraction"),
    ],
)
def test_impossible_settings_are_refused(make: Any, field: str) -> None:
    with pytest.raises(ValueError, match=field):
        make()
