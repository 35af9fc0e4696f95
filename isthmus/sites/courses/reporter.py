"""Tells operators how a course goes: rounds, and silos that fail."""

from __future__ import annotations

from isthmus.core.federation import ExchangeReport
from isthmus.core.protocol import Failure, told
from isthmus.core.training import Callback, RoundReport, weighted_metric
from isthmus.sites.courses.ledger import Entry


class Reporter(Callback):
    """A callback that writes into a course's entry; a failure that goes on is told once."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self._up = self._down = 0
        self._failing: dict[str, tuple[str, str]] = {}  # client -> kind and reason

    def exchanged(self, report: ExchangeReport) -> None:
        """Count bytes; tell who fails from now on."""
        self._up += report.bytes_up
        self._down += report.bytes_down
        failing = {failure.client: (failure.kind, failure.reason) for failure in report.failures}
        new: list[Failure] = [f for f in report.failures if self._failing.get(f.client) != failing[f.client]]
        for line in told(new):
            self.entry.tell(f"round {report.position.round}, {report.request}: {line}")
        self._failing = failing

    def round_done(self, report: RoundReport) -> None:
        """Tell the round's figures."""
        loss = weighted_metric(report.evaluations, "train", "loss") if report.evaluations else None
        finite = None if loss is None or loss != loss else loss
        self.entry.round_done(report.round, finite, report.score, self._up, self._down)
