"""Optimize: fewer and larger packs, one run, and nothing that anybody could notice."""

import random
import uuid
from pathlib import Path

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.faults import once, watch
from tests.tools.inside import staged
from tests.tools.upkeep import bytes_of_head, content, oldest_kept_of, put, rewrite, seqs, tree
from txstore.history import operations
from txstore.maintenance import optimize


def packs(repo: txstore.Repository) -> list[str]:
    return [path for path in tree(repo) if path.startswith("packs/")]


def test_nothing_to_do(repo):
    with pytest.raises(txstore.RepositoryNotFoundError):
        repo.optimize()
    put(repo, {"a": b"1"})
    assert repo.optimize() is not None  # a commit file is no good place for a value that stays
    before = tree(repo)
    for _ in range(3):
        assert repo.optimize() is None
    assert tree(repo) == before


@pytest.mark.parametrize(("chunk", "chunks"), [(1, 1), (1, 50), (1 << 20, 40), (9 << 20, 3)])
def test_on_an_object_store_it_is_done_once(chunk, chunks):
    """Documents lie beside one another there, apart from other values, and packs end at 32 MiB."""
    repo = txstore.Repository(f"memory://{uuid.uuid4().hex}")
    with repo.transaction() as store:
        x = zarr.create_array(store, name="x", shape=chunk * chunks, chunks=chunk, dtype="i1", compressors=None)
        x[:] = 1
    for number in range(3):
        with repo.transaction() as store:
            zarr.open_array(store, path="x")[number * chunk : number * chunk + 2] = 7
    repo.optimize()
    assert repo.optimize() is None
    with repo.transaction() as store:
        zarr.open_array(store, path="x")[0] = 8
    progress: list[tuple[int, int]] = []
    repo.optimize(progress=lambda *at: progress.append(at))
    assert max((total for _, total in progress), default=0) < 16 << 20  # not what it had copied before
    assert repo.optimize() is None
    x = zarr.open_array(repo.snapshot(), path="x", mode="r")
    assert x[0] == 8
    assert set(map(int, np.unique(x[1:]))) <= {1, 7}
    assert repo.verify().faults == []


def test_content_seqs_history_and_views_are_the_same(open_repo):
    repo = open_repo(durability="none")
    model = rewrite(repo, 50)
    put(repo, {"b/x": b"1", "b/y": b"2", "c": b"3"})
    put(repo, {"b/": None, "c": None, "d": b""})
    model |= {"d": b""}
    log, before = [commit.id for commit in repo.log()], seqs(repo)
    old = [(version, content(repo, version)) for version in range(0, 52, 5)]
    reader = repo.mapping()
    view = reader.get_view("a/c/1")

    made = repo.optimize()

    assert made.message == "optimize"
    assert made.statistics == dict.fromkeys(made.statistics, 0)
    assert content(repo) == model
    assert seqs(repo) == before
    assert [commit.id for commit in repo.log()] == [made.id, *log]
    assert [(version, content(repo, version)) for version, _ in old] == old
    assert {key: bytes(reader[key]) for key in reader} == model
    assert bytes(view) == model["a/c/1"]
    assert len(packs(repo)) == 1
    assert len(repo.mapping().run_names) == 1
    # As whoever has never seen the repository finds it.
    assert content(txstore.Repository(repo.url)) == model


def test_new_packs_end_at_a_length(open_repo, monkeypatch):
    repo = open_repo(durability="none")
    for name, length in {"PACK_LENGTH": 10_000, "SMALL_PACK": 9_000}.items():
        monkeypatch.setattr(optimize, name, length)
    model = {f"a/{i:02}": bytes([i]) * 1_500 for i in range(40)}
    for key, value in model.items():
        put(repo, {key: value})
    progress: list[tuple[int, int]] = []
    repo.optimize(progress=lambda *at: progress.append(at))
    assert [size for path, size in sorted(tree(repo).items()) if path.startswith("packs/") and size > 13_000] == []
    assert len(packs(repo)) >= 5
    assert content(repo) == model
    assert progress == sorted(progress)
    assert progress[-1][0] == progress[-1][1]
    repo.vacuum(keep=1)
    assert content(repo) == model
    assert repo.optimize() is None


