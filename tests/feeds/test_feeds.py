"""What a feed tells, and where it stands when something else happens to the history. Processes: test_workers.py."""

import gc
import pickle
from collections.abc import Callable
from datetime import timedelta

import numpy as np
import pytest
import zarr

import txstore
from tests.feeds.copying import apply, content
from txstore.feeds import Feed, FeedChange


@pytest.fixture
def filled(repo: txstore.Repository) -> txstore.Repository:
    with repo.transaction("begin") as store:
        zarr.create_group(store, path="src/g")
        zarr.create_array(store, name="src/x", data=np.arange(10), chunks=(4,))
        zarr.create_array(store, name="out", shape=(4,), chunks=(1,), dtype="i8")
    return repo


def write(repo: txstore.Repository, at: int | slice, value: int = 77, *, branch: str = "main") -> txstore.Commit:
    with repo.transaction(branch=branch) as store:
        zarr.open_array(store, path="src/x")[at] = value
    head = repo.head(branch)
    assert head is not None
    return head


def beside(repo: txstore.Repository, count: int = 1) -> None:
    """Commit what the feeds of `src` do not follow."""
    for number in range(count):
        with repo.transaction() as store:
            store["out/c/0"] = bytes([number % 250]) * 8


def told(feed: Feed, **options: bool) -> list[tuple[int, list[tuple[str, str, list[tuple[int, int]]]]]]:
    return [
        (
            change.commit.version,
            [(node.path, node.change, [(part.start, part.stop) for part, *_ in node.regions]) for node in change],
        )
        for change in feed.changes(**options)
    ]


# --- what is told
@pytest.mark.parametrize("combine", [False, True])
def test_rows_are_erased_of_what_the_feed_has_seen(repo: txstore.Repository, combine: bool) -> None:
    """Their label is another one now, so that no commit overwrites them."""
    with repo.transaction() as store:
        for name, data in (("p", [10, 20, 30]), ("src/v", [1, 2, 3])):
            zarr.create_array(store, name=name, data=np.array(data), dimension_names=["p"])
    with repo.transaction() as store:
        zarr.open_array(store, path="p")[1] = 21
    feed = repo.feeds.create("copy", paths="src")
    feed.advance()
    del store
    gc.collect()
    repo.erase("src/v", {"p": 20})
    (change,) = feed.changes(combine=combine)
    assert change.rows_erased == ("src/v",)
    assert zarr.open_array(change.snapshot(), path="src/v", mode="r")[:].tolist() == [1, 0, 3]
    feed.advance(to=change)
    assert not feed.status().pending


@pytest.mark.parametrize("combine", [False, True])
def test_a_copy_of_what_becomes_an_array_and_a_group_again(filled: txstore.Repository, combine: bool) -> None:
    def members(store: txstore.TxStore) -> None:
        store.mapping.delete_dir("src/m")
        for name in ("a", "d", "z"):
            zarr.create_array(store, name=f"src/m/{name}", data=np.arange(5), chunks=(2,))

    def array(store: txstore.TxStore) -> None:
        store.mapping.delete_dir("src/m")
        zarr.create_array(store, name="src/m", data=np.arange(3), chunks=(2,))

    zarr.create_group(store := filled.transaction(), path="copy")
    store.commit()
    feed = filled.feeds.create("f", paths="src", since=-1)
    for step in (members, array, members, array):
        filled.run(step)
        for change in feed.changes(combine=combine):
            with filled.transaction() as store:
                apply(change, store)
                feed.advance(store, to=change)
        assert content(filled.snapshot(), "copy") == content(filled.snapshot(), "src")


