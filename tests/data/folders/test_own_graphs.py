"""Every command of docs/own-graphs.md is executed, in order, in a folder of its own."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

from isthmus.data.folders.graph_folder import read_graph_folder
from isthmus.data.folders.schema.schema import parse_schema
from tests.cli.command import call

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "own-graphs.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_every_command_works_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("sqlalchemy", reason="install it with: pip install 'isthmus[sql]'")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.strip()]
    assert len(lines) >= 9
    said = ""
    for line in lines:
        program, *words = shlex.split(line)
        if program == "isthmus":  # in this process, as scripts are: starting another would take most of the time
            code, text = call(*words)
        else:
            assert program == "python"
            monkeypatch.setattr(sys, "argv", words)
            runpy.run_path(words[0], run_name="__main__")
            code, text = 0, capsys.readouterr().out
        assert code == 0 and "not_finite" not in text, f"{line}\n{text}"
        said += text
    quoted = [block for block in blocks("text") if block.startswith(("country: ", "north.yaml: ", "to split by: "))]
    assert len(quoted) == 3 and all(block in said for block in quoted)
    folders = {path.name: read_graph_folder(path) for path in (tmp_path / "graphs").iterdir()}
    assert set(folders) == {"north", "south", "from-database", "from-graphml", "from-pyg"}
    schema = folders.pop("north").schema
    assert schema is not None and folders.pop("from-pyg").ids[0] == "N-000"
    assert all(folder.schema == schema for folder in folders.values())
    by_country = {
        path.name: read_graph_folder(path).graph for path in (tmp_path / "by-country" / "silos").glob("client-*")
    }
    assert sorted(graph.attribute_names["country"] for graph in by_country.values()) == [("AT",), ("CH",), ("DE",)]
    agreed = [read_graph_folder(tmp_path / "agreed" / bank) for bank in ("north", "south")]
    assert agreed[0].schema == agreed[1].schema != schema and "country=LI" in agreed[0].feature_names
    for table, head in (("reviews", "source,target,label,p_fair"), ("circuits", "id,label,p_chain,p_ring")):
        assert (tmp_path / f"{table}.csv").read_text().startswith(head)


def test_the_schema_that_the_page_shows_is_one() -> None:
    import yaml

    (shown,) = blocks("yaml")
    assert len(parse_schema(yaml.safe_load(shown), "own-graphs.md").features) == 4


def test_the_first_rows_that_the_page_shows_are_those_of_the_example() -> None:
    head = "\n".join(blocks("text"))
    files = ["north_customers.csv", "north_payments.csv", "reviews/nodes.csv", "reviews/links.csv"]
    files += [f"circuits/{table}.csv" for table in ("graphs", "nodes", "edges")]
    for file in files:
        lines = (ROOT / "examples" / "own_data" / file).read_text(encoding="utf-8").splitlines()
        assert lines[0] in head and lines[1] in head
