"""Random steps on two repositories, by one face each: both answer the same, errors included."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import zarr
import zarr.api.asynchronous as azarr
from hypothesis import given, settings

import txstore
from txstore import aio

BRANCHES = st.sampled_from(["main", "dev", "no-such"])
AT = st.sampled_from([0, 1, -1, "main@1", "v1", "dev"])
STEPS = st.one_of(
    st.tuples(st.just("write"), BRANCHES, st.integers(0, 3), st.integers(1, 9)),
    st.tuples(st.just("give up"), BRANCHES, st.integers(0, 3), st.integers(1, 9)),
    st.tuples(st.just("branch"), AT),
    st.tuples(st.just("tag"), AT),
    st.tuples(st.just("merge"), BRANCHES, BRANCHES),
    st.tuples(st.just("revert"), AT, BRANCHES),
    st.tuples(st.just("read"), AT),
    st.tuples(st.just("diff"), AT, AT),
    st.tuples(st.just("log"), BRANCHES),
    st.tuples(st.just("vacuum"), st.integers(1, 3)),
    st.tuples(st.just("names")),
)


class GivenUp(Exception):
    pass


def told(commit: txstore.Commit | None) -> Any:
    return None if commit is None else (commit.branch, commit.version, commit.message)


def by_threads(repo: txstore.Repository, step: tuple[Any, ...]) -> Any:
    match step:
        case "write" | "give up" as what, branch, at, value:
            with repo.transaction(f"{at}={value}", branch=branch) as store:
                zarr.open_array(store, path="x")[at] = value
                if what == "give up":
                    raise GivenUp
            return told(repo.head(branch))
        case "branch", at:
            repo.branches["dev"] = at
        case "tag", at:
            repo.tags["v1"] = at
        case "merge", source, into:
            return told(repo.merge(source, into))
        case "revert", at, branch:
            return told(repo.revert(at, branch))
        case "read", at:
            return zarr.open_array(repo.snapshot(at), path="x", mode="r")[:].tolist()
        case "diff", a, b:
            return [(node.path, node.change, node.regions) for node in repo.diff(a, b)]
        case "log", branch:
            return [told(commit) for commit in repo.log(branch)]
        case "vacuum", keep:
            return repo.vacuum(keep=keep).expired
        case ("names",):
            return list(repo.branches), sorted((name, told(commit)) for name, commit in repo.tags.items())
    return None


async def by_tasks(repo: aio.AsyncRepository, step: tuple[Any, ...]) -> Any:
    match step:
        case "write" | "give up" as what, branch, at, value:
            async with repo.transaction(f"{at}={value}", branch=branch) as tx:
                await (await azarr.open_array(store=tx.store, path="x")).setitem(at, value)
                if what == "give up":
                    raise GivenUp
            assert await tx.outcome() == await repo.head(branch)
            return told(await repo.head(branch))
        case "branch", at:
            await repo.branches.set("dev", at)
        case "tag", at:
            await repo.tags.set("v1", at)
        case "merge", source, into:
            return told(await repo.merge(source, into))
        case "revert", at, branch:
            return told(await repo.revert(at, branch))
        case "read", at:
            x = await azarr.open_array(store=await repo.snapshot(at), path="x", mode="r")
            return np.asarray(await x.getitem(...)).tolist()
        case "diff", a, b:
            return [(node.path, node.change, node.regions) for node in await repo.diff(a, b)]
        case "log", branch:
            return [told(commit) async for commit in repo.log(branch)]
        case "vacuum", keep:
            return (await repo.vacuum(keep=keep)).expired
        case ("names",):
            return await repo.branches.keys(), sorted((name, told(made)) for name, made in await repo.tags.items())
    return None


async def answer(ask: Callable[[], Awaitable[Any]]) -> Any:
    try:
        return await ask()
    except (txstore.TxStoreError, GivenUp, KeyError, ValueError) as error:
        return type(error)


@settings(max_examples=40)
@given(st.lists(STEPS, min_size=3, max_size=12))
def test_both_faces_answer_the_same(steps: list[tuple[Any, ...]]) -> None:
    async def compare(folder: Path) -> None:
        here, there = txstore.Repository(folder / "here.tx"), await aio.open(folder / "there.tx")
        for repo in (here, there.repository):
            with repo.transaction("x") as store:
                zarr.create_array(store, name="x", shape=(4,), chunks=(2,), dtype="i4")
        for step in steps:
            expected = await answer(lambda step=step: asyncio.to_thread(by_threads, here, step))
            assert await answer(lambda step=step: by_tasks(there, step)) == expected, step
        assert (await there.verify()).faults == []

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(compare(Path(folder)))