def test_commit_after_commit_and_the_sum(filled: txstore.Repository) -> None:
    feed = filled.feeds.create("f", paths="src/x")
    first = write(filled, 0)
    beside(filled)
    second = write(filled, slice(7, 10))
    assert told(feed) == [
        (first.version, [("src/x", "changed", [(0, 4)])]),
        (second.version, [("src/x", "changed", [(4, 10)])]),
    ]
    assert feed.status().behind == 4  # with the one that created it
    (change,) = feed.changes(combine=True)
    assert (change.commit, [node.regions for node in change]) == (second, [[(slice(0, 10),)]])
    feed.reset(first.version - 1)  # drops it
    write(filled, 0, 0)
    write(filled, slice(7, 10), 0)
    with filled.transaction() as store:
        store.restore("src", at=first.version - 1)
    assert told(feed, combine=True) == []  # they cancel each other
    assert not feed.status().pending
    assert len(told(feed)) == 5


def test_from_the_beginning(filled: txstore.Repository) -> None:
    feed = filled.feeds.create("f", since=-1)
    ((version, nodes),) = told(feed)
    assert version == 0
    assert ("src/x", "added", [(0, 10)]) in nodes
    assert ("src/g", "added", []) in nodes
    (change,) = feed
    assert change.before is None
    assert (change.changed, change.removed, change.moved, len(change.added)) == ([], [], [], len(nodes))


@pytest.mark.parametrize(
    ("change", "regions"),
    [
        (lambda array: array.resize((12,)), [(8, 12)]),  # what the last chunk has behind the old end shows
        (lambda array: array.resize((12,)) or array.__setitem__(11, 1), [(8, 12)]),
        (lambda array: array.resize((5,)), []),
        (lambda array: array.resize((5,)) or array.__setitem__(0, 1), [(0, 4)]),
        (lambda array: array.resize((0,)), []),
        (lambda array: array.resize((30,)) or array.__setitem__(29, 1), [(8, 12), (28, 30)]),
        (lambda array: array.attrs.update(n=1), []),
    ],
)
def test_regions_lie_in_the_shape(filled, change, regions):
    feed = filled.feeds.create("f", paths="src")
    with filled.transaction() as store:
        change(zarr.open_array(store, path="src/x"))
    ((_, nodes),) = told(feed)
    assert nodes == [("src/x", "changed", regions)]


def test_a_branch_has_feeds_of_its_own(filled: txstore.Repository) -> None:
    filled.feeds.create("f", paths="src", since=-1)
    filled.branches["dev"] = filled.head()
    there = filled.feeds.on("dev")["f"]
    assert there.status().branch == "main"  # it follows what it did
    (change,) = there
    with filled.transaction(branch="dev") as store:
        there.advance(store, to=change)
    assert list(there) == []
    assert len(list(filled.feeds["f"])) == 1
    with filled.transaction(branch="dev") as store, pytest.raises(ValueError, match="kept on"):
        filled.feeds["f"].advance(store, to=change)
    of_dev = filled.feeds.on("dev").create("own")
    write(filled, 1, branch="dev")
    assert len(told(of_dev)) == 1
    filled.branches.rename("dev", "later")
    assert len(told(filled.feeds.on("later")["own"])) == 1
    by_main = filled.feeds.create("later", branch="later", since=-1)
    assert len(told(by_main)) == 2
    del filled.branches["later"]
    with pytest.raises(txstore.CommitNotFoundError, match="deleted"):
        list(by_main)
    assert "deleted" in (by_main.status().too_late or "")


def test_what_was_erased(filled: txstore.Repository) -> None:
    feed = filled.feeds.create("f", paths=["src/x", "out"])
    write(filled, 0)
    filled.erase("src")
    assert [(change.erased, change.nodes) for change in feed] == [(("src/x",), [])]
    assert [change.erased for change in feed.changes(combine=True)] == [("src/x",)]
    assert feed.status().pending
    (share,) = iter([next(feed.claim(4))])
    assert share.change.erased == ("src/x",)
    for change in filled.feeds.create("late", paths="src", since=-1):
        assert (change.erased, [*change]) == (("src",), [])


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_what_was_erased_and_came_again(repo: txstore.Repository, zarr_format: int) -> None:
    def write(length: int) -> None:
        with repo.transaction() as store:
            zarr.create_array(store, name="src/x", data=np.arange(length), chunks=(2,), zarr_format=zarr_format)  # type: ignore[arg-type]

    write(4)
    feed = repo.feeds.create("f", paths="src")
    repo.erase("src/x")
    write(8)
    (change,) = feed.changes(combine=True)
    assert (change.erased, [(node.path, node.change) for node in change]) == (("src/x",), [("src/x", "added")])
    assert next(feed.claim()).change.erased == ("src/x",)


