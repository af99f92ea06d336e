"""Commits over a bad network: each is made exactly once, or its writer is told that it is not known, and can find out.

TXSTORE_LOST_COMMITS is how many commits four writers make while answers are lost; the promise is for 500.
"""

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import txstore
from tests.system.remote.proxy import Faults, Proxy
from tests.system.remote.servers import Server
from tests.tools.waiting import TIMEOUT, wait_until
from tests.tools.workers import QUICK, Worker, ended
from txstore.errors import CommitUnknownError
from txstore.storage import late_answers
from txstore.storage.objects import client, obstore_backend

pytestmark = pytest.mark.long

COMMITS = int(os.environ.get("TXSTORE_LOST_COMMITS", 16))
WRITERS = 4
VERSION = "/commits/"  # in the path of what a commit creates
WRITES = frozenset({"PUT"})

Open = Callable[..., txstore.Repository]


@pytest.fixture
def through(s3: Server, proxy: Proxy) -> Server:
    return s3.with_options(endpoint_url=proxy.url)


@pytest.fixture
def open_repo(through: Server) -> Iterator[Open]:
    """Open one repository behind the proxy, which has one commit."""
    url = through.url()
    opened: list[txstore.Repository] = []

    def open_repo(**options: object) -> txstore.Repository:
        opened.append(txstore.Repository(url, storage_options={**through.storage_options, **options}))
        return opened[-1]

    with open_repo().begin("first") as mapping:
        mapping["a"] = b"0"
    yield open_repo
    assert open_repo().verify().faults == []


def staged(open_repo: Open) -> tuple[txstore.Repository, txstore.Transaction]:
    repo = open_repo()
    transaction = repo.begin("second")
    transaction["a"] = b"1"
    return repo, transaction


@contextmanager
def faults(proxy: Proxy, **what: object) -> Iterator[Faults]:
    proxy.log.clear()
    proxy.faults = Faults(**what)  # type: ignore[arg-type]
    try:
        yield proxy.faults
    finally:
        proxy.faults = Faults()


def messages(repo: txstore.Repository) -> list[str]:
    log = list(repo.log())
    assert [commit.version for commit in log] == list(range(len(log)))[::-1]
    assert len({commit.id for commit in log}) == len(log)
    return [commit.message for commit in log][::-1]


