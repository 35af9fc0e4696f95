"""A server that means harm, played against a silo in process: bytes in, bytes out.

    from isthmus.testing import besiege
    besiege(MyMethod(my_field=3), tmp_path)

It proposes hostile courses, asks out of order, at positions that were answered already, from wrong memories and for
other courses, with numbers and sizes that make no sense. A silo must answer everything with a reply, or with a refusal
of a declared kind that tells nothing else; no personal parameters may leave, and what protects must be another draw
whenever the request is another one. What proposals and requests make the silo do is counted, operations and bytes, and
is no more than honest ones ask for and their size allows. `SIEGES` holds the attacks by name; each raises
AssertionError.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor

from isthmus.algorithms import ALGORITHMS
from isthmus.config.load import course_to_yaml
from isthmus.core.codec import decode, encode, pack
from isthmus.core.protocol import Algorithm, Position, Request
from isthmus.core.record import leaves
from isthmus.runtime.envelope import BLANK
from isthmus.sites.courses.messages import Finish, Receipt, Verdict
from isthmus.sites.silo.policy import Policy, largest_steps
from isthmus.testing.hostile.counting import Cost, require_within
from isthmus.testing.hostile.forging import nudged, spoilt
from isthmus.testing.hostile.siege import (
    MAX_REFUSAL_BYTES,
    MESSAGE,
    OTHER_ID,
    Asked,
    Siege,
    known_here,
    lay_siege,
    require_declared,
)
from isthmus.testing.hostile.sites import World

Attack: TypeAlias = "Callable[[Siege], None]"

MAX_FILES = 50
MAX_STEPS = 8

# ---- the attacks


def siege_proposals(siege: Siege) -> None:
    """Propose courses that no silo may take: made-up sites, texts that are none, settings without bounds."""
    text = course_to_yaml(siege.course)
    hostile: list[dict[str, Any]] = [
        {"course_id": "../../etc/passwd"},
        {"course_id": "x" * 10**5},
        {"version": "9.9\x1b[31m"},
        {"sites": ("client-0",) * 1000},
        {"sites": tuple(f"made-up-{k}" for k in range(20_000))},
        {"course": "[" * 30_000},
        {"course": "a: &x [1]\nb: *x"},
        {"course": "rounds: !!int ''"},
        {"course": "!!python/object/apply:os.system [ls]"},
        {"course": "\x00\x1b[2J"},
        {"course": text.replace("rounds: 2", "rounds: 999999999")},
        {"course": text.replace("hidden: 5", "hidden: 10000000000")},
        {"course": text.replace("seed: 0", "seed: .nan")},
        {"course": text.replace("name: gcn", "name: os:system")},
        {"course": _with_settings(text, "client-2: {optimizer.lr: -1, model.gnn.layers: 1000000000}")},
        {"course": _with_settings(text, "client-2: {local_steps: 1000000000}")},
        {"course": _with_settings(text, ", ".join(f"site-{k}: {{model.gnn.layers: 990}}" for k in range(100)))},
    ]
    with siege.counting():
        for changes in hostile:
            if not siege.propose(**changes).refusal:
                raise AssertionError(f"the silo takes part in a course with {_told(changes, text)}")
    for kind in ("", "x" * 10**5, "exchange", "verdict", "finish", "columns", "propose"):
        for data in (b"", b"ISTH", bytes(64), encode(Verdict(siege.course_id, "")), encode({"a": (1,) * 1000})):
            raw = siege.handle(kind, data)
            if len(raw) > MAX_REFUSAL_BYTES:
                raise AssertionError(f"{len(data)} bytes of the kind {kind[:20]!r} are answered by {len(raw)}")


def siege_order(siege: Siege) -> None:
    """Ask everything out of order, with nothing remembered, twice, and after the end of the course."""
    if siege.propose().refusal:
        raise AssertionError(f"the silo refuses the honest course: {siege.said[-1]}")
    distinct = {type(message.request): message for message in siege.honest}
    for message in reversed(list(distinct.values())):
        siege.ask(message.request, message.position)
        siege.ask(message.request, Position(2**62, 10**9, 10**9))
        siege.ask(message.request, Position(-1, -1, -1))
    for _ in siege.march():
        pass
    raw = siege.silo.handle("finish", encode(Finish(OTHER_ID, {}, BLANK)))
    receipt: Receipt = decode(raw, Receipt)
    require_declared(receipt.problem, raw)


def siege_memories(siege: Siege) -> None:
    """Ask from memories that are not there, of other courses, or no names at all, and under other course ids."""
    names = [name for *_, name in siege.march() if name != BLANK]
    message = siege.honest[-1]
    for name in ("0" * 32, "../../secret", "x" * 10**5, "\x00", "ab" * 16):
        if siege.ask(message.request, message.position, name)[0] is not None:
            raise AssertionError(f"the silo answers from the memory {name[:40]!r}, which is none of its own")
    wrong: tuple[dict[str, Any], ...] = ({"course": OTHER_ID}, {"kind": "EvaluateEverything"}, {"kind": "x" * 10**5})
    for changes in wrong:
        if siege.ask(message.request, message.position, **changes)[0] is not None:
            raise AssertionError(f"the silo answers a request with {str(changes)[:60]}")
    siege.propose(course_id=OTHER_ID)
    for name in names[-1:]:
        if siege.ask(message.request, message.position, name, course=OTHER_ID)[0] is not None:
            raise AssertionError("a memory of one course is answered from in another")


def siege_sizes(siege: Siege) -> None:
    """Send requests whose parts have other shapes, types and values than they should, and bytes that are cut.

    What each makes the silo do is counted.
    """
    draw = random.Random(0)
    with siege.counting():
        with siege.uncounted():
            steps = list(siege.march())
        distinct = {type(message.request): (message, memory) for message, _, memory in reversed(steps)}
        kept = len(siege.names)
        for message, memory in distinct.values():
            with siege.uncounted():
                every = list(spoilt(message.request, draw))
            for what, request in every:
                del siege.names[kept:]  # what this siege itself leaves behind need not be kept
                try:
                    _, after = siege.ask(request, message.position, memory)
                    # What is kept does its work when it is used: each later kind of request is answered from it once.
                    kept_bytes = siege.num_sent
                    for later in _after(siege.honest, message) if after not in (BLANK, memory) else ():
                        siege.ask(later.request, later.position, after, behind=kept_bytes)
                except AssertionError as error:
                    raise AssertionError(f"{what}: {error}") from error
            whole = encode(message.request)
            for cut in (b"", whole[: len(whole) // 2], whole + b"\0" * 8, bytes(len(whole))):
                siege.ask(message.request, message.position, memory, payload=pack(cut))
    files = sum(1 for path in siege.silo.state.rglob("*") if path.is_file())
    if files > kept + MAX_FILES:
        raise AssertionError(f"the siege left {files} files in the silo's folder, {kept} of which it asked to keep")


def siege_personal(siege: Siege) -> None:
    """Look for what stays with the silo in all that it sends, also when the same id is another algorithm's course."""
    kept: list[Tensor] = []
    replies: list[Any] = []
    last = BLANK
    algorithm = siege.course.algorithm
    for _, reply, memory in siege.march():
        replies.append(reply)
        last = memory if memory != BLANK else last
        found = siege.memory(memory)
        kept += [*algorithm.client_params({}, found).values(), *found.get("personal", {}).values()]
    for name, kind in ALGORITHMS.items():
        if kind is type(algorithm) or kind.pooled:
            continue
        try:
            other = replace(siege.course, algorithm=kind(), rounds=1)
        except ValueError:
            continue  # heads of one's own need a model with a head
        if siege.propose(other).refusal:
            continue
        for request in _plain_requests(kind, siege.honest):
            reply, _ = siege.ask(request, Position(0, 1, 0), last)
            if reply is not None and last != BLANK:  # from nothing everybody may answer
                raise AssertionError(f"a memory of {type(algorithm).__name__} is answered from in a course of {name}")
    _none_among(kept, replies, siege.sent)