def test_a_beginning_on_another_branch(filled: txstore.Repository) -> None:
    filled.branches["dev"] = filled.head()
    feed = filled.feeds.create("f", paths="src")
    for branch in ("main", "dev"):
        write(filled, 0, branch=branch)
    head = filled.head("dev")
    for since in (head, head.id, "dev", f"dev@{head.version}"):
        with pytest.raises(txstore.CommitNotFoundError, match="'main' holds another commit"):
            feed.reset(since)
        with pytest.raises(txstore.CommitNotFoundError):
            next(iter(filled.follow(since=since, timeout=0)))
    assert feed.status().pending


def test_of_what_rows_were_erased(filled: txstore.Repository) -> None:
    with filled.transaction() as store:
        for name, data in (("patient", np.arange(6)), ("weight", np.ones(6))):
            zarr.create_array(store, name=f"src/{name}", data=data, dimension_names=["patient"])
    feed = filled.feeds.create("f", paths="src")
    filled.erase("src/weight", {"patient": 2})
    (change,) = feed
    assert (change.rows_erased, change.erased) == (("src/weight",), ())
    assert feed.status().pending


# --- moving
def test_output_and_move_in_one_commit(filled: txstore.Repository) -> None:
    feed = filled.feeds.create("f", paths="src")
    write(filled, 0)
    (change,) = feed
    store = filled.transaction()
    zarr.open_array(store, path="out")[0] = 5
    feed.advance(store, to=change)
    assert len(list(filled.feeds["f"])) == 1  # not yet
    store.rollback()
    assert len(list(filled.feeds["f"])) == 1
    with filled.transaction() as store:
        zarr.open_array(store, path="out")[0] = 5
        feed.advance(store, to=change)
    head = filled.head()
    assert head is not None
    snapshot = filled.snapshot(head)
    assert zarr.open_array(snapshot, path="out", mode="r")[0] == 5
    assert snapshot.cursors["f"]["place"]["version"] == change.commit.version
    assert list(filled.feeds["f"]) == []  # the commit that moves it changes nothing that it follows


def test_output_elsewhere_has_a_token(filled: txstore.Repository, open_repo: Callable[..., txstore.Repository]) -> None:
    other, feed = open_repo("other.tx"), filled.feeds.create("f", paths="src")
    write(filled, 0)
    (change,) = feed
    for _ in range(2):  # it is killed before it has moved the feed
        (again,) = filled.feeds["f"]
        assert again.token == change.token
        done = other.log(limit=100) if other.exists else ()
        if change.token not in [commit.properties.get("token") for commit in done]:
            with other.transaction(properties={"token": change.token}) as store:
                zarr.create_array(store, name="y", data=np.arange(3))
    with pytest.raises(ValueError, match="token"), other.transaction() as store:
        feed.advance(store, to=change)
    feed.advance(to=change)
    assert list(feed) == []
    assert len(other.log()) == 1
    write(filled, 1)
    assert next(iter(feed)).token != change.token


def test_passing_over_what_changes_nothing(filled: txstore.Repository) -> None:
    feed = filled.feeds.create("f", paths="src")
    beside(filled, 10)
    before = filled.head()
    feed.advance()
    assert filled.head() == before  # not worth a commit
    beside(filled, 60)
    feed.advance()
    assert feed.status().behind == 1
    before = filled.head()
    feed.advance()
    assert filled.head() == before
    write(filled, 0)
    beside(filled, 70)
    feed.advance()
    assert len(told(feed)) == 1  # no further than to the next change


