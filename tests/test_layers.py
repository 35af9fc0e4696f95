"""Which room may import which: the arrows of docs/architecture.md, read from the sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import isthmus

PACKAGE = Path(isthmus.__file__).parent

# Room -> rooms it may import beside itself. "top" is the public face. "*" is every room but cli and testing, which
# nobody imports.
ARROWS: dict[str, set[str]] = {
    "core": set(),
    "data": {"core"},
    "models": {"core"},
    "learn": {"core", "models", "data"},
    "algorithms": {"core", "learn", "models", "data"},
    "privacy": {"core"},
    "runtime": {"core"},
    "sinks": {"core"},
    "report": {"core"},  # it reads what runs wrote, as plain values
    "monitors": {"core", "data", "learn", "models", "algorithms"},  # they look at all models and graphs at once
    "config": {"core", "data", "learn", "models", "algorithms", "monitors", "privacy", "sinks"},
    "runs": {"core", "algorithms", "config", "data", "learn", "models", "monitors", "report", "runtime", "sinks"},
    "sites": {"core", "config", "data", "learn", "models", "runs", "runtime"},
    "attacks": {"core", "config", "data", "learn", "models", "runs", "report", "algorithms"},
    "suites": {"core", "config", "data", "report", "runs"},  # many courses, so above those that run one
    "tune": {"core", "config", "data", "report", "runs", "sites", "suites"},  # searches over courses
    "cli": {"*"},
    "testing": {"*"},
    "top": {"*"},
}
CLOSED = {"cli", "testing"}
# `python -m isthmus` is the command line by another door; own folders are clients by the rules that silos have.
EXCEPTIONS = {("__main__.py", "cli"), ("runs/own_silos.py", "sites")}


@cache
def parsed(source: str) -> ast.Module:
    """Return the tree of a source, which several tests look at."""
    return ast.parse(source)


def room_of(module: str) -> str:
    """Return the room of a dotted name in isthmus; "top" for the top-level modules and the package itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and ((PACKAGE / parts[1]).is_dir() or parts[1] in ARROWS) else "top"


def imports_of(source: str, module: str) -> Iterator[tuple[str, int]]:
    """Yield every module that a source imports, anywhere in it, with the line; relative imports are resolved."""
    package = module.split(".")[:-1]
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield f"{stem}.{alias.name}", node.lineno


def forbidden(source: str, path: str) -> list[str]:
    """Return the arrows of a module that are not in the table, in words; `path` is relative to the package."""
    module = ".".join(["isthmus", *Path(path).with_suffix("").parts])
    room = path.split("/")[0] if "/" in path else "top"
    if room not in ARROWS:
        return [f"{path}: the room {room!r} is not in the table of arrows"]
    found = []
    for name, line in imports_of(source, module):
        if name.split(".")[0] != "isthmus" or name in ("isthmus.__version__", "isthmus"):
            continue
        target = room_of(name)
        allowed = target in ARROWS[room] or ("*" in ARROWS[room] and target not in CLOSED)
        if target != room and not allowed and (path, target) not in EXCEPTIONS:
            found.append(f"{path}:{line}: {room} imports {name}")
    return found


