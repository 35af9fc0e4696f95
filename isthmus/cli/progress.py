"""The live progress bar of a course: round, loss, validation score, bytes up and down."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from isthmus.cli.output import human_bytes
from isthmus.core.federation import ExchangeReport
from isthmus.core.outside import printable
from isthmus.core.protocol import told
from isthmus.core.training import Callback, RoundReport


class ProgressBar(Callback):
    """A callback that shows where a course is; failures are printed above the bar as they happen."""

    def __init__(self, title: str, rounds: int, metric: str, done: int = 0) -> None:
        self._metric = metric
        self._up = self._down = 0
        self._console = Console(stderr=True, highlight=False)
        self._progress = Progress(
            TextColumn(printable(title).replace("{", "{{").replace("}", "}}"), markup=False),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}", markup=False),
            console=self._console,
        )
        self._task = self._progress.add_task(title, total=rounds, completed=done, facts="")

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def exchanged(self, report: ExchangeReport) -> None:
        """Count bytes; name failures."""
        self._up += report.bytes_up
        self._down += report.bytes_down
        for line in told(report.failures):
            self._console.print(printable(f"round {report.position.round}, {report.request}: {line}"), markup=False)

    def round_done(self, report: RoundReport) -> None:
        """Move the bar."""
        total = len(report.scorers) + len(report.unscored)
        who = f" ({len(report.scorers)} of {total} clients)" if report.unscored else ""
        spent = " ".join(f"{name} {amount:.3g}" for name, amount in report.spent.items())
        self.show(report.round, report.train_loss, report.score, self._up, self._down, who, spent)

    def show(
        self, round: int, loss: float | None, score: float | None, up: int, down: int, who: str = "", spent: str = ""
    ) -> None:
        """Show where the course is; `who` says whose the score is, where it is not everybody's."""
        facts = [] if loss is None else [f"loss {loss:.3f}"]
        facts += [] if score is None else [f"val {self._metric} {score:.3f}{who}"]
        facts += [spent] if spent else []
        facts.append(f"up {human_bytes(up)} down {human_bytes(down)}")
        self._progress.update(self._task, completed=round, facts=" ".join(facts))
