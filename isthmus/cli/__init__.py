"""The command line: one file per verb."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; errors of ours become one line and an exit code, never a traceback."""
    from isthmus.cli.app import app
    from isthmus.cli.output import explain
    from isthmus.core.errors import IsthmusError

    try:
        app()
    except IsthmusError as error:
        sys.exit(explain(error))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
