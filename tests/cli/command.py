"""The command line, called from tests."""

from typer.testing import CliRunner

from isthmus.cli import app
from isthmus.core.errors import IsthmusError


def call(*args: str) -> tuple[int, str]:
    """Run the command line in this process as `main` does."""
    result = CliRunner().invoke(app, list(args))
    if isinstance(result.exception, IsthmusError):
        return result.exception.exit_code, str(result.exception)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output
