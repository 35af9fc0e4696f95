import subprocess
import sys
from pathlib import Path

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


# One command after the other in a process that can import what is in the folder; the first that fails ends it.
COMMANDS = """
import sys
sys.path.insert(0, {folder!r})
from isthmus.cli import main
for words in {commands!r}:
    sys.argv = ["isthmus", *words.split()]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
        print("done:", words)
"""


def isthmus(*commands: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    code = COMMANDS.format(folder=str(cwd), commands=commands)
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=120)


def test_a_part_of_an_installed_package_is_known_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "their_package.py").write_text(PART)
    info = tmp_path / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[isthmus.splitters]\nby_label = their_package:ByLabel\n")
    run = "run -q --out r rounds=1 splitter.name=by_label splitter.descending=true"
    done = isthmus("list splitters", run, "run -q --resume r rounds=2", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.count("done: ") == 3, done.stderr
    assert "by_label" in done.stdout.split("done: ")[0]


def test_a_part_without_an_entry_point_is_named_by_its_import_path(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PART)
    good, bad = "run -q --out r rounds=1 splitter.name=mine:ByLabel", "run splitter.name=mine:ByLable"
    done = isthmus(good, bad, cwd=tmp_path)
    assert f"done: {good}" in done.stdout, done.stderr
    assert "name: mine:ByLabel" in (tmp_path / "r" / "course.yaml").read_text()
    assert done.returncode == 2 and "cannot be imported" in done.stderr
