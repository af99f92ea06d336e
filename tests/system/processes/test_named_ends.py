"""How transactions with a name end: by one process, once, whole, or not at all; while others do so, too."""

import itertools
import pickle
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.system.processes.ranks import (
    KEYS,
    NAME,
    Refused,
    assert_tidy,
    content,
    is_committed,
    named,
    ranks,
    stage,
    stage_all,
    value_of,
)
from tests.tools.faults import once, watch
from tests.tools.inside import existing
from tests.tools.steps import BeforeEach
from tests.tools.workers import TIMEOUT
from txstore import TransactionStateError
from txstore.format import names


# --- while others are attached
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_refused_while_another_process_is_attached(repo: txstore.Repository, end: str) -> None:
    with ranks(1, repo) as (rank,):
        rank.do("join")
        rank.do("put", "a")
        storage = watch(repo)
        store = repo.transaction(name=NAME)
        del storage.calls[:]
        for _ in range(2):
            with pytest.raises(TransactionStateError, match=f"process {rank.process.pid}") as error:
                getattr(store, end)()
            assert error.value.state == "open"
            rank.do("put", "b")
        assert storage.named("rename_noreplace") == []  # it was not even disturbed
        with rank.stopped(), pytest.raises(TransactionStateError, match="have left"):
            getattr(store, end)()
        rank.do("leave")
        getattr(store, end)()
    assert named(repo) == []
    if end == "commit":
        assert content(repo) == ["a", "b"]
    else:
        assert repo.head() is None
    assert_tidy(repo)


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("last", [False, True])
def test_who_joins_before_it_is_sealed_is_attached(repo: txstore.Repository, end: str, last: bool) -> None:
    """Nobody is cut off half-way who has joined after the first look, and before the seal."""
    stage(repo, "a")
    storage = watch(repo)
    with ranks(1, repo) as (rank,):
        store = repo.transaction(name=NAME)

        def join(path: str, *_: str) -> None:
            if path == names.open_path(bytes.fromhex(store.mapping.id)) and named(repo) and joined == []:
                joined.append(rank.do("join"))
                rank.do("put", "b")

        joined: list[str] = []
        storage.before["rename_noreplace" if last else "hold"] = join
        with pytest.raises(TransactionStateError, match=f"process {rank.process.pid}"):
            getattr(store, end)()
        assert len(joined) == 1
        rank.do("put", "c")
        rank.do("leave")
        store.commit()
    assert content(repo) == KEYS


@contextmanager
def in_a_thread(repo: txstore.Repository) -> Iterator[Callable[[str], None]]:
    """Enter the transaction in a thread of this process, which stages the keys that it is told, one after the other."""
    told: queue.Queue[str | None] = queue.Queue()
    staged: queue.Queue[str] = queue.Queue()

    def work() -> None:
        with repo.transaction(name=NAME) as store:
            staged.put("")
            while (key := told.get()) is not None:
                store[key] = value_of(key)
                staged.put(key)

    thread = threading.Thread(target=work, name="the other thread", daemon=True)
    thread.start()
    assert staged.get(timeout=TIMEOUT) == ""

    def put(key: str) -> None:
        told.put(key)
        assert staged.get(timeout=TIMEOUT) == key

    try:
        yield put
    finally:
        told.put(None)
        thread.join(TIMEOUT)
        assert not thread.is_alive()


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("keys", [[], ["a"]])
def test_refused_while_another_thread_is_in_a_block(repo: txstore.Repository, end: str, keys: list[str]) -> None:
    """Each who gives the name is a participant of its own, also in one process."""
    with in_a_thread(repo) as put:
        for key in keys:
            put(key)
        storage = watch(repo)
        store = repo.transaction(name=NAME)
        store["b"] = value_of("b")
        for _ in range(2):
            with pytest.raises(TransactionStateError, match="thread 'the other thread' of this process") as error:
                getattr(store, end)()
            assert error.value.state == "open"
            put("c")
        assert storage.named("rename_noreplace") == []  # it was not even disturbed
    getattr(store, end)()
    assert named(repo) == []
    if end == "commit":
        assert content(repo) == sorted([*keys, "b", "c"])
    else:
        assert repo.head() is None
    assert_tidy(repo)


def test_who_enters_a_block_while_a_thread_ends_it(repo: txstore.Repository) -> None:
    """It is refused before it has done anything, not in the middle of its block."""
    storage = watch(repo)
    store, late = repo.transaction(name=NAME), repo.transaction(name=NAME)
    store["a"] = value_of("a")
    refused = []

    def enter(*_: str) -> None:
        with pytest.raises(TransactionStateError, match="another thread of this process") as error, late:
            pytest.fail("the block was entered")
        refused.append(error.value.state)

    for name in ("hold", "rename_noreplace", "file.sync", "link"):
        storage.before[name] = enter
    store.commit()
    assert len(refused) >= 3
    assert set(refused) == {"committing"}
    with pytest.raises(TransactionStateError, match="ended"), late:
        pytest.fail("the block was entered")
    assert content(repo) == ["a"]
    assert_tidy(repo)


