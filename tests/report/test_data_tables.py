from __future__ import annotations

from isthmus.report.data_tables import (
    clients_table,
    common_labels,
    heterogeneity_table,
    labels_table,
    losses,
    overlap_table,
)

from .facts import figures, survey_of, two_clients


def test_every_client_has_a_row_then_their_mean_and_the_whole() -> None:
    table = clients_table(two_clients())
    assert table.headings[:4] == ("client", "nodes", "edges", "features") and table.headings[-1] == "homophily"
    assert [row[0] for row in table.rows] == ["a", "b", "mean of 2", "whole"]
    assert table.rows[0] == ("a", "10", "20", "3", "2", "5", "1", "1", "4.00", "0.500")
    assert table.rows[1][-1] == "-"
    # The mean of one client's homophily is its own; 1.5 classes on average.
    assert table.rows[2] == ("mean of 2", "15", "30", "3", "1.5", "7.5", "1", "1", "4.00", "0.500")


def test_of_many_clients_the_first_are_shown_and_all_are_summed_up() -> None:
    facts = survey_of({f"client-{i:02d}": figures(10 + i, [i, 1]) for i in range(25)})
    table = clients_table(facts)
    assert [row[0] for row in table.rows[19:]] == [
        "client-19",
        "... 5 more",
        "mean of 25",
        "least of 25",
        "most of 25",
        "whole",
    ]
    assert [row[1] for row in table.rows[21:24]] == ["22", "10", "34"]
    assert len(clients_table(facts, None).rows) == 27 and len(labels_table(facts, None).rows) == 26


def test_columns_that_say_nothing_are_left_out_and_nodes_of_graphs_are_told() -> None:
    facts = two_clients(item="graph")
    for part in (facts["whole"], *facts["clients"].values()):
        part["homophily"] = None
    table = clients_table(facts)
    assert "homophily" not in table.headings and table.headings[1:3] == ("graphs", "nodes")


def test_labels_beyond_the_most_common_are_summed_up() -> None:
    facts = survey_of({"a": figures(9, [1, 5, 0, 3]), "b": figures(9, [0, 5, 1, 3])})
    table = labels_table(facts, max_labels=2)
    assert table.headings == ("client", "labels", "class 1", "class 3", "2 others")
    assert table.rows[0] == ("a", "9", "5", "3", "1")
    assert labels_table(facts).headings[-1] == "class 3"
    assert common_labels([4, 4, 1, 9], 2) == [0, 3]


def test_overlap_is_shown_where_there_is_any() -> None:
    facts = two_clients()
    table = overlap_table(["a", "b"], facts["overlap"])
    assert table is not None and table.rows == (("a", "10", "2"), ("b", "2", "20"))
    assert overlap_table(["a", "b"], [[3, 0], [0, 4]]) is None


def test_what_is_lost_is_said_in_words() -> None:
    assert losses(two_clients()) == ["12.5 % of the edges are held by no client"]
    facts = two_clients(shared=0, missing_edge_fraction=None, missing_item_fraction=0.5, item="graph")
    assert losses(facts) == ["50.0 % of the graphs are held by no client", "no two clients share a graph"]


def test_a_measure_that_is_not_defined_is_a_dash() -> None:
    facts = two_clients()
    facts["heterogeneity"]["label_kl"]["mean"] = None
    assert heterogeneity_table(facts).rows[0][1:3] == ("-", "0.2500")
