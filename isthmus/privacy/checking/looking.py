"""How checks are shown to people: the algorithm may see but the fold, and yet a guard looks at each reply."""

from __future__ import annotations

from dataclasses import replace

from isthmus.core.exposure import Exchange
from isthmus.core.guards.guard import Guard

ONLY_FOLD = "only the fold"


def looks_at(guard: Guard, exchange: Exchange) -> Exchange:
    """Return an exchange with the word that a guard looks at each reply, where the algorithm does not."""
    chosen = getattr(guard, "requests", ())
    if not exchange.server_sees.startswith(ONLY_FOLD) or (chosen and exchange.request not in chosen):
        return exchange
    name = type(guard).__name__
    after = exchange.server_sees.removeprefix(ONLY_FOLD)
    more = f"{after}, {name}" if after else f"; each client's is looked at by {name}"
    return replace(exchange, server_sees=ONLY_FOLD + more)
