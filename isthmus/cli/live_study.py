"""What is seen of a study while it goes on: the best configurations so far, and a bar by its budget."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from isthmus.core.outside import printable
from isthmus.report.summary import Table as Printed
from isthmus.tune.results import ranking
from isthmus.tune.spec import Study
from isthmus.tune.table import Row, Table

SHOWN = 5  # configurations
A_SECOND = 2  # how often it is drawn: what is not looked at is not ranked


class LiveStudy:
    """A table of the best configurations with a bar below it, on a terminal; elsewhere the bar alone, in the end."""

    def __init__(self, study: Study, silent: bool = False) -> None:
        self.study, self.table = study, study.table()
        words = TextColumn("{task.fields[facts]}", markup=False)
        self.bar = Progress(words, BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        self.task = self.bar.add_task("", total=None, facts=printable(study.title))
        console = Console(stderr=True, quiet=silent)
        self.live = Live(console=console, get_renderable=self.drawn, refresh_per_second=A_SECOND)

    def __enter__(self) -> LiveStudy:
        self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.table = self.study.table()  # the results have a table of their own
        self.live.stop()

    def drawn(self) -> RenderableType:
        """Return what is shown now."""
        if not any(row.done for row in self.table.rows):
            return self.bar
        return Group(_shown(ranking(self.study, self.table, SHOWN)), self.bar)

    def say(self, text: str) -> None:
        """Show a line in place of what came of the last trial."""
        self.bar.update(self.task, facts=printable(text))

    def told(self, row: Row, table: Table) -> None:
        """Show what came of a trial."""
        study, budget, self.table = self.study, self.study.budget, table
        done = [each for each in table.rows if each.done]
        used: list[tuple[float, float | None]] = [
            (sum(each.cost for each in done), budget.client_rounds),
            (sum(each.seconds for each in done), budget.seconds),
            (len(table.arms), budget.trials),
        ]
        shares = [spent / most for spent, most in used if most is not None]
        score = row.error.splitlines()[0] if row.error else f"{row.scores[0]:.4f}"
        told = f"{row.trial.arm} after {study.rungs[row.trial.rung].rounds} rounds: {score}"
        self.bar.update(
            self.task, completed=max(shares, default=0.0), total=1.0 if shares else None, facts=printable(told)
        )


def _shown(rows: Printed) -> RichTable:
    found = RichTable()
    for place, heading in enumerate(rows.headings):
        found.add_column(escape(printable(heading)), justify="right" if place else "left")
    for row in rows.rows:
        found.add_row(*(escape(printable(cell)) for cell in row))
    return found
