from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from isthmus.core.errors import BadInput
from isthmus.data.zoo.raw import damaged, digests, sha256_of, verified


def test_a_whole_file_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "edges.csv"
    path.write_bytes(b"from,to\n0,1\n")
    monkeypatch.setitem(digests(), "edges.csv", hashlib.sha256(b"from,to\n0,1\n").hexdigest())
    assert verified(tmp_path, "edges.csv") == path


def test_a_cut_file_is_named_with_what_was_found_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "edges.csv"
    path.write_bytes(b"from,to\n")
    monkeypatch.setitem(digests(), "edges.csv", "0" * 64)
    with pytest.raises(BadInput) as caught:
        verified(tmp_path, "edges.csv")
    message = str(caught.value)
    assert str(path) in message and "8 bytes" in message and "expected " + "0" * 64 in message
    assert hashlib.sha256(b"from,to\n").hexdigest() in message
    assert message.endswith("Delete it and fetch it again")


def test_the_reason_of_damage_is_told(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    assert "; line 3 is empty. Delete" in str(damaged(path, None, "line 3 is empty"))
    assert "expected" not in str(damaged(path, None))


def test_files_of_the_table_are_checked_and_others_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acm").mkdir()
    path = tmp_path / "acm" / "acm.npz"
    path.write_bytes(b"no archive")
    with pytest.raises(BadInput, match=r"acm\.npz is damaged"):
        verified(tmp_path, "acm/acm.npz")
    monkeypatch.delitem(digests(), "acm/acm.npz")
    assert verified(tmp_path, "acm/acm.npz") == path
    monkeypatch.setitem(digests(), "acm/acm.npz", sha256_of(path))
    assert verified(tmp_path, "acm/acm.npz") == path


def test_the_table_has_digests_by_path_below_the_root() -> None:
    assert len(digests()) > 100
    for name, sha256 in digests().items():
        assert len(sha256) == 64 and set(sha256) <= set("0123456789abcdef")
        assert not name.startswith((".", "/")) and "\\" not in name
