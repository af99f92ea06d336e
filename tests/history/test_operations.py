"""The log of operations: who did what beside commits, when, and with what result."""

import errno
import gc
import logging
import multiprocessing
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from typer.testing import CliRunner

import txstore
from tests.tools.faults import always, watch
from tests.tools.inside import branch_id, options_of
from tests.tools.upkeep import put
from txstore.cli.main import app
from txstore.format import names
from txstore.format.records import OperationRecord
from txstore.history import operations
from txstore.maintenance.vacuum import STEP
from txstore.storage.commit_lock import this_user

Open = Callable[..., txstore.Repository]


def told(repo: txstore.Repository) -> list[str]:
    """Return what was recorded, oldest first."""
    return [each.operation for each in reversed(repo.log(operations=True))]


def test_each_operation_is_recorded(repo: txstore.Repository) -> None:
    put(repo, {"a/c/0": b"0", "b/c/0": b"1"})
    first = put(repo, {"a/c/0": b"2"})
    repo.tags["v1"] = 0
    repo.branches["dev"] = first
    repo.branches.rename("dev", "newer")
    with repo.begin(branch="newer") as mapping:
        mapping["a/c/0"] = b"3"
    del mapping  # else it reads a branch that is deleted, and an erasure waits for it
    deleted = branch_id(repo, "newer")
    del repo.branches["newer"]
    del repo.tags["v1"]
    made = repo.optimize()
    assert made is not None
    report = repo.vacuum(keep=1)
    erased = repo.erase("b")
    log = repo.log(operations=True)
    assert told(repo) == [
        "create tag", "create branch", "rename branch", "delete branch", "delete tag", "optimize", "vacuum", "erase",
    ]  # fmt: skip
    assert {each.by for each in log} == {this_user()}
    assert all(each.finished is not None and each.finished >= each.time for each in log)
    assert not any(each.error for each in log)
    by_name = {each.operation: each for each in log}
    assert by_name["create branch"].arguments == {"branch": "dev", "at": "main@1", "commit": first.id}
    assert by_name["rename branch"].arguments == {"branch": "dev", "to": "newer"}
    assert by_name["delete branch"].arguments == {"branch": "newer", "id": deleted}
    assert by_name["delete tag"].arguments == by_name["create tag"].arguments
    assert by_name["optimize"].result == {"commit": made.id}
    assert by_name["vacuum"].arguments == {"branch": "main", "keep": 1}
    assert by_name["vacuum"].result == report.as_dict()
    assert by_name["erase"].arguments == {"paths": 1}  # how many: the record would outlive them
    assert by_name["erase"].result == {
        "values": erased.values, "bytes": erased.bytes, "files": erased.files, "commit": erased.commit.id,
    }  # fmt: skip
    assert "vacuum" in str(by_name["vacuum"])
    assert [each.operation for each in repo.log(operations=True, limit=2)] == ["erase", "vacuum"]


def test_what_was_refused_is_not_recorded(repo: txstore.Repository) -> None:
    put(repo, {"a": b"0"})
    repo.tags["v1"] = 0
    repo.branches["dev"] = 0
    for refused in (
        lambda: repo.tags.__setitem__("v1", 0),
        lambda: repo.branches.__setitem__("v1", 0),
        lambda: repo.vacuum(keep=0),
        lambda: repo.log("dev", operations=True),  # type: ignore[call-overload]
    ):
        with pytest.raises(ValueError):
            refused()
    for missing in (repo.tags, repo.branches):
        with pytest.raises(KeyError):
            del missing["nothing"]
    with pytest.raises(txstore.CommitNotFoundError):
        repo.optimize(branch="nothing")
    repo.vacuum(dry_run=True)
    assert told(repo) == ["create tag", "create branch"]


def test_what_fails_is_recorded_with_its_error(repo: txstore.Repository) -> None:
    put(repo, {"a": b"0"})
    watch(repo).before["sync_directory"] = always(OSError(errno.EIO, "the disk has gone", "secret/c/0"))
    with pytest.raises(OSError, match="gone"):
        repo.vacuum(keep=1)
    [failed] = repo.log(operations=True)
    assert failed.error == "OSError (EIO)"
    assert failed.finished is not None
    assert failed.outcome == "failed: OSError (EIO)"


