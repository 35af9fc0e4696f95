"""Clients in worker processes: the same results, from the same marks, whoever is lost or joins on the way."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import isthmus
from isthmus.algorithms import ALGORITHMS
from isthmus.algorithms.fedavg import ModelUpdate
from isthmus.core.errors import BadInput, CourseFailed, MissingExtra
from isthmus.core.federation import Outcome, Runtime, StackOutcome
from isthmus.core.folds import median, weighted_mean
from isthmus.runs.at_workers import at_workers, part_of_bytes, part_to_bytes, portable
from isthmus.runs.simulation import Simulation
from isthmus.runtime import cluster, workers
from isthmus.runtime.block import Order, gathered, many_of
from isthmus.runtime.cluster import Crew, GivenCluster, OwnWorkers, crew_of
from isthmus.runtime.workers import WorkersRuntime, _Look, _stack, divided
from isthmus.testing.conformance import check_workers_equal_loop
from isthmus.testing.toys import toy_course, toy_graph, toy_scenario
from isthmus.testing.traces import Trace, require_same, trace_course
from tests.processes import copy_workers
from tests.quick import quick

pytest.importorskip("distributed")

FEW = ("fedavg", "scaffold", "gcfl", "local")


@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in ALGORITHMS]
)
def test_clients_at_workers_give_what_they_give_here(name: str, crew: Crew) -> None:
    check_workers_equal_loop(quick(name), crew=crew)


class Placed:
    """Places clients at workers, and does something at a call of a round's."""

    def __init__(self, crew: Crew, disturb: Any = None) -> None:
        self.crew, self.disturb = crew, disturb
        self.runtime: WorkersRuntime | None = None

    def __call__(self, simulation: Simulation) -> Runtime:
        self.runtime = at_workers(simulation, self.crew, 2)
        if self.disturb is not None:
            self.disturb(self.runtime)
        return self.runtime


def traced(name: str, place: Placed) -> Trace:
    course = toy_course(quick(name), num_clients=4, runtime="auto")
    trace = trace_course(course, toy_scenario(4), place=place)
    assert trace.ended_by is None, trace.ended_by
    return trace


def process_at(crew: Crew, address: str) -> int:
    """Return the process id of a worker."""
    found: dict[str, int] = crew.client.run(os.getpid, workers=[address])
    return found[address]


