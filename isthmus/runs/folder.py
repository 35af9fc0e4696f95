"""What a run leaves: course, journal, checkpoint, models; but for the journal, each is written whole or not at all."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

from torch import Tensor

from isthmus.core.codec import decode_own, encode, opened, pack, unpack
from isthmus.core.errors import BadInput, BadMessage, NotResumable, OtherCourse
from isthmus.core.federation import ExchangeReport
from isthmus.core.outside import Damaged, is_sealed, naming, replace_file, sealed, some, unsealed
from isthmus.core.protocol import Algorithm
from isthmus.core.record import Params, Record, State
from isthmus.core.training import Callback, RoundReport, Standing
from isthmus.runs.journal import JOURNAL_FILE, StoredEvents, read_journal

COURSE_FILE = "course.yaml"
CHECKPOINT_FILE = "checkpoint.isth"
MODEL_FILE = "model.safetensors"
CLIENTS_DIR = "clients"
PARTS_DIR = "parts"
REASON_FILE = "set-aside.txt"  # why what a folder holds was not gone on with
ID_FILE = "course_id"  # in the run of a course between sites: its course may name installed parts only


class RunFolder:
    """Names and writes the files of one run: the resolved course, the last checkpoint, the global model, ..."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.course, self.journal, self.checkpoint = path / COURSE_FILE, path / JOURNAL_FILE, path / CHECKPOINT_FILE
        self.model, self.report, self.page = path / MODEL_FILE, path / "report.md", path / "report.html"

    @staticmethod
    def check_new(path: Path) -> None:
        """Refuse a path that holds anything already."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise BadInput(f"{path} exists already; choose another folder, or {RunFolder(path).how_to_go_on}")

    @staticmethod
    def create(path: Path, course_yaml: str) -> RunFolder:
        """Make a new run folder."""
        RunFolder.check_new(path)
        path.mkdir(parents=True, exist_ok=True)
        replace_file(path / COURSE_FILE, course_yaml.encode())
        return RunFolder(path)

    @staticmethod
    def open(path: Path) -> RunFolder:
        """Open an existing run folder."""
        if not (path / COURSE_FILE).is_file():
            raise NotResumable(f"{path} is not a run folder: it has no {COURSE_FILE}")
        return RunFolder(path)

    @property
    def is_of_sites(self) -> bool:
        """Whether this is the run of a course between sites."""
        return (self.path / ID_FILE).is_file()

    @property
    def how_to_go_on(self) -> str:
        """How a run that was cut short goes on."""
        command = "isthmus serve KIT --resume" if self.is_of_sites else "isthmus run --resume"
        return f"go on with it: {command} {shlex.quote(str(self.path))}"

    def monitor(self, name: str) -> Path:
        """Return the file of a monitor's figure."""
        return self.path / f"monitor-{name}.svg"

    def client_model(self, client: str) -> Path:
        """Return the file of a client's personal model."""
        return self.path / CLIENTS_DIR / f"{client}.safetensors"

    def client_parts(self, client: str) -> Path:
        """Return the file of what a client needs beside its model to predict."""
        return self.path / PARTS_DIR / f"{client}.safetensors"

    def save_parts(self, parts: Mapping[str, Params]) -> None:
        """Write what clients need beside their models, for those that need something."""
        for client, own in parts.items():
            if own:
                save_model_file(self.client_parts(client), own, {"client": client})

    def save_models(
        self, params: Params, personal: Mapping[str, Params], facts: Callable[[str | None], Mapping[str, str]]
    ) -> None:
        """Write the global model and the clients' own; `facts` of a client, or None, go into each file's metadata."""
        if params:
            save_model_file(self.model, params, facts(None))
        for client, own in personal.items():
            save_model_file(self.client_model(client), own, {**facts(client), "client": client})


