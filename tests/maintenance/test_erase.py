"""Erasing: afterwards no file, object or cache has a byte of it, and whoever asks for it is told so."""

import gc
import json
import os
import random
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import zarr
from typer.testing import CliRunner

import txstore
from tests.tools.inside import objects_of
from tests.tools.upkeep import below, put
from txstore.cli.main import app
from txstore.format.records import ErasureRecord


def value(seed: int, length: int = 1000) -> bytes:
    """Known, and like nothing else."""
    return random.Random(seed).randbytes(length)


SECRETS = {f"s/{name}": value(number) for number, name in enumerate(("c/0", "c/1", "t/c/0", "zarr.json"))}
SECRETS["s/c/0 again"] = value(70)
SECRETS["on dev"] = value(71)
SECRETS["short"] = value(72, 9)
KEPT = {f"k/c/{number}": value(100 + number) for number in range(3)} | {"s2/c/0": value(110), "sa": value(111)}


def fill(repo: txstore.Repository) -> None:
    """Several versions, on two branches, tagged, in own and merged runs, in commit files and a data pack."""
    put(repo, {key: each for key, each in SECRETS.items() if key.startswith("s/")} | KEPT, "first")
    repo.tags["v1"] = 0
    put(repo, {"s/c/0": SECRETS["s/c/0 again"], "s/c/3": SECRETS["short"]}, "second")
    repo.branches["dev"] = repo.head()
    with repo.begin("of dev", branch="dev") as mapping:
        mapping["s/c/1"] = SECRETS["on dev"]
        mapping["s/c/0"] = b"overwritten in the same transaction" + SECRETS["short"]
        mapping["s/c/0"] = SECRETS["on dev"]
    for number in range(4):
        put(repo, {f"n/{number}": b"%d" % number, "s/c/3": SECRETS["short"] * 3}, f"more {number}")
    repo.optimize()


def files_of(root: str | os.PathLike[str]) -> Iterator[tuple[str, bytes]]:
    for path in sorted(Path(root).rglob("*")):
        if path.is_file():
            yield str(path), path.read_bytes()


def pieces() -> list[bytes]:
    """Parts of all that was secret: none is in anything else."""
    return [each[at : at + 8] for each in SECRETS.values() for at in range(0, len(each) - 7, 100)]


def leaks(files: Iterator[tuple[str, bytes]]) -> list[str]:
    return [path for path, content in files if any(piece in content for piece in pieces())]


def check_all_is_told(repo: txstore.Repository, commits: int, *, branch: str = "main") -> None:
    for version in range(commits):
        mapping = repo.mapping(at=version, branch=branch)
        with pytest.raises(txstore.ErasedError, match="'s/c/0' was erased by") as caught:
            mapping["s/c/0"]
        assert caught.value.time is not None
        for ask in (mapping.get_view, mapping.size_of, mapping.__contains__, partial(mapping.get_part, part=slice(3))):
            with pytest.raises(txstore.ErasedError):
                ask("s/c/0")
        assert not [key for key in mapping if key.startswith("s/")]
        assert {key: mapping[key] for key in KEPT} == KEPT


def test_no_file_has_a_byte_of_it(repo: txstore.Repository) -> None:
    fill(repo)
    commits = [(commit.id, commit.message) for name in ("main", "dev") for commit in repo.log(name)]
    assert leaks(files_of(repo.url))
    heads = {name: repo.head(name).version for name in repo.branches}

    report = repo.erase("s")

    assert leaks(files_of(repo.url)) == []
    assert report.values >= 10
    assert report.bytes > 5000
    assert report.commit == repo.head()
    assert repo.head().message == "erased 's'"
    assert repo.head().properties["erased"] == ["s"]
    assert repo.verify().faults == []
    assert repo.verify(repair=True).faults == []
    for name, head in heads.items():
        check_all_is_told(repo, head + 1, branch=name)
        check_all_is_told(txstore.Repository(repo.url), head + 1, branch=name)
        assert "s/c/0" not in repo.mapping(branch=name)  # deleted, as anything
    found = [(commit.id, commit.message) for name in ("main", "dev") for commit in repo.log(name)]
    assert set(commits) <= set(found)
    assert repo.tags["v1"].id == repo.commit(0).id
    [erasure] = repo.erasures()
    assert (erasure.paths, erasure.values, erasure.by) == (("s",), report.values, repo.head().author)
    assert erasure.finished is not None


def test_bad_paths(repo: txstore.Repository) -> None:
    fill(repo)
    for paths, kind in {
        (): ValueError,
        ("",): ValueError,
        ("s", "/"): ValueError,
        ("a//b",): txstore.KeyFormatError,
    }.items():
        with pytest.raises(kind):
            repo.erase(*paths)
    with pytest.raises(txstore.NodeNotFoundError):
        repo.erase("s", "absent")
    assert leaks(files_of(repo.url))
    assert repo.erasures() == []
    with pytest.raises(txstore.RepositoryNotFoundError):
        txstore.Repository(f"{repo.url}.not").erase("s")


