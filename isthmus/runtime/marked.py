"""The memories of clients as a runtime keeps them: with a mark to go back to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from isthmus.core.errors import BadInput

MemoryT = TypeVar("MemoryT")


class MarkedMemories(Generic[MemoryT]):
    """What a runtime does with the clients' memories that it holds, or knows by a name: each is one plain value."""

    def __init__(self, clients: Iterable[str], blank: MemoryT) -> None:
        self._memories = dict.fromkeys(clients, blank)
        self._marked: tuple[int, dict[str, MemoryT]] = (0, dict(self._memories))
        self._before: dict[str, MemoryT] = {}  # what clients answered from in the last exchange

    def undo(self, client: str) -> None:
        """Give a client the memory back that it had before its answer in the last exchange, if it gave one."""
        self._memories[client] = self._before.get(client, self._memories[client])

    def mark(self, round: int) -> None:
        """Mark the memories."""
        self._marked = (round, dict(self._memories))

    def abandon_round(self) -> int:
        """Put the memories back to the mark."""
        round, memories = self._marked
        self._memories = dict(memories)
        return round


def require_clients(memories: Mapping[str, bytes], clients: Iterable[str]) -> None:
    """Raise BadInput unless memories are those of the clients of a course."""
    wanted = sorted(clients)
    if sorted(memories) != wanted:
        raise BadInput(f"the checkpoint has the clients {sorted(memories)[:5]}, this course has {wanted[:5]}")
