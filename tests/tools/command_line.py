"""The command line, run in this process."""

import json
from typing import Any

from typer.testing import CliRunner, Result

from txstore.cli.main import app


def run(*arguments: object) -> Result:
    # Wide: the runner's output is no terminal, but whoever runs the tests may have set COLUMNS.
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(argument) for argument in arguments])


def run_json(*arguments: object) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return json.loads(result.stdout)


def assert_refused(result: Result, *words: str, status: int = 2) -> None:
    """One line on the standard error, and a status; nothing else: no traceback."""
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("txstore: ")
    for word in words:
        assert word in result.stderr
    assert isinstance(result.exception, SystemExit)
