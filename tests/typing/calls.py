"""Calls as users write them, for type checkers: `make check` has mypy read this file, strictly. Nothing here is run."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import assert_type

import numpy as np

import txstore
from txstore import aio


def names(repo: txstore.Repository) -> None:
    repo.tags["v1"] = repo.head()
    repo.tags["v2"] = repo.head("dev")
    repo.tags["v3"] = repo.commit("HEAD~1")
    repo.tags["v4"] = -1
    repo.tags["v5"] = "main@3"
    repo.tags["v6"] = datetime.now(UTC)
    repo.tags["v7"] = np.datetime64("2026-01-01")
    repo.branches["dev"] = repo.head()
    repo.branches["dev2"] = "v1"
    repo.branches["dev3"] = np.int64(3)
    assert_type(repo.tags["v1"], txstore.Commit)
    assert_type(repo.branches["dev"], txstore.Commit)
    del repo.tags["v1"], repo.branches["dev"]


async def with_asyncio(dry_run: bool) -> None:
    repo = await aio.open("data.tx")
    assert_type(repo, aio.AsyncRepository)
    async with repo.transaction("one", lock={"x": txstore.APPEND}) as tx:
        assert_type(tx, aio.AsyncTransaction)
        assert_type(tx.store, txstore.TxStore)
        assert_type(await tx.commit(), txstore.Commit | None)
    assert_type(await repo.transaction(), aio.AsyncTransaction)
    assert_type(await repo.log(limit=2), list[txstore.Commit])
    async for commit in repo.follow(since=-1):
        assert_type(commit, txstore.Commit)
    assert_type(await repo.branches["dev"], txstore.Commit)
    await repo.tags.set("v1", await repo.head())
    assert_type(await repo.merge("dev"), txstore.Commit)
    print((await repo.merge("dev", dry_run=True)).conflicts)
    either = await repo.merge("dev", dry_run=dry_run)
    if isinstance(either, txstore.Commit):
        print(either.version)

    async def fn(store: txstore.TxStore) -> int:
        return len(store)

    assert_type(await repo.run(fn), int)
    assert_type(await aio.call(len, "abc"), int)


def merging(repo: txstore.Repository, dry_run: bool) -> None:
    made = repo.merge("dev")
    print(made.id, made.message)
    assert_type(repo.merge("dev", "main", message="both", progress=True), txstore.Commit)
    plan = repo.merge("dev", dry_run=True)
    print(plan.conflicts, plan.is_empty)
    either = repo.merge("dev", dry_run=dry_run)
    if isinstance(either, txstore.Commit):
        print(either.version)
    resolve = {"x": "theirs"}
    repo.merge("dev", resolve={"x": "ours", "y": lambda conflict: conflict.path}, append="concatenate")
    repo.merge("dev", resolve=resolve)
    print(repo.cherry_pick("v1").id, repo.revert(-1).id, repo.revert(-1, dry_run=True).taken)
    print(repo.cherry_pick("v1", branch="dev", dry_run=True).conflicts)
    print(repo.merge("main", branch="dev").id, repo.revert(-1, branch="dev").id)


def transactions(repo: txstore.Repository, options: Mapping[str, object]) -> None:
    with repo.transaction("one", isolation="serializable", lock={"x": txstore.APPEND}) as store:
        store.commit()
    with repo.transaction("two", isolation="snapshot", on_conflict="merge", properties=options):
        pass
    with repo.transaction(name="job", isolation="serializable"):
        pass
    with repo.begin("three", isolation="serializable") as transaction:
        transaction["a"] = b"1"
    with repo.begin(on_conflict="merge"):
        pass
    print(repo.run(lambda store: store.read_only, isolation="serializable", retries=3))


def reading(repo: txstore.Repository) -> None:
    for at in (None, -1, "HEAD~1", repo.head(), repo.commit(0), datetime.now(UTC), np.datetime64("2026-01-01")):
        repo.snapshot(at)
        repo.mapping(at)
    repo.diff(-2, -1).values("x")
    print([commit.message for commit in repo.log(limit=3)], repo.log()[0].id)
    txstore.TxStore("data.tx", at="v1", read_only=True)
    txstore.Repository("data.tx", durability="none", create=False)


def far(done: int, total: int) -> None:
    print(done, total)


def progress(repo: txstore.Repository) -> None:
    repo.verify(progress=True)
    repo.verify(far)
    repo.backup("copy", progress=far)
    repo.optimize(progress=lambda done, total: print(done, total))
    repo.import_from("old.zarr", "old", branch="dev", progress=True)
    repo.import_from([repo.snapshot(), "old.zarr"], concat=0)
    repo.import_from(repo.snapshot(), properties={"job": 7}, replace=True)
    repo.export("out", at=repo.head(), progress=None)
    repo.publish("copy", progress=False)