def test_what_was_moved_or_copied_is_erased_with_it_or_not_at_all(repo: txstore.Repository) -> None:
    data = np.frombuffer(value(5, 4000), np.uint8)
    with repo.transaction("raw") as store:
        zarr.create_array(store, name="raw", data=data, chunks=(1000,))
    with repo.transaction("move") as store:
        store.move("raw", "final")
    with repo.transaction("copy") as store:
        store.copy("final", "copied")
    head = repo.head()
    for path in ("raw", "final", "copied"):
        with pytest.raises(txstore.ErasureError, match="the same values") as caught:
            repo.erase(path)
        assert all(f"'{other}'" in str(caught.value) for other in {"raw", "final", "copied"} - {path})
    assert repo.head() == head
    with repo.transaction("copied, value by value") as store:
        zarr.create_array(store, name="other", data=zarr.open_array(store, path="final")[:] + 1, chunks=(1000,))
    repo.erase("raw", "final", "copied")
    assert repo.verify().ok
    assert data.tobytes()[:100] not in b"".join(content for _, content in files_of(repo.url))
    assert np.array_equal(zarr.open_array(repo.snapshot(), path="other", mode="r")[:], data + 1)
    for version in range(3):
        with pytest.raises(txstore.ErasedError):
            zarr.open_array(repo.snapshot(at=version), path=("raw", "final", "copied")[version], mode="r")


def test_it_comes_back_by_no_way(repo: txstore.Repository) -> None:
    with repo.transaction("made") as store:
        zarr.create_group(store)
        zarr.create_array(store, name="g/s", data=np.arange(10))
        zarr.create_array(store, name="k", data=np.arange(10))
    made = repo.head()
    repo.branches["dev"] = made
    with repo.transaction("changed", branch="dev") as store:
        zarr.open_array(store, path="g/s")[0] = 7
    repo.erase("g/s")
    deleting = repo.log()[1]
    for path in ("g/s", "g", ""):
        with pytest.raises(txstore.ErasedError), repo.transaction() as store:
            store.restore(path, at=made)
    for path in ("g/s", "g"):
        with pytest.raises(txstore.ErasedError), repo.transaction() as store:
            store.copy(path, "back", at=made)
    for commit in (made, deleting):
        with pytest.raises(txstore.ErasedError):
            repo.revert(commit)
    with pytest.raises(txstore.ErasedError):
        repo.cherry_pick(repo.commit(1, branch="dev"))
    repo.merge("dev")
    assert [node.path for node in repo.diff(made, -1).changed] == []
    assert "k" in dict(zarr.open_group(repo.snapshot(), mode="r").members())
    with repo.transaction("the rest can be had") as store:
        store.copy("k", "k2", at=made)
    exported = f"{repo.url}.zarr"
    repo.export(exported, at=made)
    assert not os.path.exists(f"{exported}/g/s")
    assert repo.verify().ok


def test_a_process_is_told_that_it_waits_for_itself(repo: txstore.Repository) -> None:
    """As for a dataset that was never closed: nobody else will close it."""
    with repo.transaction() as store:
        zarr.create_array(store, name="s", data=np.arange(3))
    readers, told = [repo.mapping()], list[str]()
    assert readers[0]["s/zarr.json"]

    def close(message: Warning | str, *_: object, **__: object) -> None:
        told.append(str(message))
        readers.clear()

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = close
        repo.erase("s", timeout=None)
    assert len(told) == 1
    assert "this process reads main@0" in told[0]
    assert "close the stores" in told[0]


def test_a_constraint_is_dropped_first(repo: txstore.Repository) -> None:
    with repo.transaction("made") as store:
        zarr.create_array(store, name="s", data=np.arange(10))
        zarr.create_array(store, name="k", data=np.arange(10))
        store.constraints["equal"] = txstore.constraints.EqualLength(["s", "k"])
    with pytest.raises(txstore.ConstraintError):
        repo.erase("s")
    assert zarr.open_array(repo.snapshot(), path="s", mode="r")[3] == 3
    assert repo.erasures() == []
    del repo.constraints["equal"]
    repo.erase("s")
    assert repo.verify().ok


# --- who is in the way
def test_a_reader_is_waited_for(repo: txstore.Repository) -> None:
    fill(repo)
    reader = repo.mapping(at=1)
    assert reader["s/c/0"] == SECRETS["s/c/0 again"]
    head = repo.head()
    with pytest.raises(txstore.ErasureTimeoutError, match=r"this process reads main@1.*Nothing was changed"):
        repo.erase("s", timeout=0)
    assert repo.head() == head
    assert repo.erasures() == []
    assert reader["s/c/1"] == SECRETS["s/c/1"]
    del reader
    gc.collect()
    repo.erase("s", timeout=0)
    assert leaks(files_of(repo.url)) == []


