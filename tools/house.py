"""The house in numbers: how large its rooms are, how dense its functions, how far a course walks through it.

    python tools/house.py            what is read off the sources
    python tools/house.py --walk     and what `isthmus run` and a course between sites pass

Lines are those of files as they are. The cyclomatic number of a function is one more than its branches: `if`, loops,
`except`, `and`/`or` (each further operand), conditional expressions, comprehensions with their conditions, and cases; a
function within a function counts for itself. A stem is told where two files of the spine (all rooms but those whose
files are named by what they hold: algorithms, models/gnn, the zoo, splitters, imports, the command line) have it.
Walks are counted by Python's profiler: functions of the package that were called, and the files they are in, when the
same work is done a second time in a process, so that nothing of it is an import.
"""

from __future__ import annotations

import argparse
import ast
import statistics
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "isthmus"
LONG_FUNCTION, COMPLEX = 40, 10
MAX_FILES = 16
# Rooms whose files are named by what they hold, such as a paper's method or a verb; two rooms may know the same one.
BY_NAME = ("algorithms", "models/gnn", "data/zoo", "data/splitters", "data/imports", "cli", "testing")
BRANCHES = (ast.If, ast.IfExp, ast.For, ast.While, ast.ExceptHandler, ast.comprehension, ast.match_case)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """A file of the package, read and parsed."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """Where it lies in the package."""
        return self.path.relative_to(PACKAGE).as_posix()

    @property
    def module(self) -> str:
        """What it is imported as."""
        parts = self.path.relative_to(ROOT).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def num_lines(self) -> int:
        """How long it is."""
        return self.text.count("\n")


def sources() -> list[Source]:
    """Return every file of the package."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        found.append(Source(path, text, ast.parse(text)))
    return found


def functions(tree: ast.AST) -> Iterator[Function]:
    """Yield every function and method, those within others too."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield what is in a function and not in a function within it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, Function | ast.Lambda):
            yield child
            yield from own_nodes(child)


def cyclomatic(function: Function) -> int:
    """Return the cyclomatic number of a function."""
    number = 1
    for node in own_nodes(function):
        number += isinstance(node, BRANCHES)
        if isinstance(node, ast.BoolOp):
            number += len(node.values) - 1
        if isinstance(node, ast.comprehension):
            number += len(node.ifs)
    return number


def num_lines(function: Function) -> int:
    """Return how many lines a function has, its decorators left out."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def undocumented(source: Source) -> Iterator[str]:
    """Yield the public classes, functions and methods of a file that have no docstring."""

    def look(node: ast.AST, prefix: str) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function | ast.ClassDef) and not child.name.startswith("_"):
                if ast.get_docstring(child) is None and not _is_overload(child):
                    yield f"{source.name}: {prefix}{child.name}"
                if isinstance(child, ast.ClassDef):
                    yield from look(child, f"{prefix}{child.name}.")

    return look(source.tree, "")


def _is_overload(node: Function | ast.ClassDef) -> bool:
    return any(isinstance(found, ast.Name) and found.id == "overload" for found in node.decorator_list)


