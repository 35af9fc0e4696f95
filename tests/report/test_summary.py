import pytest

from isthmus.core.errors import BadInput
from isthmus.report.summary import Table, clients_of, column, end_of, headline, missing_of, results_table

END = {
    "event": "end",
    "metrics": {
        "global_model/global_graph": {"accuracy": 0.9},
        "global_model/local_graph": {"accuracy": 0.8},
        "local_model/global_graph": {"accuracy": 0.1},
        "local_model/local_graph": {"accuracy": 0.85},
    },
    "client_scores": {"a": {"accuracy": 0.75}, "b": {}},
}


def test_the_whole_graph_is_scored_with_the_global_model_and_clients_with_the_model_they_use() -> None:
    found = column("mine", [END], "accuracy")
    assert (found.whole, found.clients_mean, found.clients) == (0.9, 0.85, {"a": 0.75})


def test_without_a_global_model_the_local_ones_are_scored() -> None:
    metrics = {key: value for key, value in END["metrics"].items() if key.startswith("local")}
    found = column("mine", [{**END, "metrics": metrics}], "accuracy")
    assert (found.whole, found.clients_mean) == (0.1, 0.85)


def test_the_table_has_a_row_for_each_client_and_a_dash_where_there_is_no_number() -> None:
    table = results_table([column("mine", [END], "accuracy")], ["a", "b"], {"a": "3 nodes"})
    assert table.headings == ("test on", "holds", "mine")
    assert table.rows[:2] == (("a", "3 nodes", "0.7500"), ("b", "", "-"))
    assert table.rows[2:] == (("all clients, own graphs", "", "0.8500"), ("whole graph", "", "0.9000"))


def test_what_guards_used_up_has_a_row_of_its_own() -> None:
    rounds = [{"event": "round", "round": r, "spent": {"epsilon": 1.5 * r}} for r in (1, 2)]
    columns = [column("noisy", [*rounds, END], "accuracy"), column("plain", [END], "accuracy")]
    assert results_table(columns, ["a"]).rows[-1] == ("epsilon", "", "3", "-")
    assert "epsilon" not in str(results_table(columns[1:], ["a"]))


def test_markdown_has_a_heading_a_rule_and_aligned_columns() -> None:
    text = Table(("a", "long heading"), (("wide cell", "x"),)).markdown()
    assert text.splitlines() == [
        "| a         | long heading |",
        "| --------- | ------------ |",
        "| wide cell | x            |",
    ]


def test_a_journal_without_an_end_says_how_to_go_on() -> None:
    with pytest.raises(BadInput, match="isthmus run --resume RUN"):
        end_of([{"event": "course"}, {"event": "round"}])
    with pytest.raises(BadInput, match="isthmus serve KIT --resume RUN"):
        end_of([{"event": "course", "sites": ["bank-a"]}, {"event": "round"}])
    # After a resume the last end counts.
    assert end_of([{"event": "end", "n": 1}, {"event": "end", "n": 2}])["n"] == 2


def test_the_headline_says_who_is_in_it_and_a_mean_of_fewer_clients_is_marked() -> None:
    end = {**END, "best_round": 3, "num_rounds": 9}
    clients = [{"event": "client", "client": name, "text": ""} for name in "ab"]
    whole = [*clients, end]
    assert headline("accuracy", whole) == "test accuracy, best round 3 of 9"
    assert headline("accuracy", whole, "loss") == "test accuracy, best round by loss 3 of 9"
    fewer = [{"event": "course", "sites": ["a", "b", "bank-c"]}, *whole]
    assert clients_of(fewer) == ["a", "b", "bank-c"] and missing_of(fewer) == ["bank-c"]
    assert headline("accuracy", fewer) == "test accuracy, best round 3 of 9; 2 of 3 clients; bank-c missing"
    columns = [column("mine", fewer, "accuracy"), column("beside", whole, "accuracy")]
    rows = results_table(columns, clients_of(fewer)).rows
    assert rows[2] == ("bank-c", "", "-", "-")
    assert rows[3] == ("all clients, own graphs", "", "0.8500 (2 of 3)", "0.8500")
