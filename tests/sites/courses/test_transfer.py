"""A result arrives whole, whatever the line does to its parts, or the command says what is missing."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

import pytest

from isthmus.core.codec import decode, pack, unpack
from isthmus.core.errors import BadInput, CourseFailed
from isthmus.sites.courses import transfer
from isthmus.sites.courses.desk import Desk
from isthmus.sites.courses.ledger import DONE, Entry
from isthmus.sites.courses.messages import FileFacts, FilePart, Manifest, desk_answer, open_answer
from isthmus.sites.courses.site_course import for_sites
from isthmus.sites.courses.transfer import RUN_FILES, check_manifest, manifest_of, part_of
from tests.sites.in_process import site_course
from tests.sites.lines import SITES, LossyLine, desk_at

PART = 1000


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "FILE_PART_BYTES", PART)


def done(desk: Desk, model_bytes: int = 12_345) -> Entry:
    """A course that is done, with a model."""
    entry = desk.ledger.add(for_sites(site_course(), SITES), SITES, "operator", "5" * 16)
    draw = random.Random(1)
    (entry.path / "model.safetensors").write_bytes(draw.randbytes(model_bytes))
    (entry.path / "checkpoint.isth").write_bytes(draw.randbytes(3 * PART))  # ends with a whole part
    (entry.path / "journal.jsonl").write_bytes(b"")
    (entry.path / "secret.txt").write_text("not for operators")
    entry.become(DONE)
    return entry


def files_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def expected(entry: Entry) -> dict[str, bytes]:
    return {name: content for name, content in files_of(entry.path).items() if name in RUN_FILES}


@pytest.mark.parametrize(
    "troubles",
    [
        {},
        {"dropped": 0.3},
        {"repeated": 0.5},
        {"held": 0.4},
        {"flipped": 0.3},
        {"dropped": 0.15, "repeated": 0.2, "held": 0.2, "flipped": 0.15},
    ],
    ids=lambda troubles: ",".join(troubles) or "none",
)
@pytest.mark.parametrize("seed", range(3))
def test_a_folder_arrives_byte_for_byte_over_a_line_that_drops_repeats_mixes_and_damages(
    troubles: dict[str, float], seed: int, tmp_path: Path
) -> None:
    desk = desk_at(tmp_path)
    entry = done(desk)
    line = LossyLine(desk, seed=seed, **troubles)
    line.operator.fetch(entry.status.course_id, tmp_path / "mine")
    assert files_of(tmp_path / "mine") == expected(entry)
    assert entry.status.course_id in desk.taken
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "runs"]  # nothing temporary is left


def damaged(name: str, offset: int, kind: str, answer: bytes) -> bytes:
    """Change one byte of one part, every time, as a broken disk would; its digest says what was sent."""
    if kind != "part":
        return answer
    part: FilePart = decode(open_answer(answer)[1], FilePart)
    if (part.name, part.offset) != (name, offset):
        return answer
    content = bytearray(unpack(part.content))
    content[0] ^= 1
    changed = FilePart(part.course_id, part.name, part.offset, part.digest, pack(bytes(content)))
    return desk_answer("", changed)


def test_a_part_that_is_damaged_every_time_is_named_and_no_folder_is_made(tmp_path: Path) -> None:
    desk = desk_at(tmp_path)
    entry = done(desk)
    line = LossyLine(desk)
    line.change = lambda kind, answer: damaged("model.safetensors", 2 * PART, kind, answer)
    with pytest.raises(CourseFailed, match=r"model\.safetensors is missing from byte 2000 of 12345 on") as caught:
        line.operator.fetch(entry.status.course_id, tmp_path / "mine")
    assert caught.value.exit_code == 1
    assert not (tmp_path / "mine").exists() and [path.name for path in tmp_path.iterdir()] == ["runs"]
    line.change = lambda kind, answer: answer
    line.operator.fetch(entry.status.course_id, tmp_path / "mine")  # and it can be fetched again
    assert files_of(tmp_path / "mine") == expected(entry)


def test_parts_that_are_right_of_a_file_that_is_not_the_one_announced_are_refused(tmp_path: Path) -> None:
    desk = desk_at(tmp_path)
    entry = done(desk)
    manifest = manifest_of(entry.path)
    (entry.path / "checkpoint.isth").write_bytes(bytes(3 * PART))
    with pytest.raises(CourseFailed, match=r"checkpoint\.isth is not what the server announced: its digest differs"):
        transfer.take_folder(
            manifest, "c", lambda name, offset: part_of(entry.path, "c", name, offset), tmp_path / "mine"
        )
    assert not (tmp_path / "mine").exists()


def test_a_part_of_another_course_file_or_place_is_not_taken(tmp_path: Path) -> None:
    entry = done(desk_at(tmp_path))
    for wrong in (("d", "model.safetensors", 0), ("c", "checkpoint.isth", 0), ("c", "model.safetensors", PART)):
        tried = []

        def ask(name: str, offset: int, wrong: tuple[str, str, int] = wrong, tried: list[int] = tried) -> FilePart:
            tried.append(offset)
            return part_of(entry.path, *wrong)

        facts = next(facts for facts in manifest_of(entry.path).files if facts.name == "model.safetensors")
        assert transfer._part(facts, "c", 0, ask) is None and len(tried) == transfer.PART_TRIES


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (FileFacts("../../.bashrc", 5, "0" * 64), "no part of a run: '../../.bashrc'"),
        (FileFacts("secret.txt", 5, "0" * 64), "no part of a run"),
        (FileFacts("course.yaml", 5, "0" * 64), "no part of a run"),  # twice
        (FileFacts("model.safetensors", -1, "0" * 64), "impossible facts"),
        (FileFacts("model.safetensors", 10**15, "0" * 64), "impossible facts"),
        (FileFacts("model.safetensors", 5, "no digest"), "impossible facts"),
    ],
)
def test_a_list_of_files_that_no_honest_server_sends_is_refused(file: FileFacts, reason: str) -> None:
    course = FileFacts("course.yaml", 1, "0" * 64)
    with pytest.raises(CourseFailed, match=reason):
        check_manifest(Manifest((course, file)))
    with pytest.raises(CourseFailed, match=r"without course\.yaml"):
        check_manifest(Manifest(()))


def test_the_server_gives_no_file_that_is_not_of_a_run(tmp_path: Path) -> None:
    entry = done(desk_at(tmp_path))
    assert {facts.name for facts in manifest_of(entry.path).files} == set(expected(entry))
    for name in ("secret.txt", "../runs", "status.json", "/etc/passwd"):
        with pytest.raises(BadInput, match="is no file of this course"):
            part_of(entry.path, "c", name, 0)
    with pytest.raises(BadInput, match="has no byte"):
        part_of(entry.path, "c", "model.safetensors", 10**9)
    digest = part_of(entry.path, "c", "model.safetensors", 12_000).digest
    assert digest == hashlib.sha256((entry.path / "model.safetensors").read_bytes()[12_000:]).hexdigest()


def test_a_folder_that_exists_is_not_touched(tmp_path: Path) -> None:
    desk = desk_at(tmp_path)
    entry = done(desk)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years")
    with pytest.raises(BadInput, match="exists already"):
        LossyLine(desk).operator.fetch(entry.status.course_id, tmp_path / "mine")
    assert files_of(tmp_path / "mine") == {"thesis.tex": b"years"}


def test_a_line_that_brings_nothing_ends_with_a_sentence_after_a_while(tmp_path: Path) -> None:
    from isthmus.sites.courses.messages import Courses, ListCourses

    line = LossyLine(desk_at(tmp_path), dropped=1.0)
    with pytest.raises(CourseFailed, match="the server has not answered for"):
        line.line.ask("courses", ListCourses(), Courses, patience_seconds=0.05)
    assert len(line.asked) > 3  # it asked again and again
    noise = LossyLine(desk_at(tmp_path))
    noise.change = lambda kind, answer: b"\x00" * 50
    with pytest.raises(CourseFailed, match="cannot be read"):
        noise.operator.courses()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_at_the_operator_s_is_named_and_no_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = desk_at(tmp_path / "server")
    entry, mine = done(desk), tmp_path / "mine" / "run"
    opened = Path.open

    def full(path: Path, *words: Any, **named: Any) -> Any:
        return opened(Path("/dev/full") if words == ("wb",) else path, *words, **named)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        LossyLine(desk).operator.fetch(entry.status.course_id, mine)
    assert caught.value.filename == str(mine)
    assert list(mine.parent.iterdir()) == []
