"""What a sink is: somewhere else that a run's numbers go to, round by round, and that may fail without harm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from isthmus.core.errors import BadInput
from isthmus.core.federation import ExchangeReport
from isthmus.core.training import Callback, RoundReport

MOST_CLIENTS = 100  # whose own numbers go out; of more clients only how far they are apart
SHARES = {"10%": 1, "median": 3, "90%": 5}  # of the clients, by their places in a round's spread


@dataclass(frozen=True)
class About:
    """What a sink is told of the run.

    Fields:
        name:    of the run's folder
        folder:  where it may write
        course:  everything that was set, as plain values
        replies: request -> what it is answered with
    """

    name: str
    folder: Path
    course: Mapping[str, Any]
    replies: Mapping[str, str]


class Sink(ABC):
    """Takes numbers by name."""

    def __init__(self, about: About) -> None:
        self.about = about

    @abstractmethod
    def log(self, values: Mapping[str, float], round: int) -> None:
        """Take the numbers of a round."""

    @abstractmethod
    def close(self, values: Mapping[str, float]) -> None:
        """Take the scores of the model that is kept, and end."""

    @abstractmethod
    def leave(self) -> None:
        """End where the run is cut short; it may be gone on with."""


class Sinks(Callback):
    """Gives every sink the numbers of each round; one that fails is told of once, and asked no more."""

    def __init__(self, kinds: Mapping[str, type[Sink]], about: About, say: Callable[[str], None]) -> None:
        self._replies, self._say = about.replies, say
        self._bytes: Counter[str] = Counter()
        self._sinks: dict[str, Sink] = {}
        for name, kind in kinds.items():
            self._guarded(name, partial(self._open, name, kind, about))

    def _open(self, name: str, kind: type[Sink], about: About) -> None:
        self._sinks[name] = kind(about)

    def exchanged(self, report: ExchangeReport) -> None:
        """Count the bytes of an exchange by message."""
        self._bytes[f"bytes/down/{report.request}"] += report.bytes_down
        self._bytes[f"bytes/up/{self._replies.get(report.request, report.request)}"] += report.bytes_up

    def round_done(self, report: RoundReport) -> None:
        """Send the round's numbers out."""
        values = {**numbers_of(report), **self._bytes}
        self._bytes.clear()
        self._each(lambda sink: sink.log(values, report.round))

    def close(self, metrics: Mapping[str, Mapping[str, float]]) -> None:
        """Send the last scores out, and end every sink."""
        values = {f"test/{mode}/{name}": value for mode, scores in metrics.items() for name, value in scores.items()}
        self._each(lambda sink: sink.close(values))

    def leave(self) -> None:
        """End every sink where the run is cut short."""
        self._each(lambda sink: sink.leave())

    def _each(self, do: Callable[[Sink], None]) -> None:
        for name, sink in list(self._sinks.items()):
            self._guarded(name, partial(do, sink))

    def _guarded(self, name: str, do: Callable[[], None]) -> None:
        try:
            do()
        except BadInput:  # what the user can mend, as a package that is not there
            raise
        except Exception as error:  # of other people's packages and their servers, anything
            self._sinks.pop(name, None)
            self._say(f"the sink {name!r} failed and gets nothing more: {type(error).__name__}: {str(error)[:300]}")


def numbers_of(report: RoundReport) -> dict[str, float]:
    """Return a round's numbers by the names that people look for."""
    values: dict[str, float] = {**report.metrics, "seconds/round": report.wall_seconds or report.seconds}
    values |= {"bytes/up": report.bytes_up, "bytes/down": report.bytes_down, "clients/asked": len(report.cohort)}
    values |= {"clients/missing": len(report.missing)} | {
        f"spent/{name}": value for name, value in report.spent.items()
    }
    for metric, at in report.spread.items():
        values |= {f"spread/{metric}/{share}": at[place] for share, place in SHARES.items()}
    if 1 < len(report.evaluations) <= MOST_CLIENTS:
        for client, evaluation in report.evaluations.items():
            for split, scores in evaluation.metrics.items():
                values |= {f"client/{client}/{split}/{name}": value for name, value in scores.items()}
    return values


def flat(value: Any, *path: str) -> dict[str, Any]:
    """Return nested settings by dotted keys, lists as text."""
    if isinstance(value, Mapping):
        found: dict[str, Any] = {}
        for key, item in value.items():
            found |= flat(item, *path, str(key))
        return found
    plain = value is None or isinstance(value, str | int | float)
    return {".".join(path): value if plain else str(_listed(value))}


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, Sequence) else value