@pytest.mark.parametrize("name", ["scaffold"])
def test_a_worker_that_is_killed_in_mid_round_costs_the_work_of_the_round_and_nothing_else(
    name: str, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = traced(name, Placed(crew))
    killed: list[str] = []

    def disturb(runtime: WorkersRuntime) -> None:
        sent = runtime._sent

        def sending(place: int, order: Any) -> Any:
            call = sent(place, order)
            # The second exchange of the second round, while the worker is at it: it has answered the first one.
            ask = order.ask
            if not killed and ask is not None and (ask.position.round, ask.position.exchange) == (2, 1):
                seat = runtime._held[place].seat
                assert seat is not None
                killed.append(seat.address)
                os.kill(process_at(crew, seat.address), signal.SIGKILL)
            return call

        monkeypatch.setattr(runtime, "_sent", sending)

    place = Placed(crew, disturb)
    struck = traced(name, place)
    assert killed and place.runtime is not None and place.runtime.lost == 1
    require_same(calm.everything(), struck.everything(), "a lost worker changed something")
    assert len(crew.workers()) == 2  # another process took its place


class Late(GivenCluster):
    """A cluster whose second worker joins when it is told to."""

    joined = False

    def workers(self) -> list[str]:
        return super().workers()[: 2 if self.joined else 1]


def test_a_worker_that_joins_late_gets_its_share_and_changes_nothing(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "JOIN_SECONDS", 0.0)
    calm = traced("scaffold", Placed(crew))
    late = Late(crew.client, "a cluster")

    def disturb(runtime: WorkersRuntime) -> None:
        mark = runtime.mark

        def marking(round: int) -> None:
            mark(round)
            late.joined = round >= 1

        monkeypatch.setattr(runtime, "mark", marking)

    place = Placed(late, disturb)
    grown = traced("scaffold", place)
    assert place.runtime is not None and place.runtime.moved == 1
    assert len({held.seat.address for held in place.runtime._held if held.seat}) == 2
    require_same(calm.everything(), grown.everything(), "a worker that joined changed something")


def test_a_worker_that_is_lost_again_and_again_ends_the_course_with_a_reason(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disturb(runtime: WorkersRuntime) -> None:
        monkeypatch.setattr(runtime, "_sent", lambda place, order: None)

    course = toy_course(quick("fedavg"), num_clients=4)
    trace = trace_course(course, toy_scenario(4), place=Placed(crew, disturb))
    assert isinstance(trace.ended_by, CourseFailed) and "was lost 4 times in one exchange" in str(trace.ended_by)


@pytest.mark.parametrize(("name", "asked"), [("fedavg", False), ("scaffold", True)])
def test_blocks_are_asked_for_memories_only_where_some_have_changed(
    crew: Crew, name: str, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: list[Order] = []

    def disturb(runtime: WorkersRuntime) -> None:
        sent = runtime._sent

        def noted(place: int, order: Order) -> Any:
            orders.append(order)
            return sent(place, order)

        monkeypatch.setattr(runtime, "_sent", noted)

    place = Placed(crew, disturb)
    course = toy_course(quick(name), num_clients=4, rounds=3)
    trace_course(course, toy_scenario(4), place=place)
    assert orders and place.runtime is not None
    assert sum(order.mark for order in orders) == (course.rounds * len(place.runtime.blocks) if asked else 0)


def test_what_comes_back_does_not_grow_with_the_clients(crew: Crew) -> None:
    up = {}
    for number in (4, 12):
        place = Placed(crew)
        course = toy_course(quick("fedavg"), num_clients=number, runtime="loop", evaluate_every=3)
        trace_course(course, toy_scenario(number, num_nodes=96), place=place)
        assert place.runtime is not None
        up[number] = place.runtime.traffic["up"]
    assert up[12] < 2 * up[4]  # scalars of each client, and two sums; the models would be three times as much


def test_a_run_on_workers_is_resumed_with_the_same_bits(crew: Crew, tmp_path: Path, monkeypatch: Any) -> None:
    """Through the front door: the journal has the blocks, so another number of workers divides the clients alike."""
    monkeypatch.setattr("isthmus.runs.simulated.crew_for", lambda workers, address: _as_context(crew, workers))
    course = toy_course(quick("ditto"), num_clients=4, rounds=4, checkpoint_every=1, runtime="auto")
    scenario = toy_scenario(4)
    whole = isthmus.run(course, run_dir=tmp_path / "whole", scenario=scenario, workers=2)
    isthmus.run(replace(course, rounds=2), run_dir=tmp_path / "cut", scenario=scenario, workers=2)
    resumed = isthmus.resume(tmp_path / "cut", overrides=["rounds=4"], scenario=scenario, workers=1)
    told = [event for event in resumed.events if event["event"] == "workers"]
    assert [event["blocks"] for event in told] == [2, 2]
    assert resumed.metrics == whole.metrics and resumed.client_scores == whole.client_scores
    for client, params in whole.client_params.items():
        assert all(torch.equal(params[name], resumed.client_params[client][name]) for name in params)


class _as_context:
    def __init__(self, crew: Crew, workers: Any) -> None:
        self.crew = crew if workers else None

    def __enter__(self) -> Crew | None:
        return self.crew

    def __exit__(self, *error: object) -> None:
        pass


def test_a_cluster_is_used_by_its_address() -> None:
    from distributed import LocalCluster

    course = toy_course(quick("fedavg"), num_clients=3)
    here = isthmus.run(course, scenario=toy_scenario())
    with LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address="127.0.0.1:0"
    ) as running:
        there = isthmus.run(course, scenario=toy_scenario(), cluster=running.scheduler_address)
    assert there.metrics == here.metrics and there.bytes_up == here.bytes_up
    (told,) = [event for event in there.events if event["event"] == "workers"]
    assert told["blocks"] == 2 and told["where"] == f"the cluster {running.scheduler_address}"


# ---- what cannot be


def test_an_address_where_nobody_answers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 0.5)
    with pytest.raises(BadInput, match=r"cluster is 'tcp://127.0.0.1:9': no Dask scheduler answers there"):
        isthmus.run(cluster="tcp://127.0.0.1:9")
    with pytest.raises(BadInput, match="no Dask scheduler answers there"):
        isthmus.run(cluster="nonsense://x")


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtra, match=r"'distributed'; install it with: pip install 'isthmus\[cluster\]'"):
        isthmus.run(workers=2)


def test_workers_and_a_cluster_are_one_or_the_other() -> None:
    with pytest.raises(BadInput, match="workers is 2 and cluster 'tcp://a:1'; give one of them"):
        isthmus.run(workers=2, cluster="tcp://a:1")
    with pytest.raises(BadInput, match="workers is 0; it must be at least 1"):
        isthmus.run(workers=0)


