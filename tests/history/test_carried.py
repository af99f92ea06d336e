"""A log far away: commits tell of those before them, so it takes few requests. Each is checked by a hash."""

import uuid

import pytest

import txstore
from tests.tools.far_away import Requests
from tests.tools.inside import objects_of, stored_commit
from txstore.commit import Stored
from txstore.format import carried, commitfile, names
from txstore.storage.kept import PackCache

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
    PackCache().forget_all()
    return txstore.Repository(url)


def messages(repo: txstore.Repository, branch: str = "main") -> list[str]:
    return [each.message for each in repo.log(branch)]


@pytest.mark.parametrize("limit", [0, 1, 11, 12, 17, 100])
def test_a_log_takes_few_requests(requests: Requests, limit: int) -> None:
    repo = opened(made())
    requests.clear()
    found = [each.version for each in repo.log(limit=limit)]
    assert found == list(range(COMMITS - 1, max(-1, COMMITS - 1 - limit), -1))
    assert len(requests) <= 5 + -(-limit // carried.GROUP)


def test_a_log_of_branches_of_many_writers_some_of_whom_have_read_nothing(requests: Requests) -> None:
    """The ends of commits were not at hand when others followed. Long messages are carried as far as there is room."""
    url = made(1)
    repos = [txstore.Repository(url) for _ in range(3)]
    expected = ["0"]
    for number in range(1, 60):
        if number % 5 == 0:
            PackCache().forget_all()
        if number == 40:
            repos[0].branches["dev"] = number - 1
        expected.append(f"{number}" + " and so on" * (200 if number % 2 else 0))
        commit(repos[number % 3], expected[-1], "main" if number < 40 else "dev")
    repo = opened(url)
    requests.clear()
    assert messages(repo, "dev") == expected[::-1]
    assert len(requests) < 60
    objects = objects_of(repo)
    assert max(each.size for each in objects.list(names.commits_directory("main"))) < 2 * carried.MOST


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
    assert [each.id for each in repo.log()] == [repo.commit(at).id for at in reversed(range(COMMITS))]


def carries(stored: Stored | None) -> commitfile.Section:
    return next(each for each in stored.header.sections if each.kind == commitfile.SECTION_CARRIED)


def test_local_commits_carry_nothing(repo: txstore.Repository) -> None:
    for number in range(3):
        commit(repo, f"{number}")
    stored = stored_commit(repo, 2)
    assert [each.kind for each in stored.header.sections] == [commitfile.SECTION_RUN] * len(stored.header.sections)