def test_what_json_can_not_say(repo: txstore.Repository) -> None:
    put(repo, {"a": b"0"})
    with pytest.raises(txstore.KeyFormatError):
        repo.tags[b"v1"] = 0  # type: ignore[index]
    repo.vacuum(keep=np.int64(1))  # type: ignore[arg-type]
    assert repo.log(operations=True)[0].arguments["keep"] in (1, "1")


SECRETS = b"Ann Lee", b"Bob Ray", b"ward-7"


def recorded(url: str | Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(Path(url, "operations").iterdir()))


def test_no_record_says_what_an_erasure_would_have_to_remove(repo: txstore.Repository, tmp_path: Path) -> None:
    """Labels, values and paths of data: neither in what was done, nor in what failed."""
    with repo.transaction("first") as store:
        who = zarr.create_array(store, name="ward-7/who", shape=2, dtype=str, dimension_names=["who"], compressors=None)
        who[:] = np.array(["Ann Lee", "Bob Ray"], object)
        zarr.create_array(store, name="ward-7/v", data=np.arange(1, 3), chunks=(1,), dimension_names=["who"])
    del store, who
    gc.collect()
    copy = tmp_path / "copy.tx"
    repo.tags["v1"] = 0
    repo.branches["dev"] = 0
    repo.branches.rename("dev", "newer")
    repo.backup(copy)
    with pytest.raises(txstore.ErasureError, match="Carl"):
        repo.erase("ward-7", {"who": "Carl"})
    with pytest.raises(txstore.NodeNotFoundError):
        repo.erase("ward-7/Ann Lee")
    repo.erase("ward-7", {"who": "Bob Ray"}, labels=True)
    reader = repo.snapshot(at=0)
    with pytest.raises(txstore.ErasureTimeoutError, match="ward-7"):
        repo.erase("ward-7/v", timeout=0)
    del reader
    repo.optimize()
    repo.erase("ward-7")
    repo.backup(copy, erase=True)
    del repo.tags["v1"], repo.branches["newer"]
    repo.vacuum(keep=1)
    assert not any(each in recorded(url) for each in (*SECRETS, b"Carl") for url in (repo.url, copy))


def test_what_an_older_record_says_goes_with_the_next_erasure(repo: txstore.Repository, tmp_path: Path) -> None:
    put(repo, {"ward-7/c/0": b"0", "k": b"1"})
    with pytest.raises(txstore.NodeNotFoundError):
        repo.erase("nothing")
    [operation] = [names.operation_path(each.id) for each in repo.log(operations=True)]
    told = {"arguments": {"paths": ["ward-7"], "dimensions": ["who"]}, "error": "no commit has such rows ('Ann Lee')"}
    path = Path(repo.url, operation)
    path.write_bytes(replace(OperationRecord.decode(path.read_bytes()), **told).encode())
    repo.backup(tmp_path / "copy.tx")
    Path(tmp_path, "copy.tx", operation).write_bytes(path.read_bytes())
    repo.erase("ward-7")
    repo.backup(tmp_path / "copy.tx", erase=True)
    for url in (repo.url, tmp_path / "copy.tx"):
        assert not any(each in recorded(url) for each in SECRETS)
        about = txstore.Repository(url).log(operations=True)[-1]
        assert (about.arguments, about.error) == ({"paths": 1, "dimensions": 1}, "TxStoreError")


def test_a_record_that_fails_is_no_reason_to_fail(repo, caplog):
    put(repo, {"a": b"0"})

    def refuse(temporary: str, path: str) -> None:
        if path.startswith(names.OPERATIONS):
            raise OSError("no room")

    watch(repo).before["replace"] = refuse
    with caplog.at_level(logging.WARNING, "txstore"):
        repo.tags["v1"] = 0
        assert repo.vacuum(keep=1).expired == 0
    assert list(repo.tags) == ["v1"]
    assert repo.log(operations=True) == []
    assert {record.name for record in caplog.records} == {"txstore.history.operations"}
    assert "'create tag' could not be recorded: no room" in caplog.text


def test_retention_is_recorded(open_repo: Open) -> None:
    repo = open_repo(retention=4, durability="none")
    for number in range(STEP + 8):
        put(repo, {"a": b"%d" % number})
    found = repo.log(operations=True)
    assert {each.operation for each in found} == {"retention"}
    assert found[0].arguments == {"branch": "main", "keep": "4"}
    assert found[0].result["expired"] > 0


