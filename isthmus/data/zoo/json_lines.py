"""Large files of one JSON object to a line, plain or gzipped, read one line at a time."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isthmus.core.errors import BadInput


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file; a JSON array with one object to a line is read as well.

    A file that ends amid an object, or amid its compressed data, is named with the line.
    """
    number = 0  # told by the errors below
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for line in file:
                number += 1
                text = line.strip().strip(b",")
                if text in (b"", b"[", b"]"):
                    continue
                entry = json.loads(text)
                if not isinstance(entry, dict):
                    raise ValueError(f"it is a {type(entry).__name__}")
                yield entry
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise BadInput(
            f"the file {path} is damaged after line {number} ({error}): found {path.stat().st_size:,} bytes. Delete it "
            "and fetch it again"
        ) from error
    except ValueError as error:
        raise BadInput(
            f"{path}, line {number}: not a JSON object ({error}); the file should have one on each line. If it was cut "
            "short, delete it and fetch it again"
        ) from error
