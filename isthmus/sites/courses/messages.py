"""What server, silos and operator say to each other besides the exchanges of a course."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import torch
from torch import Tensor

from isthmus.core.codec import decode, encode, pack, unpack
from isthmus.core.errors import BadMessage
from isthmus.core.protocol import Holdings
from isthmus.core.record import Params, Record
from isthmus.sites.silo.consent import Consent

# What a silo answers to an exchange of a course that it has not agreed to, for instance after a restart.
NOT_AGREED = b"isthmus: not agreed"


@dataclass(frozen=True)
class Proposal(Record):
    """The server proposes a course to a silo. It is configuration only: what runs there is what is installed there."""

    course_id: str
    """Names this run of the course."""
    course: str
    """The course, as YAML."""
    version: str
    """The server's version of the package."""
    sites: tuple[str, ...]
    """Who takes part."""
    study: str = ""
    """Names the study that the course is a trial of; empty if of none."""


@dataclass(frozen=True)
class AskCourse(Record):
    """A message about one course: to cancel it, to have it taken up again, to see its files, and whatever else."""

    course_id: str
    """The course in question."""


@dataclass(frozen=True)
class Terms(Record):
    """What a silo says to a proposal."""

    refusal: str
    """Why the silo does not take part; empty if it does."""
    version: str
    """The silo's version of the package."""
    input_dim: int
    """How many features its nodes have."""
    output_dim: int
    """How many outputs a model for its data has: its number of classes or tasks, or one score."""
    class_names: tuple[str, ...]
    """The classes or tasks of its labels; empty where they have no names, or where the task learns none of them."""
    holds: str
    """In a few words, how much data the silo has; reveals its numbers of nodes, edges and labels."""
    features: str = ""
    """Digest of the names of its feature columns, in order; empty where they have none. It tells whether two silos have
    the same ones; what they are can be guessed from it, as by whoever has a list of candidates."""
    schema: str = ""
    """Digest of the schema that its folder follows; empty where it has none."""
    consent: Consent | None = None
    """The silo's signature of the course, for the others; none from a silo without a certificate."""
    holdings: Holdings = Holdings(0, {})
    """The same in numbers, nodes and examples: neither its weight nor its counts may exceed them during the course."""
    changed: bool = False
    """Whether its data are other than those it answered this course with before. Yes or no and never a fingerprint,
    which would let others test guesses about the data."""


@dataclass(frozen=True)
class AskColumns(AskCourse):
    """The server asks a silo that takes part what its feature columns are called: another's have other names."""


@dataclass(frozen=True)
class Columns(Record):
    """What a silo's feature columns are called."""

    names: tuple[str, ...]
    """The names in order; empty if the silo keeps them to itself, or they are too many to send. Reveals words and
    categories that are in the silo's schema."""


@dataclass(frozen=True)
class Verdict(AskCourse):
    """The server tells a silo whether its terms fit those of the others."""

    refusal: str
    """Why the silo cannot take part; empty if it can."""
    columns: tuple[str, ...] = ()
    """What the others' feature columns are called, where the silo has other ones and they let it know."""
    consents: dict[str, Consent] = field(default_factory=dict)
    """By site, the signatures of those who take part, so that a silo can see that there are as many as it asks for."""


@dataclass(frozen=True)
class Points(Record):
    """Blinded ids on their way round all silos (`isthmus.sites.silo.matching`)."""

    points: Tensor
    """One row of 32 bytes for each id, in an order that its owner drew: as good as random to all others."""
    signature: str
    """Of the silo that hands them on; it brings the silo's certificate."""


NO_POINTS = Points(torch.empty(0, 32, dtype=torch.uint8), "")


@dataclass(frozen=True)
class PassOn(AskCourse):
    """The server hands a silo the points that are next for it, and asks for what it makes of them."""

    attempt: str
    """Names this ring: no two have the same secrets."""
    ring: tuple[str, ...]
    """Who takes part, in the order in which points are handed on."""
    step: int
    """How far it is: 0 asks for the silo's own, as many as there are silos brings these back."""
    handed: Points
    """What the one before has handed on; nothing at step 0."""


@dataclass(frozen=True)
class Passed(Record):
    """What a silo makes of points."""

    problem: str
    """Why it hands on nothing; empty if it does."""
    handed: Points
    """For the next in the ring; nothing at the last step."""


@dataclass(frozen=True)
class Finish(AskCourse):
    """The course is over; every silo may keep its model."""

    params: Params
    """The global model of the best round; empty for a method without one."""
    memory: str
    """The silo's memory that belongs to it."""


