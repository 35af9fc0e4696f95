"""Names for nodes that silos have in common, such as customers of two banks: equal keys, and no ids on the wire.

Each silo makes its nodes' keys by itself, from their ids and a secret that the silos share and the server never gets:

    course secret = HMAC-SHA256(secret, course id)
    key of a node = the first 8 bytes of HMAC-SHA256(course secret, id), as a signed integer

The secret must be the same at all silos, or no two keys are ever equal; silos can compare its `fingerprint`.

What a server can learn from keys: which nodes of two silos are the same, so how many they have in common, how many
silos hold each, and whatever the algorithm says of it. What it cannot learn: the ids, nor which keys of two courses are
the same node. Two things undo this. Whoever has the secret can test guesses (a dictionary attack: make the keys of all
likely ids, and look them up), so a server that gets it from any one silo can; it must be random and stay with the
silos. And a dishonest server can give two courses one id, and so the same keys: a new secret unlinks what comes after
from what was before.
"""

from __future__ import annotations

import hmac
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from isthmus.core.errors import BadInput

KEY_BYTES = 8
MIN_SECRET_BYTES = 16
MAX_SECRET_BYTES = 4096
NEW_SECRET = '(umask 077; python -c "import secrets; print(secrets.token_hex(32))" > id-secret)'


def read_secret(path: Path) -> bytes:
    """Return the secret in a file, without white space around it; who may read the file is left to the silo.

    As with a kit's key, the mode of the file is not checked: secrets that a container is given are often readable for
    all inside of it.
    """
    try:
        with path.open("rb") as file:
            secret = file.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise BadInput(
            f"the secret {path} cannot be read ({error.strerror or error}); get it from the other silos, "
            f"or make one for all: {NEW_SECRET}"
        ) from None
    if len(secret) > MAX_SECRET_BYTES:
        raise BadInput(
            f"the secret {path} has more than {MAX_SECRET_BYTES} bytes, so it is some other file; "
            f"a secret is one line: {NEW_SECRET}"
        )
    secret = secret.strip()
    if len(secret) < MIN_SECRET_BYTES:
        found = f"has {len(secret)} bytes" if secret else "is empty"
        raise BadInput(
            f"the secret {path} {found}; at least {MIN_SECRET_BYTES} are needed, and random ones: {NEW_SECRET}"
        )
    return secret


def fingerprint(secret: bytes) -> str:
    """Return what silos can compare to see that they have the same secret; it helps nobody to find a random one."""
    return _mac(secret, "isthmus fingerprint").hex()[:8]


def course_secret(secret: bytes, course_id: str) -> bytes:
    """Return the secret of one course, so that the keys of two courses have nothing in common."""
    return _mac(secret, f"isthmus course {course_id}")


def node_keys(ids: Sequence[str], secret: bytes) -> Tensor:
    """Return the key of each id, (nodes,), int64; all differ.

    Ids are text, as `GraphFolder.ids`: 7 and '7' are the same. The two Unicode spellings of a letter with an accent
    count as one (NFC); nothing else is evened out, so 'Ann' and 'ann' differ, and so do '007' and '7'.

    Keys have 64 bits: among n different ids of all silos, two share a key by chance with a probability of about
    n * n / 2**65, three in a million for ten million. Within a silo that is an error; between two silos nobody sees it,
    and two nodes are taken for one.
    """
    first: dict[int, int] = {}
    for row, id in enumerate(ids):
        other = first.setdefault(_key(id, secret), row)
        if other != row:
            raise BadInput(
                f"the nodes {ids[other]!a} and {id!a} (rows {other + 1} and {row + 1}) have the same key: "
                f"{_why_equal(ids[other], id)}"
            )
    return torch.tensor(list(first), dtype=torch.int64)  # a dict keeps the order of the rows


def refuse_twins(ids: Sequence[str]) -> None:
    """Raise BadInput where two ids are one text, so that no keys could tell them apart."""
    first: dict[str, int] = {}
    for row, id in enumerate(ids):
        other = first.setdefault(unicodedata.normalize("NFC", id), row)
        if other != row:
            raise BadInput(
                f"the nodes {ids[other]!a} and {id!a} (rows {other + 1} and {row + 1}) have the same key: "
                f"{_why_equal(ids[other], id)}"
            )


def neighbor_keys(ids: Sequence[str], secret: bytes) -> Tensor:
    """Return the key of each id, (ids,), int64, as `node_keys` makes it; an id may be there several times."""
    return torch.tensor([_key(id, secret) for id in ids], dtype=torch.int64)


def _key(id: str, secret: bytes) -> int:
    return int.from_bytes(_mac(secret, unicodedata.normalize("NFC", id))[:KEY_BYTES], "big", signed=True)


def _why_equal(one: str, two: str) -> str:
    if one == two:
        return "the id is there twice; remove one"
    if unicodedata.normalize("NFC", one) == unicodedata.normalize("NFC", two):
        return "they are one text in two Unicode spellings; make them one node, or give one another id"
    return "a collision by chance; take another secret, at all silos"


def _mac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")
