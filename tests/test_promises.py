"""What the documents promise names the tests that hold it: every name must be that of a test."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ("security.md", "reliability.md", "guards/checking.md", "guards/private-matching.md", "guards/secure-sums.md")
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
    quoted = re.findall(r"`([^`\n]+)`", (ROOT / "docs" / page).read_text())
    files = {file for words in quoted for file in re.findall(r"\b(?:tests|isthmus|benchmarks|docs)/[\w./]+", words)}
    assert files and not [file for file in sorted(files) if not (ROOT / file).exists()]


def test_the_numbers_of_the_page_on_security_are_those_of_the_code() -> None:
    pytest.importorskip("nvflare", reason="install it with: pip install 'isthmus[sites]'")
    from isthmus.algorithms.gfl_appnp.messages import MAX_HOSTED
    from isthmus.runtime.flare import gate
    from isthmus.runtime.seldom import SELDOM_SECONDS
    from isthmus.sites.courses.transfer import RUN_FILES
    from isthmus.sites.serve import MAX_COMINGS_SAID
    from isthmus.sites.silo.policy import Policy
    from isthmus.sites.silo.service import MAX_SAID
    from isthmus.testing.hostile import siege, sites

    text = " ".join((ROOT / "docs/security.md").read_text().split())
    policy, message, received, words = Policy(), siege.MESSAGE, sites.RECEIVED, {6: "six", 10: "ten"}
    seconds, pending = f"{gate.PENDING_SECONDS:.0f}", gate.MAX_PENDING
    assert SELDOM_SECONDS == 60 and siege.HONEST_TIMES == 2 and policy.max_rounds == policy.max_steps
    for promise in (
        f"are closed after {seconds} s, or at once when {pending} others wait",
        f"keeps {gate.RESERVED_DESCRIPTORS} for its files",
        f"a minute for each party about what was refused or not asked for, {MAX_COMINGS_SAID} about its coming",
        f"{policy.max_rounds:,} rounds and steps, {policy.max_parameters // 10**6} million parameters, "
        f"{policy.max_message_bytes >> 20} MiB a message, {policy.max_request_seconds:.0f} s an answer",
        f"it takes part in {policy.max_trials:,} courses of a study",
        f"memories of the {policy.keep_courses} latest courses, {policy.keep_days:.0f} days, the {policy.keep_models}",
        f"{MAX_SAID} lines a minute of each kind",
        f"{words[len(RUN_FILES)]} named files of a new folder",
        f"twice what an honest message of the kind takes, and {message.tensors_per_byte:.0f} bytes of tensors and "
        f"{message.python_per_byte:.0f} of objects for each byte",
        f"{words[int(received.tensors_per_byte)]} bytes of tensors and {received.python_per_byte:.0f} of objects",
        f"takes up to {MAX_HOSTED:,} nodes",
    ):
        assert promise in text, promise
