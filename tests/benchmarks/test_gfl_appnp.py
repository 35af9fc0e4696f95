"""The benchmark of GFL-APPNP runs at a tiny size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent.parent / "benchmarks" / "gfl_appnp.py"


@pytest.mark.slow
def test_it_prints_a_line_for_each_setting() -> None:
    words = [sys.executable, str(SCRIPT), "--nodes", "60", "--local-steps", "2", "--updates", "4"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    lines = [line.split(" | ") for line in done.stdout.splitlines()]
    assert len(lines) == 4
    full, none = lines[2], lines[3]
    assert (full[0], full[2], none[2], full[3]) == ("| 60", "jacobian", "none", "4")
    # Gradients of one class difference are as large as the model; without them, models alone go up.
    assert float(full[7]) > 1.5 * float(none[7]) > 0
