"""Blocks of a course's clients for workers: what is sent to them, and what they make of it.

A worker gets the course as text and the data of its own clients; the whole stays at the server, which scores on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from isthmus import __version__
from isthmus.config.course import Course
from isthmus.config.load import course_digest, course_to_dict, course_to_yaml, load_course
from isthmus.core.codec import decode_own, encode, opened, pack, unpack
from isthmus.core.errors import BadInput
from isthmus.core.guards.line import GuardLine
from isthmus.core.outside import parse_yaml
from isthmus.core.record import Params, Record, State
from isthmus.data.graph import Graph
from isthmus.data.graph_set import GraphSet
from isthmus.data.link_graph import LinkGraph
from isthmus.learn.together.blocks import Blocks
from isthmus.runs.simulation import Simulation, fresh_model, known_parameters, simulated_clients, simulated_runtime
from isthmus.runtime.block import Opened
from isthmus.runtime.cluster import Crew
from isthmus.runtime.workers import WorkersRuntime, divided

KINDS = {kind.__name__: kind for kind in (Graph, GraphSet, LinkGraph)}
# Of each worker of a cluster at the start, so that as many again can join and have something to do.
BLOCKS_PER_WORKER = 2


@dataclass(frozen=True)
class Opening(Record):
    """What a block is made of."""

    version: str
    """Of isthmus at the server: another one may compute something else."""
    course: str
    """The course, as a file has it."""
    digest: str
    """Its digest at the server."""
    parts: dict[str, Tensor]
    """Each client's data, encoded."""
    memories: dict[str, Tensor]
    """Each client's memory, encoded."""


def blocks_of(events: Sequence[Mapping[str, Any]]) -> int | None:
    """Return into how many blocks the clients of a run were divided, by its journal; None where it does not say."""
    told = [event.get("blocks") for event in events if event["event"] == "workers"]
    return told[-1] if told and isinstance(told[-1], int) else None


def at_workers(simulation: Simulation, crew: Crew, num_blocks: int | None = None) -> WorkersRuntime:
    """Return a runtime that has a simulation's clients at workers, in so many blocks."""
    course = simulation.course
    text = portable(course)
    if num_blocks is None:
        num_blocks = len(crew.workers()) * (BLOCKS_PER_WORKER if crew.grows else 1)
    sizes = {name: int(data.num_nodes + getattr(data, "num_edges", 0)) for name, data in simulation.holdings.items()}

    def opening(clients: tuple[str, ...], memories: Mapping[str, bytes]) -> bytes:
        parts = {name: pack(part_to_bytes(simulation.holdings[name])) for name in clients}
        kept = {name: pack(memory) for name, memory in memories.items()}
        return encode(Opening(__version__, text, course_digest(course), parts, kept))

    held = {name: client.holdings for name, client in simulation.clients.items()}
    return WorkersRuntime(crew, divided(sizes, num_blocks), open_block, opening, list(simulation.clients), held)


def portable(course: Course) -> str:
    """Return a course as text that another process can read; raise BadInput where it cannot be."""
    text, why = course_to_yaml(course), "it reads back as another course"
    try:
        is_same = course_digest(load_course(course_to_dict(course))) == course_digest(course)
    except BadInput as error:
        is_same, why = False, str(error)
    if "__main__:" in text:
        is_same, why = False, "a class of it is in the script that is run, which no other process can import"
    if not is_same:
        raise BadInput(
            f"the course cannot be sent to workers: {why}; parts of one's own must be frozen dataclasses in a module "
            "that the workers can import too"
        )
    return text


def open_block(message: bytes) -> Opened:
    """Make the clients of a block, in a worker."""
    opening: Opening = decode_own(message, Opening, share=True)
    if opening.version != __version__:
        raise BadInput(f"it runs isthmus {__version__}, the server {opening.version}; install the same")
    course = load_course(parse_yaml(opening.course, "a course of workers"))
    if course_digest(course) != opening.digest:
        raise BadInput("it reads another course than was sent; is the same version of every part installed?")
    torch.set_num_threads(course.threads)
    parts = {name: part_of_bytes(opened(part)) for name, part in opening.parts.items()}
    known = known_parameters(course)

    def model_of(name: str) -> tuple[nn.Module, Params]:
        return fresh_model(course, name, parts[name], known)

    clients = simulated_clients(course, parts, model_of)
    runtime = simulated_runtime(course, clients, model_of, Blocks(course.block_mb * 2**20))
    runtime.load_clients({name: unpack(memory) for name, memory in opening.memories.items()})
    runtime.mark(0)
    return Opened(course.algorithm, runtime, course.threads, GuardLine(course.guards) if course.guards else None)


# ---- a client's data as bytes


def part_to_bytes(data: Any) -> bytes:
    """Return what a client holds as bytes, without pickle."""
    if KINDS.get(type(data).__name__) is not type(data):
        raise BadInput(
            f"a client holds a {type(data).__name__}; workers can be sent {', '.join(sorted(KINDS))}, not classes of "
            "one's own"
        )
    return encode({"kind": type(data).__name__, **{f.name: _plain(getattr(data, f.name)) for f in fields(data)}})


def part_of_bytes(data: bytes | memoryview) -> Any:
    """Return what a client holds from its bytes."""
    found: State = decode_own(data, State)
    kind = KINDS[found.pop("kind")]
    return kind(**{name: _restored(value) for name, value in found.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor) and value.layout == torch.sparse_csr:
        rows, columns = value.shape
        parts = {"start": value.crow_indices(), "column": value.col_indices(), "value": value.values()}
        return {"sparse": {**parts, "rows": rows, "columns": columns}}
    return dict(value) if isinstance(value, Mapping) else value


def _restored(value: Any) -> Any:
    if not isinstance(value, dict) or set(value) != {"sparse"} or not isinstance(value["sparse"], dict):
        return value
    sparse = value["sparse"]
    size = (sparse["rows"], sparse["columns"])
    return torch.sparse_csr_tensor(sparse["start"], sparse["column"], sparse["value"], size, check_invariants=False)
