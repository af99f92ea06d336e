"""I6 within one transaction: array objects that are older than what another participant has staged of their metadata.

A lock makes a process follow what its siblings have staged, and so gives it knowledge of the chunk, not of the document
that its array object was opened with.
"""

import gc
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import numpy as np
import pytest
import zarr
import zarr.core.codec_pipeline

import txstore
from tests.tools.arrays import append, array, attributes, both, create, edit_document, put, resize, values
from tests.tools.members import Member
from txstore import ParticipantLostError, StaleArrayError, TransactionStateError
from txstore.store import TxStore

pytestmark = pytest.mark.long

NAME = "run"
Step = Callable[[TxStore], object]


# --- a participant that keeps what it has opened
class Keeper:
    """Where a participant keeps its store and array object from one step to the next."""

    store: TxStore
    z: zarr.Array


_kept = Keeper()  # of a process


def use_pipeline(name: str) -> None:
    zarr.config.set({"codec_pipeline.path": f"zarr.core.codec_pipeline.{name}CodecPipeline"})


def join(given: TxStore | txstore.Repository, kept: Keeper | None = None) -> None:
    kept = kept or _kept
    kept.store = given if isinstance(given, TxStore) else given.transaction(name=NAME)
    kept.z = array(kept.store)


def write(_: object, where: slice, value: Any, kept: Keeper | None = None) -> None:
    """Write with the array object that is kept, under the lock."""
    kept = kept or _kept
    with kept.store.lock("x", ...):
        kept.z[where] = value


def read(_: object, where: slice, kept: Keeper | None = None) -> list[int]:
    kept = kept or _kept
    with kept.store.lock("x", ...):
        return kept.z[where].tolist()


def change(_: object, step: Callable[[zarr.Array], object], kept: Keeper | None = None) -> None:
    kept = kept or _kept
    with kept.store.lock("x", txstore.APPEND):
        step(kept.z)


def reopen(_: object, kept: Keeper | None = None) -> None:
    kept = kept or _kept
    with kept.store.lock("x", ...):
        kept.z = array(kept.store)


def leave(_: object, kept: Keeper | None = None) -> None:
    kept = kept or _kept
    if kept.store.mapping.members.is_named:
        kept.store.mapping.lifecycle.leave()


class Doing(Protocol):
    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any: ...


class Crew:
    """One transaction: `store` is the owner's, or who else is here; `do` has the other participant do something."""

    def __init__(self, repo: txstore.Repository, store: TxStore, do: Doing, end: Callable[[], object]) -> None:
        self.repo = repo
        self.store = store
        self.do = do
        self.end = end

    def commit(self) -> None:
        self.end()
        self.store.commit()


@contextmanager
def by_process(repo: txstore.Repository, store: TxStore, given: Any, pipeline: str) -> Iterator[Crew]:
    member = Member(given, first=partial(use_pipeline, pipeline))
    try:
        member.do(join)

        def end() -> None:
            member.do(leave)
            member.leave()

        yield Crew(repo, store, member.do, end)
    finally:
        member.kill()


@contextmanager
def by_thread(repo: txstore.Repository, store: TxStore) -> Iterator[Crew]:
    """Another participant in a thread of this process: each entry by name is one."""
    kept = Keeper()
    with ThreadPoolExecutor(1) as pool:

        def do(function: Callable[..., Any], *arguments: Any) -> Any:
            return pool.submit(function, repo, *arguments, kept=kept).result()

        do(join)
        try:
            yield Crew(repo, store, do, lambda: do(leave))
        finally:
            do(leave)


@pytest.fixture(params=["Batched", "Fused"])
def pipeline(request: pytest.FixtureRequest) -> Iterator[str]:
    if not hasattr(zarr.core.codec_pipeline, f"{request.param}CodecPipeline"):
        pytest.skip("this zarr has no such pipeline")
    with zarr.config.set({"codec_pipeline.path": f"zarr.core.codec_pipeline.{request.param}CodecPipeline"}):
        yield request.param


@pytest.fixture
def repo(open_repo: Callable[..., txstore.Repository]) -> txstore.Repository:
    """A repository with the array x: six ones in chunks of four."""
    repo = open_repo(durability="none")
    with repo.transaction() as store:
        create(n=6)(store)
    return repo