def test_reset(filled: txstore.Repository) -> None:
    feed = filled.feeds.create("f", paths="src")
    first = write(filled, 0)
    write(filled, 1)
    feed.reset()
    assert list(feed) == []
    feed.reset(first)
    assert len(told(feed)) == 1
    feed.reset(-1)
    assert len(told(feed)) == 3
    with filled.transaction() as store:
        feed.reset(first, store=store)
        zarr.open_array(store, path="out")[0] = 1
    assert len(told(feed)) == 1
    with pytest.raises(txstore.CommitNotFoundError):
        feed.reset(99)


# --- a change of several commits that a job was given
def copy_elsewhere(change: FeedChange, other: txstore.Repository) -> None:
    """Do a change in another repository, unless a killed job has done so."""
    done = [commit.properties.get("token") for commit in other.log()] if other.exists else []
    if change.token not in done:
        with other.transaction(properties={"token": change.token}) as store:
            apply(change, store)


@pytest.mark.parametrize("way", [{"combine": True}, {}])
def test_a_killed_job_gets_a_change_again_though_its_source_has_gone_back(filled, open_repo, way):
    """Else the copy elsewhere keeps for good what the source had only for a while."""
    other = open_repo("other.tx")
    feed = filled.feeds.create("f", paths="src", since=-1)
    for change in feed.changes(combine=True):
        copy_elsewhere(change, other)
        feed.advance(to=change)
    with filled.transaction() as store:
        zarr.open_array(store, path="src/x")[0] = 1
        store.move("src/g", "src/h")
    (given,) = feed.changes(combine=True)
    copy_elsewhere(given, other)  # and it is killed before it moves the feed
    with filled.transaction() as store:
        store.restore("src", at=given.commit.version - 2)
    feed = filled.feeds["f"]
    assert feed.status().pending
    assert feed.wait(0, **way)
    again = next(feed.changes(**way))
    assert (again.token, again.commit) == (given.token, given.commit)
    for change in feed.changes(**way):
        copy_elsewhere(change, other)
        feed.advance(to=change)
    assert content(other.snapshot(), "copy") == content(filled.snapshot(), "src")
    assert not feed.status().pending


def test_a_shorter_change_gives_way_to_one_that_was_given_to_another_worker(filled: txstore.Repository) -> None:
    feed = filled.feeds.create("f", paths="src")
    write(filled, 0)
    (shorter,) = feed
    write(filled, 5)
    (longer,) = feed.changes(combine=True)
    with pytest.raises(txstore.FeedMovedError, match="ends before"):
        feed.advance(to=shorter)
    feed.advance(to=longer)
    assert "handed_out" not in filled.snapshot().cursors["f"]


def test_two_workers_of_one_change(filled: txstore.Repository) -> None:
    feeds = [filled.feeds.create("f", paths="src"), filled.feeds["f"]]
    write(filled, 0)
    stores = []
    for number, feed in enumerate(feeds):
        (change,) = feed
        stores.append(filled.transaction())
        zarr.open_array(stores[-1], path="out")[number] = 1
        feed.advance(stores[-1], to=change)
    stores[0].commit()
    with pytest.raises(txstore.ConflictError, match="moved"):
        stores[1].commit()
    stores[1].rollback()
    with pytest.raises(txstore.FeedMovedError, match="is at version"):
        feeds[1].advance(stores[1], to=change)


def test_waiting(filled: txstore.Repository) -> None:
    feed = filled.feeds.create("f", paths="src")
    assert not feed.wait(0)
    beside(filled)
    assert not feed.wait(0.01)
    write(filled, 0)
    assert feed.wait(0)
    assert feed.wait(None)
    assert len(list(feed.changes(timeout=0))) == 1
    assert len(list(feed.changes(combine=True, timeout=0.01))) == 1
    with pytest.raises(ValueError, match="timeout"):
        feed.wait(-1)