@dataclass(frozen=True)
class OfTheScript(ALGORITHMS["fedavg"]):  # type: ignore[misc]
    """A method of one's own."""


def test_a_course_with_a_part_that_only_this_process_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "name: fedavg" in portable(toy_course(quick("fedavg")))
    monkeypatch.setattr(OfTheScript, "__module__", "__main__")
    with pytest.raises(BadInput, match="cannot be sent to workers: a class of it is in the script that is run"):
        portable(toy_course(OfTheScript()))


# ---- parts


def test_blocks_are_of_about_the_same_size_and_keep_the_order() -> None:
    assert divided({"a": 5, "b": 1, "c": 4, "d": 1}, 2) == [("a", "d"), ("b", "c")]
    assert divided({"a": 0, "b": 0, "c": 0}, 2) == [("a", "c"), ("b",)]
    assert divided({"a": 1}, 5) == [("a",)]


@pytest.mark.parametrize("sparse", [False, True])
def test_what_a_client_holds_is_what_comes_out_of_its_bytes(sparse: bool) -> None:
    graph = replace(
        toy_graph(sparse=sparse, weighted=True), class_names=("a", "b", "c"), attributes={"k": torch.ones(48)}
    )
    again = part_of_bytes(part_to_bytes(graph))
    assert again.x.layout == graph.x.layout and torch.equal(again.x.to_dense(), graph.x.to_dense())
    assert torch.equal(again.edge_index, graph.edge_index) and torch.equal(again.edge_weight, graph.edge_weight)
    assert again.class_names == graph.class_names and again.masks.keys() == graph.masks.keys()
    assert torch.equal(again.attributes["k"], graph.attributes["k"]) and again.num_classes == graph.num_classes


def test_holdings_of_a_class_of_ones_own_are_refused() -> None:
    with pytest.raises(BadInput, match="workers can be sent Graph, GraphSet, LinkGraph"):
        part_to_bytes(toy_course(quick("fedavg")))


class Behind:
    """Stands for a runtime whose block has the replies."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values, self.asked, self.dropped = values, 0, []

    def look(self, place: int, name: str, kind: str) -> dict[int, torch.Tensor]:
        self.asked += 1
        return {0: self.values}

    def forget(self, place: int, name: str) -> None:
        self.dropped.append(name)


def test_a_sum_is_folded_as_the_replies_would_be_and_looked_behind_only_where_needed() -> None:
    values = torch.tensor([[1.0, -2.0], [3.0, 5.0], [0.5, 0.25]])
    replies = [ModelUpdate({"w": row}, weight) for row, weight in zip(values, (1.0, 2.0, 4.0), strict=True)]
    outcomes = [Outcome(f"c{i}", reply, 1, 2, 0.5) for i, reply in enumerate(replies)]
    (found,) = gathered(outcomes, ModelUpdate)
    assert isinstance(found, StackOutcome) and (found.bytes_down, found.bytes_up, found.seconds) == (3, 6, 1.5)
    behind: Any = Behind(values)
    stack = _stack(many_of(found, "0.0", False), ModelUpdate, _Look(behind, 0, "0.0", "TrainModel"))
    total = weighted_mean.start()
    weighted_mean.add_stack(total, stack, torch.tensor([True, True, True]))
    mean = weighted_mean.finish(total)
    wanted = weighted_mean(replies)
    assert torch.equal(mean.params["w"], wanted.params["w"]) and mean.weight == 7.0 and behind.asked == 0
    total = weighted_mean.start()
    weighted_mean.add_stack(total, stack, torch.tensor([True, False, True]))  # one was refused: other weights
    without = weighted_mean.finish(total)
    assert torch.allclose(without.params["w"], weighted_mean([replies[0], replies[2]]).params["w"])
    assert behind.asked == 1 and torch.equal(median(list(stack)).params["w"], median(replies).params["w"])
    assert behind.asked == 1  # all of them came at once
    del stack, total
    assert behind.dropped == ["0.0"]


@pytest.mark.parametrize("start", [copy_workers, pytest.param(lambda patch: None, id="real", marks=pytest.mark.slow)])
def test_processes_of_ours_end_with_the_course(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    start(monkeypatch)
    with crew_of(1, None) as own:
        assert isinstance(own, OwnWorkers)
        (process,) = own.processes
        assert process.poll() is None
    assert process.poll() is not None
