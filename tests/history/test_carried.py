"""A log far away: commits tell of those before them, so it takes few requests. Each is checked by a hash."""

import uuid

import pytest

import txstore
from tests.tools.far_away import Requests
from tests.tools.inside import empty_caches, objects_of, stored_commit
from txstore.commit import Stored
from txstore.format import carried, commitfile

COMMITS = 75


def made(count: int = COMMITS, message: str = "") -> str:
    url = f"memory://{uuid.uuid4().hex}"
    repo = txstore.Repository(url)
    for number in range(count):
        commit(repo, f"{number}{message}")
    return url


def commit(repo: txstore.Repository, message: str, branch: str = "main") -> None:
    with repo.begin(branch=branch, message=message) as mapping:
        mapping["x/c/0"] = message[:20].encode()


def opened(url: str) -> txstore.Repository:
    """Open a repository as in a process that has read nothing."""
    empty_caches()
    return txstore.Repository(url)


def messages(repo: txstore.Repository, branch: str = "main") -> list[str]:
    return [each.message for each in repo.log(branch)]


def test_a_log_takes_few_requests(requests: Requests) -> None:
    url = made()
    repo = opened(url)
    requests.clear()
    assert messages(repo) == [str(number) for number in reversed(range(COMMITS))]
    assert len(requests) <= 4 + 1 + COMMITS // carried.GROUP
    # What is told is what is there.
    whole = list(repo.engine.commits.chain.ancestors(repo.engine.commits.head()))
    told = list(repo.engine.commits.chain.ancestors(repo.engine.commits.head(), as_told=True))
    assert told == whole
    assert len(told) == COMMITS


@pytest.mark.parametrize("limit", [0, 1, 3, 11, 12, 17, 40, 100])
def test_a_limit(requests: Requests, limit: int) -> None:
    url = made()
    repo = opened(url)
    requests.clear()
    found = [each.version for each in repo.log(limit=limit)]
    assert found == list(range(COMMITS - 1, max(-1, COMMITS - 1 - limit), -1))
    assert len(requests) <= 5 + -(-limit // carried.GROUP)


def test_branches(requests: Requests) -> None:
    url = made(40)
    repo = txstore.Repository(url)
    repo.branches["dev"] = 20
    for number in range(30):
        commit(repo, f"dev {number}", "dev")
    expected = [f"dev {number}" for number in reversed(range(30))] + [str(number) for number in reversed(range(21))]
    assert messages(opened(url), "dev") == expected
    repo = opened(url)
    requests.clear()
    assert len(repo.log("dev")) == 51
    assert len(requests) <= 16


def test_below_the_oldest_kept_nothing_is_told() -> None:
    url = made()
    repo = txstore.Repository(url)
    repo.vacuum(keep=30)
    commit(repo, "after")
    found = [each.version for each in opened(url).log()]
    assert found == list(range(COMMITS + 1, COMMITS - 31, -1))
    repo.vacuum(keep=3)
    assert [each.version for each in opened(url).log()] == list(range(COMMITS + 2, COMMITS - 2, -1))
    assert repo.verify().ok


@pytest.mark.parametrize("at", [0, 5, 40, -5])
def test_what_is_damaged_is_not_believed(requests: Requests, at: int) -> None:
    """One byte of what a commit carries has changed: its log is read from the files, and `verify` tells."""
    url = made()
    repo = txstore.Repository(url)
    version = 3 * carried.GROUP - 1
    stored = stored_commit(repo, version)
    section = carries(stored)
    objects = objects_of(repo)
    content = bytearray(objects.get(stored.path))
    content[section.offset + at % section.length] ^= 1
    objects.put(stored.path, [bytes(content)])
    assert messages(opened(url)) == [str(number) for number in reversed(range(COMMITS))]
    [fault] = opened(url).verify().faults
    assert (fault.path, fault.part) == (stored.path, "carried")
    assert opened(url).verify(repair=True).ok
    assert opened(url).verify().ok
    requests.clear()
    assert len(opened(url).log()) == COMMITS
    assert len(requests) <= 5 + COMMITS // carried.GROUP


def test_what_another_history_carries_is_not_believed() -> None:
    """Its checksums are right, and it is well-formed: the hashes are those of other commits."""
    url, other = made(), made()
    version = 2 * carried.GROUP - 1
    stored = stored_commit(txstore.Repository(url), version)
    theirs = stored_commit(txstore.Repository(other), version)
    objects, others = (objects_of(txstore.Repository(each)) for each in (url, other))
    ours, foreign = carries(stored), carries(theirs)
    assert ours.length == foreign.length
    content = bytearray(objects.get(stored.path))
    content[ours.offset : ours.offset + ours.length] = others.get_range(theirs.path, foreign.offset, foreign.length)
    objects.put(stored.path, [bytes(content)])
    repo = opened(url)
    ids = [each.id for each in repo.log()]
    assert ids == [stored.header.id.hex() for stored in repo.engine.commits.chain.ancestors(repo.engine.commits.head())]


def carries(stored: Stored | None) -> commitfile.Section:
    return next(each for each in stored.header.sections if each.kind == commitfile.SECTION_CARRIED)


def test_local_commits_carry_nothing(repo: txstore.Repository) -> None:
    for number in range(3):
        commit(repo, f"{number}")
    stored = stored_commit(repo, 2)
    assert [each.kind for each in stored.header.sections] == [commitfile.SECTION_RUN] * len(stored.header.sections)