def test_a_combining_job_does_not_wake_up_for_what_cancels_itself(filled: txstore.Repository) -> None:
    """Else it finds nothing to do, waits again, and so on: forever, and as fast as it can."""
    feed, other = (filled.feeds.create(name, paths="src") for name in "fg")
    before = filled.head()
    write(filled, 0)
    with filled.transaction() as store:
        store.restore("src", at=before)
    assert feed.wait(0)
    assert not feed.wait(0, combine=True)
    assert told(feed, combine=True) == []
    assert list(feed.claim(2)) == []
    assert len(told(feed)) == 2  # which waiting has not passed over
    write(filled, 5)
    assert feed.wait(0, combine=True)
    last = write(filled, 0, 8)
    assert told(feed, combine=True) == [(last.version, [("src/x", "changed", [(0, 8)])])]
    claimed = feed.claim(2)
    assert next(claimed).regions
    claimed.close()  # as if this worker died
    with filled.transaction() as store:
        store.restore("src", at=before)
    assert feed.wait(0, combine=True)  # others have to do its share, though all cancels itself now
    for share in feed.claim(2):
        with filled.transaction() as store:
            share.done(store)
    beside(filled, 70)
    assert other.wait(0)
    other.advance()
    assert other.status().behind > 70  # a job that does each change has not done these
    assert not other.wait(0, combine=True)
    other.advance()
    assert other.status().behind < 5


def test_a_change_stays_in_its_process(filled: txstore.Repository) -> None:
    feed = filled.feeds.create("f", paths="src")
    write(filled, 0)
    for one in (next(feed.changes()), next(feed.claim(1))):
        with pytest.raises(TypeError, match=r"change\.snapshot\(\)"):
            pickle.dumps(one)


def test_names(filled: txstore.Repository) -> None:
    assert dict(filled.feeds) == {}
    feed = filled.feeds.create("f")
    assert list(filled.feeds) == ["f"]
    assert "f" in filled.feeds
    assert "g" not in filled.feeds
    assert filled.feeds.get("g") is None
    assert pickle.loads(pickle.dumps(feed)).status() == feed.status()
    with pytest.raises(ValueError, match="already"):
        filled.feeds.create("f")
    for name in ("", "a/b", "a#1", "-x"):
        with pytest.raises(txstore.KeyFormatError):
            filled.feeds.create(name)
    with pytest.raises(txstore.FeedNotFoundError):
        filled.feeds["g"]
    with pytest.raises(txstore.FeedNotFoundError):
        del filled.feeds["g"]
    with pytest.raises(txstore.CommitNotFoundError):
        filled.feeds.create("g", branch="none")
    with pytest.raises(txstore.CommitNotFoundError):
        filled.feeds.create("g", since=99)
    with pytest.raises(TypeError, match="a list of paths"):
        filled.feeds.create("g", paths=["src", None])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="a change that the feed has told"):
        feed.advance(to=3)  # type: ignore[arg-type]
    for keep in (0, timedelta(0)):
        with pytest.raises(ValueError, match="keep"):
            filled.feeds.create("g", keep=keep)
    write(filled, 0)
    (change,) = feed
    del filled.feeds["f"]
    assert list(filled.feeds) == []
    with filled.transaction() as store, pytest.raises(txstore.FeedMovedError, match="deleted"):
        feed.advance(store, to=change)
    with pytest.raises(txstore.FeedNotFoundError):
        list(feed)


def test_a_feed_that_was_made_anew_is_another_one(filled: txstore.Repository) -> None:
    feed = filled.feeds.create("f", since=0)
    write(filled, 0)
    change = next(iter(feed))
    store = filled.transaction()
    feed.advance(store, to=change)
    del filled.feeds["f"]
    filled.feeds.create("f", since=0)
    with pytest.raises(txstore.ConflictError):
        store.commit()
    store.rollback()


