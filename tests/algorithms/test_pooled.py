from __future__ import annotations

import isthmus
from isthmus.algorithms import Local, Pooled
from isthmus.algorithms.local import StartFrom, TrainAlone
from isthmus.runs.simulation import Simulation
from isthmus.testing import toy_course, toy_scenario


def test_one_client_holds_the_whole_graph_whoever_holds_it_in_the_scenario() -> None:
    scenario = toy_scenario(3)
    pooled = Simulation(toy_course(Pooled()), scenario)
    assert list(pooled.clients) == ["all"]
    assert pooled.clients["all"].data is scenario.whole
    assert list(Simulation(toy_course(Local()), scenario).clients) == list(scenario.parts)


def test_the_halves_are_those_of_local() -> None:
    assert Pooled.handlers() == Local.handlers()
    assert {StartFrom, TrainAlone} <= set(Pooled.handlers())
    assert Pooled.round is Local.round
    assert Pooled.pooled
    assert not Local.pooled


def test_it_is_not_mistaken_for_local() -> None:
    assert Pooled() != Local()
    assert repr(Pooled()) != repr(Local())


def test_a_course_keeps_one_model_and_scores_it_on_every_clients_nodes() -> None:
    scenario = toy_scenario(3)
    result = isthmus.run(toy_course(Pooled()), scenario=scenario)
    assert list(result.client_params) == ["all"]
    assert result.params == {}
    assert set(result.metrics) == {"local_model/global_graph", "local_model/local_graph"}
    assert list(result.client_scores) == list(scenario.parts)
