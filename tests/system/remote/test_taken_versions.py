"""A server stops to create exclusively under processes that commit, as Ceph 16.2 does when versioning is switched on.

Here the proxy does not pass on `If-None-Match` from a moment on, with versions or without.
"""

import asyncio
import os
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

import txstore
from tests.system.remote.conftest import with_engine
from tests.system.remote.killing import acknowledged
from tests.system.remote.proxy import Faults, Proxy
from tests.system.remote.servers import Server
from tests.system.remote.versioning import CAUSE, STOPPED, Bucket, check_repaired, write_until_stopped
from tests.tools.faults import always
from tests.tools.waiting import wait_until
from tests.tools.workers import QUICK, Worker, ended
from txstore.format import names
from txstore.history import branches_in_objects, object_head_caches
from txstore.history.branches_in_objects import CreationProof
from txstore.maintenance import replacing, vacuum
from txstore.storage import remote
from txstore.storage.objects import client
from txstore.storage.objects.backend import Refusal
from txstore.storage.objects.s3 import S3Backend

pytestmark = pytest.mark.long

WRITERS = 6
ENOUGH = 30  # commits before the switch
LONGEST_SECONDS = 60.0


class Place:
    """A repository in a bucket of its own, behind a proxy."""

    def __init__(self, server: Server, proxy: Proxy) -> None:
        self.bucket, self.proxy = Bucket(server), proxy
        self.url = self.bucket.url()
        self.options = server.with_options(endpoint_url=proxy.url).storage_options

    def open(self) -> txstore.Repository:
        return txstore.Repository(self.url, storage_options=self.options)

    def write_head_caches(self) -> None:
        """Wait for those under way: their answers tell of versions, and they may name what a repair takes away."""
        for writer in list(object_head_caches._writers):
            if writer._objects.url == self.url:  # another test's may wait for its own, long period
                writer.finish(LONGEST_SECONDS)

    def delete_head_cache(self) -> None:
        self.bucket.client.delete_object(Bucket=self.bucket.name, Key=f"data.tx/{names.head_cache_path('main')}")

    def keep_versions(self, status: str = "Enabled") -> None:
        self.write_head_caches()
        self.bucket.keep_versions(status)

    def ignore_conditions(self) -> None:
        self.proxy.faults = Faults(drops={"if-none-match": ""})

    def switch_versioning_on(self) -> None:
        self.keep_versions()
        self.ignore_conditions()

    def create_exclusively(self) -> None:
        """moto can't suspend versioning: it forgets what an object was when that is deleted. `test_ceph.py` does so."""
        self.write_head_caches()
        self.proxy.faults = Faults()

    def messages(self) -> list[str]:
        return [commit.message for commit in self.open().log()][::-1]

    def stops(self) -> list[str]:
        listed = self.bucket.client.list_objects_v2(Bucket=self.bucket.name, Prefix="data.tx/commits/")
        return [each["Key"] for each in listed.get("Contents", ()) if "/stop-" in each["Key"]]

    def proofs(self) -> int:
        return sum(each.method == "PUT" and each.path.endswith(names.GUARD) for each in self.proxy.log)


