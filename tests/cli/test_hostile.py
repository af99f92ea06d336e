"""Every command, on a repository that says what would steer a terminal, and with arguments that hold passwords."""

import json
import os
import pickle
import re
import subprocess
import sys
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import typer
import zarr

import txstore
from tests.tools.command_line import run
from tests.tools.faults import always
from tests.tools.hostile import unchecked_keys
from txstore.cli import output
from txstore.cli.main import app
from txstore.constraints import RequiredAttributes
from txstore.views import Reduce

#: What terminals act upon, what rich takes for markup, and what turns text around.
STEERING = "\x1b[31mred\x1b]0;title\x07\r\b\x7f\x9b31m\u202eeno\u2028[bold red]loud[/bold red][/]:warning:"
NAMES = "".join(sign for sign in STEERING if sign != "/")


def commands() -> set[str]:
    found = {command.name or command.callback.__name__.replace("_", "-") for command in app.registered_commands}  # type: ignore[union-attr]
    for group in app.registered_groups:
        inner = group.typer_instance.registered_commands
        found |= {f"{group.name} {command.name or command.callback.__name__}" for command in inner}  # type: ignore[union-attr]
    return found


@pytest.fixture
def hostile(open_repo: Callable[..., txstore.Repository], monkeypatch: pytest.MonkeyPatch) -> txstore.Repository:
    """A repository in which every text that can be anything is."""
    for module in ("history.new_commit", "transactions.transaction"):
        monkeypatch.setattr(f"txstore.{module}.this_user", lambda: STEERING)
    repo = open_repo()
    properties = {STEERING: STEERING, "nan": float("nan"), "inf": [float("inf"), {"-": -float("inf")}]}
    with repo.transaction(STEERING, properties=properties) as store:
        group = zarr.create_group(store, attributes={STEERING: STEERING})
        fields = np.dtype([("[bold red]", "<i4"), (NAMES, "<f8")])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            group.create_array(NAMES, shape=(4,), chunks=(2,), dtype=fields)[...] = np.ones(4, fields)
        group.create_array("plain", data=np.arange(4), chunks=(2,), attributes={"a": STEERING})
        group.create_array(f"{NAMES}s", data=np.arange(4), chunks=(2,), dimension_names=[NAMES])
        store[f"{NAMES}/c/{NAMES}"] = b"1"
    repo.constraints["mine"] = RequiredAttributes("plain", {"a": STEERING})
    repo.tags["v1"] = 0
    repo.branches["theirs"] = repo.head()
    with repo.transaction(STEERING, branch="theirs") as store:
        zarr.open_group(store).attrs[STEERING] = "theirs"
    return repo


def check(shown: str) -> str:
    """No sign of it is acted upon."""
    bad = [sign for sign in shown if unicodedata.category(sign) in ("Cc", "Cf", "Zl", "Zp") and sign != "\n"]
    assert bad == [], shown
    return shown


def shown_by(*arguments: object, status: int | None = 0) -> str:
    result = run(*arguments)
    if status is not None:
        assert result.exit_code == status, result.output
    return check(result.stdout) + check(result.stderr)


