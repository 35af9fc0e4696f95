"""A run folder on its way from the server to an operator: pulled in parts, checked, and there whole or not at all."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import torch

from isthmus.core.codec import pack, unpack
from isthmus.core.errors import BadInput, CourseFailed
from isthmus.core.outside import naming, new_folder
from isthmus.runs.folder import ID_FILE, RunFolder
from isthmus.sites.courses.messages import FileFacts, FilePart, Manifest

# What of a run folder travels: names that the server may write into an operator's folder.
RUN_FILES = ("course.yaml", ID_FILE, "journal.jsonl", "checkpoint.isth", "model.safetensors", "report.md")
FILE_PART_BYTES = 15 << 16  # with its head it fits into one part of the link
MAX_FILE_BYTES = 2**34
PART_TRIES = 8  # of a part that comes damaged
FILE_TRIES = 3  # of a file whose parts are right and whose digest is not
_DIGEST = re.compile(r"[0-9a-f]{64}")

AskForPart = Callable[[str, int], FilePart]  # file name, offset

# ---- the server's side


def manifest_of(path: Path) -> Manifest:
    """Return names, sizes and digests of what travels of a run folder."""
    return Manifest(tuple(_facts(path / name) for name in RUN_FILES if (path / name).is_file()))


def _facts(path: Path) -> FileFacts:
    with path.open("rb") as file:
        return FileFacts(path.name, path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def part_of(path: Path, course_id: str, name: str, offset: int) -> FilePart:
    """Return a part of a file of a run folder."""
    if name not in RUN_FILES or not (path / name).is_file():
        raise BadInput(f"{name[:60]!r} is no file of this course")
    if not 0 <= offset <= (path / name).stat().st_size:
        raise BadInput(f"{name} has no byte {offset}")
    with (path / name).open("rb") as file:
        file.seek(offset)
        content = file.read(FILE_PART_BYTES)
    return FilePart(course_id, name, offset, hashlib.sha256(content).hexdigest(), pack(content))


# ---- the operator's side


def take_folder(manifest: Manifest, course_id: str, ask: AskForPart, run_dir: Path) -> None:
    """Bring a run folder to `run_dir`; says what is missing if it does not come whole, and leaves nothing then."""
    RunFolder.check_new(run_dir)
    check_manifest(manifest)
    with new_folder(run_dir) as temporary:
        with naming(run_dir):
            problems = [problem for facts in manifest.files if (problem := _take(facts, course_id, ask, temporary))]
        if problems:
            raise CourseFailed(f"the run folder did not come whole, so {run_dir} was not made: {'; '.join(problems)}")
        (temporary / ID_FILE).touch()  # marks it as one from elsewhere, whatever the server left out


def check_manifest(manifest: Manifest) -> None:
    """Refuse a list of files that no honest server would send."""
    names = [facts.name for facts in manifest.files]
    for facts in manifest.files:
        if facts.name not in RUN_FILES or names.count(facts.name) > 1:
            raise CourseFailed(f"the server offers a file that is no part of a run: {facts.name[:60]!r}")
        if not 0 <= facts.size <= MAX_FILE_BYTES or not _DIGEST.fullmatch(facts.digest):
            raise CourseFailed(f"the server offers {facts.name} with impossible facts: {facts.size} bytes")
    if "course.yaml" not in names:
        raise CourseFailed("the server offers a run folder without course.yaml")


def _take(facts: FileFacts, course_id: str, ask: AskForPart, folder: Path) -> str:
    """Write a file; return why it is not whole, or nothing."""
    for _ in range(FILE_TRIES):
        found = hashlib.sha256()
        with (folder / facts.name).open("wb") as file:
            for offset in range(0, facts.size, FILE_PART_BYTES):
                content = _part(facts, course_id, offset, ask)
                if content is None:
                    return f"{facts.name} is missing from byte {offset} of {facts.size} on: it comes damaged every time"
                file.write(content)
                found.update(content)
        if found.hexdigest() == facts.digest:
            return ""
    return f"{facts.name} is not what the server announced: its digest differs"


def _part(facts: FileFacts, course_id: str, offset: int, ask: AskForPart) -> bytes | None:
    """Return a part of a file, asked for until it is right."""
    for _ in range(PART_TRIES):
        part = ask(facts.name, offset)
        content = unpack(part.content) if part.content.dtype == torch.uint8 else b""
        if (
            (part.course_id, part.name, part.offset) == (course_id, facts.name, offset)
            and len(content) == min(FILE_PART_BYTES, facts.size - offset)
            and hashlib.sha256(content).hexdigest() == part.digest
        ):
            return content
    return None
