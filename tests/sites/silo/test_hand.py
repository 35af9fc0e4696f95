"""What silos sign for each other: by whom, of what, and who counts no more."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from pathlib import Path

import pytest

from isthmus.sites.silo.hand import Hand
from tests.sites.silo.test_consent import identity


def hands(folder: Path, **changes: object) -> tuple[Hand, Hand]:
    return Hand(identity(folder, "a", **changes)), Hand(identity(folder, "b"))


@pytest.mark.parametrize("kind", ["ec", "rsa"])
def test_a_signature_is_of_one_silo_and_one_text(kind: str, tmp_path: Path) -> None:
    name = f"{kind}-signer"
    signer, judge = Hand(identity(tmp_path, name, kind=kind)), Hand(identity(tmp_path, "b"))
    signature = signer.sign(b"my keys")
    assert len(signature) < 10_000
    assert judge.problem(name, b"my keys", signature) == ""
    assert "not of this" in judge.problem(name, b"other keys", signature)
    assert "its certificate is for" in judge.problem("c", b"my keys", signature)


@pytest.mark.parametrize("changes", [{"root": "another root"}, {"days": (-3, -1)}, {"serves": True}])
def test_a_certificate_that_is_no_silos_of_this_federation_signs_nothing(
    changes: dict[str, object], tmp_path: Path
) -> None:
    signer, judge = hands(tmp_path, **changes)
    assert judge.problem("a", b"x", signer.sign(b"x"))


def test_what_a_consent_is_signed_with_is_no_signature_of_a_hand(tmp_path: Path) -> None:
    """Or a server could have a silo sign keys of its making as if they were a course."""
    signer, judge = hands(tmp_path)
    consent = signer.identity.sign("ab" * 16, "x")
    assert judge.problem("a", b"x", signer.sign(b"x")) == ""
    assert signer.identity.problem("a", consent.certificate, signer.identity.signature(b"x"), b"x") == ""
    raw = signer.identity.certificate.read_text() + b64encode(signer.identity.signature(b"x")).decode()
    assert "not of this" in judge.problem("a", b"x", raw)


def test_who_was_expelled_signs_nothing(tmp_path: Path) -> None:
    signer, judge = hands(tmp_path)
    told = replace(judge, expelled=lambda: {"a"})
    assert told.problem("a", b"x", signer.sign(b"x")) == "it was expelled"


@pytest.mark.parametrize("signature", ["", "x", "-----\n%%%", "é" * 10, "x" * 100_000, "-----END-----\nAAAA"])
def test_nonsense_is_no_signature(signature: str, tmp_path: Path) -> None:
    assert Hand(identity(tmp_path, "b")).problem("a", b"x", signature)