def test_a_vacuum_keeps_the_newest(repo: txstore.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "KEPT", 3)
    put(repo, {"a": b"0"})
    for number in range(5):
        repo.tags[f"v{number}"] = 0
    assert len(repo.log(operations=True)) == 5
    repo.vacuum()
    found = repo.log(operations=True)
    assert [each.operation for each in found] == ["vacuum", "create tag", "create tag"]
    assert found[1].arguments["tag"] == "v4"


def tag(url: str, options: dict[str, Any], who: str, count: int) -> None:
    repo = txstore.Repository(url, storage_options=options)
    for number in range(count):
        repo.tags[f"{who}-{number}"] = 0
        del repo.tags[f"{who}-{number}"]


def test_two_processes_lose_no_record(repo: txstore.Repository) -> None:
    put(repo, {"a": b"0"})
    processes = [
        multiprocessing.get_context("spawn").Process(target=tag, args=(repo.url, options_of(repo), who, 10))
        for who in ("one", "two")
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    found = [(each.operation, each.arguments["tag"]) for each in repo.log(operations=True)]
    wanted = [
        (what, f"{who}-{n}") for what in ("create tag", "delete tag") for who in ("one", "two") for n in range(10)
    ]
    assert sorted(found) == sorted(wanted)
    assert all(each.finished is not None for each in repo.log(operations=True))


KILLED = """
import os, signal, sys
import txstore
from txstore.history import kept_commits, operations

repo = txstore.Repository(sys.argv[1])
delete = kept_commits.TagNames.delete

def kill(*arguments):
    if sys.argv[2] == "after":
        delete(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)

kept_commits.TagNames.delete = kill
del repo.tags["v1"]
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_between_the_operation_and_its_record(repo: txstore.Repository, when: str) -> None:
    commit = put(repo, {"a": b"0"})
    repo.tags["v1"] = 0
    killed = subprocess.run([sys.executable, "-c", KILLED, repo.url, when], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert list(repo.tags) == ([] if when == "after" else ["v1"])
    unfinished = repo.log(operations=True)[0]
    assert (unfinished.operation, unfinished.arguments["commit"]) == ("delete tag", commit.id)
    assert unfinished.finished is None
    assert "its process was killed" in unfinished.outcome
    assert repo.verify().faults == []


def test_damage_is_found_and_moved_away(repo: txstore.Repository) -> None:
    put(repo, {"a": b"0"})
    repo.tags["v1"] = 0
    repo.tags["v2"] = 0
    first = sorted((Path(repo.url) / names.OPERATIONS).iterdir())[0]
    first.write_bytes(first.read_bytes().replace(b"v1", b"v7"))
    (first.parent / "notes.txt").write_text("somebody else's")
    report = repo.verify()
    assert [(fault.path, fault.part) for fault in report.faults] == [(f"operations/{first.name}", "operation")]
    assert report.strays == ["operations/notes.txt"]
    with pytest.raises(txstore.CorruptionError, match=first.name):
        repo.log(operations=True)
    assert repo.backup(Path(repo.url).with_name("copy.tx")).is_new  # a record is no reason to be without a backup
    assert repo.verify(repair=True).faults == []
    found = repo.log(operations=True)
    assert [each.operation for each in found] == ["repair", "create tag"]
    assert found[0].result == {"faults": 1, "repairs": 1, "left": 0}
    assert (Path(repo.url) / names.QUARANTINE / names.OPERATIONS / first.name).exists()


def test_a_backup_has_the_records(repo: txstore.Repository, open_repo: Open) -> None:
    put(repo, {"a": b"0"})
    repo.tags["v1"] = 0
    copy = open_repo("copy.tx")
    repo.backup(copy.url)
    assert copy.log(operations=True) == repo.log(operations=True)
    repo.tags["v2"] = 0
    put(repo, {"a": b"1"})
    repo.backup(copy.url)
    assert copy.log(operations=True) == repo.log(operations=True)
    assert repo.backup(copy.url).files == 0


def test_on_the_command_line(repo: txstore.Repository) -> None:
    put(repo, {"a": b"0"})
    repo.tags["v1"] = 0
    for options, code, words in [
        ((), 0, "create tag"),
        (("--json", "--limit", "1"), 0, '"operation": "create tag"'),
        (("--branch", "dev"), 2, "leave out"),
    ]:
        done = CliRunner().invoke(app, ["log", repo.url, "--operations", *options])
        assert done.exit_code == code
        assert words in done.output
