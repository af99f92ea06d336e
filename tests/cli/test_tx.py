"""`txstore tx`: listing, showing and ending the transactions that have a name."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

import txstore
from tests.system.processes.ranks import NAME, Rank, assert_tidy, content, named, ranks, stage, value_of
from tests.tools.command_line import assert_refused
from txstore.cli.main import app

COMMANDS = [("list",), ("show", NAME), ("commit", NAME), ("rollback", NAME, "--yes")]


def tx(command: str, *arguments: object, answer: str | None = None) -> Result:
    runner = CliRunner(env={"COLUMNS": "200"})
    return runner.invoke(app, ["tx", command, *map(str, arguments)], input=answer)


def tx_json(*arguments: Any) -> Any:
    result = tx(*arguments, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return json.loads(result.stdout)


def me() -> str:
    return f"process {os.getpid()} on {os.uname().nodename}"


@pytest.fixture
def run_17(repo: txstore.Repository) -> txstore.Repository:
    """Two keys and the deletion of a third are staged, by two participants of this process."""
    with repo.transaction() as store:
        store["old"] = value_of("old")
    with repo.transaction("all of it", name=NAME) as store:
        store["a"] = value_of("a")
        del store["old"]
    stage(repo, "b")
    return repo


# --- the whole
@pytest.mark.parametrize("command", COMMANDS[1:])
def test_a_name_that_nothing_has(command: tuple[str, ...], run_17: txstore.Repository) -> None:
    assert_refused(tx(command[0], run_17.url, "run-18", *command[2:]), "'run-18'", "txstore tx list")
    assert_refused(tx(command[0], run_17.url, "../a", *command[2:]), "transaction '../a'")
    assert named(run_17) == [NAME]


# --- list
def test_list(run_17: txstore.Repository, open_repo: Any) -> None:
    lines = [line.split() for line in tx("list", run_17.url).stdout.splitlines()]
    assert lines[0] == ["name", "begun", "by", "attached", "sealed", "lost", "size", "message"]
    (transaction,) = run_17.transactions()
    assert lines[2][0] == NAME
    assert " ".join(lines[2][1:4]) == f"{transaction.time.astimezone():%Y-%m-%d %H:%M %Z}"
    assert lines[2][-8:] == ["0", "2", "0", "100", "B", "all", "of", "it"]
    (shown,) = tx_json("list", run_17.url)
    expected = asdict(transaction) | {"time": transaction.time.isoformat()}
    expected["participants"] = [{**asdict(each), "state": "sealed"} for each in transaction.participants]
    assert shown == expected
    empty = open_repo("empty.tx")
    with empty.transaction() as store:
        store["a"] = value_of("a")
    assert tx_json("list", empty.url) == []


def test_looking_changes_nothing(run_17: txstore.Repository) -> None:
    before = {path: path.stat().st_mtime_ns for path in Path(run_17.url).rglob("*")}
    for command in COMMANDS[:2]:
        tx_json(command[0], run_17.url, *command[1:])
    assert {path: path.stat().st_mtime_ns for path in Path(run_17.url).rglob("*")} == before


# --- show
def test_show(run_17: txstore.Repository) -> None:
    lines = tx("show", run_17.url, NAME).stdout.splitlines()
    (transaction,) = run_17.transactions()
    assert [line.split(maxsplit=1) for line in lines[:8]] == [
        ["name", NAME],
        ["id", transaction.id],
        ["branch", "main"],
        ["owner", transaction.owner],
        ["time", f"{transaction.time.astimezone():%Y-%m-%d %H:%M:%S %Z}"],
        ["message", "all of it"],
        ["staged", "2 keys set, 1 deleted, 0 paths cleared"],
        ["conflicts", "none so far"],
    ]
    assert lines[9].split() == ["process", "state", "keys", "bytes"]
    assert lines[11].split() == [*me().split(), "sealed", "3", "100"]
    lines = tx("show", run_17.url, NAME, "--keys").stdout.splitlines()
    assert lines[-3:] == [f"{me()}  {key}" for key in ("a", "b", "old")]
    shown = tx_json("show", run_17.url, NAME)
    assert {**tx_json("list", run_17.url)[0], **shown} == shown
    assert (shown["set"], shown["deleted"], shown["deleted_below"], shown["overtaken"]) == (2, 1, [], [])
    assert shown["staged_by"] == {me(): 3}
    assert tx_json("show", run_17.url, NAME, "--keys")["staged_by"] == {me(): ["a", "b", "old"]}


def test_what_other_commits_have_changed_is_shown(run_17: txstore.Repository) -> None:
    with run_17.transaction() as store:
        store["b"] = store["c"] = b"other"
    assert tx_json("show", run_17.url, NAME)["overtaken"] == ["b"]
    assert "1 keys were changed by other commits since it began: 'b'" in tx("show", run_17.url, NAME).stdout


def process_of(rank: Rank) -> str:
    return f"process {rank.process.pid} on"


# --- commit
def test_commit(run_17: txstore.Repository) -> None:
    transaction = run_17.transactions()[0].id
    told = tx("commit", run_17.url, NAME)
    assert told.stdout == f"main@1 {transaction}: 2 keys set, 1 deleted, 100 bytes\n"
    head = run_17.head()
    assert (head.id, head.message) == (transaction, "all of it")
    assert content(run_17) == ["a", "b"]
    assert_tidy(run_17)
    assert_refused(tx("commit", run_17.url, NAME), "committed or rolled back")


def test_commit_nothing(repo: txstore.Repository) -> None:
    stage(repo)
    assert "changed nothing" in tx("commit", repo.url, NAME).stdout
    stage(repo)
    assert tx_json("commit", repo.url, NAME) is None
    assert (named(repo), repo.head()) == ([], None)
    stage(repo, "a")
    shown = tx_json("commit", repo.url, NAME, "-m", "better")
    assert shown == asdict(repo.head()) | {"time": repo.head().time.isoformat()}
    assert shown["message"] == "better"
    stage(repo, "b")
    transaction = repo.transactions()[0].id
    assert tx_json("rollback", repo.url, NAME, "--yes") == {"name": NAME, "id": transaction, "dropped": 1}


@pytest.mark.long
def test_commit_and_rollback_wait_for_nobody(repo: txstore.Repository) -> None:
    with ranks(1, repo) as (rank,):
        rank.do("join")
        rank.do("put", "a")
        for command in COMMANDS[2:]:
            assert_refused(tx(command[0], repo.url, *command[1:]), process_of(rank), "have left")
        rank.do("put", "b")
        rank.do("leave")
    tx_json("commit", repo.url, NAME)
    assert content(repo) == ["a", "b"]


def test_commit_of_what_the_dead_have_staged(repo: txstore.Repository) -> None:
    with ranks(1, repo) as (rank,):
        rank.do("join")
        rank.do("put", "a")
    for _ in range(2):
        assert_refused(tx("commit", repo.url, NAME), "'a'", "died")
    assert len(repo.transactions()[0].participants) == 1  # who looks or tries takes no part
    assert tx_json("commit", repo.url, NAME, "--allow-lost")["statistics"]["keys_set"] == 1
    assert content(repo) == ["a"]


def test_a_conflict(run_17: txstore.Repository) -> None:
    with run_17.transaction() as store:
        store["b"] = b"other"
    assert_refused(tx("commit", run_17.url, NAME), "'b'", status=1)
    assert named(run_17) == [NAME]


# --- rollback
def test_rollback(run_17: txstore.Repository) -> None:
    told = tx("rollback", run_17.url, NAME, "--yes")
    assert told.stdout == f"{NAME} was rolled back: 3 staged keys were dropped\n"
    assert content(run_17) == ["old"]
    assert_tidy(run_17)


@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_rollback_asks_first(run_17: txstore.Repository, answer: str) -> None:
    result = tx("rollback", run_17.url, NAME, answer=answer)
    assert result.exit_code == 1
    assert "rolled back" not in result.stdout
    assert f"Drop 3 staged keys of {NAME}?" in result.stderr
    assert named(run_17) == [NAME]
    assert tx("rollback", run_17.url, NAME, answer="y\n").exit_code == 0
    assert named(run_17) == []
