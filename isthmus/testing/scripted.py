"""Clients that answer from a script: what the server half of an algorithm does, without graphs or models.

clients = ScriptedClients({"a": ModelUpdate(..., weight=1.0), "b": ModelUpdate(..., weight=3.0)})
state = FedAvg().round(ModelState(params), clients.federation(params))
assert clients.sent == [("a", TrainModel(params)), ("b", TrainModel(params))]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from isthmus.core.federation import (
    ExchangeReport,
    ExchangeRules,
    Federation,
    InitialModel,
    Outcome,
    Position,
)
from isthmus.core.protocol import Holdings, Request
from isthmus.core.record import Params, Record

Script = Mapping[str, Record] | Callable[[str, Request[Any]], Record]


class ScriptedClients:
    """A runtime whose clients give written replies: one for each client, or what a function of the request says.

    `sent` lists what the server asked, in order; a `Failure` in the script is a client that fails.
    """

    def __init__(self, script: Script, clients: Sequence[str] | None = None) -> None:
        if clients is None and not isinstance(script, Mapping):
            raise ValueError("clients is None and script is a function; say which clients there are")
        self.script = script
        self._clients = tuple(script if clients is None else clients)  # type: ignore[arg-type]
        self.sent: list[tuple[str, Request[Any]]] = []
        self.reports: list[ExchangeReport] = []

    @property
    def clients(self) -> tuple[str, ...]:
        """The ids of all clients, in the order given."""
        return self._clients

    @property
    def holdings(self) -> dict[str, Holdings]:
        """Nothing: scripted clients have no data."""
        return {}

    def federation(
        self,
        params: Params | None = None,
        *,
        buffers: Sequence[str] = (),
        cohort: Sequence[str] | None = None,
        round: int = 1,
        seed: int = 0,
        min_replies: int = 1,
    ) -> Federation:
        """Return one round's view of these clients, for `setup` and `round` of an algorithm."""
        return Federation(
            self,
            seed=seed,
            round=round,
            cohort=self.clients if cohort is None else cohort,
            model=InitialModel(params or {}, frozenset(buffers)),
            rules=ExchangeRules(min_replies),
            report=self.reports.append,
        )

    def exchange(
        self, position: Position, requests: Mapping[str, Request[Any]], timeout_seconds: float | None
    ) -> Iterator[Outcome]:
        """Answer from the script."""
        for client, request in requests.items():
            self.sent.append((client, request))
            reply = self.script[client] if isinstance(self.script, Mapping) else self.script(client, request)
            yield Outcome(client, reply, 0, 0, 0.0)

    def mark(self, round: int) -> None:
        """Do nothing: scripted clients remember nothing."""

    def undo(self, client: str) -> None:
        """Scripted clients remember nothing."""

    def abandon_round(self) -> int:
        """Return 0: scripted clients remember nothing."""
        return 0

    def save_clients(self) -> dict[str, bytes]:
        """Return nothing: scripted clients remember nothing."""
        return {}

    def load_clients(self, memories: Mapping[str, bytes]) -> None:
        """Do nothing: scripted clients remember nothing."""
