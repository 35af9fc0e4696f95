"""Breaks the code in known ways and sees whether tests notice: each mutation must turn some test red.

    python tools/mutations.py                 those of every MUTATIONS.md below tests/
    python tools/mutations.py fold local      those whose name has one of these words

A mutation is a file, a text in it that is there once, what stands in its place, and the tests that are run. The code is
copied to a folder of its own first, so nothing here is touched. Each run of tests is a fork of a process that has
imported the libraries, but nothing of ours. Exit code 1 if a mutation was not noticed.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).parents[1]
LISTS = sorted((ROOT / "tests").rglob("MUTATIONS.md"))
# What most tests import, and what takes longest.
LIBRARIES = ("torch", "pandas", "pyarrow.parquet", "scipy.sparse", "hypothesis", "typer", "rich.table")
COPIED = ("isthmus", "tests", "papers", "tools", "benchmarks", "docs", "examples", "pyproject.toml", "README.md")
ENTRY = re.compile(
    r"^### (?P<name>.+?)\n\n`(?P<file>.+?)`, seen by `(?P<tests>.+?)`\n\n```diff\n(?P<diff>.+?)```", re.M | re.S
)


@dataclass(frozen=True)
class Mutation:
    """One way to break the code."""

    name: str
    file: str
    tests: str
    before: str
    after: str

    def apply(self, root: Path) -> None:
        """Change the file below a root; the text must be there once."""
        path = root / self.file
        text = path.read_text()
        if text.count(self.before) != 1:
            raise SystemExit(f"{self.name}: the text is there {text.count(self.before)} times in {self.file}")
        path.write_text(text.replace(self.before, self.after))


def read() -> list[Mutation]:
    """Return the mutations of the list."""
    found = []
    for entry in (entry for file in LISTS for entry in ENTRY.finditer(file.read_text())):
        lines = entry["diff"].splitlines()
        before = "\n".join(line[1:] for line in lines if line.startswith("-"))
        after = "\n".join(line[1:] for line in lines if line.startswith("+"))
        found.append(Mutation(entry["name"], entry["file"], entry["tests"], before, after))
    return found


def is_noticed(mutation: Mutation) -> bool:
    """Whether a test fails with the mutation."""
    with tempfile.TemporaryDirectory() as place:
        root, told = Path(place, "code"), Path(place, "told")
        root.mkdir()
        for name in COPIED:
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, root / name)
        mutation.apply(root)
        child = os.fork()
        if not child:
            run_tests(root, ["-q", "-x", "-p", "no:cacheprovider", *mutation.tests.split()], told)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code not in (0, 1):
            raise SystemExit(f"{mutation.name}: pytest ended with {code}\n{told.read_text()[-2000:]}")
        return code == 1


def run_tests(root: Path, words: list[str], told: Path) -> NoReturn:
    """Run pytest on the code at a root and end this process; what it prints goes to a file."""
    sys.dont_write_bytecode = True
    os.chdir(root)
    os.environ["PYTHONPATH"] = str(root)
    sys.path[:] = [str(root), *(path for path in sys.path if path not in ("", str(ROOT), str(ROOT / "tools")))]
    with told.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    code = 3  # as pytest calls an error of its own
    try:
        code = int(pytest.main(words))
    finally:
        sys.stdout.flush()
        os._exit(code)


def main() -> None:
    """Try the mutations and print which were noticed."""
    words = sys.argv[1:]
    chosen = [m for m in read() if not words or any(word in m.name for word in words)]
    for library in LIBRARIES:
        import_module(library)
    missed = 0
    for mutation in chosen:
        noticed = is_noticed(mutation)
        missed += not noticed
        print(f"{'noticed' if noticed else 'MISSED '}  {mutation.name}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} noticed")
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