@dataclass(frozen=True)
class Receipt(Record):
    """Nothing but a receipt, or the reason why there is none."""

    problem: str
    """Empty if all went well."""


# ---- what an operator asks the server; each question is answered by one `DeskAnswer`


@dataclass(frozen=True)
class DeskAnswer(Record):
    """The server's answer to an operator's question."""

    problem: str
    """Why the question is not answered; empty if it is."""
    content: Tensor
    """The reply, an encoded record of its own."""
    digest: str
    """The SHA-256 of problem and content, in hexadecimal."""


def desk_answer(problem: str, reply: Record | None = None) -> bytes:
    """Return an answer of the server's to an operator, as bytes."""
    content = b"" if reply is None else encode(reply)
    return encode(DeskAnswer(problem, pack(content), _digest(problem, content)))


def open_answer(data: bytes) -> tuple[str, bytes]:
    """Return problem and reply of a server's answer; raise BadMessage if it was damaged on the way."""
    answer: DeskAnswer = decode(data, DeskAnswer)
    content = unpack(answer.content) if answer.content.dtype == torch.uint8 and answer.content.ndim == 1 else b""
    if answer.digest != _digest(answer.problem, content):
        raise BadMessage("it was damaged on the way")
    return answer.problem, content


def _digest(problem: str, content: bytes) -> str:
    return hashlib.sha256(problem.encode() + b"\0" + content).hexdigest()


@dataclass(frozen=True)
class Submission(Record):
    """The operator hands the server a course to run."""

    submission: str
    """Names this submission: handed in twice, it is one course."""
    course: str
    """The course, as YAML."""
    version: str
    """The operator's version of the package."""
    study: str = ""
    """Names the study that the course is a trial of; empty if of none."""
    until: int = 0
    """The round after which it is frozen; 0: it goes on to its end. Handed in again with a later one, it goes on."""


@dataclass(frozen=True)
class CourseStatus(Record):
    """Where a course is at the server."""

    course_id: str
    algorithm: str
    state: str
    """queued, running, paused, frozen, done, failed or cancelled."""
    reason: str
    """Why it is in that state, where there is something to say."""
    round: int
    """The last whole round."""
    rounds: int
    """How many rounds it has at most."""
    place: int
    """How many courses are run before it."""
    operator: str
    """Who submitted it."""
    submitted: float
    """When it was submitted, in seconds since 1970."""
    changed: float
    """When its state last changed."""
    fault: str = ""
    """With `failed`: `course` if nobody was missing and it came to nothing all the same, as with a rate that is too
    large; empty if others are at fault, and it may come to something when it goes on."""


@dataclass(frozen=True)
class ListCourses(Record):
    """The operator asks which courses there are; answered by `Courses`."""


@dataclass(frozen=True)
class Courses(Record):
    """The courses at the server, first submitted first."""

    courses: tuple[CourseStatus, ...]
    sites: tuple[str, ...]
    """Who takes part in a course that is submitted now."""


@dataclass(frozen=True)
class FollowCourse(AskCourse):
    """The operator asks what has happened in a course since it last asked; answered by `News`."""

    life: str
    """From which run of the server's process the number is; numbers start anew with the next."""
    after: int
    """The number of the last event that the operator has."""


@dataclass(frozen=True)
class CourseEvent(Record):
    """Something that happened in a course: a text, or a round's figures."""

    number: int
    """Events are numbered from one, in the order in which they happened."""
    text: str
    """What happened; empty for a round."""
    round: int
    """The round in question."""
    loss: float | None
    """The round's training loss over all clients."""
    score: float | None
    """The round's validation score over all clients."""
    bytes_up: int
    """Bytes from the silos so far."""
    bytes_down: int
    """Bytes to the silos so far."""


@dataclass(frozen=True)
class News(Record):
    """What has happened in a course since an operator last asked."""

    life: str
    """Names this run of the server's process."""
    status: CourseStatus
    events: tuple[CourseEvent, ...]
    """What happened, in order; of what lies far back only the last part."""


@dataclass(frozen=True)
class FileFacts(Record):
    """A file of a run folder."""

    name: str
    size: int
    digest: str
    """The SHA-256 of its bytes, in hexadecimal."""


@dataclass(frozen=True)
class Manifest(Record):
    """The files of a run folder."""

    files: tuple[FileFacts, ...]


@dataclass(frozen=True)
class AskPart(AskCourse):
    """The operator asks for a part of a file; answered by `FilePart`."""

    name: str
    offset: int


@dataclass(frozen=True)
class FilePart(AskPart):
    """A part of a file."""

    digest: str
    """The SHA-256 of its bytes, in hexadecimal."""
    content: Tensor
