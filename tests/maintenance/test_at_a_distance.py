"""Upkeep of a repository that is far away: how often files are asked for, and that it is not one after the other."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests.tools.inside import staged
from tests.tools.waiting import TIMEOUT, wait_for_background_cleanup
from txstore.format import names
from txstore.storage import kept
from txstore.storage.kept import FileReader, PackCache
from txstore.storage.objects import client
from txstore.storage.objects.interface import open_objects
from txstore.storage.remote import RemoteStorage

COMMITS = 60
_FEW = 8  # those that the head cache names, and the head, before and afterwards


class Requests:
    """What was asked for. A request for one commit file waits until another one is asked for, too."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.begun = {names.commit_path("main", version): threading.Event() for version in range(COMMITS)}
        self.waits: dict[str, str] = {}
        self._meetings: dict[
            tuple[str, int], threading.Barrier
        ] = {}  # by a path, and how often it was asked for before

    def wait(self, version: int, other: int) -> None:
        self.waits[names.commit_path("main", version)] = names.commit_path("main", other)

    def meet(self, paths: list[str], *, after: int = 0) -> None:
        barrier = threading.Barrier(len(paths))
        self._meetings.update(((path, after), barrier) for path in paths)

    def of_commits(self) -> int:
        return sum(self.counts[path] for path in self.begun)

    def begin(self, path: str) -> None:
        with self.lock:
            nth = self.counts[path]
            self.counts[path] += 1
        if (path, nth) in self._meetings:
            self._meetings[path, nth].wait(TIMEOUT)
        if path in self.begun:
            self.begun[path].set()
        if path in self.waits:
            assert self.begun[self.waits[path]].wait(TIMEOUT), "one after the other"


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    found = Requests()
    send = client.ObjectClient._request

    def counted(self: Any, path: str, request: Callable[[Any], Any], **how: Any) -> Any:
        found.begin(path)
        return send(self, path, request, **how)

    monkeypatch.setattr(client.ObjectClient, "_request", counted)
    return found


@pytest.fixture
def url() -> str:
    url = f"memory://{uuid.uuid4().hex}"
    repo = txstore.Repository(url)
    for number in range(COMMITS):
        with repo.transaction(f"{number}") as store:
            store[f"x/c/{number % 7}"] = bytes([number]) * 100
    PackCache().forget_all()
    return url


def forget(requests: Requests) -> None:
    PackCache().forget_all()  # as in a process that has read nothing
    requests.__init__()  # type: ignore[misc]


def test_who_looks_at_the_last_few_reads_few(url: str, requests: Requests) -> None:
    forget(requests)
    assert len(txstore.Repository(url).log(limit=3)) == 3
    assert requests.of_commits() <= 16


def test_verify_reads_each_commit_once(url: str, requests: Requests) -> None:
    forget(requests)
    requests.wait(30, 29)  # from the newest down
    report = txstore.Repository(url).verify()
    assert report.ok
    assert report.commits == COMMITS
    assert requests.of_commits() <= COMMITS + _FEW


def test_verify_looks_at_all_names_at_once(url: str, requests: Requests) -> None:
    """One after the other, these were 40 trips. Of each wave, every request waits until all others have begun."""
    repo = txstore.Repository(url)
    repo.tags["v1"] = repo.head()
    repo.branches["dev"] = repo.head()
    forget(requests)
    together = [names.STAGING, "commits", "heads", names.PACKS, names.LOCKS]
    requests.meet(together)
    requests.meet([names.TAGS, names.BRANCHES, names.ERASED], after=1)
    assert txstore.Repository(url).verify().ok


def test_a_backup_reads_each_commit_once(url: str, requests: Requests, tmp_path: Path) -> None:
    forget(requests)
    requests.wait(30, 31)
    txstore.Repository(url).backup(tmp_path / "copy.tx")
    assert requests.of_commits() <= COMMITS + _FEW
    copy = txstore.Repository(tmp_path / "copy.tx")
    assert copy.verify().ok
    assert len(copy.log()) == COMMITS


# --- files that are fetched in advance


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    monkeypatch.setattr(kept, "PIECE", 10)
    return {f"file{n}": bytes(range(n, n + 35)) for n in range(50)}


@pytest.fixture
def storage(files: dict[str, bytes]) -> RemoteStorage:
    objects = open_objects(f"memory://{uuid.uuid4().hex}")
    for path, content in files.items():
        objects.put(path, [content])
    return RemoteStorage(objects)


def test_a_file_that_is_gone_is_said_to_be_when_it_is_read(storage: RemoteStorage, files: dict[str, bytes]) -> None:
    fetched = FileReader(storage.read_range, ahead=True)
    for path in files:
        fetched.expect(path, 35)
    storage.objects.delete(["file2"])
    assert fetched.read_range("file1", 0, 35) == files["file1"]
    with pytest.raises(FileNotFoundError):
        fetched.read_range("file2", 0, 35)
    assert fetched.read_range("file3", 0, 35) == files["file3"]


def test_optimize_leaves_nothing_staged() -> None:
    """What was copied has the names that it is committed under, and no version has what was staged beside it."""
    repo = txstore.Repository(f"memory://{uuid.uuid4().hex}")
    for number in range(3):
        with repo.begin() as mapping:
            mapping[f"x/c/{number}"] = bytes(100)
    assert repo.optimize() is not None
    wait_for_background_cleanup()
    assert not staged(repo)
    assert repo.verify().ok
