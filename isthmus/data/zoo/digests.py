"""Whether a raw file is whole: SHA-256 digests of the files that datasets are read from."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from pathlib import Path

from isthmus.core.errors import BadInput


@cache
def digests() -> dict[str, str]:
    """Return the digest of each known raw file by its path below the data root, as in `amazon/Photo/raw/x.npz`.

    The table is `files/SHA256SUMS`, in the format of `sha256sum`. A file that is not in it is not checked.
    """
    table = (files("isthmus.data.zoo") / "files" / "SHA256SUMS").read_text(encoding="ascii")
    lines = (line.split(maxsplit=1) for line in table.splitlines() if line)
    return {name: sha256 for sha256, name in lines}


def sha256_of(path: Path) -> str:
    """Return the digest of a file, as `sha256sum` prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(path: Path, sha256: str) -> None:
    """Raise `BadInput` unless the file has this digest."""
    if sha256_of(path) != sha256:
        raise damaged(path, sha256)


def verified(root: Path, name: str) -> Path:
    """Return the file `name` below `root`, compared with its digest when that is known."""
    path = root / name
    sha256 = digests().get(name)
    if sha256 is not None:
        verify(path, sha256)
    return path


def damaged(path: Path, sha256: str | None, reason: str = "") -> BadInput:
    """Return the error for a file that is not what it should be: what was found, what was expected, what to do."""
    expected = "" if sha256 is None else f", expected {sha256}"
    return BadInput(
        f"the file {path} is damaged or another edition: found {path.stat().st_size:,} bytes with SHA-256 "
        f"{sha256_of(path)}{expected}{'; ' + reason if reason else ''}. Delete it and fetch it again"
    )
