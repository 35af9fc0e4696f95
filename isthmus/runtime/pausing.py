"""Handlers of many clients side by side.

A handler is written for one client. Here those of a block of clients are begun one after the other; each pauses where
it asks its client for heavy work (`Client.do`: training, evaluating, ...). When all have paused or ended, pieces of
work that fit together are done as one, and each handler goes on with its own result. Work that fits with no other, or
that cannot be done together, is done for its client alone; `reasons` says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from greenlet import getcurrent, greenlet

from isthmus.core.client import Client, Cohort, NotTogether, Work


class Pausing:
    """Runs handlers of a block of clients, and counts how many pieces of each kind of work were done in which way."""

    def __init__(self) -> None:
        self.together: Counter[str] = Counter()
        self.alone: Counter[str] = Counter()
        self.reasons: dict[str, str] = {}  # why pieces that fit together were done alone all the same, by kind
        self.broken: set[str] = set()  # kinds among them whose reason is an error; others were refused (`NotTogether`)

    def run(self, block: Cohort, handlers: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        """Return what the handler of each client returns; a handler raises nothing."""
        clients = {client.id: client for client in block}
        results: dict[str, Any] = {}
        paused: dict[str, tuple[greenlet, Work]] = {}
        threads = {client: greenlet(handler) for client, handler in handlers.items()}

        def go_on(client: str, thread: greenlet, *value: Any) -> None:
            found = thread.switch(*value)
            if thread.dead:
                results[client] = found
            else:
                paused[client] = (thread, found)

        hub = getcurrent()
        for member in clients.values():
            member.desk = partial(_paused, hub)
        try:
            for client, thread in threads.items():
                go_on(client, thread)
            while paused:
                waiting, paused = paused, {}
                done = self._done(block, {client: work for client, (_, work) in waiting.items()})
                for client, (thread, _) in waiting.items():
                    go_on(client, thread, done[client])
        finally:
            for member in clients.values():
                member.desk = None
            for thread in threads.values():  # those that an interruption keeps from going on end here
                thread.throw()
        return {client: results[client] for client in handlers}

    def _done(self, block: Cohort, works: Mapping[str, Work]) -> dict[str, Any]:
        """Return each client's result, or what went wrong with it."""
        groups: dict[Any, list[Client]] = {}
        for client in block:
            if client.id in works:
                groups.setdefault(works[client.id].kind(), []).append(client)
        done: dict[str, Any] = {}
        for group in groups.values():
            mine = [works[client.id] for client in group]
            for client, result in zip(group, self._of_group(block, group, mine), strict=True):
                done[client.id] = result
        return done

    def _of_group(self, block: Cohort, group: Sequence[Client], works: Sequence[Work]) -> Sequence[Any]:
        name = type(works[0]).__name__
        if len(group) > 1:
            try:
                found = type(works[0]).together(block.of(group), works)
                self.together[name] += len(group)
                return found
            except NotTogether as reason:
                self.reasons[name] = str(reason)
            except Exception as error:  # whoever it is that cannot be served is named when each is served alone
                self.reasons[name] = f"{type(error).__name__}: {error}"
                self.broken.add(name)
        self.alone[name] += len(group)
        return [_alone(client, work) for client, work in zip(group, works, strict=True)]


class _Raised:
    """What work for a client raised; its handler is told."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _alone(client: Client, work: Work) -> Any:
    try:
        return work.alone(client)
    except Exception as error:
        return _Raised(error)


def _paused(hub: greenlet, work: Work) -> Any:
    """Leave work at the hub, and return its result when it is done there, maybe with that of others."""
    # The switch belongs to all handlers of this thread: one that computes without gradients must not stop others.
    enabled = torch.is_grad_enabled()
    if not enabled:
        torch.set_grad_enabled(True)
    found = hub.switch(work)
    if torch.is_grad_enabled() != enabled:
        torch.set_grad_enabled(enabled)
    if isinstance(found, _Raised):
        raise found.error
    return found
