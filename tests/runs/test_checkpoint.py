from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus.core.codec import decode, encode
from isthmus.core.errors import BadInput
from isthmus.core.federation import Federation
from isthmus.core.outside import sealed, unsealed
from isthmus.core.protocol import Algorithm
from isthmus.core.record import Params, Record, State
from isthmus.core.training import Standing
from isthmus.runs.folder import Checkpoint, CountedCheckpoint, ScoredCheckpoint, load_checkpoint, save_checkpoint


@dataclass(frozen=True)
class Moments(Record):
    params: Params
    steps: int


@dataclass(frozen=True)
class Momentum(Algorithm[Moments]):
    def setup(self, fed: Federation) -> Moments:
        return Moments({}, 0)

    def round(self, state: Moments, fed: Federation) -> Moments:
        return state


@dataclass(frozen=True)
class Different(Record):
    params: Params


@dataclass(frozen=True)
class Other(Algorithm[Different]):
    def setup(self, fed: Federation) -> Different:
        return Different({})

    def round(self, state: Different, fed: Federation) -> Different:
        return state


def standing(round: int = 7, score: float | None = 0.1 + 0.2) -> Standing:
    state, best = Moments({"w": torch.rand(3)}, round), Moments({"w": torch.zeros(3)}, 4)
    return Standing(round, state, best, best_round=4, best_score=score)


MEMORIES = {"a": encode({"calls": 1, "w": torch.ones(2)}), "b": encode({})}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint.isth"


@pytest.mark.parametrize("score", [0.1 + 0.2, None, 1])
def test_a_checkpoint_comes_back_to_the_bit(path: Path, score: float | None) -> None:
    before = standing(score=score)
    save_checkpoint(path, "digest", before, MEMORIES)
    after, memories = load_checkpoint(path, "digest", Momentum())
    assert encode(after.state) == encode(before.state)
    assert encode(after.best_state) == encode(before.best_state)
    assert (after.round, after.best_round, after.best_score) == (7, 4, score)
    assert memories == MEMORIES
    assert decode(memories["a"], State)["calls"] == 1


def test_the_next_checkpoint_takes_the_place_of_the_last(path: Path) -> None:
    save_checkpoint(path, "digest", standing(7), MEMORIES)
    save_checkpoint(path, "digest", standing(8), MEMORIES)
    assert load_checkpoint(path, "digest", Momentum())[0].round == 8
    assert [p.name for p in path.parent.iterdir()] == ["checkpoint.isth"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_crash_while_saving_leaves_the_checkpoint_before(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    save_checkpoint(path, "digest", standing(7), MEMORIES)

    def broken(*_: Any) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(*((os, "fsync") if step == "fsync" else (Path, "replace")), broken)
        with pytest.raises(OSError, match="disk is full"):
            save_checkpoint(path, "digest", standing(8), MEMORIES)
    assert load_checkpoint(path, "digest", Momentum())[0].round == 7
    assert [p.name for p in path.parent.iterdir()] == ["checkpoint.isth"]


def test_a_missing_checkpoint_is_an_error_that_names_the_folder(path: Path) -> None:
    with pytest.raises(BadInput, match=rf"{path.parent.name} has no checkpoint to resume from"):
        load_checkpoint(path, "digest", Momentum())


def test_a_checkpoint_of_another_course_is_refused_with_both_digests(path: Path) -> None:
    save_checkpoint(path, "one", standing(), MEMORIES)
    with pytest.raises(BadInput, match=r"belongs to another course \(digest one, this course has two\)"):
        load_checkpoint(path, "two", Momentum())


def test_a_checkpoint_of_another_algorithm_is_refused(path: Path) -> None:
    save_checkpoint(path, "digest", standing(), MEMORIES)
    with pytest.raises(BadInput, match=r"not a usable checkpoint: .*'Moments', expected Different"):
        load_checkpoint(path, "digest", Other())


def test_a_truncated_checkpoint_is_refused_at_any_length(path: Path) -> None:
    save_checkpoint(path, "digest", standing(), MEMORIES)
    data = path.read_bytes()
    for length in range(0, len(data), 5):
        path.write_bytes(data[:length])
        with pytest.raises(BadInput, match=r"checkpoint\.isth is not a usable checkpoint"):
            load_checkpoint(path, "digest", Momentum())


def test_a_flipped_bit_is_refused_wherever_it_is(path: Path) -> None:
    save_checkpoint(path, "digest", standing(), MEMORIES)
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        with pytest.raises(BadInput, match=r"checkpoint\.isth is not a usable checkpoint"):
            load_checkpoint(path, "digest", Momentum())


def test_a_damaged_inner_state_is_refused(path: Path) -> None:
    save_checkpoint(path, "digest", standing(), MEMORIES)
    data = path.read_bytes()
    assert data.count(b'"Moments"') == 2
    path.write_bytes(data.replace(b'"Moments"', b'"Momentz"', 1))
    with pytest.raises(BadInput, match="not a usable checkpoint"):
        load_checkpoint(path, "digest", Momentum())


def test_a_checkpoint_may_be_larger_than_a_message(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(path, "digest", standing(), MEMORIES)
    monkeypatch.setitem(decode.__kwdefaults__, "max_bytes", 10)
    assert load_checkpoint(path, "digest", Momentum())[0].round == 7


def test_who_scored_the_best_round_is_saved_and_a_checkpoint_of_before_still_loads(path: Path) -> None:
    scored = replace(standing(), best_scorers=("a", "b"))
    save_checkpoint(path, "one", scored, MEMORIES)
    assert load_checkpoint(path, "one", Momentum())[0].best_scorers == ("a", "b")
    fields = {name: value for name, value in vars(decoded(path)).items() if name not in ("best_scorers", "best_counts")}
    path.write_bytes(encode(Checkpoint(**fields)))
    before, memories = load_checkpoint(path, "one", Momentum())
    assert before.best_scorers is None and (before.round, before.best_round, before.best_score) == (7, 4, 0.1 + 0.2)
    assert memories == MEMORIES


def test_on_how_many_examples_the_best_round_was_scored_is_saved_and_checkpoints_of_before_say_that_it_is_unknown(
    path: Path,
) -> None:
    scored = replace(standing(), best_scorers=("a", "b"), best_counts=(3, 7))
    save_checkpoint(path, "one", scored, MEMORIES)
    assert load_checkpoint(path, "one", Momentum())[0].best_counts == (3, 7)
    fields = {name: value for name, value in vars(decoded(path)).items() if name != "best_counts"}
    path.write_bytes(sealed(encode(ScoredCheckpoint(**fields))))
    before, memories = load_checkpoint(path, "one", Momentum())
    assert (before.best_scorers, before.best_counts) == (("a", "b"), None) and memories == MEMORIES


def decoded(path: Path) -> CountedCheckpoint:
    return decode(unsealed(path.read_bytes()), CountedCheckpoint)