def run_at_import(tree: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of a module that run when it is imported: none in functions or under TYPE_CHECKING."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            yield from run_at_import(ast.Module(node.orelse, []))
            continue
        if isinstance(node, ast.stmt):
            yield node
        yield from run_at_import(node)


def imported_at_once(source: str, library: str) -> list[int]:
    """Return the lines at which a source imports a library when it is imported itself."""
    lines = []
    for node in run_at_import(parsed(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        lines += [node.lineno for name in names if name.split(".")[0] == library]
    return lines


SOURCES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}


def test_there_are_sources_to_read() -> None:
    assert {"core/record.py", "learn/optimizers.py", "runs/life.py", "testing/conformance.py"} <= set(SOURCES)


def test_the_table_has_the_rooms_that_there_are() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert set(ARROWS) - {"top"} == rooms
    named = set().union(*ARROWS.values()) - {"*"}
    assert named <= rooms and {path for path, _ in EXCEPTIONS} <= set(SOURCES)


def test_modules_import_only_what_their_rooms_may() -> None:
    assert [
        found for path, file in SOURCES.items() for found in forbidden(file.read_text(encoding="utf-8"), path)
    ] == []


def test_no_module_imports_torch_geometric_at_once() -> None:
    lines = {
        path: imported_at_once(file.read_text(encoding="utf-8"), "torch_geometric") for path, file in SOURCES.items()
    }
    assert {path: found for path, found in lines.items() if found} == {}


@pytest.mark.parametrize(
    ("path", "source", "words"),
    [
        ("core/record.py", "from isthmus.learn.fit import fit", "core/record.py:1: core imports isthmus.learn.fit"),
        ("core/record.py", "def f():\n    import isthmus.data.graph", "core/record.py:2: core imports isthmus.data"),
        ("core/record.py", "from ..data import graph", "core imports isthmus.data.graph"),
        ("core/record.py", "from .. import runs", "core imports isthmus.runs"),
        ("core/record.py", "from isthmus import data", "core imports isthmus.data"),
        ("data/splitters/random.py", "from ...models import GCN", "data imports isthmus.models.GCN"),
        ("models/gnn/gcn.py", "import isthmus.data.graph", "models imports isthmus.data.graph"),
        ("learn/fit.py", "from isthmus.algorithms import FedAvg", "learn imports isthmus.algorithms.FedAvg"),
        ("algorithms/fedavg.py", "from isthmus.config.course import Course", "algorithms imports isthmus.config"),
        ("algorithms/fedavg.py", "from isthmus.runs.simulation import Scenario", "algorithms imports isthmus.runs"),
        ("runtime/loop.py", "from isthmus.learn import fit", "runtime imports isthmus.learn.fit"),
        ("report/page.py", "from isthmus.runs.life import Result", "report imports isthmus.runs.life.Result"),
        ("config/course.py", "from isthmus.runtime.loop import LoopRuntime", "config imports isthmus.runtime"),
        ("runs/life.py", "from isthmus.cli import main", "runs imports isthmus.cli.main"),
        ("runs/life.py", "from isthmus.testing import toy_graph", "runs imports isthmus.testing.toy_graph"),
        ("cli/run.py", "from isthmus.testing import toy_graph", "cli imports isthmus.testing.toy_graph"),
        ("gardening/plants.py", "import torch", "the room 'gardening' is not in the table"),
    ],
)
def test_forbidden_arrow_is_caught(path: str, source: str, words: str) -> None:
    (found,) = forbidden(source, path)
    assert words in found


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("core/record.py", "from isthmus.core.errors import BadMessage\nfrom .errors import BadInput\nimport torch"),
        ("learn/fit.py", "from isthmus.data.graph import Graph\nfrom isthmus.models import GCN"),
        ("report/page.py", "from isthmus import __version__"),
        ("runs/life.py", "from isthmus import __version__\nimport isthmus.runs.life\nimport isthmus.learn.fit"),
        ("cli/run.py", "import isthmus as ist\nfrom isthmus.runs.life import run\nfrom isthmus.learn import fit"),
        ("testing/toys.py", "from isthmus.runs.simulation import Scenario\nfrom isthmus.config.course import Course"),
        ("__main__.py", "from isthmus.cli import main"),
    ],
)
def test_allowed_arrow_passes(path: str, source: str) -> None:
    assert forbidden(source, path) == []


def test_import_at_once_is_told_from_import_on_use() -> None:
    source = """
import torch_geometric.nn
try:
    from torch_geometric import data
except ImportError:
    pass
if TYPE_CHECKING:
    import torch_geometric
class A:
    import torch_geometric
def f():
    import torch_geometric
"""
    assert imported_at_once(source, "torch_geometric") == [2, 4, 10]
