from __future__ import annotations

import json
from pathlib import Path

import pytest

from .command import call


def test_who_holds_what_is_told_as_a_course_would_divide_it() -> None:
    code, text = call("data", "show", "cora", "--clients", "3", "splitter.balanced=false", "masks.name=public")
    assert code == 0, text
    for part in ("client-2", "mean of 3", "whole", "2,708", "1,433", "140", "Rule_Learning", "Jensen-Shannon"):
        assert part in text, part
    assert "balanced False" in text and "masks public" in text and "no two clients share a node" in text
    assert "% of the edges are held by no client" in text and "shared nodes" not in text


def test_json_is_one_object_with_all_numbers() -> None:
    words = ("data", "show", "cora", "--splitter", "random", "--clients", "4", "splitter.overlap_fraction=0.1")
    code, text = call(*words, "--json")
    facts = json.loads(text)
    assert code == 0 and list(facts["clients"]) == ["client-0", "client-1", "client-2", "client-3"]
    common = round(0.1 * 2708)
    assert facts["overlap"][0][1] == facts["overlap"][3][2] == common
    assert sum(facts["clients"]["client-0"]["label_counts"]) == facts["clients"]["client-0"]["num_nodes"]
    assert facts["whole"]["num_edges"] == 5278 and facts["whole"]["homophily"] == pytest.approx(0.81, abs=1e-3)
    # About 0.81 of the edges join two of four random parts beside the common tenth: 1 - 0.01 - 0.18 - 0.81 / 4.
    assert facts["missing_edge_fraction"] == pytest.approx(0.6075, abs=0.02)
    assert json.loads(call(*words, "--json")[1]) == facts
    other = json.loads(call(*words, "--json", "--seed", "1")[1])
    assert other["clients"] != facts["clients"]


def test_overlap_is_shown_and_many_clients_are_summed_up_unless_all_are_asked_for() -> None:
    words = ("data", "show", "cora", "--splitter", "random", "--clients", "22", "splitter.overlap_fraction=0.1")
    code, text = call(*words)
    assert code == 0 and "... 2 more" in text and "least of 22" in text and "client-20" not in text
    assert "shared nodes" in text
    code, text = call(*words, "--all")
    assert code == 0 and "more" not in text and "client-21" in text


def test_a_page_is_written_whole(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    code, text = call("data", "show", "cora", "--clients", "2", "--html", str(page))
    assert code == 0 and f"page: {page}" in text.replace("\n", "")
    assert page.read_text().startswith("<!DOCTYPE html>") and "client-1" in page.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_a_page_is_drawn_again_and_no_file_of_somebody_else_s_is_lost(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<!DOCTYPE html>my own page")
    code, text = call("data", "show", "cora", "--clients", "2", "--html", str(page))
    assert code == 2 and "did not write" in text and page.read_text() == "<!DOCTYPE html>my own page"
    page.unlink()
    for clients in ("2", "3"):
        assert call("data", "show", "cora", "--clients", clients, "--html", str(page))[0] == 0
    assert "client-2" in page.read_text()


def test_a_page_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent" / "page.html"):
        code, text = call("data", "show", "cora", "--html", str(path))
        assert code == 2 and "--html" in text and str(path) in text


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("coraa",), ("dataset.name is 'coraa'", "Did you mean 'cora'?")),
        (("cora", "--splitter", "comunity"), ("splitter.name is 'comunity'", "Did you mean 'community'?")),
        (("cora", "splitter.balance=true"), ("splitter.balance is not a known key", "Did you mean 'balanced'?")),
        (("cora", "clients"), ("'clients' is not of the form key=value",)),
        (("cora", "--clients", "5000"), ("num_clients is 5000", "2708")),
    ],
)
def test_bad_words_are_explained(words: tuple[str, ...], parts: tuple[str, ...]) -> None:
    code, text = call("data", "show", *words)
    assert code == 2
    for part in parts:
        assert part in text, text


def test_missing_data_is_told_with_the_place_it_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise OSError("no network here")

    monkeypatch.setattr("isthmus.data.zoo.planetoid.urlopen", no_network)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    code, text = call("data", "show", "pubmed", "--data-root", str(tmp_path))
    assert code == 2 and str(tmp_path / "planetoid" / "PubMed" / "raw") in text and "ind.pubmed.graph" in text


def test_names_of_classes_are_shown_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "g"
    folder.mkdir()
    rows = "\n".join(f"{i},{i}.5,{'[red]' if i % 2 else '[/bold]'},train" for i in range(8))
    (folder / "nodes.csv").write_text(f"id,x,label,split\n{rows}\n")
    (folder / "edges.csv").write_text("source,target\n0,1\n2,3\n")
    words = ("data", "show", "folder", f"dataset.path={folder}", "--splitter", "random", "--clients", "2")
    code, text = call(*words, "masks.name=public")
    assert code == 0 and "[red]" in text and "[/bold]" in text