@pytest.fixture(params=["pickle", "name", "thread"])
def crew(repo: txstore.Repository, pipeline: str, request: pytest.FixtureRequest) -> Iterator[Crew]:
    """The other participant has opened x."""
    store = repo.transaction(name=None if request.param == "pickle" else NAME)
    try:
        if request.param == "thread":
            with by_thread(repo, store) as crew:
                yield crew
        else:
            given = store if request.param == "pickle" else repo
            with by_process(repo, store, given, pipeline) as crew:
                yield crew
    finally:
        if request.param == "pickle":
            store.rollback()
        elif repo.transactions():
            store.mapping.lifecycle.leave()
            repo.transaction(name=NAME).rollback()


def recreate(**options: Any) -> Step:
    return create(n=6, overwrite=True, **options)


#: What one participant does; what another writes with an older array object; what x is when it has opened it anew.
OVERTAKEN: dict[str, tuple[Step, slice, list[int]]] = {
    "append": (append(7, 7), slice(4, 6), [1, 1, 1, 1, 5, 5, 7, 7]),
    "resize": (both(resize(9), put(slice(6, 9), 7)), slice(4, 6), [1, 1, 1, 1, 5, 5, 7, 7, 7]),
    "shrink": (resize(4), slice(4, 6), [1, 1, 1, 1]),
    "other chunks": (recreate(chunks=3, value=7), slice(0, 4), [5, 5, 5, 5, 7, 7]),
    "another fill value": (recreate(fill=7, value=7), slice(0, 6), [5, 5, 5, 5, 5, 5]),
    "another data type": (edit_document("x/zarr.json", data_type="uint32"), slice(0, 6), [5, 5, 5, 5, 5, 5]),
}


@pytest.mark.parametrize("name", OVERTAKEN)
def test_an_older_array_object_does_not_write_under_the_lock(crew: Crew, name: str) -> None:
    step, where, then = OVERTAKEN[name]
    step(crew.store)
    with pytest.raises(StaleArrayError, match=r"'x'.*open it again through this store"):
        crew.do(write, where, 5)
    crew.do(reopen)
    crew.do(write, where, 5)  # of what was shrunk: nothing
    crew.commit()
    assert values(crew.repo) == then
    assert not any("c/1" in key for key in crew.repo.mapping()) or name != "shrink"


def test_an_array_that_was_deleted_gets_no_chunks(crew: Crew) -> None:
    del zarr.open_group(crew.store)["x"]
    crew.store["noise/c/0"] = b"1"
    with pytest.raises(StaleArrayError):
        crew.do(write_below_noise, slice(0, 4), 5)
    crew.commit()
    assert not [key for key in crew.repo.mapping() if key.startswith("x")]


def write_below_noise(_: object, where: slice, value: int, kept: Keeper | None = None) -> None:
    kept = kept or _kept
    with kept.store.lock("", txstore.METADATA):
        kept.z[where] = value


def test_neither_does_it_read_what_it_would_decode_wrongly(crew: Crew) -> None:
    recreate(chunks=3, value=7)(crew.store)
    with pytest.raises(StaleArrayError):
        crew.do(read, slice(0, 4))
    crew.do(reopen)
    assert crew.do(read, slice(0, 4)) == [7] * 4


# --- what goes on as before
#: What one participant does; what another writes with an older array object; what x is then.
HARMLESS: dict[str, tuple[Step, slice, list[int]]] = {
    "append": (append(7, 7), slice(0, 4), [5, 5, 5, 5, 1, 1, 7, 7]),
    "shrink": (resize(4), slice(0, 4), [5] * 4),
    "attributes": (attributes("x", a=1), slice(0, 6), [5] * 6),
    "attributes of the group above": (attributes("", a=1), slice(0, 6), [5] * 6),
    "the document as it was": (lambda store: put_again(store, "x/zarr.json"), slice(0, 6), [5] * 6),
}


def put_again(store: TxStore, key: str) -> None:
    store[key] = store[key]


