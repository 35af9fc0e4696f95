from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from isthmus.data.survey.statistics import describe_clients, missing_edge_fraction, survey
from isthmus.report.data_tables import clients_table
from tests.data.strategies import make_graph
from tests.data.survey.test_statistics import small_links, small_set


def test_a_survey_of_a_graph_has_every_number_and_is_plain() -> None:
    whole = make_graph(20, 40)
    parts = {"a": whole.subgraph(torch.arange(12)), "b": whole.subgraph(torch.arange(8, 19))}
    facts = survey(whole, parts)
    assert json.loads(json.dumps(facts))["clients"]["a"]["label_counts"] == facts["clients"]["a"]["label_counts"]
    assert facts["overlap"] == [[12, 4], [4, 11]] and facts["node_overlap"] is None
    assert facts["missing_edge_fraction"] == missing_edge_fraction(whole, list(parts.values()))
    assert facts["missing_item_fraction"] == pytest.approx(1 / 20)
    figures = describe_clients(whole, [parts["b"]])[0]
    assert facts["clients"]["b"]["mean_degree"] == figures.mean_degree
    assert sum(facts["clients"]["b"]["degree_counts"].values()) == 11
    assert set(facts["heterogeneity"]) == {"label_kl", "label_js", "walk_distance_4", "walk_distance_5"}
    for found in facts["heterogeneity"].values():
        assert found["mean"] == pytest.approx((found["between"][0][1] + found["between"][1][0]) / 2)
        assert found["max_to_whole"] == max(found["to_whole"]) and found["between"][0][0] == 0.0
    assert facts["walks"]["clients"]["a"]["exact"]


def test_clients_that_hold_the_same_are_not_apart() -> None:
    whole = make_graph(20, 40)
    facts = survey(whole, {"a": whole, "b": whole})
    for found in facts["heterogeneity"].values():
        assert found["max"] == found["max_to_whole"] == 0.0
    assert facts["missing_edge_fraction"] == facts["missing_item_fraction"] == 0.0


def test_a_survey_of_links_tells_shared_nodes() -> None:
    whole = small_links()
    parts = dict(zip("ab", whole.divide([torch.tensor([0]), torch.tensor([1, 2])]), strict=True))
    facts = survey(whole, parts)
    assert facts["overlap"] == [[1, 0], [0, 2]] and facts["node_overlap"] == [[2, 2], [2, 2]]
    assert facts["missing_edge_fraction"] is None and facts["missing_item_fraction"] == 0.25
    assert (
        facts["heterogeneity"]["label_js"]["mean"] == 1.0 and facts["heterogeneity"]["walk_distance_4"]["mean"] == 0.0
    )


def test_a_survey_counts_no_pair_as_a_link_that_is_none() -> None:
    plain = small_links()
    assert survey(plain, {"a": plain})["item"] == "link"
    told = replace(plain, linked=torch.tensor([1, 0, 1, -1]), negatives="0")
    facts = survey(told, dict(zip("ab", told.divide([torch.tensor([0, 1]), torch.tensor([2, 3])]), strict=True)))
    assert facts["item"] == "pair"
    figures = [facts["whole"], facts["clients"]["a"], facts["clients"]["b"]]
    assert [(each["num_items"], each["num_links"]) for each in figures] == [(4, 2), (2, 1), (2, 1)]
    table = clients_table(facts)
    assert table.headings[:4] == ("client", "pairs", "links", "nodes")
    assert [row[:3] for row in table.rows] == [
        ("a", "2", "1"),
        ("b", "2", "1"),
        ("mean of 2", "2", "1"),
        ("whole", "4", "2"),
    ]
    assert clients_table(survey(plain, {"a": plain})).headings[:3] == ("client", "links", "nodes")
    assert survey(make_graph(5, 5), {"a": make_graph(5, 5)})["whole"]["num_links"] is None


def test_a_survey_of_graphs_has_null_where_a_client_has_no_label() -> None:
    whole = small_set(torch.tensor([1, -1]), "class")
    parts = dict(zip("ab", whole.divide([torch.tensor([0]), torch.tensor([1])]), strict=True))
    facts = survey(whole, parts)
    assert facts["item"] == "graph" and facts["missing_edge_fraction"] is None
    assert facts["heterogeneity"]["label_js"]["between"] == [[0.0, None], [None, None]]
    assert facts["heterogeneity"]["label_js"]["mean"] is None
    json.dumps(facts, allow_nan=False)
