"""The command line: one file per verb."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line; errors of ours become one line and an exit code, never a traceback."""
    from isthmus.cli.app import app
    from isthmus.cli.output import explain
    from isthmus.core.errors import BadInput, IsthmusError

    try:
        app()
    except IsthmusError as error:
        sys.exit(explain(error))
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        sys.exit(explain(BadInput(f"{place}{error.strerror or error}")))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        # Not sys.exit, which would wait for the engine's threads if a second Ctrl-C cut their end short.
        os._exit(130)
