import sys
from pathlib import Path

import pytest

from isthmus.config.load import load_course
from isthmus.core.errors import BadInput
from tests.processes import isthmus

PART = '''
from dataclasses import dataclass
import torch
from isthmus.data.splitters import Splitter

@dataclass(frozen=True)
class ByLabel(Splitter):
    """Gives every client neighbouring classes."""

    descending: bool = False

    def assign(self, graph, num_clients, rng):
        order = torch.argsort(graph.y, stable=True, descending=self.descending)
        return [part.sort().values for part in torch.tensor_split(order, num_clients)]
'''


def test_a_part_of_an_installed_package_is_known_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "their_package.py").write_text(PART)
    info = tmp_path / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[isthmus.splitters]\nby_label = their_package:ByLabel\n")
    run = "run -q --out r rounds=1 splitter.name=by_label splitter.descending=true"
    listed, first, more = (
        isthmus(*words.split(), cwd=tmp_path) for words in ("list splitters", run, "run -q --resume r rounds=2")
    )
    assert listed.returncode == first.returncode == more.returncode == 0, first.stderr + more.stderr
    assert "by_label" in listed.stdout


def test_a_part_without_an_entry_point_is_named_by_its_import_path(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PART)
    good, bad = "run -q --out r rounds=1 splitter.name=mine:ByLabel", "run splitter.name=mine:ByLable"
    done = isthmus(*good.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "name: mine:ByLabel" in (tmp_path / "r" / "course.yaml").read_text()
    done = isthmus(*bad.split(), cwd=tmp_path)
    assert done.returncode == 2 and "cannot be imported" in done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "from isthmus.learn.client import GraphClient",
        "from isthmus.learn.graph_client import fit_together",
        "import isthmus.federation.server",
    ],
)
def test_a_part_that_was_written_for_other_rooms_is_told_what_to_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    (tmp_path / "of_yesterday.py").write_text(f"{line}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "of_yesterday", raising=False)
    with pytest.raises(
        BadInput, match=r"cannot be imported: .*isthmus.*; .*from isthmus import GraphClient"
    ) as refused:
        load_course(None, ["algorithm.name=of_yesterday:Mine"])
    assert "dir(isthmus)" in str(refused.value) and "docs/extending.md" in str(refused.value)


def test_a_part_that_lacks_a_package_of_its_own_is_told_nothing_of_rooms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lacking.py").write_text("import isthmus_gardening\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(BadInput, match=r"No module named 'isthmus_gardening'$"):
        load_course(None, ["algorithm.name=lacking:Mine"])