def test_who_was_refused_because_of_an_end_that_failed_goes_on(repo: txstore.Repository) -> None:
    storage = watch(repo)
    store, other = repo.transaction(name=NAME), repo.transaction(name=NAME)
    store["a"] = value_of("a")
    storage.before["link"] = once(OSError(5, "no such luck"))
    with pytest.raises(OSError, match="no such luck"):
        store.commit()
    with other:
        other["b"] = value_of("b")
    store.rollback()
    assert_tidy(repo)


def test_a_cell_of_a_notebook_that_is_run_again(repo: txstore.Repository) -> None:
    """Stores that nobody can use any more, and those that have staged nothing, hold up nobody."""
    seen = []
    for key in KEYS:
        seen.append(repo.transaction(name=NAME))  # as the output of another cell is kept
        store = repo.transaction(name=NAME)
        store[key] = value_of(key)
    store.commit()
    assert content(repo) == KEYS
    assert_tidy(repo)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_what_was_staged_in_no_block_is_not_done(repo: txstore.Repository, end: str) -> None:
    """Its owner may be half-way. The error says how he says that he has done all."""
    store, other = repo.transaction(name=NAME), repo.transaction(name=NAME)
    store["a"] = value_of("a")
    other["b"] = value_of("b")
    for one in (store, other):
        with pytest.raises(TransactionStateError, match=r"`with store: pass`"):
            getattr(one, end)()
    with store:
        pass
    getattr(other, end)()
    if end == "commit":
        assert content(repo) == ["a", "b"]
    else:
        assert repo.head() is None
    assert_tidy(repo)


def test_two_end_it_at_once(repo: txstore.Repository) -> None:
    """Whoever comes second neither disturbs the first nor takes the transaction for his own."""
    stage_all(repo)
    storage, refused = watch(repo), []
    transaction = existing(repo, NAME)

    def end_too(*_: Any) -> None:
        other = txstore.Repository(repo.url)
        if not Path(repo.url, names.sealed_path(bytes.fromhex(transaction.id))).exists():
            return
        for end in (
            lambda: existing(other, NAME).commit(),
            lambda: existing(other, NAME).rollback(),
            lambda: other.transaction(name=NAME),
        ):
            with pytest.raises(TransactionStateError, match="another process"):
                end()
            refused.append(1)

    for name in ("link", "file.sync", "rename_noreplace", "write_in_place"):
        storage.before[name] = end_too
    transaction.commit()
    assert len(refused) >= 9
    assert content(repo) == KEYS
    assert len(list(repo.log())) == 1
    assert_tidy(repo)


def test_the_second_before_the_first_has_sealed(repo: txstore.Repository) -> None:
    """Between holding the record and sealing it, whoever looks must not take the ender for dead."""
    stage_all(repo)
    storage, seen = watch(repo), []
    transaction = existing(repo, NAME)
    other = txstore.Repository(repo.url)

    def look(source: str, target: str) -> None:
        if target == names.sealed_path(bytes.fromhex(transaction.id)) or source.endswith(".sealed"):
            with pytest.raises(TransactionStateError, match="another process"):
                existing(other, NAME).commit()
            seen.append(len(other.transactions()))

    storage.before["rename_noreplace"] = storage.after["rename_noreplace"] = look
    transaction.commit()
    assert seen == [1, 1]
    assert content(repo) == KEYS


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_it_ends_while_another_opens_its_record(repo: txstore.Repository, end: str, monkeypatch: Any) -> None:
    """What is held then is a file without a name, which says nothing."""
    transaction = stage_all(repo)
    late = existing(repo, NAME)
    real, hooks = (txstore.storage.local._hold, [lambda: getattr(existing(txstore.Repository(repo.url), NAME), end)()])

    def interrupted(descriptor: int) -> bool:
        if hooks:
            hooks.pop()()
        return real(descriptor)

    monkeypatch.setattr(txstore.storage.local, "_hold", interrupted)
    with pytest.raises(TransactionStateError, match="has ended"):
        late.commit()
    assert (repo.head() is not None) == (end == "commit")
    if end == "commit":
        assert is_committed(repo, transaction)
        assert content(repo) == KEYS
    assert_tidy(repo)


def test_the_name_is_freed_under_the_lock_that_it_is_given_under(repo: txstore.Repository) -> None:
    """Else the one who has just begun the next transaction of this name could lose it."""
    stage_all(repo)
    storage, refused = watch(repo), []

    def begin(path: str) -> None:
        if path == names.named_path(NAME):
            with pytest.raises(txstore.CommitTimeoutError, match="locks/staging") as error:
                txstore.Repository(repo.url, commit_timeout=0.05).transaction(name=NAME)
            refused.append(error.value)

    storage.before["delete"] = begin
    existing(repo, NAME).commit()
    assert len(refused) == 1