@pytest.fixture(params=["fsspec", "obstore"])
def place(
    request: pytest.FixtureRequest, server_of: Callable[[str], Server], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> Place:
    monkeypatch.setattr(object_head_caches, "HEAD_CACHE_PERIOD", 0.0)
    return Place(with_engine(server_of("s3"), request.param), proxy)


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that was seen, and a proof that the server gave, count however slow this machine is."""
    monkeypatch.setattr(object_head_caches, "STAYS", 1e9)
    monkeypatch.setattr(branches_in_objects, "TRUSTED", 1e9)
    monkeypatch.setattr(remote, "CHECKED_EVERY", 1e9)


def staged(repo: txstore.Repository, key: str) -> txstore.Transaction:
    transaction = repo.begin(key)
    transaction[f"{key}/c"] = key.encode()
    return transaction


def commit(repo: txstore.Repository, key: str) -> txstore.Commit:
    with repo.transaction(key) as store:
        store[f"{key}/c"] = key.encode()
    return repo.head()


def rivals(place: Place) -> tuple[txstore.Repository, txstore.Repository, txstore.Transaction, txstore.Commit]:
    """Two repositories; the second has staged "late" when the first commits "taken"."""
    first, second = place.open(), place.open()
    commit(first, "begin")
    return first, second, staged(second, "late"), commit(first, "taken")


def lost_of(report: Any) -> set[str]:
    assert {fault.part for fault in report.faults} <= {"lost"}, report.faults
    return {commit for fault in report.faults for commit in fault.commits}


def test_a_bucket_that_keeps_versions_and_creates_exclusively(place):
    """It is asked once more, when its answers tell of versions, and then as ever."""
    repo = place.open()
    commit(repo, "a")
    place.keep_versions()
    place.proxy.log.clear()
    for key in "bcd":
        commit(repo, key)
    assert place.proofs() == 1
    place.keep_versions("Suspended")
    commit(repo, "e")
    assert place.proofs() == 1
    place.keep_versions()
    for key in "fg":
        commit(repo, key)
    assert place.proofs() == 2
    assert place.messages() == list("abcdefg")
    assert repo.verify().faults == []


def test_a_commit_is_not_acknowledged_that_may_have_taken_anothers_place(place, trusting):
    first, second, third = (place.open() for _ in range(3))
    commit(first, "begin")
    late = staged(second, "late")
    taken = commit(first, "taken")
    place.switch_versioning_on()
    with pytest.raises(txstore.CommitUnknownError, match=rf"into version 1.*{CAUSE}.*verify\(repair=True\)") as told:
        late.commit()
    place.write_head_caches()
    with pytest.raises(txstore.CorruptionError, match=f"{taken.id} was durable in this version and is not there"):
        place.messages()
    place.delete_head_cache()
    assert place.messages() == ["begin", "late"]
    for repo in (second, third):
        with pytest.raises(OSError, match=STOPPED):
            commit(repo, "refused")
    with pytest.raises(txstore.CorruptionError, match=rf"{taken.id} was here, and another one.*{CAUSE}"):
        commit(first, "refused")
    assert place.messages() == ["begin", "late"]
    assert {fault.part for fault in place.open().verify().faults} >= {"stop"}
    with pytest.raises(OSError, match=CAUSE):
        place.open().verify(repair=True)  # it could not keep what it does from others

    place.create_exclusively()
    with pytest.raises(OSError, match=STOPPED):
        commit(place.open(), "refused")
    report = place.open().verify(repair=True)
    assert lost_of(report) == {told.value.commit_id}
    repo = place.open()
    assert place.messages() == ["begin", "taken"]
    assert repo.head().id == taken.id
    assert sorted(repo.mapping()) == ["begin/c", "taken/c"]
    assert repo.verify().faults == []
    commit(repo, "after")
    assert place.messages() == ["begin", "taken", "after"]
    assert repo.verify(repair=True).faults == []


def test_without_versions_a_committer_finds_its_commit_replaced(place, trusting):
    """Nothing tells of it at once: two commits are lost, and both processes learn that."""
    first, second, late, taken = rivals(place)
    first.tags["release"] = taken
    place.ignore_conditions()
    late.commit()
    commit(second, "on top")
    commit(second, "and more")
    object_head_caches.STAYS = 0.0  # `trusting` puts it back
    with pytest.raises(txstore.CorruptionError, match=rf"{taken.id} was here, and another one.*{CAUSE}"):
        commit(first, "refused")
    with pytest.raises(OSError, match=STOPPED):
        commit(second, "refused")
    place.proxy.faults = Faults()
    report = place.open().verify(repair=True)
    assert lost_of(report) == {taken.id}
    assert place.messages() == ["begin", "late", "on top", "and more"]
    assert dict(place.open().tags) == {}
    assert place.open().verify().faults == []
    commit(place.open(), "after")


def test_older_versions_can_not_be_asked_for(place, trusting, monkeypatch):
    """What is there now is put in one line all the same, and the report says that nothing else was looked at."""
    monkeypatch.setattr(S3Backend, "list_versions", always(Refusal(501, "not implemented")))
    first, _second, late, taken = rivals(place)
    place.switch_versioning_on()
    with pytest.raises(txstore.CommitUnknownError):
        late.commit()
    place.create_exclusively()
    with pytest.raises(txstore.CorruptionError, match="another one has its place"):
        commit(first, "refused")
    place.write_head_caches()
    report = place.open().verify(repair=True)
    assert any("only the present files were looked at" in each.action for each in report.repairs)
    assert place.messages() == ["begin", "late"]
    assert place.open().verify().faults == []
    assert lost_of(report) == {taken.id}, "the head cache named it"
    assert taken.id not in {each.id for each in place.open().log()}


def let_time_pass(repo: txstore.Repository) -> None:
    """Let what the server was asked, and has answered, be longer ago than it is good for."""
    check = repo.engine.commits.storage.creation_check  # type: ignore[attr-defined]
    for name in ("_asked", "_proved"):
        if (proof := getattr(check, name)) is not None:
            setattr(check, name, proof._replace(began=proof.began - 2 * remote.CHECKED_EVERY))


def test_the_server_is_asked_again_now_and_then(place):
    repo = place.open()
    commit(repo, "a")
    place.proxy.log.clear()
    for key in "bcd":
        commit(repo, key)
    assert place.proofs() == 0
    let_time_pass(repo)
    commit(repo, "e")
    commit(repo, "f")
    assert place.proofs() == 1
    place.ignore_conditions()
    let_time_pass(repo)
    with pytest.raises(txstore.CommitUnknownError, match=CAUSE):
        commit(repo, "g")


@pytest.fixture(params=["busy", "reset", "refused"])
def unanswered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Place], None]:
    """Lets the server create nothing but commits: whoever asks whether it creates exclusively learns nothing."""
    monkeypatch.setattr(client, "RETRY_SECONDS", 0.2)
    faults: dict[str, dict[str, Any]] = {
        "busy": {"busy": 1.0},
        "reset": {"reset": 1.0},
        "refused": {"refused": frozenset({"PUT"})},
    }
    chosen = faults[request.param]

    def faulty(place: Place) -> None:
        place.proxy.faults = Faults(within=names.GUARD, drops=place.proxy.faults.drops, **chosen)

    return faulty


def test_a_healthy_server_that_does_not_answer_the_question_stops_nobody(place, unanswered):
    """The commit stands, and the next one asks again."""
    repo = place.open()
    commit(repo, "a")
    unanswered(place)
    let_time_pass(repo)
    commit(repo, "b")
    place.create_exclusively()
    place.proxy.log.clear()
    commit(repo, "c")
    assert place.proofs() == 1
    commit(place.open(), "d")
    assert place.stops() == []
    assert place.messages() == list("abcd")


def test_a_question_that_has_to_be_answered_and_is_not_stops_nobody(place, unanswered):
    """The server keeps versions now: nobody is told that a commit was made, until it is known."""
    repo = place.open()
    commit(repo, "a")
    place.keep_versions()
    unanswered(place)
    with pytest.raises(txstore.CommitUnknownError, match="into version 1, which may have been another's") as told:
        commit(repo, "b")
    with pytest.raises(OSError):
        commit(repo, "refused")
    assert place.stops() == []
    place.create_exclusively()
    commit(repo, "c")
    assert place.messages() == list("abc")
    assert repo.resolve(told.value.commit_id) is not None
    assert place.open().verify().faults == []


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_vacuum_deletes_nothing_that_a_repair_needs(place, trusting, monkeypatch, when):
    """Of a commit that was replaced, the pack, on another branch than the one that is vacuumed."""
    first, second = place.open(), place.open()
    commit(first, "begin")
    first.branches["other"] = first.head()
    content = os.urandom(9 << 20)
    taken, late = first.begin("taken", branch="other"), second.begin("late", branch="other")
    late["late/c"], taken["big/c"] = b"late", content
    taken.commit()

    def take() -> None:
        place.switch_versioning_on()
        with pytest.raises(txstore.CommitUnknownError, match=CAUSE):
            late.commit()
        place.create_exclusively()

    if when == "before":
        take()
    else:
        find = vacuum._Vacuum._doomed

        def doomed(*arguments: Any) -> Any:
            found = find(*arguments)
            take()
            return found

        monkeypatch.setattr(vacuum._Vacuum, "_doomed", doomed)
    with pytest.raises(OSError, match=STOPPED):
        place.open().vacuum()
    monkeypatch.undo()
    place.open().verify(repair=True)
    repo = place.open()
    assert bytes(repo.mapping(branch="other")["big/c"]) == content
    assert repo.verify().faults == []
    repo.vacuum()
    assert bytes(place.open().mapping(branch="other")["big/c"]) == content


def test_a_committer_is_killed_before_it_stops_others(place, trusting):
    """Nothing but the older versions tells of it: a repair looks at these, and is no harm to what is well."""
    first = place.open()
    commit(first, "begin")
    taken = replaced_by_the_dead(place, first)
    place.delete_head_cache()  # which names the commit that was replaced
    assert place.messages() == ["begin", "late"]
    assert place.open().verify().ok
    assert len(lost_of(place.open().verify(repair=True))) == 1
    assert place.messages() == ["begin", "taken"]
    assert place.open().head().id == taken.id
    assert place.open().verify(repair=True).repairs == []
    commit(place.open(), "after")


def replaced_by_the_dead(place: Place, first: txstore.Repository) -> txstore.Commit:
    """Return a commit that was replaced by "late", whose committer dies before it learns of that."""
    second = place.open()
    late = staged(second, "late")
    taken = commit(first, "taken")
    place.switch_versioning_on()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(CreationProof, "confirm", always(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            late.commit()
    place.create_exclusively()
    return taken


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_stop_that_could_not_be_left_is_left_again(place, trusting, monkeypatch, error):
    """After Ctrl-C at once, since the process may end; after an error when it commits next."""
    _first, second, late, _ = rivals(place)
    place.switch_versioning_on()
    put, errors = second.engine.commits.storage.objects.put, [error]

    def failing(path: str, parts: Any) -> None:
        if "/stop-" in path and errors:
            raise errors.pop()
        put(path, parts)

    with monkeypatch.context() as patched:
        patched.setattr(second.engine.commits.storage.objects, "put", failing)
        with pytest.raises((KeyboardInterrupt, txstore.CommitUnknownError)):
            late.commit()
    assert len(place.stops()) == (error is KeyboardInterrupt)
    place.create_exclusively()
    with pytest.raises(OSError, match=STOPPED):
        commit(second, "refused")
    assert len(place.stops()) == 1


def test_a_repair_that_could_not_move_all_away_leaves_the_stop(place, trusting, monkeypatch):
    first, second = place.open(), place.open()
    commit(first, "begin")
    late = staged(second, "made")
    commit(first, "lost")
    follower = staged(first, "above")  # before the listing's times can tell that "lost" was replaced
    place.ignore_conditions()
    late.commit()
    follower.commit()
    commit(first, "and more")
    object_head_caches.STAYS = 0.0
    with pytest.raises((OSError, txstore.CorruptionError)):
        commit(second, "refused")
    place.create_exclusively()
    rename = replacing.Replacer._rename

    def failing(files: Any, source: str, target: str) -> None:
        if source.endswith(names.version_name(3)):
            raise TimeoutError("no answer")
        rename(files, source, target)

    with monkeypatch.context() as patched:
        patched.setattr(replacing.Replacer, "_rename", failing)
        assert "stop" in {fault.part for fault in place.open().verify(repair=True).faults}
    assert len(place.stops()) >= 1
    with pytest.raises(OSError, match=STOPPED):
        commit(place.open(), "refused")
    place.open().verify(repair=True)
    assert place.messages() == ["begin", "made"]
    assert place.open().verify().ok


def test_versions_are_in_the_order_in_which_the_server_tells_of_them():
    """The newest first; the clock of the machine that has made the older one is ahead."""
    time = datetime(2026, 1, 1)
    told = [
        {
            "Key": "data.tx/commits/main/a",
            "VersionId": id,
            "LastModified": time + timedelta(seconds=ahead),
            "IsLatest": latest,
        }
        for id, ahead, latest in [("new", 0.0, True), ("old", 0.05, False)]
    ]

    async def call(*arguments: Any, **options: Any) -> dict[str, Any]:
        return {"Versions": told}

    backend = S3Backend.__new__(S3Backend)
    backend._prefix, backend._call = "data.tx/", call
    found = asyncio.run(backend._list_versions("commits/main"))
    assert [each.id for each in found] == ["old", "new"]


def test_versioning_is_switched_on_under_many_who_commit(place, tmp_path):
    with place.open().begin("first") as mapping:
        mapping["count/c/0"] = b"0"
    files = [tmp_path / f"{writer}" for writer in range(WRITERS)]
    workers = [
        Worker(write_until_stopped, place.url, place.options, writer, str(files[writer]), context=QUICK)
        for writer in range(WRITERS)
    ]
    with ended(*workers):
        wait_until(lambda: len(acknowledged(files)) >= ENOUGH)
        place.switch_versioning_on()
        said = [each for worker in workers for each in worker.result()]
    assert any(CAUSE_SHOWN in each for each in said), said
    assert all(CAUSE_SHOWN in each or STOPPED_SHOWN in each or READ_SHOWN.match(each) for each in said), said
    place.create_exclusively()
    check_repaired(place.url, place.options, acknowledged(files))


CAUSE_SHOWN, STOPPED_SHOWN = "the server ignores conditional writes", "did not create objects exclusively"
# Of whoever reads a value of a commit that was replaced, before it comes to commit.
READ_SHOWN = re.compile(
    r"CorruptionError: commits/main/\d+ at byte 0: this is pack \w+, expected \w+\. Run repo\.verify"
)
