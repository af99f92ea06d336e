"""`txstore serve`, up to its server."""

import json
import os
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from typer.testing import CliRunner

import txstore
from tests.tools.waiting import wait_until
from txstore.cli.main import app
from txstore.cli.serve import redirecting_to
from txstore.serving.server import Server


def served(monkeypatch: pytest.MonkeyPatch, url: str, *options: str) -> tuple[dict[str, Any], list[str]]:
    """Return what is printed, and what a browser is told to open, with what was to be read there."""
    opened: list[str] = []

    def look(url: str) -> bool:
        file = Path(unquote(urlsplit(url).path))
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        opened.extend([url, file.read_text(encoding="ascii")])
        return True

    monkeypatch.setattr("webbrowser.open", look)
    monkeypatch.setattr(Server, "serve_here", Server.close)
    done = CliRunner().invoke(app, ["serve", url, "--json", *options])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout), opened


@pytest.fixture
def url(tmp_path: Path) -> str:
    repo = txstore.Repository(tmp_path / "data.tx")
    with repo.begin() as mapping:
        mapping["zarr.json"] = b'{"zarr_format": 3, "node_type": "group"}'
    return repo.url


def test_the_token_is_in_what_is_printed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told, _ = served(monkeypatch, url)
    root = told["url"].partition("?")[0]
    assert len(told["token"]) >= 32
    assert told["url"] == f"{root}?token={told['token']}"
    assert told["zarr"] == f"{root}t/{told['token']}/at/main/"


def test_without_a_token(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told, _ = served(monkeypatch, url, "--no-token")
    assert told["token"] is None
    assert told["zarr"] == f"{told['url']}at/main/"
    assert "token" not in told["url"]


def test_no_command_line_has_the_token(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser is started with a file that only this user can read, and that leads to the page."""
    told, (opened, content) = served(monkeypatch, url, "--open")
    assert opened.startswith("file:///")
    assert told["token"] not in opened
    assert f"url={told['url']}" in content
    assert not Path(urlsplit(opened).path).exists()


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_no_signal_leaves_the_file_of_the_browser(url: str, tmp_path: Path, ending: signal.Signals) -> None:
    browser, temporary, opened = (tmp_path / name for name in ("browser", "temporary", "opened"))
    temporary.mkdir()
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}.new && mv {opened}.new {opened}\n')
    browser.chmod(0o755)
    environment = {**os.environ, "BROWSER": f"{browser} %s", "TMPDIR": str(temporary)}
    command = [sys.executable, "-m", "txstore", "serve", url, "--port", "0", "--open"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        wait_until(opened.exists)
        assert [f"file://{path}" for path in temporary.glob("*.html")] == opened.read_text().split()
        while process.poll() is None:  # Python drops an exception that comes while an object is being deleted
            process.send_signal(ending)
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
    assert list(temporary.glob("*.html")) == []


def test_a_server_that_runs_is_told_to_end_and_not_interrupted() -> None:
    told: list[int] = []
    with redirecting_to("http://127.0.0.1:1/"):
        signal.signal(signal.SIGTERM, lambda number, _: told.append(number))  # as uvicorn does
        signal.raise_signal(signal.SIGHUP)
    assert told == [signal.SIGTERM]
