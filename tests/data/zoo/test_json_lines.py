from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from isthmus.core.errors import BadInput
from isthmus.data.zoo.raw import json_lines


def test_plain_and_gzipped_lines(tmp_path: Path) -> None:
    content = b'{"a": 1}\n\n{"a": "\xc3\xa9"}\n'
    (tmp_path / "x.jsonl").write_bytes(content)
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(content))
    for name in ("x.jsonl", "x.jsonl.gz"):
        assert list(json_lines(tmp_path / name)) == [{"a": 1}, {"a": "é"}]


def test_an_array_with_an_object_to_a_line(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('[\n{"a": 1}\n,{"a": 2},\n{"a": 3}\n]\n')
    assert [entry["a"] for entry in json_lines(tmp_path / "x.json")] == [1, 2, 3]


@pytest.mark.parametrize("line", [b'{"a": 1', b"[1, 2]", b"{'a': 1}", b"\xff"])
def test_a_line_that_is_no_object_is_named(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "x.json").write_bytes(b'{"a": 1}\n' + line)
    with pytest.raises(BadInput, match=r"x\.json, line 2: not a JSON object"):
        list(json_lines(tmp_path / "x.json"))


def test_a_cut_or_false_gzip_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n' * 1000)[:-12])
    with pytest.raises(BadInput, match=r"x\.json\.gz is damaged after line \d+ .*fetch it again"):
        list(json_lines(path))
    path.write_bytes(b'{"a": 1}\n')
    with pytest.raises(BadInput, match=r"x\.json\.gz is damaged after line 0"):
        list(json_lines(path))
