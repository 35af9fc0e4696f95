"""Breaks the code in known ways and sees whether tests notice: each mutation must turn some test red.

    python tools/mutations.py                 those of every MUTATIONS.md below tests/
    python tools/mutations.py fold local      those whose name has one of these words

A mutation is a file, a text in it that is there once, what stands in its place, and the tests that are run. The code is
copied to a folder of its own first, so nothing here is touched. Exit code 1 if a mutation was not noticed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LISTS = sorted((ROOT / "tests").rglob("MUTATIONS.md"))
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
        root = Path(place)
        for name in COPIED:
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, root / name)
        mutation.apply(root)
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *mutation.tests.split()]
        done = subprocess.run(command, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, capture_output=True)
        if done.returncode not in (0, 1):
            raise SystemExit(f"{mutation.name}: pytest ended with {done.returncode}\n{done.stdout.decode()[-2000:]}")
        return done.returncode == 1


def main() -> None:
    """Try the mutations and print which were noticed."""
    words = sys.argv[1:]
    chosen = [m for m in read() if not words or any(word in m.name for word in words)]
    missed = 0
    for mutation in chosen:
        noticed = is_noticed(mutation)
        missed += not noticed
        print(f"{'noticed' if noticed else 'MISSED '}  {mutation.name}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} noticed")
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
