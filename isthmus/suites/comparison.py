"""A suite that was run: its table, what its rows are set to, what readers should know, and the files of all that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from isthmus.core.errors import BadInput
from isthmus.core.outside import replace_file
from isthmus.report.summary import Table
from isthmus.suites.figures import write_figures
from isthmus.suites.moving import write_rows
from isthmus.suites.outcomes import Run
from isthmus.suites.settings import Settings, notes, settings
from isthmus.suites.spec import Suite
from isthmus.suites.table import Cell, cell_table, cells, cells_csv

# What shows that a folder holds a comparison.
WRITTEN = ("runs", "runs.csv", "table.csv", "tune")


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds something else: what a comparison writes must take the place of nobody's files."""
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file; results need a folder: give another with --out")
    if folder.is_dir() and any(folder.iterdir()) and not any((folder / name).exists() for name in WRITTEN):
        raise BadInput(f"{folder} holds files that are of no comparison; give a new or an empty folder with --out")


@dataclass(frozen=True)
class Comparison:
    """The runs of a suite, and what they say."""

    suite: Suite
    runs: Sequence[Run]

    @cached_property
    def cells(self) -> list[Cell]:
        """The cells, each at the point that was chosen."""
        return cells(self.suite, self.runs)

    @cached_property
    def table(self) -> Table:
        """The table that is printed and written."""
        return cell_table(self.suite, self.cells)

    @cached_property
    def settings(self) -> Settings:
        """What the courses behind the rows are set to."""
        # A cell's course is at the point that was chosen, or at its first where none was.
        every = [next(run.point for run in (*c.runs, *self.runs) if run.point.cell == c.choices) for c in self.cells]
        return settings(self.suite, every)

    @cached_property
    def notes(self) -> list[str]:
        """What readers of the table should know."""
        return notes(self.suite, self.settings, self.runs)

    @property
    def has_errors(self) -> bool:
        """Whether some course failed."""
        return any(cell.errors for cell in self.cells)

    @property
    def holds(self) -> bool:
        """Whether every number is as near to the paper's as the suite asks."""
        return all(cell.holds is not False for cell in self.cells)

    def write(self, folder: Path, say: Callable[[str], None] = lambda text: None) -> list[Path]:
        """Write tables, settings and figures; return where the figures are. `say` hears of rows that are set aside."""
        aside = write_rows(self.suite, self.runs, folder)
        if aside:
            say(aside)
        texts = {
            "table.csv": cells_csv(self.suite, self.cells),
            "settings.csv": self.settings.as_csv(),
            "table.md": self.markdown(),
        }
        for name, text in texts.items():
            replace_file(folder / name, text.encode())
        return write_figures(self.suite, self.cells, folder)

    def markdown(self) -> str:
        """Return title, table, settings and notes as Markdown."""
        text = f"# {self.suite.title}\n\n{self.table.markdown()}\n## Settings\n\n{self.settings.markdown()}"
        return text + "".join(f"\nNote: {note}.\n" for note in self.notes)

    def facts(self) -> dict[str, Any]:
        """Return the same as plain values, for scripts."""
        return {
            "title": self.suite.title,
            "headings": self.table.headings,
            "rows": self.table.rows,
            "settings": {"differing": self.settings.differing(), "common": self.settings.common()},
            "notes": self.notes,
        }