class Journal(Callback):
    """Appends events to `journal.jsonl`, or keeps them in memory when there is no folder.

    With `keep` False nothing is kept in memory: a server's course may go on for days, so its events are read back.
    """

    def __init__(self, path: Path | None, keep: bool = True) -> None:
        self.path = path
        self._kept: list[dict[str, Any]] | None = [] if keep or path is None else None

    @property
    def events(self) -> Sequence[dict[str, Any]]:
        """What was written so far."""
        if self._kept is not None:
            return self._kept
        assert self.path is not None
        return StoredEvents(self.path)

    def write(self, event: str, **fields: Any) -> None:
        """Append one event with the time it happened."""
        entry = {"event": event, "time": round(time.time(), 3), **fields}
        if self._kept is not None:
            self._kept.append(entry)
        if self.path is not None:
            with naming(self.path), self.path.open("a", encoding="utf-8") as file:
                file.write(_line(entry))

    def exchanged(self, report: ExchangeReport) -> None:
        """Write an exchange."""
        place, failures = report.position, [dataclasses.asdict(failure) for failure in report.failures]
        facts = {key: value for key, value in vars(report).items() if key not in ("position", "failures")}
        facts = {key: round(value, 6) if isinstance(value, float) else value for key, value in facts.items()}
        self.write("exchange", round=place.round, exchange=place.exchange, **facts, failures=failures)

    def noted(self, round: int, text: str) -> None:
        """Write what the algorithm says."""
        self.write("note", round=round, text=text)

    def failure_notes(self) -> list[str]:
        """Return a line for each reason for which clients gave no reply: who, in how many rounds, what was asked."""
        return failure_notes(self.events)

    def scoring_notes(self, best_round: int) -> list[str]:
        """Return lines on who did not score the round that is kept, and on the rounds it was not compared with."""
        scored = [e for e in self.events if e["event"] == "round" and e.get("score") is not None and "num_scored" in e]
        kept = next((event for event in scored if event["round"] == best_round), None)
        return [] if kept is None else [*_unscored_note(kept), *_not_compared_note(kept, scored)]

    def round_done(self, report: RoundReport) -> None:
        """Write a round with its metrics, pooled over clients by their number of examples."""
        self.write(
            "round",
            round=report.round,
            num_clients=len(report.cohort) - len(report.missing),  # of whom everything that was asked came back
            num_asked=len(report.cohort),
            cohort=list(report.cohort),
            missing=list(report.missing),
            num_scored=len(report.scorers),
            scored_on=report.scored_on,
            unscored=list(report.unscored),
            seconds=round(report.seconds, 6),
            wall_seconds=round(report.wall_seconds, 6),
            bytes_down=report.bytes_down,
            bytes_up=report.bytes_up,
            metrics=report.metrics,
            spread={name: [round(value, 6) for value in values] for name, values in report.spread.items()},
            score=report.score,
            is_best=report.is_best,
            **({"spent": dict(report.spent)} if report.spent else {}),
        )

    def rewind(self, round: int) -> bool:
        """Forget what was written after `round`, for a resume; return False, and note it, where the journal is lost."""
        if self.path is None:
            return True
        found = self.path.is_file()
        before = (entry for entry in (read_journal(self.path) if found else ()) if entry.get("round", 0) <= round)
        entries = [entry for entry in before if entry["event"] != "end" and not entry.get("at_end")]
        if self._kept is not None:
            self._kept = entries
        replace_file(self.path, "".join(map(_line, entries)).encode())
        if not found:
            self.write("note", text=f"the journal was missing: it has nothing of the rounds up to {round}")
        return found


def _unscored_note(kept: Mapping[str, Any]) -> list[str]:
    if not kept["unscored"]:
        return []
    total = kept["num_scored"] + len(kept["unscored"])
    return [
        f"round {kept['round']}, which is kept, was scored by {kept['num_scored']} of {total} clients: "
        f"{some(kept['unscored'])} missing"
    ]


def _not_compared_note(kept: Mapping[str, Any], scored: Sequence[Mapping[str, Any]]) -> list[str]:
    fewer = [event for event in scored if event["num_scored"] < kept["num_scored"]]
    as_many = [event for event in scored if event["num_scored"] == kept["num_scored"]]
    other = [event for event in as_many if event.get("scored_on", kept.get("scored_on")) != kept.get("scored_on")]
    return [*_fewer_note(kept, fewer, len(scored)), *_other_note(kept, other, len(scored))]


def _other_note(kept: Mapping[str, Any], other: Sequence[Mapping[str, Any]], total: int) -> list[str]:
    if not other or "scored_on" not in kept:
        return []
    return [
        f"{len(other)} of {total} scored rounds were scored by other clients, or on other numbers of validation "
        f"examples, than round {kept['round']}, which is kept, and are not compared with it; stopping.keep=last would "
        "keep the last round"
    ]