def test_tombstones_are_forgotten_only_below_the_oldest_kept(repo):
    """Whoever is based above the oldest kept version must still find that what it read was deleted."""
    put(repo, {"a": b"1", "b": b"1", "p/x": b"1", "p/y": b"1", "q/x": b"1"})
    put(repo, {"a": None, "q/": None})  # before the oldest kept version that comes
    put(repo, {"z": b"1"})
    base = repo.mapping()
    open_ones = {key: repo.begin() for key in ("b", "p/x")}
    for key, transaction in open_ones.items():
        transaction[key] = b"mine"
    put(repo, {"b": None, "p/": None})
    repo.optimize()
    repo.vacuum(keep=1)
    assert oldest_kept_of(repo) == base.version
    repo.optimize()
    put(repo, {"y": b"1"})
    repo.optimize()
    for key, transaction in open_ones.items():
        with pytest.raises(txstore.ConflictError, match=key):
            transaction.commit()
        transaction.rollback()
    assert content(repo) == {"z": b"1", "y": b"1"}

    # When nobody is based on them any more, all are.
    del base, open_ones, transaction
    repo.vacuum(keep=1)
    put(repo, {"y": b"2"})
    repo.optimize()
    (run,) = repo.mapping().run_names
    assert run.entries == 2


def test_damage_is_not_copied(open_repo, tmp_path):
    repo = txstore.Repository(tmp_path / "damaged.tx")
    put(repo, {"a": b"the value", "b": b"1"})
    path = Path(repo.url, "commits/main/0000000000")
    path.write_bytes(path.read_bytes().replace(b"the value", b"the valve"))
    put(repo, {"c": b"1"})
    with pytest.raises(txstore.CorruptionError, match="'a'"):
        repo.optimize()
    assert packs(repo) == []
    assert staged(repo) == []


@pytest.mark.parametrize("failing", ["create", "link", "sync_file", "sync_directory", "rename_noreplace", "file.write"])
def test_the_medium_fails(open_repo, failing, monkeypatch):
    repo = open_repo()
    model = rewrite(repo, 10)
    watched = watch(repo)
    before = tree(repo)
    monkeypatch.setattr(operations, "_write", lambda *_, **__: None)  # whose failure is none of the optimize
    watched.before[failing] = once(OSError(28, "No space left on device"))
    with pytest.raises((OSError, txstore.CommitUnknownError)):
        repo.optimize()
    watched.before.clear()
    assert staged(repo) == []
    if failing != "sync_directory":
        assert tree(repo) == before
    assert content(repo) == model
    assert repo.optimize() is not None
    assert content(repo) == model


@pytest.mark.long
def test_many_rewrites_leave_little(open_repo):
    """1,000 commits that rewrite 100 chunks of 800 bytes."""
    repo = open_repo(durability="none")
    with repo.transaction() as store:
        zarr.create_array(store, name="x", data=np.arange(10_000.0), chunks=(100,), compressors=None)
    generator = random.Random(1)
    for number in range(1_000):
        put(repo, {f"x/c/{generator.randrange(100)}": np.full(100, float(number)).tobytes()})
    repo.optimize()
    repo.vacuum(keep=1)
    assert store.staged_count == 0  # a store whose block was left holds nothing back
    files = tree(repo)
    assert len(files) <= 10, sorted(files)
    assert sum(files.values()) <= 1.05 * bytes_of_head(repo) + (64 << 10)


@pytest.mark.parametrize("length", [1000, 1015, 1020, 1030, 1200, 2000])
def test_a_second_time_finds_nothing_whatever_the_runs_weighed(tmp_path, length):
    """A file that was worth keeping with its run may not be without it."""
    repo = txstore.Repository(tmp_path / "data.tx", durability="none")
    for value in (b"0", bytes(length)):
        with repo.begin() as transaction:
            transaction["a"] = value
    assert repo.optimize() is not None
    assert repo.optimize() is None
