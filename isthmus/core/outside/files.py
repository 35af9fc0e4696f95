"""Files of ours on disk: written whole or not at all, sealed with a checksum; an error always names its file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from isthmus.core.errors import IsthmusError

# Before the content stands this mark, then the SHA-256 of the content.
SEAL = b"ISTHSEAL"
SEAL_BYTES = len(SEAL) + hashlib.sha256().digest_size


class Damaged(IsthmusError):
    """A file holds something else than what was written to it."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give errors of the operating system the file that they are about; a full disk says nothing of it by itself."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def replace_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with naming(path):
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def sealed(content: bytes) -> bytes:
    """Return content with its checksum before it."""
    return SEAL + hashlib.sha256(content).digest() + content


def is_sealed(data: bytes) -> bool:
    """Whether data has a checksum; what was written before there were checksums has none."""
    return data.startswith(SEAL)


def unsealed(data: bytes) -> bytes:
    """Return sealed content; raise Damaged if it is not what was sealed."""
    if not is_sealed(data):
        raise Damaged(f"its first bytes are {data[: len(SEAL)]!r}, expected {SEAL!r}")
    if len(data) < SEAL_BYTES:
        raise Damaged(f"it ends after {len(data)} bytes, within its checksum")
    content = data[SEAL_BYTES:]
    if hashlib.sha256(content).digest() != data[len(SEAL) : SEAL_BYTES]:
        raise Damaged("its checksum is not that of its content: bytes were changed or are missing")
    return content
