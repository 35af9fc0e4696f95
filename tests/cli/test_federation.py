"""isthmus join: what is checked before anything is connected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from isthmus.sites import join as silo
from isthmus.sites.parties.kit import make_federation
from isthmus.sites.silo.identities import fingerprint

from .command import call


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the silo's process was asked to do, in place of doing it."""
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(silo, "join", lambda *args, **options: calls.append(options))
    return calls


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_federation(tmp_path_factory.mktemp("federation") / "f", "localhost:9", ["bank-a"])["bank-a"]


def graph(folder: Path, ids: list[str]) -> Path:
    folder.mkdir()
    pd.DataFrame({"id": ids, "x": [float(row) for row in range(len(ids))]}).to_csv(folder / "nodes.csv", index=False)
    pd.DataFrame({"source": ids[:1], "target": ids[1:2]}).to_csv(folder / "edges.csv", index=False)
    return folder


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (None, "cannot be read (No such file or directory)"),
        (b"", "is empty"),
        (b"too short", "has 9 bytes"),
        (b"x" * 5000, "more than 4096 bytes"),
    ],
)
def test_a_bad_secret_ends_it_before_anything_is_connected(
    content: bytes | None, part: str, kit: Path, asked: list[Any], tmp_path: Path
) -> None:
    path = tmp_path / "id-secret"
    if content is not None:
        path.write_bytes(content)
    data = graph(tmp_path / "g", ["a", "b"])
    code, text = call("join", str(kit), "--data", str(data), "--id-secret-file", str(path))
    assert code == 2 and part in text and str(path) in text and "secrets.token_hex(32)" in text
    assert not asked


def test_a_good_secret_is_handed_on_and_only_its_fingerprint_shown(kit: Path, asked: list[Any], tmp_path: Path) -> None:
    secret = b"0123456789abcdef"
    (tmp_path / "id-secret").write_bytes(secret + b"\n")
    data = graph(tmp_path / "g", ["a", "b"])
    code, text = call("join", str(kit), "--data", str(data), "--id-secret-file", str(tmp_path / "id-secret"))
    assert code == 0 and [options["id_secret"] for options in asked] == [secret]
    assert fingerprint(secret) in text and secret.decode() not in text


def test_without_a_secret_none_is_handed_on(kit: Path, asked: list[Any], tmp_path: Path) -> None:
    code, text = call("join", str(kit), "--data", str(graph(tmp_path / "g", ["a", "b"])))
    assert code == 0 and [options["id_secret"] for options in asked] == [None] and "fingerprint" not in text


def test_ids_that_get_the_same_key_are_named_before_anything_is_connected(
    kit: Path, asked: list[Any], tmp_path: Path
) -> None:
    (tmp_path / "id-secret").write_bytes(b"0123456789abcdef")
    data = graph(tmp_path / "g", ["Zo\u00eb", "Zoe\u0308"])
    code, text = call("join", str(kit), "--data", str(data), "--id-secret-file", str(tmp_path / "id-secret"))
    assert code == 2 and "two Unicode spellings" in text and not asked
    assert call("join", str(kit), "--data", str(data))[0] == 0  # without keys they are two nodes
