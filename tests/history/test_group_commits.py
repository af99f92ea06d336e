"""Commits that several make together on an object store: each once, whoever dies at whichever step."""

import contextlib
import errno
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

import txstore
from tests.tools.commits import set_keys
from tests.tools.faults import Killed, always
from tests.tools.inside import branch_id, objects_of
from tests.tools.waiting import TIMEOUT, wait_until
from txstore.format import commitfile, encoding, names
from txstore.history import branches_in_objects, group_commits
from txstore.history.branches_in_objects import Contention
from txstore.history.group_commits import GroupCommits, Look
from txstore.segments import object_writer
from txstore.storage.objects.client import ObjectClient

CREW, AWAKE = 5, 3
ARRAY = json.dumps(
    {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
    }
).encode()
GROUP = b'{"zarr_format": 3, "node_type": "group", "attributes": {"n": %d}}'


@pytest.fixture
def url(far: None) -> Iterator[str]:
    url = f"memory://{uuid.uuid4().hex}"
    set_keys(txstore.Repository(url), {"a": b"0"}, "first")
    yield url
    repo = txstore.Repository(url)
    assert repo.verify().faults == []
    log = list(repo.log())
    assert [each.version for each in log] == list(range(len(log)))[::-1]
    assert len({each.id for each in log}) == len(log)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commits, "_PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(branches_in_objects, "_PATIENCE", 0.1)


def staged(url: str, name: str, key: str | None = None, value: bytes | None = None, *, branch: str = "main") -> Any:
    """Return a transaction of a process that knows that others commit, too."""
    repo = txstore.Repository(url)
    transaction = repo.begin(name, branch=branch)
    transaction[key or f"{name}/c/0"] = name.encode() if value is None else value
    commits: Any = repo.engine.commits
    commits.store._contention.set_contended(branch_id(repo, branch), True)
    return transaction


def proposals(url: str, version: int, branch: str = "main") -> int:
    objects = objects_of(txstore.Repository(url))
    listed = [names.parse_proposal(each.name) for each in objects.list(names.commits_directory(branch))]
    return sum(each is not None and each[0] == version for each in listed)


def is_taken(url: str, version: int, branch: str = "main") -> bool:
    return objects_of(txstore.Repository(url)).exists(names.commit_path(branch, version))


