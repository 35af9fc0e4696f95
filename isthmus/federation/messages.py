"""What server, silos and operator say to each other besides the exchanges of a course."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from isthmus.core.record import Params, Record

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


@dataclass(frozen=True)
class Verdict(Record):
    """The server tells a silo whether its terms fit those of the others."""

    course_id: str
    """The course in question."""
    refusal: str
    """Why the silo cannot take part; empty if it can."""


@dataclass(frozen=True)
class Finish(Record):
    """The course is over; every silo may keep its model."""

    course_id: str
    """The course in question."""
    params: Params
    """The global model of the best round; empty for a method without one."""
    memory: str
    """The silo's memory that belongs to it."""


@dataclass(frozen=True)
class Receipt(Record):
    """Nothing but a receipt, or the reason why there is none."""

    problem: str
    """Empty if all went well."""


@dataclass(frozen=True)
class Submission(Record):
    """The operator hands the server a course to run."""

    course: str
    """The course, as YAML."""
    version: str
    """The operator's version of the package."""


@dataclass(frozen=True)
class News(Record):
    """The server tells the operator what happened."""

    events: str
    """Journal entries, one JSON object a line."""


@dataclass(frozen=True)
class RunFile(Record):
    """A file of the run folder, brought to the operator; the last one has an empty name."""

    name: str
    """The file's name within the run folder."""
    content: Tensor
    """The file's bytes."""
    problem: str
    """Why the course did not finish; empty if it did."""