@pytest.mark.parametrize("name", HARMLESS)
def test_chunks_that_did_not_change_are_written(crew: Crew, name: str) -> None:
    step, where, then = HARMLESS[name]
    step(crew.store)
    crew.do(write, where, 5)
    assert crew.do(read, slice(0, 4)) == [5] * 4
    crew.commit()
    assert values(crew.repo) == then


# --- writing the document itself
def add_attribute(z: zarr.Array) -> None:
    z.attrs["b"] = 2


def append_nine(z: zarr.Array) -> None:
    z.append(np.array([9], "i4"))


def shrink(z: zarr.Array) -> None:
    z.resize((2,))


@pytest.mark.parametrize("later", [add_attribute, append_nine])
@pytest.mark.parametrize("earlier", [append(7), attributes(a=1)], ids=["growth", "attributes"])
def test_an_older_array_object_does_not_write_the_document(crew: Crew, earlier: Step, later: Any) -> None:
    earlier(crew.store)
    with pytest.raises(StaleArrayError):
        crew.do(change, later)
    crew.do(reopen)
    crew.do(change, later)
    crew.commit()
    z = array(crew.repo.snapshot(), mode="r")
    expected = [1] * 6 + ([7] if z.attrs.get("a") is None else []) + ([9] if later is append_nine else [])
    assert z[:].tolist() == expected


# --- an operation of which a half is staged
def test_a_half_that_is_staged_when_the_other_is_refused_is_not_committed(crew: Crew) -> None:
    append(7, 7)(crew.store)
    with pytest.raises(StaleArrayError):
        crew.do(write, slice(0, 6), 5)
    try:
        crew.do(reopen)
    except TransactionStateError:  # the first chunk was staged before the second was refused
        with pytest.raises(ParticipantLostError):
            crew.commit()
    else:
        crew.commit()
        assert values(crew.repo) == [1] * 6 + [7, 7]


# --- the owner's own array object, and pickles of it
@pytest.fixture
def owner(repo: txstore.Repository, pipeline: str) -> Iterator[Crew]:
    with txstore.TxStore(repo) as store:
        store["noise/c/0"] = b"1"
        with by_process(repo, store, store, pipeline) as crew:
            yield crew


@pytest.mark.parametrize("created", [False, True], ids=["opened", "created"])
def test_the_owners_array_object_after_a_worker_has_appended(repo, pipeline, created):
    with repo.transaction() as store:
        if created:
            z = zarr.create_array(store, name="x", shape=(6,), chunks=(4,), dtype="i4", overwrite=True)
            z[:] = 1
        else:
            z = array(store)
        with by_process(repo, store, store, pipeline) as crew:
            crew.do(append_anew, 7, 7)
            assert z[0:4].tolist() == [1] * 4
            z[0:4] = 5
            for step in (append_nine, add_attribute, lambda z: z.__setitem__(slice(4, 6), 5)):
                with pytest.raises(StaleArrayError, match="open it again through this store"):
                    step(z)
            append_nine(array(store))
            crew.commit()
    assert values(repo) == [5, 5, 5, 5, 1, 1, 7, 7, 9]


def append_anew(_: object, *rows: int) -> None:
    with _kept.store.lock("x", txstore.APPEND):
        append(*rows)(_kept.store)


def write_pickled(_: object, pickled: bytes) -> None:
    z = pickle.loads(pickled)
    with z.store.lock("x", np.s_[4:6]):
        z[4:6] = 5


def test_an_older_pickle_in_a_process_that_has_appended_itself(repo: txstore.Repository, pipeline: str) -> None:
    with repo.transaction() as store:
        pickled = pickle.dumps(array(store))
        late = Member(repo, first=partial(use_pipeline, pipeline))
        with pytest.raises(StaleArrayError):
            late.do(append_then_write_pickled, pickle.dumps(store), pickled)
        late.leave()
    assert values(repo) == [1] * 6 + [7, 7]


def append_then_write_pickled(_: object, store: bytes, pickled: bytes) -> None:
    fresh = pickle.loads(store)
    with fresh.lock("x", txstore.APPEND):
        append(7, 7)(fresh)
    del fresh
    gc.collect()
    write_pickled(None, pickled)
