"""The command line, called from tests."""

from functools import cache

from typer import testing
from typer.testing import CliRunner

from isthmus.cli import app
from isthmus.core.errors import IsthmusError

# The commands are the same in every call; to make them from their functions takes longer than most of what they do.
testing._get_command = cache(testing._get_command)


def call(*args: str) -> tuple[int, str]:
    """Run the command line in this process as `main` does."""
    result = CliRunner().invoke(app, list(args))
    if isinstance(result.exception, IsthmusError):
        return result.exception.exit_code, str(result.exception)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output
