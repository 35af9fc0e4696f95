"""A runtime with an ear on it: what clients answer goes on as it came, and the models among it can be looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from isthmus.core.federation import Outcome, Outcomes, Runtime, StackOutcome
from isthmus.core.federation.judging import judged, judged_stack
from isthmus.core.protocol import EvaluateModel, Failure, Position, Requests, reply_type
from isthmus.core.record import Params, Record, field_types


@dataclass(frozen=True, eq=False)
class Heard:
    """An outcome with a model in it, the requests, and the parameters that clients had been `sent` last until then."""

    outcome: Outcome | StackOutcome
    requests: Requests
    sent: Mapping[str, Params]

    @property
    def clients(self) -> tuple[str, ...]:
        """Whose outcome it is."""
        return self.outcome.stack.clients if isinstance(self.outcome, StackOutcome) else (self.outcome.client,)


@dataclass(frozen=True, eq=False)
class Trained:
    """A client's last model of a round, that before it was sent (empty if unknown), and the weight it asked for."""

    params: Params
    start: Params
    weight: float | None


class TappedRuntime:
    """Passes everything to another runtime and back, unchanged and in the same order.

    Of the latest round it keeps references to the replies with a field `params`, and of each client the parameters that
    were sent to it last, but for those to evaluate; nothing is judged or taken apart until somebody asks for `models`.

    `wanted` says whether models of a round may be asked for. `marked` is called with the round after each mark of the
    memories. `known` is the model that all clients have been sent before, where a course goes on.
    """

    def __init__(
        self,
        runtime: Runtime,
        wanted: Callable[[int], bool],
        marked: Callable[[int], None] = lambda round: None,
        known: Params | None = None,
    ) -> None:
        self.runtime, self.wanted, self.marked = runtime, wanted, marked
        self._round = 0
        self._heard: list[Heard] = []
        self._unusable: set[tuple[int, str]] = set()
        self._shared: Params = {}
        self._sent: dict[str, Params] = dict.fromkeys(runtime.clients, known) if known else {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runtime, name)

    def exchange(self, position: Position, requests: Requests, timeout_seconds: float | None) -> Outcomes:
        """Pass the exchange on."""
        if position.round != self._round:
            self._round, self._heard, self._shared, self._unusable = position.round, [], {}, set()
        first = next(iter(requests.values()), None)  # all requests of an exchange are of one type
        wanted = self.wanted(position.round)
        keep = first is not None and wanted and "params" in field_types(reply_type(type(first)))
        if not isinstance(first, EvaluateModel):
            sent = {c: model for c, each in requests.items() if (model := getattr(each, "params", None)) is not None}
            self._sent = {**self._sent, **sent}  # a new dict: what was heard before keeps what had been sent until then
        elif wanted:
            self._shared = first.params
        for outcome in self.runtime.exchange(position, requests, timeout_seconds):
            if keep:
                self._heard.append(Heard(outcome, requests, self._sent))
            yield outcome

    def mark(self, round: int) -> None:
        """Mark the memories, then say so."""
        self.runtime.mark(round)
        self.marked(round)

    def undo(self, client: str) -> None:
        """Give a client the memory back that it had before its last answer, which cannot be used."""
        self.runtime.undo(client)
        for heard in reversed(self._heard):
            if client in heard.clients:
                self._unusable.add((id(heard), client))
                return

    # ---- what was heard

    def models(self, round: int, like: Params) -> dict[str, Trained]:
        """Return the last model that each client sent in a round, by client, in the order of all clients.

        Only replies count that the server could use, and only parameters of the names and shapes of `like`: another
        field `params` may hold a part of a model, or a model of another kind.
        """
        found: dict[str, Trained] = {}
        for heard in reversed(self._heard) if round == self._round else ():
            for client, reply in _sound(heard, found):
                params, start = getattr(reply, "params", {}), heard.sent.get(client, {})
                if fits(params, like) and (id(heard), client) not in self._unusable:
                    weight = getattr(reply, "weight", None)
                    found[client] = Trained(params, start if fits(start, like) else {}, weight)
        return {client: found[client] for client in self.clients if client in found}

    def shared(self, round: int) -> Params:
        """Return the global model that was evaluated at the end of a round; empty when there was none."""
        return self._shared if round == self._round else {}


def fits(params: Params, like: Params) -> bool:
    """Whether parameters have the names and shapes of others."""
    return params.keys() == like.keys() and all(params[name].shape == like[name].shape for name in like)


def _sound(heard: Heard, known: Mapping[str, Any]) -> Iterator[tuple[str, Record]]:
    """Yield the replies of an outcome that the server could use, but for those of clients that are known already."""
    outcome, requests = heard.outcome, heard.requests
    if isinstance(outcome, StackOutcome):
        stack = outcome.stack
        expected = {client: reply_type(type(requests[client])) for client in stack.clients}
        for position in judged_stack(stack, requests, expected)[0].nonzero().flatten().tolist():
            if stack.clients[position] not in known:
                yield stack.clients[position], stack.member(position)
    elif outcome.client not in known:
        request = requests[outcome.client]
        reply = judged(outcome.client, outcome.reply, request, reply_type(type(request)))
        if not isinstance(reply, Failure):
            yield outcome.client, reply
