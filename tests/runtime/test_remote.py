"""The remote runtime and the silo, over a transport that is a function call."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus.algorithms import ALGORITHMS
from isthmus.config.course import Course
from isthmus.core.codec import decode, encode, pack
from isthmus.core.protocol import EvaluateModel, Failure, Position
from isthmus.core.record import leaves
from isthmus.core.training import Standing, run_course
from isthmus.learn.graph_client import GraphClient
from isthmus.runs.simulation import Simulation, simulated_client
from isthmus.runtime.answering import MemoryStore, Silo
from isthmus.runtime.envelope import BLANK, Answer, Envelope
from isthmus.runtime.reasons import Reasons, Refusal
from isthmus.runtime.remote import RemoteRuntime
from isthmus.testing import toy_course, toy_scenario
from tests.quick import by_kind, quick

Tamper = Callable[[str, Envelope, bytes], bytes | Failure]


class Wire:
    """Hands envelopes to silos; `tamper` may lose or change an answer. Silos can be restarted: only files survive."""

    def __init__(self, course: Course, folder: Path) -> None:
        self.course, self.folder = course, folder
        self.simulation = Simulation(course, toy_scenario(client_with_one_training_node=True))
        self.own = next(iter(self.simulation.clients.values())).own
        self.tamper: Tamper = lambda client, envelope, answer: answer
        self.said: list[str] = []
        self.restart()

    def restart(self) -> None:
        self.silos = {
            name: Silo(
                "course-1",
                self.course.algorithm,
                lambda name=name: self._client(name),  # type: ignore[misc]
                MemoryStore(self.folder / name),
                reasons=Reasons(self.said.append, tell=True),
            )
            for name in self.simulation.clients
        }

    def _client(self, name: str) -> GraphClient:
        data = self.simulation.clients[name].data
        return simulated_client(self.course, name, data, self.simulation.model, self.own)

    def send(
        self, messages: Mapping[str, bytes], timeout_seconds: float | None
    ) -> Iterator[tuple[str, bytes | Failure]]:
        for name in reversed(list(messages)):  # answers come in no particular order
            answer = self.silos[name].answer(messages[name])
            yield name, self.tamper(name, decode(messages[name], Envelope), answer)

    def runtime(self) -> RemoteRuntime:
        return RemoteRuntime("course-1", list(self.simulation.clients), self)


class Notes:
    """Keeps the last checkpoint, as a run folder would."""

    def __init__(self) -> None:
        self.checkpoints: dict[int, tuple[Standing, dict[str, bytes]]] = {}
        self.failures: list[Failure] = []

    def exchanged(self, report: Any) -> None:
        self.failures += report.failures

    def round_done(self, report: Any) -> None:
        pass

    def noted(self, round: int, text: str) -> None:
        pass

    def checkpoint(self, standing: Standing, memories: Mapping[str, bytes]) -> None:
        self.checkpoints[standing.round] = (standing, dict(memories))


def same(one: Standing, two: Standing) -> bool:
    first, second = leaves(one.best_state), leaves(two.best_state)
    assert first.keys() == second.keys()
    return all(torch.equal(first[k], second[k]) for k in first if isinstance(first[k], torch.Tensor))


def models(wire: Wire, memories: Mapping[str, bytes]) -> dict[str, Any]:
    return {name: MemoryStore(wire.folder / name).load(token.decode()) for name, token in memories.items()}


def equal_values(one: Any, two: Any) -> bool:
    return encode(one) == encode(two)


@pytest.mark.parametrize("name", by_kind())
def test_every_algorithm_gives_the_same_bits_as_the_loop_with_silos_restarted_at_will(
    name: str, tmp_path: Path
) -> None:
    course = toy_course(quick(name))
    wire = Wire(course, tmp_path)
    calls = 0

    def restart_now_and_then(client: str, envelope: Envelope, answer: bytes) -> bytes:
        nonlocal calls
        calls += 1
        if calls % 4 == 0:
            wire.restart()
        return answer

    wire.tamper = restart_now_and_then
    notes, loop_notes = Notes(), Notes()
    remote = run_course(course.algorithm, wire.runtime(), course.plan(), wire.simulation.initial, [notes])
    loop = run_course(course.algorithm, wire.simulation.runtime, course.plan(), wire.simulation.initial, [loop_notes])
    assert same(remote, loop) and not notes.failures
    in_loop = {n: decode(m, dict[str, Any]) for n, m in loop_notes.checkpoints[3][1].items()}
    at_silos = models(wire, notes.checkpoints[3][1])
    assert {n: encode(s) for n, s in at_silos.items()} == {n: encode(s) for n, s in in_loop.items()}


def test_an_abandoned_round_leaves_no_trace_in_the_memories(tmp_path: Path) -> None:
    course = toy_course(ALGORITHMS["local"]())
    whole = Wire(course, tmp_path / "whole")
    undisturbed = Notes()
    run_course(course.algorithm, whole.runtime(), course.plan(), whole.simulation.initial, [undisturbed])

    cut = Wire(course, tmp_path / "cut")
    notes = Notes()

    def interrupted(client: str, envelope: Envelope, answer: bytes) -> bytes:
        if envelope.position.round == 2 and envelope.kind == "TrainAlone" and client == "client-1":
            raise KeyboardInterrupt  # the silos have trained already
        return answer

    cut.tamper = interrupted
    with pytest.raises(KeyboardInterrupt):
        run_course(course.algorithm, cut.runtime(), course.plan(), cut.simulation.initial, [notes])
    standing, memories = notes.checkpoints[1]
    cut.restart()
    cut.tamper = lambda client, envelope, answer: answer
    runtime = cut.runtime()
    runtime.load_clients(memories)
    run_course(course.algorithm, runtime, course.plan(), cut.simulation.initial, [notes], standing)
    assert equal_values(models(cut, notes.checkpoints[3][1]), models(whole, undisturbed.checkpoints[3][1]))


def test_an_answer_that_got_lost_counts_as_not_given(tmp_path: Path) -> None:
    """A silo that trained but was not heard answers the next request from the memory before."""
    course = toy_course(ALGORITHMS["local"]())
    wire = Wire(course, tmp_path)

    def lose(client: str, envelope: Envelope, answer: bytes) -> bytes | Failure:
        if client == "client-0" and envelope.position.round == 2 and envelope.kind == "TrainAlone":
            return Failure(client, "lost", "the line was cut")
        return answer

    wire.tamper = lose
    notes = Notes()
    run_course(course.algorithm, wire.runtime(), course.plan(), wire.simulation.initial, [notes])
    assert [failure.kind for failure in notes.failures] == ["lost"]
    memory = models(wire, notes.checkpoints[3][1])["client-0"]
    assert memory["optimizer"]["step"] == 2  # of three rounds, one was not heard


def test_the_server_learns_nothing_of_a_memory_but_a_random_name(tmp_path: Path) -> None:
    course = toy_course(ALGORITHMS["local"]())
    names = []
    for attempt in ("a", "b"):
        wire = Wire(course, tmp_path / attempt)
        notes = Notes()
        run_course(course.algorithm, wire.runtime(), course.plan(), wire.simulation.initial, [notes])
        names.append(set(notes.checkpoints[3][1].values()))
    assert all(len(name) == 32 for name in names[0] | names[1]) and not names[0] & names[1]


def test_a_silo_keeps_only_what_the_server_may_go_back_to(tmp_path: Path) -> None:
    course = toy_course(ALGORITHMS["local"](), rounds=6, checkpoint_every=1)
    wire = Wire(course, tmp_path)
    run_course(course.algorithm, wire.runtime(), course.plan(), wire.simulation.initial, [Notes()])
    for name in wire.simulation.clients:
        assert 1 <= len(list((tmp_path / name).iterdir())) <= 3


def test_a_method_without_memory_writes_no_file_at_the_silo(tmp_path: Path) -> None:
    course = toy_course(ALGORITHMS["fedavg"]())
    wire = Wire(course, tmp_path)
    run_course(course.algorithm, wire.runtime(), course.plan(), wire.simulation.initial, [Notes()])
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def envelope(**changes: Any) -> bytes:
    request = EvaluateModel({}, ("val",), "accuracy", False)
    fields: dict[str, Any] = {
        "course": "course-1",
        "position": Position(0, 1, 0),
        "kind": "EvaluateModel",
        "payload": pack(encode(request)),
        "memory": BLANK,
        "keep": (),
    }
    return encode(Envelope(**{**fields, **changes}))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"garbage", "shorter than its"),
        (b"x" * 100, "expected b'ISTH'"),
        (envelope(course="other"), "agreed to 'course-1'"),
        (envelope(kind="DeleteEverything"), "no handler for 'DeleteEverything'"),
        (envelope(memory="../../etc/passwd"), "not the name of a memory"),
        (envelope(payload=pack(b"not a record")), "shorter than its"),
    ],
)
def test_a_silo_answers_nonsense_with_a_named_failure(message: bytes, reason: str, tmp_path: Path) -> None:
    wire = Wire(toy_course(ALGORITHMS["fedavg"]()), tmp_path)
    answer: Answer = decode(wire.silos["client-0"].answer(message), Answer)
    assert answer.failure is not None and answer.failure.kind == "malformed" and reason in answer.failure.reason


def test_a_silo_refuses_a_message_above_its_limit(tmp_path: Path) -> None:
    wire = Wire(toy_course(ALGORITHMS["fedavg"]()), tmp_path)
    silo = wire.silos["client-0"]
    silo.max_bytes = 100
    answer: Answer = decode(silo.answer(envelope()), Answer)
    assert answer.failure is not None and "above the limit of 100 bytes" in answer.failure.reason


def test_garbage_from_a_silo_is_a_named_failure_and_the_course_goes_on(tmp_path: Path) -> None:
    course = toy_course(ALGORITHMS["fedavg"]())
    wire = Wire(course, tmp_path)
    wire.tamper = lambda client, env, answer: b"\x00" * 50 if client == "client-2" else answer
    notes = Notes()
    run_course(course.algorithm, wire.runtime(), course.plan(), wire.simulation.initial, [notes])
    assert {failure.client for failure in notes.failures} == {"client-2"}
    assert {failure.kind for failure in notes.failures} == {"malformed"}


def test_a_memory_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore(tmp_path)
    name = store.save({"w": torch.ones(3)}, BLANK, {})

    def full(self: Path, target: Path) -> Path:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        store.save({"w": torch.zeros(3)}, name, store.load(name))
    monkeypatch.undo()
    assert torch.equal(store.load(name)["w"], torch.ones(3))
    store.drop_all_but({name})
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with pytest.raises(Refusal, match="is lost"):
        store.load("f" * 32)
