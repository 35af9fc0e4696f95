"""The commands of docs/running-a-federation.md, one after the other."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="install it with: pip install 'isthmus[sites]'")

from isthmus.sites.parties.certificates import Revocations
from isthmus.sites.parties.kit import open_kit
from tests.cli.command import call

PAGE = Path(__file__).parents[2] / "docs" / "running-a-federation.md"


def test_the_commands_of_the_page_do_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = "".join(re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)).splitlines()
    assert len(lines) == 11
    for line in lines:
        program, *words = shlex.split(line)
        code, text = call(*words)
        assert program == "isthmus" and code == 0, text
    kit = open_kit(tmp_path / "federation" / "server", "server")
    assert kit.sites == ("bank-a", "bank-c", "bank-d", "bank-b") and kit.operators == ("alice", "bob", "carol")
    revoked = Revocations(kit).current
    assert revoked.expelled == frozenset() and len(revoked.serials) >= 5


def test_the_limits_of_the_page_are_those_of_the_code() -> None:
    from isthmus.runtime.flare import gate, provision
    from isthmus.runtime.seldom import SELDOM_SECONDS
    from isthmus.sites.parties.admission import TWICE_SECONDS
    from isthmus.sites.parties.certificates import EXPIRY_NOTICE_DAYS
    from isthmus.sites.serve import MAX_COMINGS_SAID

    text = PAGE.read_text()
    assert f"valid for {provision.PARTY_DAYS} days" in text and provision.ROOT_DAYS == 3650
    assert f"From {EXPIRY_NOTICE_DAYS} days before" in text and f"tries for {TWICE_SECONDS:.0f} seconds" in text
    assert f"| {gate.MAX_PENDING}, the oldest make room; {gate.PENDING_SECONDS:.0f} s each |" in text
    assert f"| {gate.MAX_CONNECTIONS} and one for each party" in text
    assert f"| {gate.RESERVED_DESCRIPTORS}; the process raises" in text and SELDOM_SECONDS == 60
    assert f"comes and goes | {MAX_COMINGS_SAID} a minute" in text
