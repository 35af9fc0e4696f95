"""The licences of the packages that isthmus needs, and of those that its extras bring: docs/licences.md.

python tools/licences.py            write docs/licences.md from the metadata of what is installed
python tools/licences.py --check    exit with 1 where the page is out of date
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import PackageMetadata, metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "licences.md"

# GPL and AGPL in any spelling, not LGPL.
COPYLEFT = re.compile(r"(?<![A-Za-z])A?GPL|(?<!Lesser )General Public License", re.IGNORECASE)
# What whole licence texts say that are given in place of a name.
TEXTS = {
    "Redistribution and use in source and binary forms": "BSD",
    "Permission is hereby granted, free of charge": "MIT",
    "Apache License": "Apache-2.0",
}

HEAD = """\
# Licences

Isthmus is under the Apache License 2.0. Written by `python tools/licences.py` from the metadata of what `make install`
installs; licences are as the packages state them. No package that isthmus needs is under the GPL or AGPL, and a test
holds that. The extra `communities` brings igraph and leidenalg, which are: whoever installs it and passes the whole on
does so under their terms.
"""


@dataclass(frozen=True)
class Package:
    """A package and what it states."""

    name: str
    version: str
    licence: str

    @property
    def copyleft(self) -> bool:
        """Whether the licence is GPL or AGPL."""
        return COPYLEFT.search(self.licence) is not None


def stated_licence(stated: PackageMetadata) -> str:
    """Return the name of a package's licence."""
    if expression := stated.get("License-Expression"):
        return str(expression)
    marks = [mark.split(" :: ")[-1] for mark in stated.get_all("Classifier") or [] if mark.startswith("License :: ")]
    named = " or ".join(sorted(set(marks) - {"OSI Approved"}))
    text = str(stated.get("License") or "").strip()
    if len(text) > 80:
        text = next((name for words, name in TEXTS.items() if words in text), text.splitlines()[0])
    return named or text or "not stated"


def closure(requirements: Iterable[str], look_up: Callable[[str], PackageMetadata] = metadata) -> dict[str, Package]:
    """Return the packages that requirements name, and what those need in turn, by canonical name."""
    found: dict[str, Package] = {}
    done: set[tuple[str, str]] = set()
    waiting = [(text, "") for text in requirements]
    while waiting:
        text, asked_by = waiting.pop()
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": asked_by}):
            continue
        name = canonicalize_name(wanted.name)
        stated = look_up(name)
        found[name] = Package(str(stated["Name"]), str(stated["Version"]).split("+")[0], stated_licence(stated))
        for extra in {"", *wanted.extras} - {extra for known, extra in done if known == name}:
            done.add((name, extra))
            waiting += [(more, extra) for more in stated.get_all("Requires-Dist") or []]
    return found


def needed() -> dict[str, Package]:
    """Return what isthmus cannot do without."""
    return closure(_project()["dependencies"])


def page() -> str:
    """Return the page."""
    mandatory = needed()
    brought: dict[str, tuple[Package, list[str]]] = {}
    for extra, requirements in _project()["optional-dependencies"].items():
        for name, package in closure(requirements).items():
            if name not in mandatory:
                brought.setdefault(name, (package, []))[1].append(extra)
    rows = [[package.name, package.version, package.licence] for package in mandatory.values()]
    more = [[one.name, one.version, one.licence, ", ".join(sorted(extras))] for one, extras in brought.values()]
    heads = ["package", "version", "licence"]
    return HEAD + _table("Needed", heads, rows) + _table("Brought by extras", [*heads, "extra"], more)


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def _table(title: str, heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *sorted(rows, key=lambda row: row[0].lower())]
    return f"\n## {title}\n\n" + "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def main() -> None:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 where the page is out of date")
    text = page()
    if not parser.parse_args().check:
        PAGE.write_text(text)
    elif PAGE.read_text() != text:
        sys.exit(f"{PAGE.name} is out of date; run: python tools/licences.py")


if __name__ == "__main__":
    main()