def imports(source: Source, modules: set[str]) -> set[str]:
    """Return the modules of the package that a file imports when it is imported itself."""
    found: set[str] = set()
    for node in _run_at_import(source.tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return (found & modules) - {source.module}


def _run_at_import(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        yield node
        yield from _run_at_import(node)


def import_depth(files: list[Source]) -> list[str]:
    """Return the longest chain of imports in the package."""
    modules = {source.module for source in files}
    arrows = {source.module: sorted(imports(source, modules)) for source in files}
    chains: dict[str, list[str]] = {}

    def chain(module: str, above: frozenset[str]) -> list[str]:
        if module not in chains:
            below = [chain(each, above | {module}) for each in arrows[module] if each not in above]
            chains[module] = [module, *max(below, key=len, default=[])]
        return chains[module]

    return max((chain(module, frozenset()) for module in sorted(modules)), key=len)


def repeated_stems(files: list[Source]) -> dict[str, list[str]]:
    """Return the stems that several files of the spine have."""
    stems = defaultdict(list)
    for source in files:
        if source.path.stem not in ("__init__", "__main__") and not source.name.startswith(BY_NAME):
            stems[source.path.stem].append(source.name)
    return {stem: names for stem, names in stems.items() if len(names) > 1}


def read_off() -> list[tuple[str, str]]:
    """Return what the sources say, a line each."""
    files = sources()
    every = [(source, function) for source in files for function in functions(source.tree)]
    long = [(source, f) for source, f in every if num_lines(f) > LONG_FUNCTION]
    dense = [(source, f) for source, f in every if cyclomatic(f) > COMPLEX]
    folders = Counter(source.path.parent.relative_to(PACKAGE).as_posix() for source in files)
    crowded = {folder: number for folder, number in folders.items() if number > MAX_FILES}
    largest = max(files, key=lambda source: source.num_lines)
    bare = [name for source in files for name in undocumented(source)]
    chain = import_depth(files)
    lengths = [source.num_lines for source in files]
    return [
        ("files", f"{len(files)}"),
        ("lines", f"{sum(lengths)}"),
        ("median file", f"{statistics.median(lengths):.0f} lines"),
        ("largest file", f"{largest.name}, {largest.num_lines} lines"),
        ("files over 400 lines", f"{sum(length > 400 for length in lengths)}"),
        ("folders", f"{len(folders)}; files in each: median {statistics.median(folders.values()):.0f}"),
        (f"folders with more than {MAX_FILES} files", told(f"{name} {n}" for name, n in sorted(crowded.items()))),
        ("functions", f"{len(every)}; median {statistics.median(num_lines(f) for _, f in every):.0f} lines"),
        (f"functions over {LONG_FUNCTION} lines", f"{len(long)}"),
        (f"cyclomatic above {COMPLEX}", f"{len(dense)}, {100 * len(dense) / len(every):.1f} %"),
        ("public names without docstring", f"{len(bare)}"),
        ("repeated stems in the spine", told(sorted(repeated_stems(files)))),
        ("longest chain of imports", f"{len(chain)} files"),
    ]


def told(names: object) -> str:
    """Return names in a line, with their number; "none" where there are none."""
    listed = list(names)  # type: ignore[call-overload]
    return f"{len(listed)}: {', '.join(listed)}" if listed else "none"


# ---- walks

WALK = """
import sys, threading
from pathlib import Path
package = {package!r} + "/"
passed = set()
def hear(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(package) and code.co_name != "<module>":
        passed.add((code.co_filename, code.co_qualname.partition(".<locals>")[0]))
def work(out):
{work}
work({folder!r} + "/first")
threading.setprofile(hear)
sys.setprofile(hear)
work({folder!r} + "/second")
sys.setprofile(None)
print("walked", len(passed), len({{file for file, _ in passed}}))
"""
RUN = """
    from isthmus.cli import main
    sys.argv = ['isthmus', 'run', 'rounds=3', '--out', out]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""
SITES = """
    import isthmus as ist
    from isthmus.sites.up import Rehearsal
    with Rehearsal(ist.Course(num_clients=3, rounds=3), say=lambda text: None) as rehearsal:
        rehearsal.run(Path(out))
"""


def walk(work: str) -> str:
    """Return how many functions and files of the package a piece of work passes, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        script = WALK.format(package=str(PACKAGE), work=work.strip("\n"), folder=folder)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("walked ")]
    if not lines:
        raise SystemExit(f"the walk ended with {done.returncode}: {done.stderr[-2000:]}")
    return f"{lines[0][1]} functions in {lines[0][2]} files"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--walk", action="store_true", help="also count what courses pass (needs isthmus[sites])")
    rows = read_off()
    if parser.parse_args().walk:
        rows += [
            ("passed by `isthmus run`", walk(RUN)),
            ("passed by the server of a course between sites", walk(SITES)),
        ]
    print("| | |\n| --- | --- |")
    for name, value in rows:
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
