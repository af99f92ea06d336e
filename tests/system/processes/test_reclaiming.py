"""What writers left that died is deleted by the next one; what living ones have staged is not."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

import txstore
from tests.tools.faults import watch
from tests.tools.members import members, put
from tests.tools.workers import SPAWN, TIMEOUT
from txstore.format.packfile import participants_pack

pytestmark = pytest.mark.long

SIZES = pytest.mark.parametrize("size", [10, 3 << 20])


def staged(repo: txstore.Repository) -> list[str]:
    return sorted(os.listdir(Path(repo.url, ".staging")))


def stage_and_wait(url: str, size: int, how: str, pipe) -> None:
    """Stage something, and never come to an end."""
    repo = txstore.Repository(url)
    store = repo.transaction(name="run" if how == "named" else None)
    store["staged"] = bytes(size)
    transaction = store.mapping
    if how == "flushed":
        transaction.staging.part.writer.create()
    elif how == "shared":
        store.__reduce__()
    pipe.send("staged")
    pipe.recv()


class Writer:
    def __init__(self, repo: txstore.Repository, size: int, how: str) -> None:
        self.pipe, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=stage_and_wait, args=(repo.url, size, how, theirs), daemon=True)
        self.process.start()
        theirs.close()
        assert self.pipe.poll(TIMEOUT)
        assert self.pipe.recv() == "staged"

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


def write(repo: txstore.Repository) -> None:
    fresh = txstore.Repository(repo.url)  # once in each opened repository
    with fresh.transaction() as store:
        store["key"] = os.urandom(8)


@SIZES
@pytest.mark.parametrize("how", ["flushed", "shared"])
def test_the_dead(repo: txstore.Repository, size: int, how: str) -> None:
    write(repo)
    writer = Writer(repo, size, how)
    before = staged(repo)
    assert len(before) == (2 if how == "shared" else 1)
    write(repo)
    assert staged(repo) == before, "it lives"
    writer.kill()
    write(repo)
    assert staged(repo) == []


@SIZES
@pytest.mark.parametrize("how", ["flushed", "shared"])
def test_a_vacuum_counts_what_the_dead_had_staged(repo: txstore.Repository, size: int, how: str) -> None:
    write(repo)
    writer = Writer(repo, size, how)
    before = staged(repo)
    for dry_run in (True, False):
        report = repo.vacuum(dry_run=dry_run)
        assert (report.files, report.bytes, report.staged) == (0, 0, 0), "it lives"
    writer.kill()
    on_disk = sum(Path(repo.url, ".staging", name).stat().st_size for name in before)
    would = repo.vacuum(dry_run=True)
    assert staged(repo) == before
    done = repo.vacuum()
    assert staged(repo) == []
    assert done.bytes == done.staged == on_disk >= (size if size > 1 << 20 else 0)
    assert done.files == len(before)
    assert would == replace(done, dry_run=True)


def test_a_vacuum_does_not_count_the_other_name_of_a_pack(repo: txstore.Repository) -> None:
    """Whoever died between the commit and the end of the transaction had left it, and the pack is not deleted."""
    write(repo)
    with members(store := repo.transaction(), 1) as (member,):
        member.do(put, "key", b"1")
        store.commit()
    (pack,) = Path(repo.url, "packs").glob("*/*")
    transaction = participants_pack(bytes.fromhex(pack.name), 1)
    os.link(pack, Path(repo.url, ".staging", f"{transaction.hex()}.1"))
    assert repo.vacuum().staged == 0
    assert staged(repo) == []


def test_a_record_that_is_renamed_while_it_is_listed(repo: txstore.Repository) -> None:
    write(repo)
    with repo.transaction(name="run") as store:
        store["staged"] = b"1"
    before = staged(repo)
    fresh = txstore.Repository(repo.url)
    watched = watch(fresh)
    real = watched._real.list
    watched._real.list = lambda path: [name for name in real(path) if not name.endswith((".open", ".sealed"))]
    with fresh.transaction() as store:
        store["key"] = os.urandom(8)
    assert staged(repo) == before
    repo.transaction(name="run").commit()
    assert repo.snapshot()["staged"] == b"1"


def test_a_file_that_is_created_while_it_is_reclaimed(repo: txstore.Repository, monkeypatch) -> None:
    """Between its creation and its being held, a file looks as if it were left by the dead."""
    write(repo)
    storage = repo.engine.storage
    real, path = txstore.storage.local._hold, ".staging/0123456789abcdef.new"
    times, reclaimed = 2, []

    def interrupted(descriptor: int) -> bool:
        if len(reclaimed) < times:
            monkeypatch.setattr(txstore.storage.local, "_hold", real)
            reclaimed.append(storage.reclaim(path))
            monkeypatch.setattr(txstore.storage.local, "_hold", interrupted)
        return real(descriptor)

    monkeypatch.setattr(txstore.storage.local, "_hold", interrupted)
    file = storage.create(path)
    assert reclaimed == [True] * times
    file.write(0, [b"here"])
    assert storage.read(path) == b"here"
    file.close()
