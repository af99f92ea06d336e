"""What is logged, by which logger, at which level."""

import ast
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.tools.inside import objects_of
from tests.tools.killed import killed_after
from tests.tools.upkeep import put
from txstore.storage import leases

ROOT = Path(txstore.__file__).parent
PAGE = ROOT.parent / "docs/reference/configuration.md"


def logged() -> dict[str, set[str]]:
    """Return the levels that each module logs at, as its source says."""
    found: dict[str, set[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called == "logging.getLogger" and node.args:
                assert ast.unparse(node.args[0]) == "__name__", path
            elif called.startswith("_log."):
                found.setdefault(name, set()).add(called.removeprefix("_log.").upper())
    return found


def test_the_page_has_each_logger_and_level() -> None:
    rows = re.findall(r"^\| ((?:`txstore\.[\w.]+`(?:, )?)+) \| `([A-Z]+)` \|", PAGE.read_text(encoding="utf-8"), re.M)
    told: dict[str, set[str]] = {}
    for loggers, level in rows:
        for logger in re.findall(r"`([\w.]+)`", loggers):
            told.setdefault(logger, set()).add(level)
    assert told == logged()


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[tuple[str, str]]:
    return [(record.name, record.getMessage()) for record in caplog.records if record.levelno >= level]


@pytest.fixture(autouse=True)
def all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "txstore")


def test_commits_and_conflicts(repo: txstore.Repository, caplog: pytest.LogCaptureFixture) -> None:
    first = put(repo, {"a": b"0"})
    assert lines(caplog, logging.DEBUG) == [("txstore.transactions.commit", f"{repo.url}: commit main@0 ({first.id})")]
    assert lines(caplog) == []
    tried: list[int] = []

    def work(store: txstore.TxStore) -> None:
        store.mapping["a"] = b"mine"  # type: ignore[index]
        if len(tried) < 2:
            tried.append(1)
            put(repo, {"a": b"%d" % len(tried)})

    repo.run(work)
    assert lines(caplog) == [
        ("txstore.repository", f"{repo.url}: commit retried on the new head, retry {number}: ConflictError")
        for number in (1, 2)
    ]
    conflicts = [told for _, told in lines(caplog, logging.DEBUG) if "commit conflicts" in told]
    assert len(conflicts) == 2


def test_a_vacuum(repo: txstore.Repository, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(3):
        put(repo, {"a": b"%d" % number})
    report = repo.vacuum(keep=1)
    assert lines(caplog) == [("txstore.maintenance.vacuum", f"{repo.url}: vacuum: {report}")]


KILLED = """
import sys, time, txstore
repo = txstore.Repository(sys.argv[1])
with repo.begin() as mapping:
    mapping["a"] = b"0"
dropped = repo.begin()
dropped["b"] = bytes(100_000)
with repo.begin() as mapping:
    mapping["c"] = b"0"
time.sleep(60)
"""


def test_what_the_dead_had_staged(repo: txstore.Repository, caplog: pytest.LogCaptureFixture) -> None:
    killed_after(2, repo, KILLED)
    put(repo, {"d": b"1"})
    name = "txstore.transactions.participants.reclaim"
    assert lines(caplog) == [(name, f"{repo.url}: staged files of dead processes deleted: 1")]


LOCKED = """
import os, signal, sys, txstore, zarr
repo = txstore.Repository(sys.argv[1])
store = repo.transaction(lock=["x"])
zarr.open_array(store, path="x")[:] = 1
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_locks_of_the_dead(repo: txstore.Repository, caplog: pytest.LogCaptureFixture) -> None:
    import zarr

    with repo.transaction() as store:
        zarr.create_array(store, name="x", shape=(8,), chunks=(4,), dtype="i4")
    subprocess.run([sys.executable, "-c", LOCKED, repo.url], check=False)
    with repo.transaction(lock=["x"]) as store:
        zarr.open_array(store, path="x")[:] = 2
    told = [line for name, line in lines(caplog) if name == "txstore.transactions.held_locks"]
    assert len(told) == 1
    assert told[0].startswith("chunk-key locks taken over from a dead process")


def test_a_lease_that_is_taken_over(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = txstore.Repository(f"memory://{os.urandom(4).hex()}/data.tx")
    put(repo, {"a": b"0"})
    monkeypatch.setattr(leases, "TERM", 0.0)
    monkeypatch.setattr(leases, "BEAT", 0.05)
    objects = objects_of(repo)
    objects.create(".staging/left.held", [b"of a dead process"])
    lease = leases.Leases(objects).take(".staging/left")
    lease.close()
    assert lines(caplog) == [("txstore.storage.leases", ".staging/left.held: lease of a dead process taken over")]


def test_a_version_that_another_commit_takes(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = txstore.Repository(f"memory://{os.urandom(4).hex()}/data.tx")
    put(repo, {"a": b"0"})
    versions, first = repo.engine.commits.store, []
    take = versions.take

    def late(*arguments: Any, **named: Any) -> Any:
        if not first:
            first.append(put(txstore.Repository(repo.url), {"b": b"1"}))
        return take(*arguments, **named)

    monkeypatch.setattr(versions, "take", late)
    assert put(repo, {"c": b"2"}).version == 2
    told = [told for name, told in lines(caplog, logging.DEBUG) if name == "txstore.history.new_commit"]
    assert told == [f"{repo.url}: another commit has version 1"]
