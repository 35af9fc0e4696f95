"""What is done with the replies of an exchange: they are looked at, folded or left with the clients, and counted."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, TypeVar

from torch import Tensor

from isthmus.core.federation.contract import ExchangeReport, Outcome, StackOutcome
from isthmus.core.folds import Fold, form_of, weight_of
from isthmus.core.protocol import Failure, Position, Requests
from isthmus.core.record import Record
from isthmus.core.replies import Stack

R = TypeVar("R", bound=Record)


class Replies(Mapping[str, R]):
    """The usable replies of an exchange by client id, in the order of the cohort; `failures` names the others."""

    def __init__(self, replies: Mapping[str, R], failures: Mapping[str, Failure]) -> None:
        self._replies = dict(replies)
        self.failures = dict(failures)

    def __getitem__(self, client: str) -> R:
        return self._replies[client]

    def __iter__(self) -> Iterator[str]:
        return iter(self._replies)

    def __len__(self) -> int:
        return len(self._replies)

    def __repr__(self) -> str:
        return f"Replies({list(self._replies)}, failures={sorted(self.failures)})"


class Taking(ABC):
    """Takes the replies that are sound, and failures; `forms` is what replies must have in common, by who gave them."""

    held = False  # whether clients keep their replies, and only who has one is taken down

    def __init__(self) -> None:
        self.forms: dict[str, Hashable] = {}

    @abstractmethod
    def take(self, client: str, reply: Record | Failure) -> None:
        """Take one reply, or the failure of a client, whose reply may have been taken before."""

    def take_stack(self, stack: Stack, sound: Tensor) -> None:
        """Take the sound replies of a stack."""
        for position in sound.nonzero().flatten().tolist():
            self.take(stack.clients[position], stack.member(position))


class Looking(Taking):
    """Every reply is looked at."""

    def __init__(self, requests: Requests) -> None:
        super().__init__()
        self._requests = requests
        self._found: dict[str, Record | Failure] = {}

    def take(self, client: str, reply: Record | Failure) -> None:
        """Keep it."""
        self._found[client] = reply
        if not isinstance(reply, Failure):
            self.forms[client] = self._requests[client].common(reply)

    def replies(self) -> Replies[Any]:
        """Return all of them in the order of the cohort."""
        found = {client: self._found[client] for client in self._requests}
        failures = {client: reply for client, reply in found.items() if isinstance(reply, Failure)}
        replies = {client: reply for client, reply in found.items() if client not in failures}
        return Replies(replies, failures)


class Folding(Taking):
    """Replies are folded in the order of the cohort, and none is kept.

    Only replies of one form can be folded, and which one it is shows at the end: each form has its own total.
    """

    def __init__(self, requests: Requests, fold: Fold) -> None:
        super().__init__()
        self._requests, self._fold = requests, fold
        self._totals: dict[Hashable, Any] = {}
        self._order = list(requests)
        self._waiting: dict[str, Record | Failure | None] = {}

    def _total_of(self, form: Hashable) -> Any:
        if form not in self._totals:
            self._totals[form] = self._fold.start()
        return self._totals[form]

    def take(self, client: str, reply: Record | Failure | None) -> None:
        """Fold a reply, once those before it are; None where it is in a total already."""
        # Floating-point sums depend on their order, so a reply that comes early waits for those before it.
        self._waiting[client] = reply
        while self._order and self._order[0] in self._waiting:
            first = self._order.pop(0)
            reply = self._waiting.pop(first)
            if reply is not None and not isinstance(reply, Failure):
                form = form_of(reply)
                self._fold.add_answer(self._total_of(form), reply, self._requests[first], first)
                if weight_of(reply) > 0.0:  # who weighs nothing has no say in what the others' form is
                    self.forms[first] = form

    def take_stack(self, stack: Stack, sound: Tensor) -> None:
        """Fold a stack whole, where the fold can."""
        chosen = sound.nonzero().flatten().tolist()
        if self._fold.streams and chosen:
            form = form_of(stack.outline(chosen[0]))
            self._fold.add_stack(self._total_of(form), stack, sound)
            self.forms.update({stack.clients[position]: form for position in chosen})
        for position in chosen:
            self.take(stack.clients[position], None if self._fold.streams else stack.member(position))

    def found(self) -> Record:
        """Return the fold of the replies that are in one form."""
        form = next((self.forms[c] for c in self._requests if c in self.forms), next(iter(self._totals), None))
        found: Record = self._fold.finish(self._totals.get(form, self._fold.start()))
        return found


class Holding(Taking):
    """Replies stay with the clients: who has one is all that is known."""

    held = True

    def __init__(self) -> None:
        super().__init__()
        self.clients: list[str] = []

    def take(self, client: str, reply: Record | Failure) -> None:
        """Take down who has a reply."""
        if not isinstance(reply, Failure):
            self.clients.append(client)


class Account:
    """One exchange in numbers, as they add up."""

    def __init__(self) -> None:
        self._started = self._last = time.perf_counter()
        self._bytes_down = self._bytes_up = 0
        self._seconds = dict.fromkeys(("client_seconds", "codec_seconds", "check_seconds", "fold_seconds"), 0.0)
        self.failures: list[Failure] = []

    def _since(self) -> float:
        before, self._last = self._last, time.perf_counter()
        return self._last - before

    def came(self, outcome: Outcome | StackOutcome) -> None:
        """Add what an outcome says of itself."""
        self._bytes_down += outcome.bytes_down
        self._bytes_up += outcome.bytes_up
        self._seconds["client_seconds"] += outcome.seconds
        self._seconds["codec_seconds"] += outcome.codec_seconds
        self._since()

    def checked(self) -> None:
        """Add the time since an outcome came."""
        self._seconds["check_seconds"] += self._since()

    def folded(self) -> None:
        """Add the time since it was checked."""
        self._seconds["fold_seconds"] += self._since()

    def report(self, position: Position, requests: Requests) -> ExchangeReport:
        """Return the exchange in numbers."""
        return ExchangeReport(
            position=position,
            request=type(next(iter(requests.values()))).__name__ if requests else "nothing",
            num_clients=len(requests),
            bytes_down=self._bytes_down,
            bytes_up=self._bytes_up,
            seconds=time.perf_counter() - self._started,
            failures=tuple(self.failures),
            **self._seconds,
        )
