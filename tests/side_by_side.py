"""One exchange with handlers that run side by side, as a simulation runs them, for tests of the handlers themselves."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from isthmus.core.client import Client, Work
from isthmus.runtime.loop import Pausing


def side_by_side(
    handler: Callable[[Any, Any], Any], requests: Sequence[Any], block: Any, *, together: Sequence[str] = ("Fit",)
) -> list[Any]:
    """Return what each client's handler replies; each kind of work in `together` must be done for all as one."""
    replies, pausing = watched(handler, requests, block)
    assert all(pausing.together[kind] >= len(block) and not pausing.alone[kind] for kind in together)
    return replies


def watched(handler: Callable[[Any, Any], Any], requests: Sequence[Any], block: Any) -> tuple[list[Any], Pausing]:
    """Return what each client's handler replies, and who knows how the work was done."""
    pausing = Pausing()
    handlers = {client.id: partial(handler, request, client) for request, client in zip(requests, block, strict=True)}
    replies = pausing.run(block, handlers)
    return [replies[client.id] for client in block], pausing


class Block(list[Any]):
    """Clients that are simulated together; for toys, whose work is `Written`."""

    def of(self, clients: Sequence[Client]) -> Block:
        return Block(clients)


@dataclass(frozen=True, eq=False)
class Written(Work):
    """Work whose result is written down."""

    result: Any

    def kind(self) -> Hashable:
        return type(self)

    def alone(self, client: Any) -> Any:
        return self.result

    @staticmethod
    def together(clients: Any, works: Sequence[Written]) -> list[Any]:
        assert len(clients) == len(works)
        return [work.result for work in works]
