"""A split of one's own stands in simulation too, or the command says that it does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import isthmus as ist
from isthmus.data.dividing import NoSplit, PublicSplit, RatioSplit
from isthmus.data.folders.own_kinds import kind_for
from isthmus.data.splitters import RandomSplitter
from isthmus.runs.simulation import load_scenario
from isthmus.testing import toy_graph
from tests.learn.tasks.graph_toys import toy_set
from tests.learn.tasks.link_toys import toy_facts


def own(data: Any, path: Path, **changes: Any) -> ist.Course:
    """A course on a folder of one's own."""
    kind = kind_for(type(data))
    kind.write(data, path)
    return ist.Course(
        dataset=replace(kind.like(data), path=str(path)), splitter=RandomSplitter(), num_clients=2, **changes
    )


def labelled(data: Any) -> Any:
    """The same data with only labelled items in masks, as in a folder."""
    return data.with_masks({split: mask & (data.labels >= 0) for split, mask in data.masks.items()})


HELD = {"nodes": toy_graph(), "links": toy_facts(), "graphs": labelled(toy_set("class"))}


@pytest.mark.parametrize("what", HELD)
@pytest.mark.parametrize("masks", [RatioSplit(), RatioSplit(0.1, 0.1, 0.8), PublicSplit()])
def test_the_split_of_a_folder_stands_in_simulation(what: str, masks: Any, tmp_path: Path) -> None:
    found = load_scenario(own(HELD[what], tmp_path / "mine", masks=masks), tmp_path)
    for split in ("train", "val", "test"):
        assert torch.equal(found.whole.mask(split), HELD[what].mask(split))
        kept = torch.cat([part.item_ids[part.mask(split)] for part in found.parts.values()])
        assert set(kept.tolist()) == set(HELD[what].mask(split).nonzero().flatten().tolist())
    said = " ".join(found.notes)
    if isinstance(masks, PublicSplit):
        assert not said
    else:
        assert "stands" in said and "masks 'ratio' is not used" in said and "dataset.own_split=false" in said


def test_masks_divide_a_folder_without_a_split_and_one_whose_split_is_not_wanted(tmp_path: Path) -> None:
    graph = toy_graph()
    bare = own(replace(graph, masks={}), tmp_path / "bare", masks=RatioSplit(0.5, 0.25, 0.25))
    found = load_scenario(bare, tmp_path)
    assert int(found.whole.mask("train").sum()) == 24 and not found.notes
    anew = own(graph, tmp_path / "mine", masks=RatioSplit(0.5, 0.25, 0.25))
    anew = replace(anew, dataset=replace(anew.dataset, own_split=False))
    again = load_scenario(anew, tmp_path)
    assert torch.equal(again.whole.mask("train"), found.whole.mask("train")) and not again.notes


def test_a_column_of_splits_with_nothing_in_it_is_no_split(tmp_path: Path) -> None:
    empty = {split: torch.zeros(48, dtype=torch.bool) for split in ("train", "val", "test")}
    found = load_scenario(own(replace(toy_graph(), masks=empty), tmp_path / "mine"), tmp_path)
    assert int(found.whole.mask("train").sum()) > 0


def test_what_stands_is_told_with_the_result_and_in_the_journal(tmp_path: Path) -> None:
    result = ist.run(own(toy_graph(), tmp_path / "mine", rounds=1, masks=NoSplit()), run_dir=tmp_path / "run")
    (note,) = [text for text in result.notes if "column split" in text]
    assert "24 train, 12 val, 12 test" in note and "masks 'none'" in note
    assert note in (tmp_path / "run" / "journal.jsonl").read_text()
