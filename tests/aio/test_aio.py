"""What tasks of an event loop do with repositories: the same as threads, and the loop never waits."""

import asyncio
import contextvars
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
import zarr.api.asynchronous as azarr

import txstore
from tests.tools.waiting import TIMEOUT
from txstore import aio
from txstore.format import names

#: Ticks of the heartbeat that a wait of a thread must let happen.
TICKS = 20


@pytest.fixture(params=["local", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "data.tx") if request.param == "local" else f"memory://{uuid4().hex}/data.tx"


@pytest.fixture
async def repo(place: str) -> AsyncIterator[aio.AsyncRepository]:
    repo = await aio.open(place)
    yield repo
    if await repo.exists():
        assert (await repo.verify()).faults == []


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[aio.AsyncRepository]:
    repo = await aio.open(tmp_path / "data.tx")
    async with repo.transaction("begun") as tx:
        await azarr.create_array(store=tx.store, name="x", shape=(4,), chunks=(2,), dtype="i4")
    yield repo
    assert (await repo.verify()).faults == []


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not condition():
            await asyncio.sleep(0.001)


class Heartbeat:
    ticks = 0

    async def beat(self) -> None:
        while True:
            self.ticks += 1
            await asyncio.sleep(0.001)

    async def goes_on(self) -> None:
        """Return when the loop has made so many more ticks."""
        wanted = self.ticks + TICKS
        await until(lambda: self.ticks >= wanted)


@pytest.fixture
async def heart() -> AsyncIterator[Heartbeat]:
    heart = Heartbeat()
    task = asyncio.create_task(heart.beat())
    yield heart
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


#: It gives up after a while, so that a loop that waits fails the test and does not hang.
HOLDER = """
import select, sys
from txstore import Repository
repo = Repository(sys.argv[1])
with repo.engine.storage.lock(sys.argv[2]):
    print("held", flush=True)
    select.select([sys.stdin], [], [], 30)
"""


@contextmanager
def commit_lock_of_another_process(repo: aio.AsyncRepository) -> Iterator[Callable[[], None]]:
    """Another process holds the commit lock, until the function that the block gets is called."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, repo.url, names.COMMIT_LOCK],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout.readline() == "held\n"
        yield process.stdin.close


@asynccontextmanager
async def staged(repo: aio.AsyncRepository, value: int) -> AsyncIterator[aio.AsyncTransaction]:
    """A transaction that has written, and is not committed."""
    tx = await repo.transaction()
    x = await azarr.open_array(store=tx.store, path="x")
    await x.setitem(slice(None), value)
    yield tx


async def read(repo: aio.AsyncRepository) -> list[int]:
    x = await azarr.open_array(store=await repo.snapshot(), path="x", mode="r")
    found = await x.getitem(slice(None))
    return np.asarray(found).tolist()


# --- the face
async def test_a_repository_from_its_first_write_to_its_vacuum(repo: aio.AsyncRepository) -> None:
    assert not await repo.exists()
    async with repo.transaction("add x") as tx:
        x = await azarr.create_array(store=tx.store, name="x", shape=(4,), chunks=(2,), dtype="i4")
        await x.setitem(slice(None), 1)
        assert tx.staged_count == 4
        assert [node.path for node in await tx.diff()] == ["", "x"]
    made = await tx.outcome()
    assert made == await repo.head()
    assert await read(repo) == [1] * 4
    await repo.branches.set("dev", made)
    await repo.tags.set("v1", made)
    assert await repo.tags["v1"] == made
    tx = await repo.transaction(branch="dev")
    await (await azarr.open_array(store=tx.store, path="x")).setitem(slice(0, 2), 7)
    assert (await tx.commit("try")).message == "try"
    assert tx.store.base == await repo.branches["dev"]
    assert (await repo.merge("dev")).message == "merge of dev@1"
    assert await read(repo) == [7, 7, 1, 1]
    difference = await repo.diff(0, 1)
    parts = [part.after.tolist() async for part in aio.each(difference.values, "x")]
    assert parts == [[7, 7]]
    assert [commit.message for commit in await repo.log()] == [commit.message async for commit in repo.log()]
    assert await repo.branches.keys() == [name async for name in repo.branches] == ["main", "dev"]
    assert dict(await repo.tags.items()) == {"v1": made}
    await repo.branches.rename("dev", "tried")
    await repo.branches.delete("tried")
    await repo.vacuum(keep=1)
    assert (await repo.verify()).faults == []


async def test_errors_and_outcomes(repo: aio.AsyncRepository, place: str) -> None:
    with pytest.raises(txstore.RepositoryNotFoundError):
        await aio.open(place, create=False)
    with pytest.raises(txstore.RepositoryNotFoundError):
        await repo.log()
    async with repo.transaction("first") as tx:
        await azarr.create_array(store=tx.store, name="x", shape=(4,), chunks=(2,), dtype="i4")
    tx = await repo.transaction()
    with pytest.raises(txstore.TransactionStateError, match="nothing was published"):
        await tx.outcome()
    async with staged(repo, 1) as first, staged(repo, 2) as second:
        await first.commit()
        for conflict in (second.commit, second.outcome):
            with pytest.raises(txstore.ConflictError):
                await conflict()
        await second.rollback()
    with pytest.raises(RuntimeError):
        async with repo.transaction("never") as tx:
            await (await azarr.open_array(store=tx.store, path="x")).setitem(slice(None), 5)
            raise RuntimeError
    with pytest.raises(txstore.TransactionStateError, match="rolled back"):
        await tx.commit()
    assert await read(repo) == [1] * 4


async def test_context_variables_reach_the_call(tmp_path: Path) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("request")
    variable.set("r1")
    assert await aio.call(variable.get) == "r1"
    assert await aio.call(threading.get_ident) != threading.get_ident()
    repo = await aio.open(tmp_path / "data.tx")

    async def fn(store: txstore.TxStore) -> str:
        return variable.get()

    assert await repo.run(fn) == "r1"


async def test_tasks_that_share_a_repository_lose_nothing(repo: aio.AsyncRepository) -> None:
    async with repo.transaction() as tx:
        await azarr.create_array(store=tx.store, name="x", shape=(1,), chunks=(1,), dtype="i4")

    async def count(store: txstore.TxStore) -> int:
        x = await azarr.open_array(store=store, path="x")
        value = int(np.asarray(await x.getitem(0)))
        await x.setitem(0, value + 1)
        return value

    async with asyncio.TaskGroup() as tasks:
        counted = [tasks.create_task(repo.run(count)) for _ in range(8)]
    assert sorted(task.result() for task in counted) == list(range(8))
    assert await read(repo) == [8]


async def test_a_task_that_holds_locks_can_commit_whatever_number_waits(local: aio.AsyncRepository) -> None:
    """Calls that wait for a lock must not take the threads that the commit needs which releases it."""
    async with asyncio.TaskGroup() as tasks:
        async with local.transaction(lock=["x"]) as tx:

            async def wait() -> None:
                async with local.transaction(lock=["x"]):
                    pass

            waiting = [tasks.create_task(wait()) for _ in range(50)]
            await until(lambda: sum(thread.name.startswith("txstore.aio") for thread in threading.enumerate()) >= 50)
            await (await azarr.open_array(store=tx.store, path="x")).setitem(slice(None), 3)
        await asyncio.gather(*waiting)
    assert await read(local) == [3] * 4


async def test_bisect_takes_an_asynchronous_test(local: aio.AsyncRepository) -> None:
    for value in range(1, 6):
        async with staged(local, value) as tx:
            await tx.commit(str(value))

    async def is_small(store: txstore.TxStore) -> bool:
        x = await azarr.open_array(store=store, path="x", mode="r")
        return int(np.asarray(await x.getitem(0))) < 3

    assert (await local.bisect(0, -1, is_small)).message == "3"


# --- the loop never waits
async def test_the_loop_goes_on_while_a_commit_waits_for_another_process(local, heart):
    async with staged(local, 4) as tx:
        with commit_lock_of_another_process(local) as release:
            commit = asyncio.create_task(tx.commit("waited"))
            await heart.goes_on()
            assert tx.is_committing
            assert not commit.done()
            assert await read(local) == [0] * 4  # other tasks read meanwhile
            release()
            assert (await commit).message == "waited"
    assert await read(local) == [4] * 4


async def test_the_loop_goes_on_while_zarr_writes_beside_a_waiting_commit(local, heart):
    """The write is of the next transaction: it waits for the commit, as a task."""
    async with staged(local, 4) as tx:
        x = await azarr.open_array(store=tx.store, path="x")
        with commit_lock_of_another_process(local) as release:
            commit = asyncio.create_task(tx.commit())
            await until(lambda: tx.is_committing)
            write = asyncio.create_task(x.setitem(slice(None), 6))
            reading = asyncio.create_task(x.getitem(slice(None)))
            await heart.goes_on()
            assert not write.done()
            assert not reading.done()
            release()
            await asyncio.gather(commit, write, reading)
        assert await read(local) == [4] * 4
        await tx.commit()
    assert await read(local) == [6] * 4


# --- cancellation
async def test_a_cancelled_commit_goes_on_and_can_be_asked(local: aio.AsyncRepository) -> None:
    async with staged(local, 5) as tx:
        with commit_lock_of_another_process(local) as release:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await tx.commit("late")
            assert tx.is_committing
            assert await read(local) == [0] * 4
            with pytest.raises(TimeoutError):  # asking can be cancelled, too
                async with asyncio.timeout(0.01):
                    await tx.outcome()
            release()
            made = await tx.outcome()
        assert made == await local.head()
        assert not tx.is_committing
        assert await read(local) == [5] * 4
        x = await azarr.open_array(store=tx.store, path="x")  # the transaction goes on from there
        await x.setitem(0, 6)
        assert (await tx.commit()).version == made.version + 1


async def test_a_cancelled_commit_that_fails_keeps_what_is_staged(tmp_path: Path) -> None:
    repo = await aio.open(tmp_path / "data.tx", commit_timeout=0.3)
    async with repo.transaction() as tx:
        await azarr.create_array(store=tx.store, name="x", shape=(4,), chunks=(2,), dtype="i4")
    async with staged(repo, 5) as tx:
        with commit_lock_of_another_process(repo):
            commit = asyncio.create_task(tx.commit())
            await until(lambda: tx.is_committing)
            commit.cancel()
            with pytest.raises(asyncio.CancelledError):
                await commit
            with pytest.raises(txstore.CommitTimeoutError):
                await tx.outcome()
        assert tx.staged_count
        await tx.commit()
    assert await read(repo) == [5] * 4


async def test_a_rollback_after_a_cancelled_commit_waits_for_it(local: aio.AsyncRepository) -> None:
    async with staged(local, 5) as tx:
        with commit_lock_of_another_process(local) as release:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await tx.commit()
            rollback = asyncio.create_task(tx.rollback())
            release()
            await rollback
        assert await tx.outcome() == await local.head()
    assert await read(local) == [5] * 4


@pytest.mark.parametrize("where", ["at the end", "inside"])
async def test_a_timeout_of_a_commit_of_a_block(local: aio.AsyncRepository, where: str) -> None:
    """The block ends at once, though the rollback at its end has to wait for a commit inside of it."""
    with commit_lock_of_another_process(local) as release:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5), local.transaction(where) as tx:
                await (await azarr.open_array(store=tx.store, path="x")).setitem(slice(None), 8)
                if where == "inside":
                    await tx.commit()
        assert tx.is_committing
        release()
        made = await tx.outcome()
    assert made.message == where
    assert await read(local) == [8] * 4


async def test_a_cancelled_task_rolls_back_what_it_has_staged(local: aio.AsyncRepository) -> None:
    has_written = asyncio.Event()

    async def write() -> None:
        async with local.transaction("never") as tx:
            await (await azarr.open_array(store=tx.store, path="x")).setitem(slice(None), 8)
            has_written.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(write())
    await has_written.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await read(local) == [0] * 4


@pytest.mark.parametrize("enters", [True, False])
async def test_a_cancelled_beginning_leaves_no_locks(local: aio.AsyncRepository, enters: bool) -> None:
    async def begin() -> None:
        if enters:
            async with local.transaction(lock=["x"]):
                pass
        else:
            await local.transaction(lock=["x"])

    async with local.transaction(lock=["x"]):
        task = asyncio.create_task(begin())
        await until(lambda: any(thread.name.startswith("txstore.aio") for thread in threading.enumerate()))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    async with local.transaction(lock=["x"], lock_timeout=TIMEOUT):
        pass
    await until(lambda: not any(thread.name.startswith("txstore.aio") for thread in threading.enumerate()))


async def test_a_cancelled_run_cancels_its_function_and_tries_no_more(local: aio.AsyncRepository) -> None:
    begun, ended = asyncio.Event(), []

    async def fn(store: txstore.TxStore) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    task = asyncio.create_task(local.run(fn))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]
    await until(lambda: not any(thread.name.startswith("txstore.aio") for thread in threading.enumerate()))
    assert len(await local.log()) == 1


# --- following
async def test_follow_yields_each_commit(repo: aio.AsyncRepository) -> None:
    seen: list[str] = []

    async def follow() -> None:
        async for commit in repo.follow(since=-1):
            seen.append(commit.message)
            if commit.message == "2":
                return

    task = asyncio.create_task(follow())
    for number in range(3):
        async with repo.transaction(str(number)):
            pass
    await task
    assert seen == ["0", "1", "2"]
    assert [commit.message async for commit in repo.follow(since=0, timeout=0)] == ["1", "2"]


async def test_a_cancelled_follower_leaves_no_thread(local: aio.AsyncRepository, heart: Heartbeat) -> None:
    async def follow() -> None:
        async for _ in local.follow():
            pass

    task = asyncio.create_task(follow())
    await heart.goes_on()
    assert any(thread.name.startswith("txstore.aio") for thread in threading.enumerate())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not any(thread.name.startswith("txstore.aio") for thread in threading.enumerate()))


def test_a_process_ends_after_a_commit_that_nobody_waits_for(tmp_path: Path) -> None:
    script = """
import asyncio, sys
import zarr.api.asynchronous as azarr
from txstore import aio

async def main():
    repo = await aio.open(sys.argv[1])
    tx = await repo.transaction("left")
    await azarr.create_array(store=tx.store, name="x", shape=(4,), chunks=(2,), dtype="i4")
    task = asyncio.create_task(tx.commit())
    while not tx.is_committing:
        await asyncio.sleep(0)
    task.cancel()

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "data.tx")], check=True, timeout=TIMEOUT)
    assert [commit.message for commit in txstore.Repository(tmp_path / "data.tx").log()] == ["left"]
