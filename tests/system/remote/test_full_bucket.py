"""A bucket at its quota: what has to go can go, and whoever writes is told. The proxy counts objects, as Ceph does."""

import errno
from collections.abc import Iterator, Sequence

import pytest

import txstore
from tests.system.remote.proxy import Faults, Proxy
from tests.tools.faults import always
from tests.tools.inside import existing, finish_head_cache
from tests.tools.upkeep import below, content, rewrite
from txstore.storage import remote
from txstore.storage.objects.client import ObjectClient
from txstore.storage.objects.interface import open_objects

pytestmark = pytest.mark.long

COMMITS = 12


class Bucket:
    """A repository behind a proxy, whose objects may be so many."""

    def __init__(self, server, proxy: Proxy) -> None:
        self.proxy = proxy
        self.server = server
        through = server.with_options(endpoint_url=proxy.url)
        self.url, self.options = through.url(), through.storage_options

    def open(self) -> txstore.Repository:
        return txstore.Repository(self.url, storage_options=self.options)

    @property
    def names(self) -> list[str]:
        return [path for path, _ in below(open_objects(self.url, self.server.storage_options))]

    def fill(self, room: int = 0) -> None:
        most = len(self.names) + room
        self.proxy.faults = Faults(is_full=lambda: len(self.names) >= most)

    def settle(self, repo: txstore.Repository) -> None:
        """Wait for what is written in the background."""
        finish_head_cache(repo)


@pytest.fixture
def bucket(s3, proxy, monkeypatch) -> Iterator[Bucket]:
    monkeypatch.setattr("txstore.history.branches_in_objects._STANDS", -1.0)  # nobody is about to commit
    monkeypatch.setattr(remote, "CHECKED_EVERY", 1e9)  # a check would create the guard again, and take its room
    bucket = Bucket(s3, proxy)
    yield bucket
    proxy.faults = Faults()
    assert bucket.open().verify().faults == []


@pytest.fixture
def full(bucket) -> Bucket:
    """Commits of which most may go, and no room for another object."""
    repo = bucket.open()
    rewrite(repo, COMMITS)
    bucket.settle(repo)
    bucket.fill()
    return bucket


def test_a_commit_is_refused_and_known_not_to_be_made(full):
    repo = full.open()
    transaction = repo.begin()
    transaction["a/c/0"] = b"new"
    with pytest.raises(OSError, match=r"no space left \(QuotaExceeded\).*nothing was published") as caught:
        transaction.commit()
    assert caught.value.errno == errno.EDQUOT
    transaction.rollback()


@pytest.mark.parametrize("room", [0, 1, 2])
def test_old_commits_can_be_given_up(full, room, monkeypatch):
    full.fill(room)
    expected, names = content(full.open()), len(full.names)
    deleted, delete = list[str](), ObjectClient.delete

    def note(self: ObjectClient, paths: Sequence[str]) -> None:
        deleted.extend(paths)
        delete(self, paths)

    monkeypatch.setattr(ObjectClient, "delete", note)
    report = full.open().vacuum(keep=1)
    # A server that lets it be created again and again counts as one that replaces what is there.
    # Where there is room for one object, the record of the operation takes it.
    assert deleted.count("zarr.json") == (room <= 1)
    assert (report.oldest_kept, report.expired) == (COMMITS - 1, COMMITS - 1)
    repo = full.open()
    assert len(full.names) <= names - report.files + 3  # a commit, the head, and the record of the operation
    assert content(repo) == expected
    with repo.begin("there is room again") as mapping:
        mapping["a/c/0"] = b"new"
    assert repo.verify().faults == []


def test_what_is_garbage_already_goes_before_anything_is_written(bucket):
    repo = bucket.open()
    rewrite(repo, 3)
    repo.branches["old"] = repo.head()
    rewrite_on(repo, "old", COMMITS)
    del repo.branches["old"]
    bucket.settle(repo)
    bucket.fill()
    bucket.proxy.log.clear()
    bucket.open().vacuum(keep=1)
    writes = [(each.method, each.status) for each in bucket.proxy.log if each.method == "PUT" or is_deletion(each)]
    written = [status for method, status in writes if method == "PUT" and status == 200]
    first = next(i for i, (method, _) in enumerate(writes) if method != "PUT")
    assert written
    assert all(status == 403 for _, status in writes[:first]), "nothing was written before that"
    assert not any("heads" in each.path and is_deletion(each) for each in bucket.proxy.log), "there was room by then"


def is_deletion(request) -> bool:
    return request.method == "DELETE" or request.path.partition("?")[2].startswith("delete")


def rewrite_on(repo: txstore.Repository, branch: str, commits: int) -> None:
    for number in range(commits):
        with repo.begin(f"{number}", branch=branch) as mapping:
            mapping["b/c/0"] = b"%d" % number


def test_what_was_interrupted_in_a_full_bucket_is_done_by_the_next(full):
    """The commit that raises the oldest kept version is there, the file that says so is not."""
    repo = full.open()
    full.proxy.faults = Faults()
    commits = repo.engine.commits
    commits.oldest_kept.write = always(InterruptedError("killed"))
    with pytest.raises(InterruptedError):
        repo.vacuum(keep=1)
    full.settle(repo)
    full.fill()
    assert full.open().vacuum(keep=1).oldest_kept >= COMMITS
    assert len([name for name in full.names if not name.startswith("operations/")]) < COMMITS


def test_there_is_no_room_at_all(full):
    """Others take the room that is made: nothing is deleted that is kept, and the next vacuum does it."""
    kept = {name for name in full.names if name not in ("heads/main", "zarr.json")}
    full.proxy.faults = Faults(is_full=lambda: True)
    with pytest.raises(OSError, match="lacks room for two small files") as caught:
        full.open().vacuum(keep=1)
    assert caught.value.errno == errno.EDQUOT
    assert kept <= set(full.names)
    full.proxy.faults = Faults()
    assert full.open().vacuum(keep=1).oldest_kept == COMMITS - 1


def test_a_transaction_with_a_name_is_rolled_back(bucket):
    """To end it takes a record that it has ended, and a lease on that."""
    repo = bucket.open()
    rewrite(repo, 2)
    with repo.transaction(name="large") as store:
        store["x/c/0"] = bytes(3 << 20)
    bucket.settle(repo)
    del store
    bucket.fill()
    existing(bucket.open(), "large").rollback()
    assert [name for name in bucket.names if name.startswith((".staging/", "packs/"))] == []
    assert {"heads/main", "zarr.json"} <= set(bucket.names)