def calls(repo: txstore.Repository, tmp_path: Path, suffix: str) -> Iterator[tuple[str, list[object]]]:
    """How each command is called on a repository."""
    for number in (1, 2):
        with repo.transaction(name=f"job{number}", message=STEERING) as store:
            store[f"{NAMES}/{number}{suffix}"] = b"1"
    url = repo.url
    out = tmp_path / f"out{suffix}"
    yield "log", [url]
    yield "log", [url, "--graph"]
    yield "branch list", [url]
    yield "branch create", [url, f"dev{suffix}", "v1"]
    yield "branch rename", [url, f"dev{suffix}", f"later{suffix}"]
    yield "branch delete", [url, f"later{suffix}"]
    yield "show", [url, "v1"]
    yield "diff", [url, "v1"]
    yield "blame", [url, NAMES]
    yield "cp", [url, NAMES, f"{NAMES}{suffix}copy"]
    yield "rechunk", [url, f"{NAMES}{suffix}copy", "--chunks", "1", "--message", STEERING]
    yield "mv", [url, f"{NAMES}{suffix}copy", f"{NAMES}{suffix}moved"]
    yield "restore", [url, f"{NAMES}{suffix}moved", "--at", "v1"]
    yield "merge", [url, "theirs", "--dry-run"]
    yield "merge", [url, "theirs", "--message", f"{STEERING}{suffix}"]
    yield "revert", [url, "theirs", "--message", f"{STEERING}{suffix}"]
    yield "cherry-pick", [url, "theirs"]
    yield "tag create", [url, f"t{suffix}"]
    yield "tag list", [url]
    yield "tag delete", [url, f"t{suffix}"]
    yield "ls", [url]
    yield "ls", [url, NAMES]
    yield "ls", [url, "--keys"]
    yield "constraints", [url]
    with repo.transaction() as store:
        for when in ("commit", "follow"):
            store.views[f"by_{when}{suffix}"] = Reduce(f"{NAMES}s", NAMES, "max", f"{NAMES}{when}{suffix}", when=when)
    yield "views list", [url]
    yield "views run", [url, "--once"]
    yield "views drop", [url, f"by_follow{suffix}"]
    yield "feed create", [url, f"f{suffix}", "--from-beginning", "--path", NAMES]
    yield "feed list", [url]
    yield "feed show", [url, f"f{suffix}"]
    yield "feed watch", [url, f"f{suffix}", "--timeout", "0", "--combine", "--exec", "cat >/dev/null"]
    yield "feed reset", [url, f"f{suffix}", "--since", "v1"]
    yield "feed delete", [url, f"f{suffix}"]
    yield "du", [url]
    yield "tx list", [url]
    yield "tx show", [url, "job1", "--keys"]
    yield "verify", [url]
    yield "backup", [url, out / "backup"]
    yield "protect", [out / "backup"]
    yield "export", [url, out / "export"]
    yield "publish", [url, out / "copy"]
    yield "references", [url, out / "x.json", "--tag", "v1"]
    yield "checkout", [url, out / "checked-out"]
    yield "commit-directory", [url, out / "checked-out", "--message", STEERING]
    yield "page", [url, "--to", out / "page"]
    yield "check-format", [url]
    yield "import", [out / "export", url, "--path", f"imported{suffix}", "--message", STEERING]
    yield "optimize", [url]
    yield "vacuum", [url]
    yield "tx commit", [url, "job1"]
    yield "tx rollback", [url, "job2", "--yes"]
    del store  # which reads what is erased
    yield "erase", [url, f"imported{suffix}", "--yes", "--timeout", "5"]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
