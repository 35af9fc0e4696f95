"""The command line: one file per verb."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line; errors of ours become one line and an exit code, never a traceback."""
    from isthmus.cli.app import app
    from isthmus.cli.lasting import OUTPUT, named_output
    from isthmus.cli.output import explain
    from isthmus.core.errors import BadInput, IsthmusError

    try:
        with named_output():
            app()
    except IsthmusError as error:
        sys.exit(explain(error))
    except OSError as error:
        if error.filename == OUTPUT:
            print(f"error: {OUTPUT} cannot be written: {error.strerror}", file=sys.stderr)
            sys.exit(1)
        place = f"{error.filename}: " if error.filename else ""
        sys.exit(explain(BadInput(f"{place}{error.strerror or error}")))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        # Not sys.exit, which would wait for the engine's threads if a second Ctrl-C cut their end short.
        os._exit(130)
