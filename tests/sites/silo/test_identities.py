"""Keys for nodes that silos have in common, and the secret they are made with."""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

from isthmus.core.errors import BadInput
from isthmus.data.folders.graph_folder import read_graph_folder
from isthmus.sites.silo import identities
from isthmus.sites.silo.identities import course_secret, fingerprint, node_keys, read_secret

SECRET = bytes(range(32))


def by_hand(id: str, secret: bytes) -> int:
    """HMAC from its definition: two nested hashes of the padded secret."""
    block = secret.ljust(64, b"\0")
    inner = hashlib.sha256(bytes(b ^ 0x36 for b in block) + id.encode()).digest()
    outer = hashlib.sha256(bytes(b ^ 0x5C for b in block) + inner).digest()
    (key,) = struct.unpack(">q", outer[:8])
    return int(key)


def test_a_key_is_the_first_eight_bytes_of_the_hmac_of_the_id() -> None:
    ids = ["7", "customer-12", "Zoë"]
    found = node_keys(ids, SECRET)
    assert found.dtype == torch.int64 and found.shape == (3,)
    assert found.tolist() == [by_hand(id, SECRET) for id in ids]
    # RFC 4231, test case 2, starts with 5bdcc146bf60754e
    assert node_keys(["what do ya want for nothing?"], b"Jefe").tolist() == [0x5BDCC146BF60754E]


def test_keys_use_all_64_bits_with_the_sign() -> None:
    found = node_keys([str(number) for number in range(1000)], SECRET)
    assert 400 < int((found < 0).sum()) < 600 and len(found.unique()) == 1000
    assert int(found.abs().max()) > 2**62


def test_no_nodes_have_no_keys() -> None:
    assert node_keys([], SECRET).shape == (0,) and node_keys([], SECRET).dtype == torch.int64


def test_another_secret_or_another_course_makes_other_keys() -> None:
    ids = [str(number) for number in range(50)]
    secrets = [SECRET, SECRET[::-1], course_secret(SECRET, "01234567"), course_secret(SECRET, "89abcdef")]
    assert len({key for secret in secrets for key in node_keys(ids, secret).tolist()}) == 200
    assert course_secret(SECRET, "01234567") == hmac.digest(SECRET, b"isthmus course 01234567", "sha256")


def test_a_fingerprint_tells_secrets_apart_and_is_no_part_of_any_key() -> None:
    assert len(fingerprint(SECRET)) == 8 and fingerprint(SECRET) != fingerprint(SECRET[::-1])
    assert fingerprint(SECRET) not in SECRET.hex() and fingerprint(SECRET) not in course_secret(SECRET, "").hex()


def test_numbers_and_texts_in_tables_have_the_same_keys(tmp_path: Path) -> None:
    found = []
    for name, ids in {"numbers": [7, 12], "texts": [" 7", "12 "], "floats": [7.0, 12.0]}.items():
        folder = tmp_path / name
        folder.mkdir()
        pd.DataFrame({"id": ids, "x": [0.0, 1.0]}).to_parquet(folder / "nodes.parquet")
        pd.DataFrame({"source": ids[:1], "target": ids[1:]}).to_parquet(folder / "edges.parquet")
        found.append(node_keys(read_graph_folder(folder).ids, SECRET).tolist())
    assert found[0] == found[1] == found[2] == [by_hand("7", SECRET), by_hand("12", SECRET)]


def test_two_unicode_spellings_of_one_id_have_one_key_and_nothing_else_is_evened_out() -> None:
    composed, decomposed = "Zo\u00eb", "Zoe\u0308"
    assert composed != decomposed
    assert torch.equal(node_keys([composed], SECRET), node_keys([decomposed], SECRET))
    assert len(node_keys(["Ann", "ann", "7", "007", "\u2167", "VIII", "客户"], SECRET).unique()) == 7


@pytest.mark.parametrize(
    ("ids", "parts"),
    [
        (["a", "b", "a"], ["the nodes 'a' and 'a' (rows 1 and 3)", "the id is there twice"]),
        (["x", "\u00eb", "e\u0308"], ["the nodes '\\xeb' and 'e\\u0308' (rows 2 and 3)", "two Unicode spellings"]),
    ],
)
def test_ids_with_one_key_are_named(ids: list[str], parts: list[str]) -> None:
    with pytest.raises(BadInput) as error:
        node_keys(ids, SECRET)
    assert all(part in str(error.value) for part in parts)


def test_a_collision_by_chance_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identities, "KEY_BYTES", 1)
    ids = [f"customer-{number}" for number in range(300)]
    keys: dict[int, str] = {}
    one, two = next(
        (keys[key], id) for id in ids if keys.setdefault(key := by_hand(id, SECRET) >> 56, id) != id
    )  # what the first of the eight bytes says
    with pytest.raises(BadInput, match=f"the nodes '{one}' and '{two}' .*: a collision by chance; take another secret"):
        node_keys(ids, SECRET)


@pytest.mark.parametrize("content", [b"0123456789abcdef", b"  0123456789abcdef\r\n", b"\n0123456789abcdef\t\n"])
def test_white_space_around_a_secret_is_no_part_of_it(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "id-secret"
    path.write_bytes(content)
    assert read_secret(path) == b"0123456789abcdef"


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "is empty; at least 16 are needed"),
        (b" \n\n", "is empty; at least 16 are needed"),
        (b"password\n", "has 8 bytes; at least 16 are needed"),
        (b"id,label\n" * 1000, "has more than 4096 bytes, so it is some other file"),
    ],
)
def test_a_bad_secret_is_named_with_its_file_and_a_remedy(content: bytes, part: str, tmp_path: Path) -> None:
    path = tmp_path / "id-secret"
    path.write_bytes(content)
    with pytest.raises(BadInput) as error:
        read_secret(path)
    text = str(error.value)
    assert part in text and str(path) in text and "secrets.token_hex(32)" in text
    assert "password" not in text  # a bad secret is still not for the screen


def test_a_secret_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nothing cannot be read \(No such file or directory\); get it from the other"):
        read_secret(tmp_path / "nothing")
    with pytest.raises(BadInput, match=r"cannot be read \(Is a directory\)"):
        read_secret(tmp_path)


def test_the_remedy_makes_a_secret_that_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to(sys.executable)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["sh", "-c", identities.NEW_SECRET], cwd=tmp_path, env={**os.environ, "PATH": path}, check=True)
    assert len(read_secret(tmp_path / "id-secret")) == 64
    assert (tmp_path / "id-secret").stat().st_mode & 0o777 == 0o600
