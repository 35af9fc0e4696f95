"""The script of FS-G's Fig. 6, on curves that were made up."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from isthmus.core.random import numpy_generator
from isthmus.tune.curves import Curves
from isthmus.tune.reading import load_study

FOLDER = Path(__file__).parents[2] / "papers" / "fs_g" / "fig6"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fig6", FOLDER / "heatmaps.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fig6"] = module
    spec.loader.exec_module(module)
    return module


def made_up(noise: float) -> Curves:
    """Return curves whose level is the truth, with a noise that becomes less with rounds and clients."""
    study = load_study(FOLDER / "gcn.yaml")
    fractions, seeds, rounds = (0.2, 0.4, 0.8, 1.0), (0, 1, 2), 56
    truth = np.linspace(0.5, 0.9, 72)
    drawn = numpy_generator(0).normal(size=(72, 4, 3, 1, rounds))
    scale = noise / (np.asarray(fractions)[None, :, None, None, None] * np.arange(1, rounds + 1))
    values = (truth[:, None, None, None, None] + drawn * scale).astype(np.float32)
    best = np.broadcast_to(np.arange(1, rounds + 1), (72, 4, 3, rounds))  # the last round is kept
    final = np.broadcast_to(truth[:, None, None], (72, 4, 3)).astype(np.float32)
    ones = np.ones((72, 4, 3), np.float32)
    facts = {"title": "made up"}
    return Curves(
        facts, study.space.listed, fractions, seeds, ("val/accuracy",), 5, values, best, final, ones, ones, ones
    )


def test_without_noise_the_best_is_found_at_every_fidelity_and_with_noise_at_higher_ones() -> None:
    found = script()
    study = load_study(FOLDER / "gcn.yaml")
    sure = found.cells(study, made_up(0.0))
    assert len(sure) == 16 and {rank for cell in sure for rank in cell.ranks} == {1.0}
    assert {cell.cost for cell in sure if cell.step == 8 and cell.fraction == 1.0} == {
        (72 + 36 + 18 + 9 + 4 + 2 + 1) * 8 * 5
    }
    noisy = found.cells(study, made_up(0.3), (1, 8))
    low = next(c for c in noisy if (c.step, c.fraction) == (1, 0.2))
    high = next(c for c in noisy if (c.step, c.fraction) == (8, 1.0))
    assert np.mean(low.ranks) > np.mean(high.ranks) and np.mean(low.regrets) > np.mean(high.regrets)
    assert any(line.startswith("Spearman of ranks with rounds: -") for line in found.trends(noisy))
    assert found.heat_map(noisy, "rank").headings == ("clients", "1 rounds", "8 rounds")


def test_what_is_equal_shares_a_rank() -> None:
    found = script()
    curves = made_up(0.0)
    flat = replace(curves, final=np.full_like(curves.final, 0.7))
    assert {rank for cell in found.cells(load_study(FOLDER / "gcn.yaml"), flat, (2,)) for rank in cell.ranks} == {36.5}


def test_it_prints_both_heat_maps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made_up(0.1).save(tmp_path / "curves.npz")
    words = ["x", str(FOLDER / "gcn.yaml"), str(tmp_path / "curves.npz"), "--csv", str(tmp_path / "f.csv")]
    monkeypatch.setattr(sys, "argv", words)
    script().main()
    told = capsys.readouterr().out
    assert "mean rank" in told and "mean regret in points" in told and "by chance: rank 36.5" in told
    assert len((tmp_path / "f.csv").read_text().splitlines()) == 1 + 16 * 3
