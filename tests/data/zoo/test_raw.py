from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from isthmus.core.errors import BadInput, MissingData
from isthmus.data.zoo.raw import matrix, read_arrays, require, rows_of


def test_absent_files_are_named_with_folder_and_source(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one").touch()
    with pytest.raises(MissingData) as caught:
        require("toy", tmp_path, ["a/one", "a/two"], "https://example.org/toy")
    message = str(caught.value)
    assert f"toy: looked in {tmp_path} for a/one, a/two; not there: a/two." in message
    assert "https://example.org/toy" in message and "ISTHMUS_DATA" in message
    assert require("toy", tmp_path, ["a/one"], "") == [tmp_path / "a" / "one"]


def test_what_is_no_archive_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, a=np.arange(1000))
    assert read_arrays(path, ["a"])["a"].shape == (1000,)
    with pytest.raises(BadInput, match=r"x\.npz is damaged .*no npz archive with a, b"):
        read_arrays(path, ["a", "b"])
    np.savez(path, a=np.array([{}], dtype=object))
    with pytest.raises(BadInput, match=r"x\.npz is damaged"):
        read_arrays(path, ["a"])
    for content in (path.read_bytes()[:100], b"", b"\x80 no archive"):
        path.write_bytes(content)
        with pytest.raises(BadInput, match=r"x\.npz is damaged"):
            read_arrays(path, ["a"])


def test_a_matrix_adds_up_or_marks_its_coordinates() -> None:
    rows, columns, values = np.array([2, 0, 2, 2]), np.array([1, 3, 0, 1]), np.array([1.0, 2.0, 3.0, 4.0])
    dense = torch.tensor([[0.0, 0, 0, 2], [0, 0, 0, 0], [3, 5, 0, 0]])
    assert torch.equal(matrix(rows, columns, values, (3, 4)).to_dense(), dense)
    assert torch.equal(matrix(rows, columns, None, (3, 4)).to_dense(), (dense != 0).float())
    order = np.array([1, 2, 3])
    assert torch.equal(matrix(rows[order], columns[order], values[order], (3, 4)).to_dense()[0], dense[0])
    assert matrix(np.empty(0, int), np.empty(0, int), None, (3, 4)).values().numel() == 0


def test_a_matrix_refuses_what_lies_outside() -> None:
    with pytest.raises(ValueError, match="columns go from 0 to 4, but there are 4"):
        matrix(np.array([0, 0]), np.array([0, 4]), None, (3, 4))
    with pytest.raises(ValueError, match="rows go up to 3, but there are 3"):
        matrix(np.array([3]), np.array([0]), None, (3, 4))


def test_rows_of_a_csr_matrix() -> None:
    assert rows_of(np.array([0, 2, 2, 3])).tolist() == [0, 0, 2]
