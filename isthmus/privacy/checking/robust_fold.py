"""Another fold in the place of the mean, in every exchange of a course whose replies are folded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from isthmus.core.errors import CourseFailed, refuse
from isthmus.core.exposure import Exchange, exposure
from isthmus.core.folding.centres import GeometricMedian
from isthmus.core.folding.changes import has_changes
from isthmus.core.folding.trust import FLTrust
from isthmus.core.folds import Answer, Fold, Gathered, WeightedMean, weight_of
from isthmus.core.guards.guard import SERVER, AtServer, Guard
from isthmus.core.protocol import EvaluateModel, KeepBest, Request
from isthmus.core.record import Record, leaves, with_leaves
from isthmus.privacy.checking.compared import too_few, unknown_kind
from isthmus.privacy.checking.looking import ONLY_FOLD, looks_at

# What clients are asked beside training, by name.
BESIDE_TRAINING = (EvaluateModel.__name__, KeepBest.__name__)


@dataclass(frozen=True)
class RobustFold(Guard):
    """Replies become one by a fold that holds against wrong ones, whatever method the course has.

    It takes the place of the mean wherever a method folds what clients send, those that also look at each reply (FedGL,
    GCFL) included. Replies without floating-point tensors, such as how much clients count, are folded as before. What
    the fold remembers from round to round (FoolsGold) is in this guard's memory at the server.

    Fields:
        by:       the fold
        requests: names of the requests whose replies are folded by it; empty for all
    """

    by: Fold = field(default_factory=GeometricMedian)
    requests: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        strange = not isinstance(self.by, Gathered | WeightedMean)
        refuse(strange, self, "by", "choose one that ships with the package, or derive from Gathered")

    @property
    def compares(self) -> bool:
        """Whether it puts another fold than the mean in place."""
        return isinstance(self.by, Gathered)

    def shown(self, exchange: Exchange) -> Exchange:
        """Return an exchange with the word that a fold that compares them looks at each reply."""
        return looks_at(self, exchange) if self.compares else exchange

    def problem(self, course: Any) -> str:
        """Return why there are too few clients for the fold, or what stands in its way."""
        if not _folds(course.algorithm):
            return f"{type(course.algorithm).__name__} folds nothing of what clients send: leave it out"
        few = too_few(course, self.by.least_replies, f"the fold {self.by!r}")
        if few:
            return few
        own = getattr(course.algorithm, "fold", None)
        if isinstance(own, Fold) and type(own) is not WeightedMean and own != self.by:
            return f"algorithm.fold is {own!r}, and this guard would put {self.by!r} in its place: leave one out"
        if sum(isinstance(guard, RobustFold) for guard in course.guards) > 1:
            return "there are two, and each would take the other's place: leave one out"
        if isinstance(self.by, FLTrust) and self.by.asks_server:
            return _server_problem(course) or unknown_kind(self.requests, course.algorithm)
        if isinstance(self.by, FLTrust) and course.sampling.least(course.num_clients) < course.num_clients:
            return f"{self.by.root!r} must answer every time: set sampling.fraction=1"
        return unknown_kind(self.requests, course.algorithm)

    def fold(self, fold: Fold, at: AtServer) -> Fold:
        """Return a fold that chooses between this guard's and the one that there was."""
        return Replaced(self.by, fold, self.requests, at) if isinstance(self.by, Gathered) else fold


def _folds(algorithm: Any) -> bool:
    """Whether a method folds anything: by a fold that can be chosen, or by one of its own."""
    folded = (exchange.server_sees.startswith(ONLY_FOLD) for exchange in exposure(type(algorithm)))
    return hasattr(algorithm, "fold") or any(folded)


def _server_problem(course: Any) -> str:
    """Return why the server's own client cannot answer in a course."""
    if not course.server_share:
        return (
            f"FLTrust asks the server's own graph (root {SERVER!r}), and the server has none: set server_share=0.05 or "
            "so, or name a client in by.root"
        )
    for exchange in exposure(type(course.algorithm)):
        if exchange.request not in BESIDE_TRAINING and not exchange.server_sees.startswith(ONLY_FOLD):
            return (
                f"clients of {type(course.algorithm).__name__} are asked more than what is folded "
                f"({exchange.request}), and the server's own client is not: name a client in by.root"
            )
    return ""


@dataclass(frozen=True)
class Replaced(Fold):
    """One fold for replies that can be compared, another for the rest; which it is shows with the first reply."""

    robust: Gathered
    before: Fold
    requests: tuple[str, ...]
    at: AtServer

    def start(self) -> list[Answer]:
        """Return an empty accumulator."""
        return []

    def add(self, total: list[Answer], reply: Record) -> None:
        """Keep one more reply."""
        total.append(Answer(reply, None, ""))

    def add_answer(self, total: list[Answer], reply: Record, sent: Record | None, client: str = "") -> None:
        """Keep one more reply with the request that it answers, and who gave it."""
        total.append(Answer(reply, sent, client))

    def finish(self, total: list[Answer]) -> Record:
        """Fold by the one or the other."""
        kind = type(total[0].sent).__name__ if total else ""
        chosen = not self.requests or kind in self.requests
        if not total or not chosen or not has_changes(total[0].reply):
            return self._finished(self.before, total)
        place = f"{self.at.position.round}.{self.at.position.exchange}"
        inner = self.robust.start()
        for answer in (*self._own(total), *total):
            self.robust.add_answer(inner, *answer)
        memory = self.at.memory
        found, after = self.robust.finish_with(inner, memory.get(kind, {}), place)
        if after:
            self.at.remember({**memory, kind: after})
        heard = sum(weight_of(answer.reply) for answer in total)
        # What clients count for together, without the server's own.
        return with_leaves(found, {**leaves(found), ".weight": heard}) if hasattr(found, "weight") else found

    def _own(self, total: list[Answer]) -> list[Answer]:
        """Return what the server's own client answers, if the fold goes by it."""
        if not (isinstance(self.robust, FLTrust) and self.robust.asks_server):
            return []
        sent = {id(answer.sent): answer.sent for answer in total}
        request = total[0].sent
        if len(sent) > 1 or not isinstance(request, Request) or self.at.own is None:
            raise CourseFailed(
                f"FLTrust asks the server's own graph what {type(request).__name__} asks, and "
                + ("it has none" if self.at.own is None else "each client was asked something else")
            )
        memory = self.at.memory
        reply, after = self.at.own.answer(self.at.position, request, memory.get(SERVER, {}))
        if after:
            self.at.remember({**memory, SERVER: after})
        return [Answer(reply, request, SERVER)]

    @staticmethod
    def _finished(fold: Fold, total: list[Answer]) -> Record:
        found = fold.start()
        for answer in total:
            fold.add_answer(found, *answer)
        return fold.finish(found)