def _fewer_note(kept: Mapping[str, Any], fewer: Sequence[Mapping[str, Any]], total: int) -> list[str]:
    if not fewer:
        return []
    away = dict.fromkeys(client for event in fewer for client in event["unscored"])
    who = f" ({some(list(away))} missing)" if away else ""
    return [
        f"{len(fewer)} of {total} scored rounds were scored by fewer clients than round {kept['round']}, "
        f"which is kept, and are not compared with it{who}; stopping.keep=last would keep the last round"
    ]


def _line(entry: dict[str, Any]) -> str:
    return json.dumps(without_infinity(entry), default=str) + "\n"


def without_infinity(value: Any) -> Any:
    """Return a value for JSON in which a number that is infinite is nothing: no score is, and no reader expects one."""
    if isinstance(value, dict):
        return {key: without_infinity(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_infinity(item) for item in value]
    return None if isinstance(value, float) and math.isinf(value) else value


def new_run_path(parent: Path, label: str) -> Path:
    """Return a path for a new run folder that does not exist yet: parent/20260131-235959-label."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{label}"
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(path for path in map(parent.joinpath, names) if not path.exists())


def set_aside(path: Path, reason: str) -> Path:
    """Give what is at a path another name, with the reason in a file, and return where it is now."""
    places = (path.with_name(f"{path.name}.set-aside-{number}") for number in count(1))
    aside = next(place for place in places if not place.exists())
    path.rename(aside)
    if aside.is_dir():
        text = f"{time.strftime('%Y-%m-%d %H:%M:%S')}: {path.name} was started anew, and this set aside: {reason}\n"
        replace_file(aside / REASON_FILE, text.encode())
    return aside


def load_model_file(path: Path) -> tuple[Params, dict[str, str]]:
    """Return the parameters and the facts in a model file."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise BadInput(f"{path} does not exist")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except SafetensorError as error:
        raise BadInput(f"{path} is not a model file: {error}") from None


def save_model_file(path: Path, params: Params, facts: Mapping[str, str]) -> None:
    """Write parameters and facts as a safetensors file, whole or not at all."""
    from safetensors.torch import save

    path.parent.mkdir(exist_ok=True)
    replace_file(path, save({name: tensor.contiguous() for name, tensor in params.items()}, dict(facts)))


@dataclass(frozen=True)
class Checkpoint(Record):
    """All that a resume needs; states are encoded messages of their own, kept as bytes."""

    course: str
    """Digest of the resolved course: a checkpoint belongs to one course."""
    round: int
    """The last whole round."""
    state: Tensor
    """The server's state."""
    best_state: Tensor
    """The server's state at the best round."""
    best_round: int
    """The best round so far."""
    best_score: float | None
    """Its validation score."""
    memories: dict[str, Tensor]
    """Every client's memory."""


@dataclass(frozen=True)
class ScoredCheckpoint(Checkpoint):
    """The same, with who scored the best round; checkpoints of before do not say."""

    best_scorers: tuple[str, ...] | None
    """The clients whose validation scores are in the best round's."""


@dataclass(frozen=True)
class CountedCheckpoint(ScoredCheckpoint):
    """The same, with on how many examples they scored it; where that is not said, it counts as comparable."""

    best_counts: tuple[int, ...] | None
    """The number of validation examples of each of these clients."""


@dataclass(frozen=True)
class GuardedCheckpoint(CountedCheckpoint):
    """The same, with what the course's guards remember at the server."""

    guards: dict[str, Tensor]
    """By guard, its memory."""


# What a checkpoint file can hold, the newest form first.
Kept = GuardedCheckpoint | CountedCheckpoint | ScoredCheckpoint | Checkpoint


class Checkpoints(Callback):
    """Keeps the latest checkpoint of a run in a file, and writes into the journal how long that took."""

    def __init__(self, path: Path, course: str, journal: Journal) -> None:
        self.path, self.course, self.journal = path, course, journal

    def checkpoint(self, standing: Standing, memories: Mapping[str, bytes]) -> None:
        """Write a checkpoint in place of the one before."""
        started = time.perf_counter()
        save_checkpoint(self.path, self.course, standing, memories)
        self.journal.write("checkpoint", round=standing.round, seconds=round(time.perf_counter() - started, 6))


def save_checkpoint(path: Path, course: str, standing: Standing, memories: Mapping[str, bytes]) -> None:
    """Write a checkpoint in place of the one before."""
    facts = {**vars(standing), "state": pack(encode(standing.state)), "best_state": pack(encode(standing.best_state))}
    guards = {entry: pack(encode(memory)) for entry, memory in facts.pop("guards").items()}
    kept = {client: pack(memory) for client, memory in memories.items()}
    if guards:
        found: Checkpoint = GuardedCheckpoint(course=course, memories=kept, guards=guards, **facts)
    else:  # readable by versions that know of no guards
        found = CountedCheckpoint(course=course, memories=kept, **facts)
    replace_file(path, sealed(encode(found)))


def load_checkpoint(path: Path, course: str, algorithm: Algorithm[Any]) -> tuple[Standing, dict[str, bytes]]:
    """Read a checkpoint of this very course."""
    if not path.is_file():
        raise NotResumable(f"{path.parent} has no checkpoint to resume from ({path.name} is missing)")
    try:
        data = path.read_bytes()
        if is_sealed(data):  # those of before there were checksums still load
            data = unsealed(data)
        found: Checkpoint = decode_own(data, Kept, share=True)
        if found.course != course:
            raise OtherCourse(
                f"{path} belongs to another course (digest {found.course}, this course has {course}); "
                "resume with the settings the run was started with"
            )
        kind = type(algorithm).state_type()
        state: Record = decode_own(opened(found.state), kind)
        best: Record = decode_own(opened(found.best_state), kind)
        of_best = ("best_round", "best_score", "best_scorers", "best_counts")
        facts: dict[str, Any] = {name: getattr(found, name, None) for name in of_best}
        kept: dict[str, Tensor] = getattr(found, "guards", {})
        guards: dict[str, State] = {entry: decode_own(opened(memory), State) for entry, memory in kept.items()}
        standing = Standing(round=found.round, state=state, best_state=best, guards=guards, **facts)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}") from None
    except Damaged as error:
        remedy = "put it back from a backup, or start the course anew"
        raise NotResumable(f"{path} is not a usable checkpoint, it is damaged: {error}; {remedy}") from None
    except BadMessage as error:
        raise NotResumable(f"{path} is not a usable checkpoint: {error}") from None
    return standing, {client: unpack(memory) for client, memory in found.memories.items()}


