"""Wide tables: what an import does for each column and holds of a table is counted, not timed.

`benchmarks/importing.py` has the seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from pyarrow import parquet

COLUMNS = 6_775
ROWS = {"csv": 4_000, "parquet": 1_500, "vectors": 1_500}
# Calls of functions for each column, those of libraries included; there are about 110.
MOST_CALLS = 150
# How much an import may hold beyond what a small one does: so many matrices of all features, and so many bytes.
MOST_MATRICES = {"csv": 1.25, "parquet": 1.25, "vectors": 1.25}
MORE_BYTES = {"csv": 120 << 20, "parquet": 40 << 20, "vectors": 32 << 20}

# Imports a small folder and a large one; prints by how many bytes the peak of memory rose for the large one.
IMPORTS = """
import json, re, sys
from pathlib import Path
from isthmus.cli import app

def peak():
    return 1024 * int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text()).group(1))

small, large = sys.argv[1:]
app(["data", "import", small, "--out", small + "/out"], standalone_mode=False)
before = peak()
print("large:")
app(["data", "import", large, "--out", large + "/out"], standalone_mode=False)
print(json.dumps({"growth": peak() - before, "torch": "torch" in sys.modules}))
"""


def wide_tables(folder: Path, form: str, rows: int, columns: int) -> Path:
    """Write tables of nodes with digits as features, and of no edges."""
    folder.mkdir()
    x = np.add.outer(np.arange(rows), np.arange(columns)) % 10
    (folder / "edges.csv").write_text("source,target\n")
    ids = {"id": pa.array(range(rows)), "label": pa.array([row % 3 for row in range(rows)])}
    if form == "csv":
        names = ",".join(["id", "label", *(f"w{number}" for number in range(columns))])
        lines = [f"{row},{row % 3},".encode() + digits for row, digits in enumerate(text_of(x))]
        (folder / "nodes.csv").write_bytes(b"".join([names.encode() + b"\n", *lines]))
    elif form == "parquet":
        table = ids | {f"w{number}": pa.array(np.ascontiguousarray(x[:, number])) for number in range(columns)}
        parquet.write_table(pa.table(table), folder / "nodes.parquet")
    else:
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel().astype(np.float64)), columns)
        table = ids | {"embedding": vectors.cast(pa.list_(pa.float64()))}
        parquet.write_table(pa.table(table), folder / "nodes.parquet")
    return folder


def text_of(digits: npt.NDArray[np.int64]) -> list[bytes]:
    text = np.full((digits.shape[0], 2 * digits.shape[1]), ord(","), dtype=np.uint8)
    text[:, ::2] = ord("0") + digits
    text[:, -1] = ord("\n")
    return [line.tobytes() for line in text]


# Imports folders one after the other; prints how many functions each import called. In a process of its own: nothing
# else is profiled there.
COUNTS = """
import cProfile, json, pstats, sys
from isthmus.cli import app

counts = []
for folder in sys.argv[1:]:
    profile = cProfile.Profile()
    profile.runcall(app, ["data", "import", folder, "--out", folder + "/out"], standalone_mode=False)
    counts.append(pstats.Stats(profile).total_calls)
print(json.dumps(counts))
"""


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """Return for each form how many calls the imports of a first, a narrow and a wide table took."""
    sizes = {"first": (3, 1_100), "some": (30, 1_100), "more": (30, 2_100)}  # with the first, modules are imported
    place = tmp_path_factory.mktemp("counted")
    folders = [wide_tables(place / f"{form}-{name}", form, *size) for form in ROWS for name, size in sizes.items()]
    command = [sys.executable, "-c", COUNTS, *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return {form: found[3 * number : 3 * number + 3] for number, form in enumerate(ROWS)}


@pytest.mark.parametrize("form", ROWS)
def test_a_column_costs_few_calls(form: str, counts: dict[str, list[int]]) -> None:
    _, some, more = counts[form]
    assert (more - some) / 1_000 <= MOST_CALLS


@pytest.fixture(scope="module", params=ROWS)
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[str], Any]:
    """Return the form of a wide table, the lines that its import printed, and what was found of its process."""
    place = tmp_path_factory.mktemp(request.param)
    folders = [wide_tables(place / str(rows), request.param, rows, COLUMNS) for rows in (20, ROWS[request.param])]
    command = [sys.executable, "-c", IMPORTS, *map(str, folders)]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # each holds some of a text
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=one_thread)
    *lines, found = done.stdout.partition("large:\n")[2].splitlines()
    return request.param, lines, json.loads(found)


def test_an_import_holds_the_numbers_once_and_what_does_not_grow_with_them(
    imported: tuple[str, list[str], Any],
) -> None:
    form, _, found = imported
    assert found["growth"] <= MOST_MATRICES[form] * 4 * ROWS[form] * COLUMNS + MORE_BYTES[form]


def test_thousands_of_columns_are_told_in_a_few_lines(imported: tuple[str, list[str], Any]) -> None:
    form, lines, _ = imported
    assert lines[0] == f"{ROWS[form]} nodes, 0 edges, {COLUMNS} feature columns"
    assert len(lines) == 5 and max(map(len, lines)) < 400


def test_tables_are_imported_without_torch_which_takes_longer_to_load_than_they_do(
    imported: tuple[str, list[str], Any],
) -> None:
    assert not imported[2]["torch"]