def test_a_reader_in_another_process_is_waited_for(repo: txstore.Repository) -> None:
    fill(repo)
    program = (
        "import sys, txstore; mapping = txstore.Repository(sys.argv[1]).mapping(at=1); print(len(mapping['s/c/0']));"
        "sys.stdout.flush(); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, repo.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as reader:
        assert int(reader.stdout.readline()) == 1000
        who = rf"process {reader.pid} \(.*import sys, txstore.*, since 20.*\) reads main@1"
        with pytest.raises(txstore.ErasureTimeoutError, match=who):
            repo.erase("s", timeout=0)
        report = repo.vacuum(keep=1)
        assert report.oldest_kept <= 1
        assert re.match(rf"process {reader.pid} \(.* reads, or writes on, main@1", report.held[0])
        assert report.held[0] in str(report)
        reader.communicate()
    repo.erase("s", timeout=0)
    assert leaks(files_of(repo.url)) == []


def test_who_reads_what_has_it_no_more_reads_on(repo: txstore.Repository) -> None:
    fill(repo)
    for name in repo.branches:
        with repo.begin("delete", branch=name) as mapping:
            mapping.delete_dir("s")
    del mapping
    gc.collect()
    reader, other = repo.mapping(), repo.mapping(branch="dev")
    assert reader["k/c/0"] == KEPT["k/c/0"]
    writing = repo.begin("goes on")
    writing["n/9"] = b"9"
    put(repo, {"n/8": b"8"})
    repo.erase("s", timeout=0)
    assert (reader["k/c/1"], other["k/c/2"]) == (KEPT["k/c/1"], KEPT["k/c/2"])
    writing.commit()
    assert repo.mapping()["n/9"] == b"9"
    assert leaks(files_of(repo.url)) == []
    assert repo.verify().ok


def test_a_deleted_branch_has_nothing_left(repo: txstore.Repository) -> None:
    fill(repo)
    reader = repo.mapping(branch="dev")
    del repo.branches["dev"]
    with pytest.raises(txstore.ErasureTimeoutError, match="a process reads the deleted branch"):
        repo.erase("s", timeout=0)
    del reader
    gc.collect()
    repo.erase("s", timeout=0)
    assert leaks(files_of(repo.url)) == []
    assert repo.verify().ok


def test_a_quarantine_is_looked_at_first(repo: txstore.Repository) -> None:
    fill(repo)
    quarantine = Path(repo.url, "quarantine", "commits")
    quarantine.mkdir(parents=True)
    (quarantine / "0000000000").write_bytes(SECRETS["s/c/0"])
    with pytest.raises(txstore.ErasureError, match="quarantine"):
        repo.erase("s")
    shutil.rmtree(quarantine.parent)
    repo.erase("s")
    assert leaks(files_of(repo.url)) == []


def test_damage_is_repaired_first(repo: txstore.Repository) -> None:
    fill(repo)
    path = Path(repo.url, "commits", "main", "0000000000")
    content = path.read_bytes()
    at = content.index(b"s/c/0") - 20
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    with pytest.raises(txstore.CorruptionError):
        repo.erase("s")
    assert repo.erasures() == []
    path.write_bytes(content)
    repo.erase("s")


def test_a_file_with_another_name_is_left_alone(repo: txstore.Repository, tmp_path: Path) -> None:
    fill(repo)
    os.link(Path(repo.url, "commits/main/0000000000"), tmp_path / "mine")
    before = (tmp_path / "mine").read_bytes()
    repo.erase("s")
    assert (tmp_path / "mine").read_bytes() == before
    assert leaks(files_of(repo.url)) == []


# --- copies
def test_a_backup_follows(repo: txstore.Repository, tmp_path: Path) -> None:
    fill(repo)
    old, new = tmp_path / "old.tx", tmp_path / "new.tx"
    repo.backup(old)
    secret, *_ = leaks(files_of(old))
    shutil.copy(secret, old / ".staging" / "0123456789abcdef.new")  # left by a backup that was killed
    repo.erase("s")
    put(repo, {"s/c/0": b"written again"})
    for copy, values in ((old, repo.erasures()[0].values), (new, 0), (old, 0)):
        assert repo.backup(copy, erase=True).erased == values
        assert leaks(files_of(copy)) == []
        copied = txstore.Repository(copy)
        assert copied.verify().ok
        assert copied.erasures() == repo.erasures()
        assert copied.mapping()["s/c/0"] == b"written again"
        check_all_is_told(copied, 2)


def test_a_backup_erases_nothing_unasked(repo: txstore.Repository, tmp_path: Path) -> None:
    """Whoever may write the repository may put a record there: the copy may be the last place that has the values."""
    fill(repo)
    copy = tmp_path / "copy.tx"
    repo.backup(copy)
    before = dict(files_of(copy))
    record = ErasureRecord("0" * 32, ("s",), "mallory", 0, {"main": 99}, finished=1)
    (Path(repo.url) / "erased").mkdir()
    (Path(repo.url) / "erased" / record.id).write_bytes(record.encode())
    put(repo, {"k/c/0": b"new"})
    with pytest.raises(txstore.BackupErasureError, match=r"'s' by mallory.*destroy \d+ values.*--erase") as caught:
        repo.backup(copy)
    assert [erasure.paths for erasure in caught.value.erasures] == [("s",)]
    assert caught.value.values > 0
    assert dict(files_of(copy)) == before
    done = CliRunner().invoke(app, ["backup", repo.url, str(copy)])
    assert done.exit_code == 2
    assert "mallory" in done.output
    assert dict(files_of(copy)) == before
    (Path(repo.url) / "erased" / record.id).unlink()
    report = repo.backup(copy)
    assert (report.erasures, report.erased) == (0, 0)
    assert txstore.Repository(copy).mapping(at=0)["s/c/0"] == SECRETS["s/c/0"]


@pytest.mark.parametrize("as_json", [True, False])
def test_the_command_erases_in_a_backup_and_counts_it(repo: txstore.Repository, tmp_path: Path, as_json: bool) -> None:
    fill(repo)
    copy = tmp_path / "copy.tx"
    repo.backup(copy)
    repo.erase("s")
    done = CliRunner().invoke(app, ["backup", repo.url, str(copy), "--erase", *(["--json"] if as_json else [])])
    assert done.exit_code == 0
    values = repo.erasures()[0].values
    if as_json:
        told = json.loads(done.stdout)
        assert (told["erasures"], told["erased"]) == (1, values)
    else:
        assert f"{values:,} values erased, by 1 erasure" in done.stdout
    assert leaks(files_of(copy)) == []


def test_published_copies_follow(repo: txstore.Repository, tmp_path: Path) -> None:
    with repo.transaction("made") as store:
        zarr.create_group(store)
        zarr.create_array(store, name="s", data=np.frombuffer(SECRETS["s/c/0"], np.uint8), compressors=None)
        zarr.create_array(store, name="k", data=np.arange(3))
    repo.publish(tmp_path / "plain.zarr")
    assert leaks(files_of(tmp_path / "plain.zarr"))
    repo.erase("s")
    repo.publish(tmp_path / "plain.zarr")
    assert leaks(files_of(tmp_path / "plain.zarr")) == []


# --- repair


def test_an_erased_value_that_is_there_again_is_erased_again(repo: txstore.Repository) -> None:
    """Somebody has put a file back, say."""
    fill(repo)
    path = Path(repo.url, "commits", "main", "0000000000")
    before = path.read_bytes()
    repo.erase("s")
    path.write_bytes(before)
    assert leaks(files_of(repo.url))
    txstore.Repository(repo.url).erase("s")
    assert leaks(files_of(repo.url)) == []
    assert txstore.Repository(repo.url).verify().ok


# --- object stores
def test_a_cache_has_no_files_that_a_vacuum_deleted(tmp_path: Path) -> None:
    """It keeps pieces of files that are gone, and no survey meets those."""
    cache = tmp_path / "cache"
    repo = txstore.Repository(f"memory://{tmp_path.name}/erased.tx", single_writer=True, cache_dir=cache)
    fill(repo)
    for version in range(3):
        assert all(repo.mapping(at=version).values())
    del repo.tags["v1"], repo.branches["dev"]
    gc.collect()
    repo.optimize()
    repo.vacuum(keep=1)
    assert leaks(files_of(cache))
    repo.erase("s")
    assert leaks(files_of(cache)) == []


def test_objects_and_caches(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    repo = txstore.Repository(f"memory://{tmp_path.name}/erased.tx", single_writer=True, cache_dir=cache)
    fill(repo)
    objects = objects_of(repo)

    def scanned() -> list[str]:
        return leaks((path, bytes(objects.get(path))) for path, _ in below(objects))

    for version in range(3):
        assert all(repo.mapping(at=version).values())
    assert scanned()
    assert leaks(files_of(cache))
    repo.erase("s")
    assert scanned() == []
    assert leaks(files_of(cache)) == []
    check_all_is_told(repo, 3)
    assert repo.verify().ok
    put(repo, {"s/c/0": b"new"})
    assert repo.mapping()["s/c/0"] == b"new"