def write(url: str, options: dict[str, object], writer: int, commits: int) -> tuple[dict[str, str], dict[str, str]]:
    """Make commits; return the ids of those acknowledged and of those unknown, by message."""
    repo = txstore.Repository(url, storage_options=options)
    acknowledged, unknown = {}, {}
    for number in range(commits):
        transaction = repo.begin(f"{writer}/{number}")
        transaction[f"{writer}/c/{number}"] = f"{writer}/{number}".encode()
        try:
            transaction.commit()
            acknowledged[f"{writer}/{number}"] = transaction.id
        except CommitUnknownError as error:
            unknown[f"{writer}/{number}"] = error.commit_id
    return acknowledged, unknown


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "what",
    [{"lost": 0.3}, {"lost": 0.1, "busy": 0.1, "conflict": 0.1, "reset": 0.1, "delayed": 0.2, "delay": 0.05}],
    ids=["lost", "everything"],
)
def test_each_commit_is_made_exactly_once(s3, through, open_repo, proxy, what):
    repo = open_repo()
    each = -(-COMMITS // WRITERS)
    with faults(proxy, seed=17, methods=frozenset({"PUT", "GET", "DELETE", "POST"}), **what):
        workers = [
            Worker(write, repo.url, through.storage_options, writer, each, context=QUICK) for writer in range(WRITERS)
        ]
        with ended(*workers):
            results = [worker.result(TIMEOUT + 5 * COMMITS) for worker in workers]
        log = list(proxy.log)
    assert any(request.lost for request in log)
    acknowledged = {message: made for result in results for message, made in result[0].items()}
    unknown = {message: made for result in results for message, made in result[1].items()}
    assert len(acknowledged) + len(unknown) == WRITERS * each
    made = acknowledged | {
        message: commit_id for message, commit_id in unknown.items() if repo.resolve(commit_id) is not None
    }
    assert sorted(messages(repo)) == sorted(["first", *made])
    assert {commit.message: commit.id for commit in repo.log() if commit.message != "first"} == made
    head = dict(repo.mapping())
    assert {key for key in head if key != "a"} == {message.replace("/", "/c/") for message in made}
    assert all(head[message.replace("/", "/c/")] == message.encode() for message in made)
    assert len(unknown) <= COMMITS // 10  # requests are repeated: as a rule it can be settled
    puts = [request for request in log if VERSION in request.path and request.method == "PUT"]
    # What else lies beside the versions says who wants one: it may be stored twice.
    versions = [request for request in puts if request.path.rpartition("/")[2].isdigit()]
    landed = [request.path for request in versions if request.status == 200]
    assert len(landed) == len(set(landed))


@pytest.mark.parametrize("fault", ["lost", "busy", "reset"])
def test_what_does_not_pass_is_an_error_and_what_is_staged_stays(open_repo, proxy, quick, fault):
    """Nothing but the version fails: reading it back tells what has become of the commit, where there is an answer."""
    repo, transaction = staged(open_repo)
    with faults(proxy, within=VERSION, methods=WRITES, **{fault: 1.0}):
        if fault == "lost":  # the server has it, and says so when it is asked
            transaction.commit()
        else:
            with pytest.raises(CommitUnknownError) as caught:
                transaction.commit()
            assert repo.resolve(caught.value.commit_id) is None
            with pytest.raises(txstore.TransactionStateError):  # it may yet be made
                transaction.commit()
    assert messages(open_repo()) == ["first", "second"][: 2 if fault == "lost" else 1]


def test_a_commit_that_is_made_when_it_was_given_up(open_repo, proxy, monkeypatch):
    """I3: the server comes to a request that its writer has given up. What the commit refers to is still there."""
    monkeypatch.setattr(client, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(client, "LEAST_TRIES", 1)
    repo = open_repo()
    transaction = repo.begin("second")
    transaction["a"] = bytes(3 << 20)  # in a pack of its own
    with faults(proxy, within=VERSION, methods=WRITES, kept=1.0):
        with pytest.raises(CommitUnknownError) as caught:
            transaction.commit()
        assert repo.resolve(caught.value.commit_id) is None
        transaction.rollback()
        del transaction
        gc.collect()
        time.sleep(0.1)  # whatever is deleted in the background
        proxy.send_kept()
    commit = open_repo().resolve(caught.value.commit_id)
    assert commit is not None
    assert open_repo().mapping()["a"] == bytes(3 << 20)
    assert messages(open_repo()) == ["first", "second"]


def test_the_version_can_not_be_read_back(open_repo, proxy, quick):
    _repo, transaction = staged(open_repo)
    with (
        faults(proxy, within=VERSION, methods=frozenset({"PUT", "GET"}), lost=1.0),
        pytest.raises(CommitUnknownError) as it,
    ):
        transaction.commit()
    commit = open_repo().resolve(it.value.commit_id)
    assert commit.message == "second"
    assert "repo.resolve" in str(it.value)
    assert messages(open_repo()) == ["first", "second"]
    with pytest.raises(txstore.TransactionStateError):
        transaction.commit()


class LateOne:
    """Holds back the first request for a version."""

    def __init__(self) -> None:
        self.may_land = threading.Event()
        self.lock = threading.Lock()
        self.path: str | None = None

    def __call__(self, method: str, path: str) -> None:
        with self.lock:
            if self.path is not None or method not in WRITES or VERSION not in path:
                return
            self.path = path
        assert self.may_land.wait(TIMEOUT)

    def has_landed(self, proxy: Proxy) -> bool:
        """Tell whether the server has answered both this one, and the one that was sent in its place."""
        return sum(each.path == self.path and each.method in WRITES for each in list(proxy.log)) > 1


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_a_request_that_lands_when_nobody_waits_any_more(server_of, engine, monkeypatch):
    """The client stops waiting and sends it again: one of the two takes the version, and both are the same commit."""
    monkeypatch.setitem(obstore_backend.CLIENT, "read_timeout", "2s")
    monkeypatch.setattr(client, "RETRY_SECONDS", 120.0)  # a machine that is busy takes longer to answer, too
    server = server_of("s3")
    with Proxy(server.port) as proxy:
        through = server.with_options(endpoint_url=proxy.url, txstore_engine=engine, config_kwargs={"read_timeout": 2})
        if engine == "obstore":
            through.storage_options.pop("config_kwargs")
        repo = txstore.Repository(through.url(), storage_options=through.storage_options)
        for number in range(3):
            transaction = repo.begin(f"{number}")
            transaction["a"] = b"%d" % number
            late = LateOne()
            with faults(proxy, hold=late):
                transaction.commit()
                late.may_land.set()
                repo.begin().commit()
                wait_until(lambda late=late: late.has_landed(proxy))
            assert repo.mapping()["a"] == b"%d" % number
        assert messages(repo) == ["0", "1", "2"]
        assert repo.verify().faults == []


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
@pytest.mark.parametrize("whose", ["ours", "another's"])
def test_an_answer_that_is_held(server_of, engine, whose):
    """The committer looks at the version itself, long before the answer: what comes after that does no harm."""
    server = server_of("s3")
    with Proxy(server.port) as proxy:
        through = server.with_options(endpoint_url=proxy.url, txstore_engine=engine)
        url = through.url()
        repo = txstore.Repository(url, storage_options=through.storage_options)
        other = txstore.Repository(url, storage_options={**server.storage_options, "txstore_engine": engine})
        with repo.begin("first") as mapping:
            mapping["a"] = b"0"
        transaction = repo.begin("second")
        transaction["b"] = b"1"
        may_answer = threading.Event()

        def hold_answer(method: str, path: str) -> None:
            if method in WRITES and VERSION in path:
                assert may_answer.wait(TIMEOUT)

        def overtake(method: str, path: str) -> None:
            if method in WRITES and VERSION in path and not may_answer.is_set() and other.head().version == 0:
                with other.begin("other's") as mapping:
                    mapping["c"] = b"2"

        with faults(proxy, hold_answer=hold_answer, **({"hold": overtake} if whose != "ours" else {})):
            committing = threading.Thread(target=transaction.commit)
            committing.start()
            committing.join(client.RETRY_SECONDS)
            is_held = committing.is_alive()
            may_answer.set()
            committing.join(TIMEOUT)
            assert not is_held, "it has waited for an answer"
        assert transaction.state == "committed"
        expected = ["first", "second"] if whose == "ours" else ["first", "other's", "second"]
        assert messages(repo) == expected
        assert repo.verify().faults == []


def test_a_request_that_is_held_is_told_of(open_repo, proxy, monkeypatch):
    """Nothing is there: the server may yet come to it, so it is waited for, and not in silence."""
    _repo, transaction = staged(open_repo)
    late, told = LateOne(), threading.Event()
    tell = late_answers._tell
    monkeypatch.setattr(late_answers, "_tell", lambda *what: (tell(*what), told.set()))

    def land() -> None:
        assert told.wait(TIMEOUT)
        late.may_land.set()

    landing = threading.Thread(target=land)
    landing.start()
    with faults(proxy, hold=late), pytest.warns(txstore.CommitWaitWarning, match="has not created it yet"):
        transaction.commit()
    landing.join(TIMEOUT)
    assert transaction.state == "committed"
    assert messages(open_repo()) == ["first", "second"]


def test_a_server_that_does_not_answer_is_told_of(open_repo, proxy, monkeypatch):
    """Neither the request nor the look at the version is answered: nobody else is said to have been faster."""
    _repo, transaction = staged(open_repo)
    may_answer, tell = threading.Event(), late_answers._tell
    monkeypatch.setattr(late_answers, "_tell", lambda *what: (tell(*what), may_answer.set()))

    def hold(method: str, path: str) -> None:
        if VERSION in path:
            assert may_answer.wait(TIMEOUT)

    with faults(proxy, hold=hold), pytest.warns(txstore.CommitWaitWarning, match="does not say whether it is there"):
        transaction.commit()
    assert messages(open_repo()) == ["first", "second"]


EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired. hidden-token</Message></Error>"


@pytest.mark.parametrize("size", [10, 3 << 20], ids=["in the commit", "in a pack"])
def test_credentials_that_expire_half_way(open_repo, proxy, size):
    repo = open_repo(token="hidden-token")
    transaction = repo.begin("second")
    transaction["a"] = bytes(size)
    with faults(proxy, refusal=(403, EXPIRED)):
        with pytest.raises(PermissionError, match="expired") as caught:
            transaction.commit()
        assert "hidden-token" not in str(caught.value) + repr(caught.value)
        with pytest.raises(PermissionError, match="expired"):
            open_repo().mapping()
    # What was staged is still there: with new credentials, it is committed after all, or dropped.
    if size == 10:
        transaction.commit()
        assert messages(open_repo()) == ["first", "second"]
    else:
        transaction.rollback()
        assert messages(open_repo()) == ["first"]
    with open_repo().begin("last") as mapping:
        mapping["b"] = b"1"
    assert messages(open_repo())[-1] == "last"
