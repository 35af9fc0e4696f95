"""Importing wide tables: seconds and memory of `isthmus data import`.

    python benchmarks/importing.py

Tables of 10,000 nodes with 6,775 columns: counts of words (1 % are not 0) and measurements (four digits), in CSV and in
Parquet, as a column each and as one column of vectors. Each import is a process of its own, whose start is in the
numbers, and in a line of its own. Seconds are told twice: by the clock, which is what people wait, and is less where
threads work side by side and more where other programs do; and of the processor, of all threads together.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


def values(kind: str, rows: int, columns: int) -> Any:
    rng = np.random.default_rng(0)
    if kind == "words":
        return (rng.random((rows, columns)) < 0.01).astype(np.int64)
    return np.round(rng.random((rows, columns)), 4)


def write_tables(folder: Path, kind: str, form: str, rows: int, columns: int) -> None:
    import pyarrow as pa
    from pyarrow import csv, parquet

    x = values(kind, rows, columns)
    table: dict[str, Any] = {"id": pa.array(range(rows)), "label": pa.array([row % 3 for row in range(rows)])}
    if form == "vectors":
        table["embedding"] = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), columns).cast(
            pa.list_(pa.float64())
        )
    else:
        table |= {f"w{number}": pa.array(np.ascontiguousarray(x[:, number])) for number in range(columns)}
    nodes = pa.table(table)
    if form == "csv":
        csv.write_csv(nodes, folder / "nodes.csv")
    else:
        parquet.write_table(nodes, folder / "nodes.parquet")
    csv.write_csv(pa.table({"source": range(rows - 1), "target": range(1, rows)}), folder / "edges.csv")
    os.sync()  # people's tables were written before, too


@dataclass(frozen=True)
class Cost:
    """What a command took: seconds by the clock and of the processor, memory, and lines that it printed."""

    seconds: float
    processor_seconds: float
    megabytes: float
    lines: int

    def row(self, *names: str) -> str:
        """Return a row of the table."""
        numbers = (f"{self.seconds:.1f}", f"{self.processor_seconds:.1f}", f"{self.megabytes:.0f}", str(self.lines))
        return f"| {' | '.join((*names, *numbers))} |"


def measured(command: list[str]) -> Cost:
    """Return what a command took."""
    with tempfile.TemporaryFile() as said:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=said)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
        said.seek(0)
        lines = len(said.read().splitlines())
    return Cost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--columns", type=int, default=6_775)
    parser.add_argument("--only", default="", help="such as words/csv")
    chosen = parser.parse_args()
    print("| values | table | seconds | processor seconds | MB | lines printed |")
    print("| --- | --- | --- | --- | --- | --- |")
    if not chosen.only:
        start = "import isthmus.cli, isthmus.data.imports.importing, pyarrow.csv, pyarrow.parquet, pyarrow.compute"
        print(measured([sys.executable, "-c", start]).row("none", "none"), flush=True)
    for kind in ("words", "measurements"):
        for form in ("csv", "parquet", "vectors"):
            if chosen.only not in f"{kind}/{form}":
                continue
            with tempfile.TemporaryDirectory() as place:
                folder = Path(place)
                # In a process of its own, so that what it holds is not told as the import's.
                command = [sys.executable, __file__, "--write", place, kind, form]
                subprocess.run([*command, str(chosen.rows), str(chosen.columns)], check=True)
                call = [sys.executable, "-m", "isthmus", "data", "import", place, "--out", str(folder / "out")]
                cost = measured(call)
            print(cost.row(kind, form), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        write_tables(Path(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]), int(sys.argv[6]))
    else:
        main()