@pytest.fixture
def meet(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let whoever leads wait for a version until so many have proposed their commits."""

    def meet(url: str, number: int, at: int = 1) -> None:
        real = GroupCommits._lead

        def lead(self: GroupCommits, content: bytes, mine: Any, trip: float) -> Any:
            version, branch = mine.header.version, mine.header.branch
            wait_until(
                lambda: version > at or is_taken(url, version, branch) or proposals(url, version, branch) >= number
            )
            return real(self, content, mine, trip)

        monkeypatch.setattr(GroupCommits, "_lead", lead)

    return meet


def commit_together(transactions: list[Any]) -> list[Future[Any]]:
    def commit(transaction: Any) -> Any:
        try:
            return transaction.commit().commit
        except Killed:
            return None

    with ThreadPoolExecutor(len(transactions)) as threads:
        return [threads.submit(commit, each) for each in transactions]


def crew(url: str) -> list[Any]:
    return [staged(url, f"writer {number}") for number in range(CREW)]


def messages(url: str) -> list[str]:
    return [each.message for each in txstore.Repository(url).log()][::-1]


def file_of(url: str, version: int) -> Any:
    commits = txstore.Repository(url).engine.commits
    commits.identity.exists()
    return commits.files.read("main", version)


def test_all_that_meet_are_made_by_one_request(url, meet):
    meet(url, CREW)
    made = [each.result() for each in commit_together(crew(url))]
    assert sorted(each.version for each in made) == list(range(1, CREW + 1))
    assert {each.id: each.message for each in made} == {
        each.id: each.message for each in txstore.Repository(url).log() if each.message != "first"
    }
    assert [file_of(url, version).header.group_commit for version in range(1, CREW + 1)] == [
        (n, CREW) for n in range(CREW)
    ]
    head = dict(txstore.Repository(url).mapping())
    assert head == {"a": b"0"} | {f"writer {n}/c/0": f"writer {n}".encode() for n in range(CREW)}
    for commit in made:
        assert txstore.Repository(url).mapping(at=commit.version)[f"{commit.message}/c/0"] == commit.message.encode()


def test_of_those_who_want_the_same_key_one_wins(url, meet):
    meet(url, CREW)
    rivals = [staged(url, f"writer {number}", "x/c/0") for number in range(CREW)]
    found = commit_together(rivals)
    won = [each.result() for each in found if each.exception() is None]
    assert len(won) == 1
    assert all(isinstance(each.exception(), txstore.ConflictError) for each in found if each.exception() is not None)
    assert txstore.Repository(url).mapping()["x/c/0"] == won[0].message.encode()
    for each in rivals:
        each.rollback()


@pytest.mark.parametrize("key", ["b/zarr.json", "a"])
def test_what_is_more_than_chunks_or_the_key_of_another_waits_its_turn(url, meet, key):
    meet(url, CREW)
    value = b'{"zarr_format": 3, "node_type": "group"}' if key.endswith("json") else None
    other = staged(url, "other", key, value)
    found = commit_together([*crew(url), other])
    assert all(each.exception() is None for each in found)
    assert sorted(messages(url)) == sorted(["first", "other", *(f"writer {n}" for n in range(CREW))])


def test_documents_of_nodes_that_are_apart_go_together(url, meet):
    meet(url, CREW)
    together = crew(url)
    for number, each in enumerate(together):
        each[f"writer {number}/zarr.json"] = GROUP % number
    assert all(each.exception() is None for each in commit_together(together))
    assert file_of(url, 1).header.group_commit == (0, CREW)


@pytest.mark.parametrize("above", ["x", "", "x/y"])
def test_a_node_that_is_changed_does_not_go_with_what_is_below(url, meet, above):
    """Each finds no conflict with what is below the version: only whoever puts them together can know."""
    meet(url, 2)
    key = f"{above}/zarr.json".lstrip("/")
    rivals = [staged(url, "node", key, ARRAY), staged(url, "below", "x/y/c/0")]
    found = commit_together(rivals)
    won = [each.result().message for each in found if each.exception() is None]
    assert len(won) == 1
    assert isinstance(next(each.exception() for each in found if each.exception()), txstore.ConflictError)
    assert messages(url) == ["first", *won]
    for each in rivals:
        each.rollback()


def test_what_has_packs_goes_along(url, meet, monkeypatch):
    monkeypatch.setattr(object_writer, "INLINE_SIZE", 0)
    monkeypatch.setattr(Contention, "is_contended", lambda *_: True)  # each looks once more
    meet(url, CREW)
    made = [each.result() for each in commit_together(crew(url))]
    assert len(made) == CREW
    assert file_of(url, 1).header.group_commit == (0, CREW)
    assert all(len(file_of(url, version).header.packs) == 1 for version in range(1, CREW + 1))
    txstore.Repository(url).vacuum(keep=CREW + 1)
    head = dict(txstore.Repository(url).mapping())
    assert head == {"a": b"0"} | {f"writer {n}/c/0": f"writer {n}".encode() for n in range(CREW)}


def test_whoever_leads_has_slept_since_it_has_seen_the_proposals(url, meet, monkeypatch):
    """Those who have made them may have died, and a vacuum have deleted their packs: it looks again."""
    meet(url, CREW)
    fitting, looks = group_commits.fitting, []

    def sleep(*arguments):
        looks.append(monkeypatch.setattr(group_commits, "_AWAKE", 300.0 if looks else -1.0))
        return fitting(*arguments)

    monkeypatch.setattr(group_commits, "fitting", sleep)
    monkeypatch.setattr(group_commits, "_PATIENCE_SECONDS", 0.1)
    assert all(each.exception() is None for each in commit_together(crew(url)))
    assert len(looks) > 1
    assert len(messages(url)) == CREW + 1


# --- those who can't go together with others


def test_what_is_no_proposal_is_left_out(url, meet):
    """Anybody may put anything there who may write: it is nobody's commit, and holds up nobody."""
    objects = objects_of(txstore.Repository(url))
    stored = file_of(url, 0)
    whole = objects.get(stored.path)
    strange = [b"junk", bytes(64), whole, whole[:-1], whole[:-70] + bytes(70), bytes(1 << 20)]
    for number, content in enumerate(strange):
        objects.put(names.proposal_path("main", 1, bytes([number]) * 16), [content])
    meet(url, CREW + len(strange))
    made = [each.result() for each in commit_together(crew(url))]
    assert sorted(each.version for each in made) == list(range(1, CREW + 1))
    assert file_of(url, 1).header.group_commit == (0, CREW)


def test_a_proposal_with_a_field_of_a_newer_version_is_left_out(url):
    """Those who know the field would derive other bytes."""
    stored = file_of(url, 0)
    whole = objects_of(txstore.Repository(url)).get(stored.path)
    group_commits.touched_by(whole)
    encoded = stored.header.encode() + commitfile.FIELD.pack(15, 1) + b"?"
    begin = stored.footer.header_offset
    length = begin + len(encoded) + commitfile.FOOTER_SIZE
    footer = commitfile.Footer(len(encoded), begin, length, stored.header.id, encoding.crc32c(encoded))
    with pytest.raises(group_commits.NoGroupCommitError, match="fields that this version does not know"):
        group_commits.touched_by(whole[:begin] + encoded + footer.encode())


def test_an_proposal_that_nobody_waits_for_any_more_is_left_out(url, meet, monkeypatch):
    """Whoever has made it was told that nothing is known of it, and may have done its work again."""
    monkeypatch.setattr(group_commits, "_YOUNG", -1.0)
    meet(url, CREW)
    made = [each.result() for each in commit_together(crew(url))]
    assert len({each.id for each in made}) == CREW
    assert file_of(url, 1).header.group_commit is None


def test_whoever_leads_dies_when_the_group_commit_is_decided(url, meet, impatient, monkeypatch):
    """Those who are in it put what is missing in its place; the commit of the dead one is made, too."""
    meet(url, CREW)
    left = [Killed]

    def dies(self: GroupCommits, group_commit: Any) -> Any:
        if left:
            raise left.pop()
        return real(self, group_commit)

    real = GroupCommits._follow
    monkeypatch.setattr(GroupCommits, "_follow", dies)
    made = [each.result() for each in commit_together(crew(url))]
    assert not left
    assert made.count(None) == 1
    assert sorted(messages(url)) == sorted(["first", *(f"writer {n}" for n in range(CREW))])


@contextlib.contextmanager
def all_die_when_it_is_decided(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Whoever is about to put anything behind version 1 dies, or to wait for that, once it is taken."""

    def dies(*_: Any) -> None:
        if is_taken(url, 1):
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(GroupCommits, "_follow", dies)
        patched.setattr(GroupCommits, "_await", dies)
        yield patched


def test_whoever_leads_dies_before_it_has_taken_the_version(url, meet, impatient, monkeypatch):
    left = [Killed]
    meet(url, CREW)
    real = GroupCommits._lead

    def dies(self: GroupCommits, content: bytes, mine: Any, trip: float) -> Any:
        if left:
            raise left.pop()
        return real(self, content, mine, trip)

    monkeypatch.setattr(GroupCommits, "_lead", dies)
    made = [each.result() for each in commit_together(crew(url))]
    assert made.count(None) == 1
    done = [each.message for each in made if each is not None]
    assert sorted(messages(url)) in (
        sorted(["first", *done]),  # it was left out, and nobody proposes it again
        sorted(["first", *(f"writer {n}" for n in range(CREW))]),
    )


def test_all_die_when_the_group_commit_is_decided(url, meet, impatient, monkeypatch):
    """It is made all the same: by whoever comes next, be it a reader."""
    meet(url, CREW)

    with all_die_when_it_is_decided(url, monkeypatch):
        made = [each.result() for each in commit_together(crew(url))]
    assert made == [None] * CREW
    assert not is_taken(url, 2)
    assert len(dict(txstore.Repository(url).mapping())) == CREW + 1
    assert sorted(messages(url)) == sorted(["first", *(f"writer {n}" for n in range(CREW))])
    set_keys(txstore.Repository(url), {"a": b"1"}, "next")
    assert messages(url)[-1] == "next"


def test_nothing_is_put_above_a_gap(url, meet, impatient, monkeypatch):
    """Else nobody could read the head when all those have died whose commits lie in the gap, and know of it."""
    later = staged(url, "later")
    commits = later.staging._commits
    meet(url, CREW)

    with all_die_when_it_is_decided(url, monkeypatch):
        commit_together(crew(url))
    group_commit = commits.store._group_commits.read("main", 1)
    assert [is_taken(url, version) for version in range(1, CREW + 1)] == [True] + [False] * (CREW - 1)
    # It has seen what was decided, goes on behind that, and dies when it has the version.
    heads = commits.store
    heads._known.note("main", group_commit[0].stored)
    heads._looks.note("main", Look.now())
    heads._decided.decided(group_commit)
    monkeypatch.setattr(GroupCommits, "_follow", always(Killed))
    assert [each.result() for each in commit_together([later])] == [None]
    assert all(is_taken(url, version) for version in range(CREW + 2))
    monkeypatch.undo()
    assert messages(url)[-1] == "later"


@pytest.mark.parametrize("how", ["interrupted", "unanswered"])
def test_who_gives_up_is_told_that_it_is_not_known_and_takes_the_proposal_back(url, monkeypatch, how):
    """Never that nothing was committed: whoever leads may have read the proposal."""
    transaction = staged(url, "gives up")
    leader = GroupCommits._lead
    error = KeyboardInterrupt() if how == "interrupted" else TimeoutError("no answer")

    def gives_up(*_: Any) -> None:
        assert proposals(url, 1) == 1
        raise error

    monkeypatch.setattr(GroupCommits, "_lead", gives_up)
    with pytest.raises(KeyboardInterrupt if how == "interrupted" else txstore.CommitUnknownError):
        transaction.commit()
    assert transaction.state == "of unknown outcome"
    wait_until(lambda: proposals(url, 1) == 0)
    monkeypatch.setattr(GroupCommits, "_lead", leader)
    staged(url, "again", "another/c/0").commit()
    assert messages(url) == ["first", "again"]


@pytest.mark.parametrize(
    ("room", "raised", "state"),
    [("", OSError, "open"), (".proposal-", txstore.CommitUnknownError, "of unknown outcome")],
)
def test_there_is_no_room_for_what_is_proposed_or_for_the_group_commit(
    url, impatient, monkeypatch, room, raised, state
):
    """A bucket at its quota says so: nobody waits for ever.

    What could be proposed may be in a group commit of others.
    """
    refused = list[str]()

    def refuse(real: Any, self: ObjectClient, path: str, parts: Any) -> None:
        if room and room in path:
            real(self, path, parts)
            return
        refused.append(path)
        if len(refused) > 10:
            raise Killed
        raise OSError(errno.EDQUOT, "no space left", path)

    create, put, transaction = ObjectClient.create, ObjectClient.put, staged(url, "full")
    with monkeypatch.context() as patched:
        patched.setattr(ObjectClient, "create", lambda *given: refuse(create, *given))
        patched.setattr(ObjectClient, "put", lambda *given: refuse(put, *given))
        with pytest.raises(raised, match="no space left"):
            transaction.commit()
        assert transaction.state == state
    assert messages(url) == ["first"]
    transaction.rollback()


@pytest.mark.parametrize("oldest_kept", [2, 3])
def test_a_group_commit_of_those_who_have_slept_is_not_taken_for_history(
    far, meet, impatient, monkeypatch, oldest_kept
):
    """While all were asleep, others committed and a vacuum freed versions.

    Nothing is put behind those that they made.
    """
    url = f"memory://{uuid.uuid4().hex}"
    set_keys(txstore.Repository(url), {"a": b"0"}, "first")
    slept, awake, is_taken_by_them = crew(url), txstore.Repository(url), threading.Event()
    monkeypatch.setattr(group_commits, "TRUSTED", -1.0)  # it was for long
    monkeypatch.setattr(awake.engine.commits.store._contention, "is_contended", lambda branch: False)  # it joins nobody
    for each in slept:
        commits = each.staging._commits
        heads = commits.store
        heads._looks.note("main", Look(time.monotonic() - 60, time.time() - 60))
        monkeypatch.setattr(heads, "to_follow", heads._known.of)
        monkeypatch.setattr(commits.oldest_kept, "of", lambda branch: oldest_kept)
    fitting, look, check = group_commits.fitting, GroupCommits._look, GroupCommits._check_made

    def falls_asleep(*arguments: Any) -> Any:
        for number in range(AWAKE):
            set_keys(awake, {"a/zarr.json": GROUP % number}, f"awake {number}")
        for version in range(oldest_kept):
            objects_of(awake).delete([names.commit_path("main", version)])
        return fitting(*arguments)

    def looks_later(self: GroupCommits, *arguments: Any) -> Any:
        assert is_taken_by_them.wait(TIMEOUT)
        return look(self, *arguments)

    def check_later(self: GroupCommits, *arguments: Any) -> Any:
        is_taken_by_them.set()
        return check(self, *arguments)

    monkeypatch.setattr(group_commits, "fitting", falls_asleep)
    monkeypatch.setattr(GroupCommits, "_look", looks_later)
    monkeypatch.setattr(GroupCommits, "_check_made", check_later)
    meet(url, CREW)
    found = commit_together(slept)
    assert file_of(url, 1).header.group_commit == (0, CREW)
    for each in found:
        assert isinstance(each.exception(), txstore.SnapshotExpiredError | txstore.CommitUnknownError), each.result()
    assert [is_taken(url, version) for version in range(CREW + 2)] == [
        version == 1 or oldest_kept <= version <= AWAKE for version in range(CREW + 2)
    ]
    assert awake.mapping()["a/zarr.json"] == GROUP % (AWAKE - 1)
    for each in slept:
        if each.state == "open":
            each.rollback()


def test_a_version_that_is_free_below_others_was_freed(far, impatient):
    """Who has slept and sees that does not put anything there: what became of the proposal is not known."""
    url = f"memory://{uuid.uuid4().hex}"
    set_keys(txstore.Repository(url), {"a": b"0"}, "first")
    transaction = staged(url, "slept")
    for number in range(3):
        set_keys(txstore.Repository(url), {"a/zarr.json": GROUP % number}, f"awake {number}")
    for version in range(3):
        transaction.staging.storage.objects.delete([names.commit_path("main", version)])
    with pytest.raises(txstore.CommitUnknownError):
        transaction.commit()
    assert [is_taken(url, version) for version in range(5)] == [False, False, False, True, False]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_branch_is_deleted_beside_a_group_commit(url, meet, monkeypatch, when):
    """Whoever is told of its commit has made it before the branch was deleted."""
    repo = txstore.Repository(url)
    repo.branches["b"] = repo.head()
    set_keys(repo, {"b": b"0"}, "of the branch", branch="b")
    transactions = [staged(url, f"writer {number}", branch="b") for number in range(CREW)]
    lock, left = threading.Lock(), [None]

    def delete_once() -> None:
        with lock:
            if left:
                left.pop()
                del txstore.Repository(url).branches["b"]

    fitting, follow = group_commits.fitting, GroupCommits._follow
    if when == "before":
        monkeypatch.setattr(group_commits, "fitting", lambda *arguments: (delete_once(), fitting(*arguments))[1])
    else:
        monkeypatch.setattr(
            GroupCommits, "_follow", lambda self, group_commit: (delete_once(), follow(self, group_commit))[1]
        )
    meet(url, CREW, 2)
    found = commit_together(transactions)
    for each in found:
        assert isinstance(each.exception(), txstore.CommitNotFoundError | txstore.CommitUnknownError), each.result()
    assert not left
    for each in transactions:
        if each.state == "open":
            each.rollback()
    assert "b" not in txstore.Repository(url).branches


def test_who_may_only_read_comes_to_what_is_in_its_place(url, meet, impatient, monkeypatch):
    meet(url, CREW)
    with all_die_when_it_is_decided(url, monkeypatch) as patched:
        commit_together(crew(url))
        patched.setattr(ObjectClient, "create", always(PermissionError("read-only")))
        assert len(dict(txstore.Repository(url).mapping())) == 2
    assert len(dict(txstore.Repository(url).mapping())) == CREW + 1


@pytest.mark.parametrize("what", ["version", "proposal", "everything"])
def test_answers_are_lost(url, meet, impatient, monkeypatch, what):
    """The server has done it, and is asked again, or not at all."""
    meet(url, CREW)
    create, put, lock, lost = ObjectClient.create, ObjectClient.put, threading.Lock(), set[str]()

    def is_first(path: str) -> bool:
        with lock:
            is_new = path not in lost and path.startswith("commits/")
            lost.add(path)
        return is_new

    def create_and_lose(self: ObjectClient, path: str, parts: Any) -> None:
        create(self, path, parts)
        if what != "proposal" and is_first(path):
            raise FileExistsError(path)  # to the request that was sent again

    def put_and_lose(self: ObjectClient, path: str, parts: Any) -> None:
        put(self, path, parts)
        if what != "version" and is_first(path):
            raise TimeoutError(path)

    monkeypatch.setattr(ObjectClient, "create", create_and_lose)
    monkeypatch.setattr(ObjectClient, "put", put_and_lose)
    made = [each.result() for each in commit_together(crew(url))]
    assert sorted(each.message for each in made) == sorted(f"writer {n}" for n in range(CREW))
    assert sorted(messages(url)) == sorted(["first", *(f"writer {n}" for n in range(CREW))])


def test_requests_come_twice_and_late(url, meet, monkeypatch):
    """Each write of a proposal or a version is carried out once more when all is over."""
    meet(url, CREW)
    create, put, again, lock = ObjectClient.create, ObjectClient.put, list[Callable[[], None]](), threading.Lock()

    def note(function: Any, self: ObjectClient, path: str, parts: Any) -> None:
        copied = [bytes(part) for part in parts]
        with lock:
            if path.startswith("commits/"):
                again.append(lambda: function(self, path, copied))
        function(self, path, parts)

    monkeypatch.setattr(ObjectClient, "create", lambda self, path, parts: note(create, self, path, parts))
    monkeypatch.setattr(ObjectClient, "put", lambda self, path, parts: note(put, self, path, parts))
    made = [each.result() for each in commit_together(crew(url))]
    for late in again:
        with contextlib.suppress(FileExistsError):
            late()
    assert {each.id for each in made} | {each.id for each in list(txstore.Repository(url).log())[-1:]} == {
        each.id for each in txstore.Repository(url).log()
    }
    for number in range(3):  # what lies about is nobody's commit
        commit_together([staged(url, f"later {number} {n}") for n in range(2)])
    assert len(messages(url)) == 1 + CREW + 6


def test_a_listing_that_is_late(url, meet, impatient, monkeypatch):
    """What was created last is not listed for a while."""
    meet(url, CREW)
    list_after, hidden, lock = ObjectClient.list_after, dict[str, int](), threading.Lock()

    def late(self: ObjectClient, directory: str, name: str, limit: int) -> Any:
        found = list_after(self, directory, name, limit)
        with lock:
            for each in found or ():
                hidden[each.name] = hidden.get(each.name, 0) + 1
            return [each for each in found or () if hidden[each.name] > 3]

    with monkeypatch.context() as patch:
        patch.setattr(ObjectClient, "list_after", late)
        made = [each.result() for each in commit_together(crew(url))]
    assert len({each.id for each in made}) == CREW
    assert sorted(messages(url)) == sorted(["first", *(f"writer {n}" for n in range(CREW))])


def test_a_vacuum_deletes_what_was_proposed_in_vain(url, meet):
    meet(url, CREW)
    commit_together(crew(url))
    commits: Any = txstore.Repository(url).engine.commits
    commits.storage.objects.put(names.proposal_path("main", 1, bytes(16)), [b"nothing"])
    txstore.Repository(url).vacuum()
    listed = commits.storage.objects.list("commits/main")
    assert all(names.parse_version(each.name) is not None for each in listed)


def test_what_is_erased_is_in_no_group_commit(url, meet):
    meet(url, CREW)
    commit_together([staged(url, f"writer {n}", f"secret/c/{n}", b"hidden words " * 9) for n in range(CREW)])
    repo = txstore.Repository(url)
    repo.erase("secret")
    objects = objects_of(repo)
    for each in objects.list("commits/main"):
        assert b"hidden words" not in objects.get(f"commits/main/{each.name}")
