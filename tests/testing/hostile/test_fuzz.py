"""Whatever a mutated message or file holds, it is read, or refused by an error that is meant for it.

The slow set tries 100,000 of each kind. Work and memory are bounded by counting: what comes out of a message is never
more than its bytes, and of a file never more values than it has characters.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import isthmus as ist
from isthmus.config.load import course_digest
from isthmus.core.codec import decode, encode, pack
from isthmus.core.errors import BadInput, BadMessage
from isthmus.core.outside import parse_yaml, sealed, unsealed
from isthmus.core.protocol import Evaluation, Failure, ModelState, Position
from isthmus.core.record import leaves
from isthmus.core.training import Standing
from isthmus.report.profile import time_by_part
from isthmus.report.summary import column
from isthmus.runs.folder import CountedCheckpoint, load_checkpoint, save_checkpoint
from isthmus.runs.journal import read_whole_journal
from isthmus.runtime.answering import MemoryStore
from isthmus.runtime.envelope import BLANK, Answer, Envelope
from isthmus.runtime.reasons import Refusal
from isthmus.sites.courses.messages import Finish, Proposal
from isthmus.sites.parties.kit import KIT_FILE, open_kit
from isthmus.sites.silo.policy import load_policy
from isthmus.sites.silo.service import read_course
from isthmus.testing import toy_course, toy_scenario
from isthmus.testing.hostile.mutations import Mutator

PARAMS = {"gnn.layers.0.weight": torch.arange(12.0).reshape(3, 4), "decoder.bias": torch.zeros(2)}
RECORDS: list[Any] = [
    Envelope("c" * 16, Position(1, 2, 3), "TrainModel", pack(b"payload"), "0" * 32, ("1" * 32,)),
    Answer(pack(b""), Failure("bank-a", "error", "why"), BLANK),
    Answer(pack(b"reply"), None, "2" * 32),
    Proposal("c" * 16, "rounds: 3\n", "0.1", ("a", "b")),
    Finish("c" * 16, PARAMS, ""),
    Evaluation({"val": {"accuracy": 0.5, "loss": 1.25}}, {"val": 7}),
]
COURSE = {
    "dataset": {"name": "folder", "class_names": ["a", "b"]},
    "model": {"gnn": {"name": "gcn", "hidden": 8, "dropout": 0.5}},
    "algorithm": {"name": "fedavg", "local_steps": 2, "optimizer": {"name": "adam", "lr": 0.01}},
    "rounds": 3,
    "num_clients": 3,
    "min_replies": 2,
    "seed": 0,
    "client_settings": {"bank-a": {"algorithm.local_steps": 3}},
}
POLICY = {"algorithms": ["fedavg", "local"], "min_sites": 2, "only_folded": True, "max_rounds": 50, "keep_days": 3.5}


def size_of(value: Any) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(value).values() if isinstance(leaf, torch.Tensor))


def num_values(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(num_values(item) for item in inner)


class Target:
    """Something that reads: `attempt` mutates and reads once, and may raise `refusals` and nothing else."""

    refusals: tuple[type[Exception], ...] = (BadInput,)

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.mutator = folder, Mutator(seed)
        self.prepare()

    def prepare(self) -> None:
        """Make what is mutated."""

    def attempt(self) -> None:
        """Mutate and read."""
        raise NotImplementedError

    def tree_or_text(self, tree: Any) -> str:
        """A YAML text: of a mutated tree, or mutated itself, or both."""
        random = self.mutator.random
        text = json.dumps(self.mutator.tree(tree), ensure_ascii=False) if random.random() < 0.6 else ""
        text = text or yaml.safe_dump(tree)
        return self.mutator.text(text) if random.random() < 0.5 else text


class Codec(Target):
    refusals = (BadMessage,)

    def attempt(self) -> None:
        record = self.mutator.random.choice(RECORDS)
        message = self.mutator.message(encode(record))
        value = decode(message, type(record), max_bytes=10**6)
        assert size_of(value) <= len(message)


class CourseText(Target):
    def attempt(self) -> None:
        text = self.tree_or_text(COURSE)
        assert num_values(parse_yaml(text, "it")) <= len(text) + 1
        read_course(text)


class PolicyFile(Target):
    def attempt(self) -> None:
        path = self.folder / "policy.yaml"
        path.write_text(self.tree_or_text(POLICY), encoding="utf-8", errors="surrogatepass")
        load_policy(path)


class KitFile(Target):
    def prepare(self) -> None:
        self.facts = {
            "federation": "f",
            "party": "bank-a",
            "role": "site",
            "host": "localhost",
            "port": 8443,
            "sites": ["bank-a", "bank-b"],
        }
        for name in ("rootCA.pem", "party.crt", "party.key"):
            (self.folder / name).write_text("-")

    def attempt(self) -> None:
        text = json.dumps(self.mutator.tree(self.facts))
        text = self.mutator.text(text) if self.mutator.random.random() < 0.3 else text
        (self.folder / KIT_FILE).write_text(text, encoding="utf-8", errors="surrogatepass")
        open_kit(self.folder, "site")


class JournalFile(Target):
    def prepare(self) -> None:
        ist.run(toy_course(ist.FedAvg()), run_dir=self.folder / "run", scenario=toy_scenario())
        text = (self.folder / "run" / "journal.jsonl").read_text()
        self.entries = [json.loads(line) for line in text.splitlines()]
        self.entries = [*self.entries[:6], *self.entries[-8:]]

    def attempt(self) -> None:
        entries = self.mutator.tree(self.entries)
        text = "".join(json.dumps(entry) + "\n" for entry in entries) if isinstance(entries, list) else str(entries)
        path = self.folder / "journal.jsonl"
        path.write_text(self.mutator.text(text) if self.mutator.random.random() < 0.3 else text, errors="surrogatepass")
        events = list(read_whole_journal(path))
        column("fedavg", events, "accuracy")
        time_by_part(events)


class CheckpointFile(Target):
    def prepare(self) -> None:
        self.course = toy_course(ist.FedAvg())
        self.path = self.folder / "checkpoint.isth"
        state = ModelState(PARAMS)
        memories = {"a": encode({"w": torch.ones(3)}), "b": encode({})}
        save_checkpoint(self.path, course_digest(self.course), Standing(3, state, state, 2, 0.5), memories)
        self.content = unsealed(self.path.read_bytes())

    def attempt(self) -> None:
        if self.mutator.random.random() < 0.3:
            data = self.mutator.data(sealed(self.content))
        elif self.mutator.random.random() < 0.5:
            data = sealed(self.mutator.message(self.content))
        else:
            found: CountedCheckpoint = decode(self.content, CountedCheckpoint)
            inner = pack(self.mutator.message(encode(ModelState(PARAMS))))
            data = sealed(encode(CountedCheckpoint(**{**vars(found), "best_state": inner})))
        self.path.write_bytes(data)
        standing, memories = load_checkpoint(self.path, course_digest(self.course), self.course.algorithm)
        assert size_of(standing.state) + sum(map(len, memories.values())) <= 2 * len(data)


class MemoryFile(Target):
    refusals = (Refusal, BadMessage)

    def prepare(self) -> None:
        self.store = MemoryStore(self.folder, "owner")
        self.name = self.store.save({"w": torch.ones(30), "optimizer": {"steps": 3, "m": torch.ones(4)}}, BLANK, {})
        self.content = unsealed((self.folder / self.name).read_bytes())

    def attempt(self) -> None:
        as_it_is = self.mutator.random.random() < 0.3
        data = self.mutator.data(sealed(self.content)) if as_it_is else sealed(self.mutator.message(self.content))
        (self.folder / self.name).write_bytes(data)
        assert size_of(self.store.load(self.name)) <= len(data)


TARGETS: list[type[Target]] = [Codec, CourseText, PolicyFile, KitFile, JournalFile, CheckpointFile, MemoryFile]


def fuzz(target: type[Target], folder: Path, number: int, seed: int) -> tuple[int, int]:
    """Try a number of mutations; return how many were read and how many refused."""
    tried = target(folder, seed)
    read = refused = 0
    for _ in range(number):
        try:
            tried.attempt()
            read += 1
        except target.refusals as error:
            refused += 1
            assert len(str(error)) < 20_000, str(error)[:200]
    return read, refused


@pytest.mark.parametrize("target", TARGETS)
def test_a_sample_of_mutations_is_read_or_refused(target: type[Target], tmp_path: Path) -> None:
    read, refused = fuzz(target, tmp_path, 250, seed=1)
    assert read and refused, "mutations that are all read, or all refused, test nothing"


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_a_hundred_thousand_mutations_are_read_or_refused(target: type[Target], tmp_path: Path) -> None:
    read, refused = fuzz(target, tmp_path, 100_000, seed=2)
    assert read > 1000 and refused > 10_000