def test_it_ends_while_another_joins(repo: txstore.Repository) -> None:
    """Who has found it, and comes too late, begins the next one."""
    transaction = stage_all(repo)
    storage = watch(repo)
    endings = [lambda: existing(txstore.Repository(repo.url), NAME).commit()]
    storage.before["create"] = lambda path: endings.pop()() if endings else None
    store = repo.transaction(name=NAME)
    assert endings == []
    assert store.mapping.id != transaction
    assert store["a"] == value_of("a")  # it is based on the commit
    store["d"] = value_of("d")
    store.commit()
    assert content(repo) == [*KEYS, "d"]
    assert_tidy(repo)


# --- after the end
def test_late_writers_of_this_process(repo: txstore.Repository) -> None:
    one, late = repo.transaction(name=NAME), repo.transaction(name=NAME)
    one["a"] = value_of("a")
    sent = pickle.dumps(late)
    one.commit()
    stage(repo, "b")  # the name is another transaction's now
    with pytest.raises(TransactionStateError, match="ended"), late:
        pytest.fail("the block was entered")
    with pytest.raises(TransactionStateError, match="ended"):
        late["c"] = value_of("c")
    with pytest.raises(TransactionStateError, match="ended"):
        late.rollback()
    with ranks(1, repo) as (rank,), pytest.raises(Refused, match="ended"):
        rank.do("unpickle", sent)
    repo.transaction(name=NAME).commit()
    assert content(repo) == ["a", "b"]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_it_can_be_ended_in_its_block(repo: txstore.Repository, end: str) -> None:
    with repo.transaction(name=NAME) as store:
        store["a"] = value_of("a")
        getattr(store, end)()
        with pytest.raises(TransactionStateError, match="begin a new one"):
            store["b"] = b""
    assert named(repo) == []
    assert_tidy(repo)


# --- durability


@pytest.mark.parametrize("call", ["file.sync", "sync_directory"])
def test_a_part_that_could_not_be_synced_is_not_sealed(repo: txstore.Repository, call: str) -> None:
    storage = watch(repo)
    with pytest.raises(OSError, match="lost"), repo.transaction(name=NAME) as store:
        store["a"] = value_of("a")
        storage.before[call] = once(OSError(5, "lost"))
    with pytest.raises(TransactionStateError, match="goes on"):
        store["b"] = b""
    with pytest.raises(txstore.ParticipantLostError):
        repo.transaction(name=NAME).commit()
    repo.transaction(name=NAME).rollback()


def test_a_failed_sync_is_not_tried_again(repo: txstore.Repository) -> None:
    """I9: the system tells of the loss once."""
    storage = watch(repo)
    transaction = repo.transaction(name=NAME).mapping
    transaction["a"] = value_of("a")
    storage.before["file.sync"] = once(OSError(5, "lost"))
    with pytest.raises(OSError, match="lost"):
        transaction.lifecycle.seal()
    transaction.lifecycle.seal()
    transaction.lifecycle.leave()
    with pytest.raises(txstore.ParticipantLostError):
        repo.transaction(name=NAME).commit()


# --- listing while it changes
@pytest.mark.long
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_listing_while_it_ends(repo: txstore.Repository, end: str) -> None:
    """At whatever step of the listing it ends: it is whole in the list, or not there."""
    for step in itertools.count():
        stage_all(repo)
        listing = txstore.Repository(repo.url)
        steps = itertools.count()

        def end_it(*_: Any, at: int = step, steps: Any = steps) -> None:
            if next(steps) == at:
                getattr(existing(txstore.Repository(repo.url), NAME), end)()

        watch(listing).before = BeforeEach(end_it)
        found = listing.transactions()
        assert [len(each.participants) for each in found] in ([3], [])
        assert all(each.sealed and each.bytes == 50 for every in found for each in every.participants)
        if next(steps) <= step:
            break
        assert named(repo) == []
    assert step > 10
    getattr(existing(repo, NAME), end)()


def test_who_begins_anew_begins_after_the_last_commit_of_the_name(repo):
    with repo.transaction(name=NAME) as first:
        first["a"] = b"first"
    late = txstore.Repository(repo.url)

    def commit(name: str, *_: object) -> None:
        if name == names.STAGING_LOCK and not committed:
            committed.append(repo.transaction(name=NAME).commit())

    committed: list[object] = []
    watch(late).before["lock"] = commit
    with late.transaction(name=NAME) as second:
        assert committed
        assert second["a"] == b"first"
        second["a"] = b"second"
        second.commit()
    assert repo.mapping()["a"] == b"second"