# ---- what a journal's failures come to, for people

MOST_REASONS = 3  # of failures that are told one by one
MOST_NAMES = 3
SUSPICIOUS = "suspicious"
# A number that is no part of a name. What a guard finds odd, it finds odd again in the next round, by another number.
_NUMBER = re.compile(r"(?<![\w-])\d[\d.]*(e[+-]?\d+)?(?![\w-])")


def failure_notes(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each reason for which clients gave no reply: who, in how many rounds, what was asked.

    And one on how many suspicious replies there were of each client, if there were any.
    """
    found: dict[tuple[str, str, str], dict[str, set[int]]] = {}
    said: dict[tuple[str, str, str], str] = {}
    doubted: Counter[str] = Counter()
    total = 0
    for event in events:  # once: a journal may be long, and is read from its file
        total += event["event"] == "round"
        for failure in _failures(event):
            why = (event["request"], failure["kind"], _NUMBER.sub("#", failure["reason"]))
            said.setdefault(why, failure["reason"])
            found.setdefault(why, {}).setdefault(failure["client"], set()).add(event["round"])
            doubted[failure["client"]] += failure["kind"] == SUSPICIOUS
    lines = [_told(why, said[why], clients, total) for why, clients in list(found.items())[:MOST_REASONS]]
    if len(found) > MOST_REASONS:
        lines.append(f"clients failed for {len(found) - MOST_REASONS} more reasons, which the journal has")
    each = [f"{client} {number}" for client, number in doubted.most_common() if number]
    return [*lines, f"suspicious replies, which were not counted: {', '.join(each)}"] if each else lines


def _told(why: tuple[str, str, str], reason: str, clients: Mapping[str, set[int]], total: int) -> str:
    request, kind, _ = why
    rounds = set().union(*clients.values()) - {0}  # 0 is the setup
    when = f"in {len(rounds)} of {total} rounds" if rounds else "before the first round"
    return f"{_named(clients)} failed {when}: {request}: {kind}: {reason}"


def _failures(event: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    found: Iterable[Mapping[str, Any]] = event.get("failures", ()) if event["event"] == "exchange" else ()
    return found


def _named(clients: Iterable[str]) -> str:
    names = list(clients)
    more = f" and {len(names) - MOST_NAMES} more clients" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more
