"""FedGNN's users: who has the model and a list of people makes the embeddings itself, and sees whose came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from isthmus.algorithms.fedgnn import FedGNN, ShareUsers
from isthmus.algorithms.fedgnn.user_items import SharedUsers, embedded, interactions
from isthmus.attacks.attack import CURIOUS_SERVER, Case, Naming, NothingSeen, Seen
from isthmus.config.course import Course
from isthmus.core.errors import refuse
from isthmus.core.protocol import Position, Request
from isthmus.core.record import Params
from isthmus.data.link_graph import LinkGraph
from isthmus.learn.optimizers import load_params
from isthmus.runs.simulation import build_model, dims_of


@dataclass(frozen=True, eq=False)
class People:
    """All users as nodes of the data without a link, and which they are, (users,)."""

    data: LinkGraph
    users: Tensor


@dataclass(frozen=True)
class UsersByEmbeddings(Naming):
    """Names the users whose embeddings, made of their features by the model that was sent, are among a client's.

    Fields:
        tolerance: embeddings are the same if they differ by no more than this part of their length
    """

    position: ClassVar[str] = CURIOUS_SERVER
    learns: ClassVar[str] = "which users rated something at a client"
    knows: ClassVar[str] = "the features of all users (names or ids, as their buckets)"
    reads: ClassVar[tuple[str, ...]] = ("embeddings",)

    tolerance: float = 1e-4

    def __post_init__(self) -> None:
        refuse(not 0.0 < self.tolerance < 1.0, self, "tolerance", "it must be in (0, 1)")

    def problem(self, course: Course) -> str:
        """Return that no users are sent."""
        if not isinstance(course.algorithm, FedGNN) or not course.algorithm.expand_every:
            return f"{type(course.algorithm).__name__} sends no users' embeddings (fedgnn with expand_every)"
        if not issubclass(LinkGraph, course.task.data_type):
            return f"users are ends of links, and {type(course.task).__name__} is about {course.task.data_type.item}s"
        return ""

    def wants(self, at: Position, request: type[Request[Any]]) -> bool:
        """Return that it is about users."""
        return issubclass(request, ShareUsers)

    def known(self, case: Case) -> People:
        """Return all users, without what they rated."""
        whole: Any = case.scenario.whole
        side = whole.node_attributes.get("side", torch.ones(whole.num_nodes))
        return People(whole, (side == 0).nonzero().flatten())

    def guess(self, seen: Seen, known: People) -> dict[str, Tensor]:
        """Return the users whose embeddings came, by client."""
        found = {}
        for client in seen.clients:
            messages = [m for m in seen.messages if m.clients == (client,) and isinstance(m.reply, SharedUsers)]
            if not messages:
                raise NothingSeen(f"no users of {client} are seen")
            rows: Tensor = messages[0].reply.embeddings.double()  # type: ignore[attr-defined]
            mine = self._made(seen, known, messages[0].request.params)  # type: ignore[attr-defined]
            found[client] = self._among(mine, rows)
        return found

    def _made(self, seen: Seen, known: People, params: Params) -> Tensor:
        """Return what the encoder makes of each user's features, (users, width)."""
        model = build_model(seen.course, *dims_of(seen.course, known.data, "the attacker"))
        load_params(model, {**model.state_dict(), **params})
        graph = seen.course.task.prepare(known.data).graph
        return embedded(model, graph, known.users).double()

    def _among(self, mine: Tensor, rows: Tensor) -> Tensor:
        """Return whose embedding is among some rows, (users,)."""
        if not rows.numel():
            return torch.zeros(len(mine), dtype=torch.bool)
        near = torch.cdist(mine, rows, compute_mode="donot_use_mm_for_euclid_dist").amin(dim=1)
        return torch.le(near, self.tolerance * mine.norm(dim=1))

    def prior(self, known: People, clients: Sequence[str]) -> dict[str, Tensor]:
        """Return nobody if there are several clients: nobody is likelier at this one than not."""
        return dict.fromkeys(clients, torch.full((len(known.users),), len(clients) == 1))

    def truth(self, case: Case, known: People) -> dict[str, Tensor]:
        """Return the users who rated something at each client, to train on."""
        found = {}
        for client, part in case.scenario.parts.items():
            user, _ = interactions(part)
            found[client] = torch.isin(known.users, part.node_ids[user])
        return found