def test_no_command_lets_a_repository_steer_the_terminal(hostile: txstore.Repository, tmp_path: Path) -> None:
    """And JSON is JSON: without NaN and Infinity, which no other reader takes; and ASCII."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    called = set()
    for suffix in ("", "json"):
        for command, arguments in calls(hostile, tmp_path, suffix):
            called.add(command)
            result = run(*command.split(), *arguments, *(["--json"] if suffix else []))
            assert result.exit_code == 0, result.output
            check(result.stderr)
            told = check(result.stdout)
            if suffix:
                assert told.isascii()
                found = json.loads(told, parse_constant=refuse)
                if command == "show":
                    properties = found["properties"]
                    assert (properties["nan"], properties["inf"]) == ("NaN", ["Infinity", {"-": "-Infinity"}])
                    assert properties[STEERING] == STEERING
            elif command in ("log", "show", "tx list") or (command == "ls" and len(arguments) == 1):
                assert "[bold red]" in told, command  # and not taken for markup
    assert commands() - called == {"demo", "serve"}  # which has no repository; which goes on: tests/serving


def test_rows_that_are_not_there(hostile: txstore.Repository) -> None:
    assert "[bold red]" in shown_by(
        "erase", hostile.url, "plain", "--yes", "--rows", f"{STEERING}={STEERING}", status=2
    )


def test_conflicts(hostile: txstore.Repository) -> None:
    with hostile.transaction() as store:
        zarr.open_group(store).attrs[STEERING] = "ours"
        zarr.open_group(store, path=NAMES, mode="w")
    with hostile.transaction(branch="theirs") as store:
        store[f"{NAMES}/c/0"] = b"1"
    for command in (["merge", hostile.url, "theirs"], ["cherry-pick", hostile.url, "theirs"]):
        assert "[bold red]" in shown_by(*command, status=1)
        assert json.loads(shown_by(*command, "--json", status=1))["conflicts"]


@pytest.mark.long
def test_errors(hostile: txstore.Repository, tmp_path: Path) -> None:
    for arguments in (
        ["show", hostile.url, STEERING],
        ["show", hostile.url, f"9{STEERING}"],
        ["log", tmp_path / NAMES],
        ["ls", hostile.url, STEERING],
        ["export", hostile.url, tmp_path / "out", "--path", NAMES + "x"],
        ["import", tmp_path / NAMES, hostile.url],
        ["tx", "show", hostile.url, STEERING],
        ["log", hostile.url, STEERING],
        ["log", hostile.url, f"--{STEERING}"],
        [STEERING],
        ["vacuum", hostile.url, "--older-than", STEERING],
        ["import", tmp_path, hostile.url, "--chunks", STEERING],
        ["ls", hostile.url, "--storage-options", STEERING],
        ["ls", hostile.url, "--source", STEERING],
        ["merge", hostile.url, STEERING],
        ["merge", hostile.url, "theirs", "--resolve", STEERING],
        ["merge", hostile.url, "theirs", "--append", STEERING],
        ["revert", hostile.url, STEERING],
        ["cherry-pick", hostile.url, STEERING],
        ["tag", "create", hostile.url, STEERING],
        ["tag", "delete", hostile.url, STEERING],
        ["views", "run", hostile.url, STEERING],
        ["views", "run", hostile.url, "--import", STEERING],
        ["views", "drop", hostile.url, STEERING],
    ):
        assert run(*arguments).exit_code != 0
        shown_by(*arguments, status=None)


def test_faults(tmp_path: Path) -> None:
    repo = txstore.Repository(tmp_path / "data.tx")
    with unchecked_keys(), repo.begin() as transaction:
        transaction[f"../{NAMES}"] = b"1"
    assert "is no key" in shown_by("verify", repo.url, status=1)
    assert "is no key" in shown_by("ls", repo.url, "--keys", status=1)
    (commit,) = (tmp_path / "data.tx" / "commits" / "main").iterdir()
    commit.rename(commit.with_name(f"{commit.name}.{NAMES.replace('[bold red]', '')[:30]}"))
    shown_by("verify", repo.url, status=None)


def test_what_nobody_expects(hostile: txstore.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake of ours is shown as Python does, but for what it says."""
    monkeypatch.setattr(txstore.Repository, "log", always(TypeError(STEERING + "s3://key:se/cret@bucket/x")))
    out = shown_by("log", hostile.url, status=2)
    assert "Traceback" in out
    assert "TypeError: \\x1b[31mred" in out


