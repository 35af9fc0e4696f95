"""What the documents promise names the tests that hold it: every name must be that of a test."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ("security.md", "reliability.md")
# `test_name`, or the beginning of one: `test_name...`
NAMED = re.compile(r"`(test_\w+)(\.\.\.)?`")


def _tests() -> set[str]:
    files = (ROOT / "tests").rglob("test_*.py")
    return {name for file in files for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)}


@pytest.mark.parametrize("page", DOCS)
def test_every_test_that_a_promise_names_exists(page: str) -> None:
    known = _tests()
    named = NAMED.findall((ROOT / "docs" / page).read_text())
    assert named, f"{page} names no test"
    missing = [
        name for name, cut in named if not (any(test.startswith(name) for test in known) if cut else name in known)
    ]
    assert not missing


@pytest.mark.parametrize("page", DOCS)
def test_every_file_that_a_promise_names_exists(page: str) -> None:
    files = re.findall(r"`((?:tests|isthmus|benchmarks|docs)/[\w./]+)`", (ROOT / "docs" / page).read_text())
    assert not [file for file in files if not (ROOT / file).exists()]