def test_a_participant_can_not_move_it(filled: txstore.Repository) -> None:
    feed = filled.feeds.create("f")
    write(filled, 0)
    store = filled.transaction(name="job")
    with pytest.raises(txstore.TransactionStateError, match="without a name"):
        feed.advance(store, to=next(iter(feed)))
    store.rollback()


def test_what_is_no_cursor_is_refused(filled: txstore.Repository) -> None:
    """A vacuum has to understand each."""
    filled.feeds.create("f")
    with filled.transaction() as store:
        good = dict(store.cursors["f"])
        for bad in (
            {}, {**good, "place": {"version": 1, "commit": None}}, {**good, "keep": {}},
            {**good, "paths": "src"}, {**good, "token": "x"}, {**good, "created": True},
            {**good, "shares": {"to": good["place"], "into": 0, "token": good["token"], "division": good["token"]}},
        ):  # fmt: skip
            with pytest.raises(ValueError, match="no cursor"):
                store.cursors["f"] = bad
        with pytest.raises(ValueError, match="no cursor"):
            store.cursors["f#1"] = {"token": "x"}
        with pytest.raises(txstore.KeyFormatError):
            store.cursors["f#x"] = good
        store.cursors["f"] = {**good, "later": {"n": 1}}
    filled.feeds["f"].reset(0)
    assert filled.snapshot().cursors["f"]["later"] == {"n": 1}  # what a later version has added stays


def test_a_merge_brings_no_cursor(filled: txstore.Repository) -> None:
    filled.feeds.create("f", paths="src")
    filled.branches["dev"] = filled.head()
    write(filled, 0, branch="dev")
    filled.feeds.on("dev")["f"].reset(0)
    place = filled.feeds["f"].status().version
    filled.merge("dev")
    assert filled.feeds["f"].status().version == place
    assert len(told(filled.feeds["f"])) == 1


# --- vacuum
def test_a_vacuum_keeps_what_a_feed_has_not_seen(filled: txstore.Repository) -> None:
    feed = filled.feeds.create("f", paths="src")
    for at in range(6):
        write(filled, at)
    assert filled.vacuum(keep=1).held == ("the feed 'f' needs main@0",)
    assert len(told(feed)) == 6
    for number, change in enumerate(feed):
        if number < 4:
            feed.advance(to=change)
    filled.vacuum(keep=1)
    assert len(told(feed)) == 2
    with pytest.raises(txstore.SnapshotExpiredError):
        filled.snapshot(at=2)
    del filled.feeds["f"], change  # which pins a commit
    assert filled.vacuum(keep=1).expired >= 2


@pytest.mark.parametrize("keep", [3, timedelta(microseconds=1)])
def test_too_late(filled: txstore.Repository, keep: int | timedelta) -> None:
    feed = filled.feeds.create("f", paths="src", keep=keep)
    for at in range(6):
        write(filled, at)
    filled.vacuum(keep=1)
    for combine in (False, True):
        with pytest.raises(txstore.FeedExpiredError, match="too late"):
            list(feed.changes(combine=combine))
    with pytest.raises(txstore.FeedExpiredError):
        feed.wait(0)
    status = feed.status()
    assert status.too_late is not None
    assert not status.pending
    feed.reset()
    write(filled, 0, 7)
    assert len(told(feed)) == 1


def test_a_feed_kept_on_another_branch_and_what_lies_before_the_fork(filled: txstore.Repository) -> None:
    write(filled, 0)
    write(filled, 1)
    filled.branches["dev"] = filled.head()
    write(filled, 2, branch="dev")
    of_main = filled.feeds.on("dev").create("of-main", branch="main")
    of_dev = filled.feeds.create("of-dev", branch="dev", paths="src", since=0)
    for at in range(4):
        write(filled, at, 5)
    filled.vacuum(keep=1)
    filled.vacuum(keep=1, branch="dev")
    assert len(told(of_main)) == 4
    assert len(told(of_dev)) == 3


# --- the copy
