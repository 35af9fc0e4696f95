"""What a result shows of itself: charts, its page, and what a notebook prints."""

from __future__ import annotations

from pathlib import Path

import pytest

import isthmus
from isthmus.core.errors import BadInput
from isthmus.testing import toy_course, toy_scenario


@pytest.fixture(scope="module")
def result() -> isthmus.Result:
    return isthmus.run(toy_course(isthmus.FedAvg(local_steps=2)), scenario=toy_scenario())


def test_its_page_is_that_of_its_run_folder(result: isthmus.Result, tmp_path: Path) -> None:
    assert result.report(tmp_path / "page.html") == (tmp_path / "page.html").read_text()
    assert 'aria-label="val/accuracy over rounds"' in result.report()


def test_curves_have_the_numbers_of_the_journal(result: isthmus.Result) -> None:
    pytest.importorskip("altair", reason="install it with: pip install 'isthmus[charts]'")
    chart = result.plot("val/loss", other=result).to_dict()
    found = [(row["series"], row["x"], row["y"]) for row in chart["data"]["values"]]
    told = [(float(r), v) for r, v in zip(result.history["round"], result.history["val/loss"], strict=True)]
    assert found == [(name, x, y) for name in ("fedavg", "other") for x, y in told]
    assert result.plot().to_dict()["title"]["text"] == "val/accuracy"
    with pytest.raises(BadInput, match=r"no round has 'val/los'.*Did you mean 'val/loss'"):
        result.plot("val/los")


def test_a_notebook_shows_the_scores_and_obeys_no_name(result: isthmus.Result) -> None:
    shown = result._repr_html_()
    assert "<table>" in shown and f"{result.client_scores['client-0']['accuracy']:.4f}" in shown
    result.notes.append("<script>")
    assert "<script" not in result._repr_html_()
