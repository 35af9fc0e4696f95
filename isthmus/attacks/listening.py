"""Hears a course for attacks: what their positions see of it, and nothing of it is changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from isthmus.attacks.attack import CURIOUS_CLIENT, MALICIOUS_CLIENT, Attack, Case, Message, Seen
from isthmus.core.federation import Listener
from isthmus.core.protocol import Kept, Position, Request, Requests
from isthmus.core.record import Params, Record, leaves, with_leaves
from isthmus.core.replies import Stack
from isthmus.runs.simulated import SimulatedRun
from isthmus.runs.simulation import Simulation


class Overhearing(Listener):
    """Keeps the messages that some attacks want."""

    def __init__(self, attacks: Sequence[Attack]) -> None:
        self.attacks = tuple(attacks)
        self._messages: list[Message] = []

    def _wanted(self, at: Position, request: Request) -> bool:  # type: ignore[type-arg]
        return any(attack.wants(at, type(request)) for attack in self.attacks)

    def replied(self, position: Position, request: Request, client: str, reply: Record) -> None:  # type: ignore[type-arg]
        """Keep a client's reply."""
        if self._wanted(position, request):
            self._messages.append(Message(position, {client: request}, reply))

    def replied_together(self, position: Position, requests: Requests, stack: Stack, sound: torch.Tensor) -> None:
        """Keep the sound replies of a stack, each by itself: what they lie in may be used again."""
        if self._wanted(position, requests[stack.clients[0]]):
            for place in sound.nonzero().flatten().tolist():
                client = stack.clients[place]
                self.replied(position, requests[client], client, _copied(stack.member(place)))

    def added_up(self, position: Position, requests: Requests, found: Record) -> None:
        """Keep the fold of replies."""
        if requests and self._wanted(position, next(iter(requests.values()))):
            self._messages.append(Message(position, dict(requests), found))

    def seen(self, attack: Attack, case: Case, initial: Params, final: Params) -> Seen:
        """Return what an attack sees from its position: a client has its own messages, the server all."""
        wanted = [message for message in self._messages if attack.wants(message.at, type(message.request))]
        if attack.position in (CURIOUS_CLIENT, MALICIOUS_CLIENT):
            wanted = list(_of_one(wanted, getattr(attack, "client", "") or case.clients[0]))
        return Seen(case.course, case.clients, initial, final, tuple(wanted))


def _of_one(messages: Sequence[Message], client: str) -> Iterator[Message]:
    """Yield what a client has of messages: what it was sent, and its own replies, but no fold."""
    own = [message for message in messages if message.clients == (client,)]
    yield from own
    answered = {message.at for message in own}
    for message in messages:
        if client in message.requests and message.at not in answered:
            yield Message(message.at, {client: message.requests[client]}, Kept())


def _copied(reply: Record) -> Record:
    kept = {path: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for path, leaf in leaves(reply).items()}
    return with_leaves(reply, kept)


def heard(attack: Attack, case: Case) -> Seen:
    """Run a course, as an attacker does one of its own, and return what the attack's position sees of it."""
    simulation = Simulation(case.course, case.scenario)
    simulation.listener = listening = Overhearing([attack])
    made = SimulatedRun(simulation, None, ())
    made.begin()
    result = made.to_the_end(None)
    return listening.seen(attack, case, simulation.initial.params, result.params)