def test_warnings(hostile: txstore.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(self: object, **_: object) -> list[Any]:
        warnings.warn(STEERING, UserWarning, stacklevel=1)
        return []

    monkeypatch.setattr(txstore.Repository, "log", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert "txstore: \\x1b[31mred" in shown_by("log", hostile.url)


def test_nothing_is_printed_past_the_escapes() -> None:
    """One module prints. (`demo` shows what it has made itself.)"""
    for path in Path(output.__file__).parent.glob("*.py"):
        text = path.read_text()
        if path.name not in ("output.py", "demo.py"):
            assert "typer.echo" not in text, path
            assert not re.search(r"(?<!_)\bprint\(|\.print\(", text), path


# --- secrets
SECRET, KEY = "s3cr3t/Val+ue", "AKIAIOSFODNN7EXAMPLE"
WITH_SECRETS = [
    f"nosuch://{KEY}:{SECRET}@bucket/data.tx",
    f"s3://{KEY}:{SECRET}@bucket/../data.tx",
    f"http://{KEY}:{SECRET}@127.0.0.1:1/data.tx",
    f"ftp://{KEY}:{SECRET}@127.0.0.1:1/data.tx",
    f"sftp://{KEY}:{SECRET}@127.0.0.1:1/data.tx",
    f"simplecache::http://{KEY}:{SECRET}@127.0.0.1:1/data.tx",
    f"http://127.0.0.1:1/data.tx?X-Amz-Signature={SECRET}",
    f"http://127.0.0.1:1/data.tx;sig={SECRET}",
    f"http:/{KEY}:{SECRET}@127.0.0.1:1/data.tx",
    f"http:{KEY}:{SECRET}@127.0.0.1:1/data.tx",
    f"simplecache::http:/{KEY}:{SECRET}@127.0.0.1:1/data.tx",
    f"http://{KEY}%3A{quote(SECRET, safe='')}%40127.0.0.1:1/data.tx",
]


def no_secret_in(text: str) -> None:
    for part in (SECRET, "s3cr3t", "Val+ue", KEY):
        assert part not in text, text


def told_with(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code != 0, arguments
    no_secret_in(result.output + result.stderr)
    if result.exception is not None:
        no_secret_in(repr(result.exception) + str(pickle.dumps(result.exception.args)))
    return str(result.stderr)


@pytest.mark.long
@pytest.mark.parametrize("url", WITH_SECRETS)
def test_no_command_shows_a_password(hostile: txstore.Repository, tmp_path: Path, url: str) -> None:
    there = hostile.url
    (tmp_path / "x.json").write_text("{}")
    for arguments in (
        [url],  # no such command
        ["log", there, url],  # an extra argument
        ["log", f"--{url}"],  # no such option
        ["vacuum", there, "--older-than", url],
        ["import", "x.zarr", there, "--chunks", url],
        ["log", there, "--limit", url],
        ["show", there, url],
        ["tx", "show", there, url],
        ["verify", there, "--source", url + "={"],
        ["verify", there, "--source", url + '={"secret": "' + SECRET],
        ["log", there, "--storage-options", json.dumps({"secret": SECRET, "key": KEY})],
        ["references", there, url, "--tag", "v1"],
        ["references", there, url + ".json", "--tag", "none"],
    ):
        assert told_with(*arguments)


@pytest.mark.long
@pytest.mark.parametrize("url", [url for url in WITH_SECRETS if "s3:" not in url])
def test_no_command_that_goes_there_shows_a_password(hostile, tmp_path, url, quick):
    there = hostile.url
    for arguments in (
        ["log", url],
        ["verify", url],
        ["backup", url, tmp_path / "backup"],
        ["export", there, url],
        ["publish", there, url],
        ["import", url, there, "--path", "new"],
        ["import", url + ".json", there, "--path", "new", "--format", "zarr"],
    ):
        assert told_with(*arguments)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    from txstore.storage.objects import client

    for name, value in {"RETRY_SECONDS": 0.0, "FIRST_PAUSE": 0.0, "LEAST_TRIES": 1}.items():
        monkeypatch.setattr(client, name, value)


@pytest.mark.long
def test_the_installed_command(hostile: txstore.Repository) -> None:
    """As it is started, with what it is given in `sys.argv`."""
    told = {**os.environ, "PYTHONPATH": str(Path(txstore.__file__).parents[1])}
    for arguments in ([WITH_SECRETS[0]], ["log", hostile.url, WITH_SECRETS[0]]):
        command = [sys.executable, "-m", "txstore", *arguments]
        done = subprocess.run(command, env=told, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 2
        no_secret_in(done.stdout + done.stderr)
    assert isinstance(app, typer.Typer)
