from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

from isthmus.report.data_page import data_page
from isthmus.report.page import DARK, LIGHT

from .facts import figures, survey_of, two_clients


def parsed(facts: dict[str, Any], limit: int | None = 60) -> ElementTree.Element:
    page = data_page(facts, limit)
    assert page.startswith("<!DOCTYPE html>\n<html")
    return ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>\n"))


def words(root: ElementTree.Element) -> str:
    return " ".join(root.itertext())


def test_the_page_has_all_figures_and_all_numbers() -> None:
    root = parsed(two_clients())
    titles = [e.text for e in root.iter("h2")]
    assert titles[:5] == ["Labels", "Sizes", "Degrees", "Homophily", "Between clients"] and titles[-1] == "Numbers"
    assert "Shared nodes" in titles and len(list(root.iter("svg"))) == 7
    assert "12.5 % of the edges are held by no client." in words(root).replace("  ", " ")
    assert "a, class 0: 6 (75.0 %)" in [e.text for e in root.iter("title")]
    cells = [e.text for e in root.iter("td")]
    assert "mean of 2" in cells and "0.2500" in cells


def test_the_page_needs_nothing_from_elsewhere() -> None:
    page = data_page(two_clients())
    assert "Content-Security-Policy" in page and "default-src 'none'" in page.replace("&#x27;", "'")
    for sign in ("http:", "https:", "//", "<script", "<link", "<img", "@import", "url(", " src=", " href=", "onload"):
        assert sign not in page, sign


def test_names_from_the_data_cannot_become_markup() -> None:
    evil = '</style><script>alert(1)</script>"&\x00'
    facts = survey_of({evil: figures(10, [6, 2])}, dataset=evil, origin=evil)
    facts["label_names"] = [evil, "b"]
    root = parsed(facts)
    assert list(root.iter("script")) == []
    assert evil.replace("\x00", "?") in words(root)


def test_there_is_a_light_and_a_dark_page_with_a_colour_for_each_class() -> None:
    page = data_page(two_clients())
    assert "prefers-color-scheme: dark" in page
    assert all(color in page for color in (*LIGHT, *DARK))
    used = set(re.findall(r"var\((--[a-z0-9-]+)\)", page))
    assert used <= set(re.findall(r"(--[a-z0-9-]+):", page))


def test_of_many_clients_the_first_are_drawn_and_all_are_in_the_table() -> None:
    facts = survey_of({f"client-{i:02d}": figures(10 + i, [i, 1]) for i in range(12)})
    root = parsed(facts, limit=3)
    assert "The first 3 of 12 clients." in words(root)
    drawn = " ".join(text.text or "" for svg in root.iter("svg") for text in svg.iter("text"))
    assert "client-02" in drawn and "client-03" not in drawn
    assert "client-11" in [e.text for e in root.iter("td")]
    assert "The first" not in words(parsed(facts, limit=None))


def test_classes_beyond_the_colours_are_one_grey_part() -> None:
    facts = survey_of({"a": figures(30, [3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 9]), "b": figures(9, [1] * 11)})
    text = words(parsed(facts))
    assert "a, 3 others: 3 (" in text and "a, class 10: 9 (" in text


def test_data_without_node_labels_has_no_homophily_and_links_have_shared_nodes() -> None:
    facts = two_clients(item="link", node_overlap=[[4, 1], [1, 5]])
    for part in (facts["whole"], *facts["clients"].values()):
        part["homophily"] = None
    titles = [e.text for e in parsed(facts).iter("h2")]
    assert "Homophily" not in titles and "Shared links" in titles and "Shared nodes" in titles


def test_a_client_without_labels_and_one_client_alone_can_be_drawn() -> None:
    root = parsed(survey_of({"a": figures(4, [0, 0], None)}))
    assert "a" in words(root)
    facts = two_clients()
    facts["heterogeneity"]["label_js"]["between"] = [[None, None], [None, None]]
    assert "none" in words(parsed(facts))