def siege_noise(siege: Siege) -> None:
    """Repeat positions: the same request must draw the same streams, another request none of them."""
    for message, reply, memory in list(siege.march()):
        if reply is None:
            continue
        siege.streams.clear()
        siege.ask(message.request, message.position, memory)
        first = list(siege.streams)
        siege.streams.clear()
        again, _ = siege.ask(message.request, message.position, memory)
        if siege.streams != first or encode(again) != encode(reply):
            raise AssertionError(f"the same {type(message.request).__name__} was answered in another way")
        other = nudged(message.request)
        siege.streams.clear()
        if other is not None:
            siege.ask(other, message.position, memory)
        if set(siege.streams) & set(first):
            raise AssertionError(
                f"another {type(message.request).__name__} at the same place got the same noise: the difference of the "
                "two replies is without any"
            )


SIEGES: dict[str, Attack] = {
    "proposals": siege_proposals,
    "order": siege_order,
    "memories": siege_memories,
    "sizes": siege_sizes,
    "personal": siege_personal,
    "noise": siege_noise,
}


def check_steps(algorithm: Algorithm[Any], folder: Path, world: World | None = None) -> dict[str, Cost]:
    """Check that a policy's `max_steps` bounds the work of an answer, however an algorithm's steps go together.

    All fields that count steps are set to 1, to 2, and to what the policy allows. A silo may refuse the last; if it
    agrees, its answers may cost as much more as the steps are more. Returns what was counted.
    """
    found = []
    policy = Policy(max_steps=max(MAX_STEPS, largest_steps(_with_steps(algorithm, 1))[1]))
    for number in (1, 2, MAX_STEPS):
        siege = lay_siege(_with_steps(algorithm, number), folder / str(number), policy, world=world)
        if number == MAX_STEPS and siege.propose().refusal:
            return {}
        with siege.counting():
            found.append(dict(siege.usual))
    one, two, many = found
    for kind, cost in many.items():
        step = Cost(*(max(getattr(two[kind], f) - getattr(one[kind], f), 0) for f in ("operations", "tensor_bytes")))
        most = one[kind].allowing(step, 3 * MAX_STEPS // 2).allowing(MESSAGE.of(0))
        work = Cost(cost.operations, cost.tensor_bytes)
        require_within(work, most, f"{type(algorithm).__name__}, {kind}: an answer of {MAX_STEPS} steps")
    return many


def _with_steps(algorithm: Algorithm[Any], number: int) -> Algorithm[Any]:
    names = [each.name for each in fields(algorithm) if each.name.endswith("steps") and each.init]
    return replace(algorithm, **dict.fromkeys(names, number))


def besiege(
    algorithm: Algorithm[Any], folder: Path, world: World | None = None, *, skip: Collection[str] = ()
) -> Siege:
    """Lay every siege to a silo that runs this algorithm; raise AssertionError that says which one got through.

    `world` says what data the silo has, and the course its guards; by default it has a toy graph and no guards. Sieges
    in `skip` are left out. Returns the siege, with what was counted.
    """
    guards = () if world is None else world.fields.get("guards", ())
    with known_here(type(algorithm), *map(type, guards)):
        siege = lay_siege(algorithm, folder, world=world)
        for name, attack in SIEGES.items():
            if name in skip:
                continue
            try:
                attack(siege)
            except AssertionError as error:
                raise AssertionError(f"{type(algorithm).__name__}, siege {name!r}: {error}") from error
    return siege


# ---- what they are made of


def _told(changes: Mapping[str, Any], text: str) -> str:
    """Return in short how a proposal differs from the honest one."""
    lines = set(text.splitlines())
    odd = {name: [line for line in str(value).splitlines() if line not in lines] for name, value in changes.items()}
    return str(odd)[:120]


def _with_settings(text: str, settings: str) -> str:
    """Return the text of a course with settings of single clients."""
    if "client_settings: {}" not in text:
        raise ValueError("the course has settings of single clients already")
    return text.replace("client_settings: {}", f"client_settings: {{{settings}}}")


def _after(honest: list[Asked], message: Asked) -> Iterable[Asked]:
    """Return the next message of each kind."""
    (place,) = (number for number, each in enumerate(honest) if each is message)
    return {type(each.request): each for each in reversed(honest[place + 1 :])}.values()


def _plain_requests(kind: type[Algorithm[Any]], honest: Iterable[Asked]) -> Iterator[Request[Any]]:
    """Yield requests of another algorithm that can be made of what there is: those that only need a model."""
    models = [getattr(message.request, "params", None) for message in honest]
    params: Any = next((found for found in models if found), {})
    for request in kind.handlers():
        names = {each.name for each in fields(request)}
        if names <= {"params"}:
            yield request(**{name: params for name in names})


def _none_among(kept: list[Tensor], replies: list[Any], sent: list[Tensor]) -> None:
    """Raise if a tensor that a silo keeps for itself is in a reply; those that came from the server are not its own."""

    def bits(tensors: Iterable[Tensor]) -> set[bytes]:
        return {encode({"": tensor}) for tensor in tensors if tensor.numel() > 1 and bool((tensor != 0).any())}

    own = bits(kept) - bits(sent)
    crossed = [leaf for reply in replies if reply is not None for leaf in leaves(reply).values()]
    if own & bits(leaf for leaf in crossed if isinstance(leaf, Tensor)):
        raise AssertionError("a reply holds a tensor that is the silo's own")


__all__ = ["SIEGES", "Siege", "besiege", "lay_siege"]
