"""The line of those whose commits conflict: who has its turn when, and what becomes of tickets that nobody needs."""

from __future__ import annotations

import itertools
import json
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

import txstore
from tests.waiting import TIMEOUT, wait_until
from txstore.commit_queue import tickets
from txstore.commit_queue.group_commits import BranchListing, Look
from txstore.commit_queue.tickets import Ahead, Pace, Polls, Seen, Turns, Waiting
from txstore.format import names
from txstore.history.object_heads import ObjectHeads
from txstore.storage.objects.client import ObjectClient
from txstore.storage.objects.interface import Object

LONG = 1000.0  # seconds, for what must not happen
CREW = 6


@pytest.fixture
def url(far: None) -> Iterator[str]:
    url = f"memory://{uuid.uuid4().hex}"
    with txstore.Repository(url).begin("first") as mapping:
        mapping["log"] = b"[]"
    yield url
    repo = txstore.Repository(url)
    assert repo.verify().faults == []


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tickets, "_PATIENCE_SECONDS", LONG)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_PATIENCE_SECONDS", "_PATIENCE_TRIPS", "_PATIENCE_TRIES", "_MORE_TRIPS"):
        monkeypatch.setattr(tickets, name, 0)


@pytest.fixture
def persistent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A committer asks for the next version for as long as the machine takes, before it looks for who has left."""
    monkeypatch.setattr(tickets, "_ASKING", math.inf)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of tickets, as they are drawn."""
    paths, put = [], ObjectClient.put

    def noted(self: ObjectClient, path: str, parts: Any) -> None:
        if "/wait-" in path:
            paths.append(path)
        put(self, path, parts)

    monkeypatch.setattr(ObjectClient, "put", noted)
    return paths


def objects_of(url: str) -> Any:
    return txstore.Repository(url).engine.storage.objects


def in_line(url: str) -> list[tickets.Place]:
    found = [names.parse_ticket(each.name) for each in objects_of(url).list("commits/main")]
    return sorted(each for each in found if each is not None)


def leave_ticket(url: str, number: int = 1) -> tickets.Place:
    """Put a ticket there as a process does that is killed then."""
    place = 0, number.to_bytes(2, "big") * 8
    objects_of(url).put(names.ticket_path("main", place), [b"waiting"])
    return place


def knows_head(url: str) -> txstore.Repository:
    """Return a repository as it is in a process that has used it: without a head cache, a first look shows no line."""
    repo = txstore.Repository(url)
    assert repo.head()
    return repo


def has_met_others(url: str) -> txstore.Repository:
    """Return a repository as it is in a process that has met a conflict a moment ago."""
    repo = knows_head(url)
    pace(repo).met_at = time.monotonic()
    return repo


def pace(repo: txstore.Repository) -> tickets.Pace:
    with repo.engine.commits.versions.turns("main") as turns:
        assert turns is not None
        return turns._pace


def append(what: object) -> Callable[[Any], None]:
    def change(store: Any) -> None:
        known = json.loads(bytes(store.mapping["log"]))
        store.mapping["log"] = json.dumps([*known, what]).encode()

    return change


def logged(url: str) -> list[Any]:
    found: list[Any] = json.loads(bytes(txstore.Repository(url).mapping()["log"]))
    return found


def overtaken(url: str, what: object, others: Iterable[object] = ("other",)) -> Callable[[Any], None]:
    """Return what appends to the log, and is overtaken by a transaction for each of the others, one each time."""
    change, left = append(what), iter(others)

    def run(store: Any) -> None:
        change(store)
        for other in itertools.islice(left, 1):
            with txstore.Repository(url).transaction("other") as theirs:
                append(other)(theirs)

    return run


def test_who_meets_nobody_draws_no_ticket(url, drawn):
    repo = txstore.Repository(url)
    for number in range(3):
        repo.run(append(number))
    assert logged(url) == [0, 1, 2]
    assert drawn == []


def test_who_meets_a_conflict_draws_a_ticket_and_gives_it_back(url, drawn):
    repo = txstore.Repository(url)
    repo.run(overtaken(url, "mine"))
    assert logged(url) == ["other", "mine"]
    assert len(drawn) == 1
    wait_until(lambda: not in_line(url))
    head = repo.head()
    assert head is not None
    found = names.parse_ticket(drawn[0].rpartition("/")[2])
    assert found is not None
    assert head.id.startswith(found[1][:4].hex()), "others see that who has drawn this ticket has had its turn"


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_who_is_interrupted_gives_its_ticket_back(url, error, drawn):
    runs = 0

    def fail(store: Any) -> None:
        nonlocal runs
        runs += 1
        if runs == 2:
            wait_until(lambda: in_line(url))
            raise error
        first(store)

    first = overtaken(url, "mine")
    with pytest.raises(error):
        txstore.Repository(url).run(fail)
    assert len(drawn) == 1
    wait_until(lambda: not in_line(url))
    assert logged(url) == ["other"]


def test_who_is_interrupted_once_more_when_it_leaves_has_given_its_ticket_back(url, monkeypatch):
    def interrupted(self: Polls) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), knows_head(url).engine.commits.versions.turns("main") as turns:
        assert turns is not None
        assert turns.lost()
        wait_until(lambda: in_line(url))
        monkeypatch.setattr(Polls, "forget", interrupted)
    wait_until(lambda: not in_line(url))


def test_those_in_line_have_their_turns_in_order(url, patient):
    """Each begins when the one before it has committed, and meets nobody."""

    def one(repo: txstore.Repository, turns: Turns) -> None:
        with turns:  # which are given back when the commit is there: else the next one might begin a moment too early
            head = turns.next(time.monotonic() + LONG)
            with repo._transaction(turn=(repo.engine.snapshots.newest("main", head), turns.id)) as store:
                append(turns.id.hex())(store)

    crew = []
    for repo in [knows_head(url) for _ in range(CREW)]:
        turns = repo.engine.commits.versions.turns("main")
        assert isinstance(turns, Turns)
        assert turns.lost()
        crew.append((repo, turns))
    wait_until(lambda: len(in_line(url)) == CREW)
    expected = in_line(url)
    with ThreadPoolExecutor(CREW) as threads:
        for each in [threads.submit(one, *member) for member in crew]:
            each.result(TIMEOUT)
    assert logged(url) == [commit.hex() for _, commit in expected]
    wait_until(lambda: not in_line(url))


def test_who_loses_its_turn_stays_where_it_is_in_line(url, drawn):
    with txstore.Repository(url).engine.commits.versions.turns("main") as turns:
        assert turns is not None
        assert turns.lost()
        wait_until(lambda: in_line(url))
        ((_, ticket),), first = in_line(url), turns.id
        assert turns.lost()
        assert turns.id != first, "what was staged under the first id may be deleted yet"
        assert turns.id[:4] == ticket[:4], "others see whose turn is over when it commits"
        assert len(drawn) == 1
        assert len(in_line(url)) == 1, "nobody takes the turn for over"
    wait_until(lambda: not in_line(url))


def test_the_ticket_stays_as_long_as_somebody_outside_of_the_line_may_be_faster(url):
    """Nobody takes a turn for over that is not; who has seen the line go on lets the next one see it at once."""
    with knows_head(url).engine.commits.versions.turns("main") as turns:
        assert isinstance(turns, Turns)
        assert turns.lost()
        wait_until(lambda: in_line(url))
        turns.about_to_commit()
        assert turns._looked is not None
        turns._looked.result(TIMEOUT)  # by then, what was to be deleted would be
        assert len(in_line(url)) == 1
        turns._called = tickets._CALLED
        turns.about_to_commit()
        wait_until(lambda: not in_line(url))


def test_who_is_overtaken_in_its_turn_goes_on_from_what_it_has_met(url, patient, monkeypatch):
    """It takes the version above at once: who commits in a row would be faster than one that has to look first."""
    looks, see = [], ObjectHeads.see

    def noted(self: ObjectHeads, branch: str) -> Any:
        looks.append(threading.current_thread().name)
        return see(self, branch)

    monkeypatch.setattr(ObjectHeads, "see", noted)
    has_met_others(url).run(overtaken(url, "mine", [1, 0]))
    assert logged(url) == [1, 0, "mine"]
    waited_for = [name for name in looks if "ticket" not in name]
    assert len(waited_for) == 2, "when it began, and when it had met the first conflict"


def test_a_ticket_of_the_dead_is_waited_for_and_deleted(url, impatient):
    repo = has_met_others(url)
    for number in range(1, CREW + 3):  # some look at the version, and some at the line
        leave_ticket(url, number)
    repo.run(append("mine"))
    assert logged(url) == ["mine"]
    wait_until(lambda: not in_line(url))


def test_who_stands_before_is_waited_for(url, patient):
    """Until it has committed; or until it has given its ticket back, and does something else."""
    repo, place = has_met_others(url), leave_ticket(url)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(repo.run, append("mine"))
        wait_until(lambda: len(in_line(url)) == 2)
        with pytest.raises(TimeoutError):
            running.result(0.2)
        objects_of(url).delete([names.ticket_path("main", place)])
        running.result(TIMEOUT)
    assert logged(url) == ["mine"]


def test_nobody_is_waited_for_when_the_time_is_over(url, patient):
    leave_ticket(url)
    has_met_others(url).run(append("mine"), timeout=0.0)
    assert logged(url) == ["mine"]


def test_who_has_met_nobody_lets_one_pass_and_does_not_wait_for_it_for_ever(url, patient, drawn, monkeypatch):
    """Its commits may have nothing to do with those of the others."""
    leave_ticket(url)
    repo, waited = knows_head(url), []
    next_one = Turns._next

    def noted(self: Turns, head: Any, seconds: float) -> Any:
        waited.append(seconds)
        return next_one(self, head, seconds)

    monkeypatch.setattr(Turns, "_next", noted)
    for number in range(8):
        repo.run(append(number))
    assert logged(url) == list(range(8))
    assert len(waited) == 4
    assert len(drawn) == 1, "the one that was there"


def test_who_has_met_nobody_is_no_faster_than_those_in_line(url, patient, monkeypatch):
    """Beside one that commits in a row, the first in line has its turn."""
    outsider, crew = knows_head(url), has_met_others(url)
    place = leave_ticket(url)
    monkeypatch.setattr(tickets, "_LET_PASS", 1e9)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(outsider.run, append("outsider"))
        with pytest.raises(TimeoutError):
            running.result(0.2)
        with crew.begin("in line") as mapping:  # as the one whose ticket it is
            mapping["log"] = b'["first"]'
        running.result(TIMEOUT)
    assert logged(url) == ["first", "outsider"]
    objects_of(url).delete([names.ticket_path("main", place)])


class FakeVersionLog:
    """A history in which commits are their versions. Answers come when they are let."""

    shows_tickets = True

    def __init__(self, listed: BranchListing) -> None:
        self.listed = listed
        self.asked: list[int] = []
        self.read: list[str] = []
        self.answers: dict[int, threading.Event] = {}

    def see(self, branch: str) -> Seen:
        return Seen(Look.now(), self.listed)

    def head_in(self, branch: str, seen: Seen | None) -> Any:
        self.read.append("head")
        return self.stored(max(self.listed.versions))

    def stored(self, version: int) -> Any:
        return SimpleNamespace(header=SimpleNamespace(version=version, id=_id(version), parent_id=_id(version - 1)))

    def end_of(self, branch: str, version: int) -> Any:
        self.asked.append(version)
        return (b"", version) if self.answers[version].wait(TIMEOUT) else None

    def note_free(self, branch: str, look: Look) -> None: ...

    def note_next(self, known: Any, branch: str, version: int, end: Any) -> Any:
        assert known.header.version == version - 1
        return self.stored(version)


def _id(version: int) -> bytes:
    return version.to_bytes(4, "big") * 4


def line_of(ahead: int) -> BranchListing:
    """What is listed where the commits that those in line are to make have versions up to 20."""
    found, head = Object("", 0, None), 20 - ahead
    return BranchListing({head: found}, {}, {}, {(1, _id(version)): found for version in range(head + 1, 21)})


def test_the_second_version_is_asked_for_before_the_first_one_is_taken(patient, persistent, monkeypatch):
    """Who is told of one commit late is not told of the next one as late."""
    versions = FakeVersionLog(line_of(2))
    versions.answers = {19: threading.Event(), 20: threading.Event()}
    versions.answers[20].set()  # and is answered first
    monkeypatch.setattr(Ahead, "pause", lambda self, seconds: LONG)
    pace = Pace()
    pace.met_at = time.monotonic()
    with ThreadPoolExecutor(1) as threads, Turns(versions, FakeTickets(), "main", pace) as turns:  # type: ignore[arg-type]
        running = threads.submit(turns.next, time.monotonic() + LONG)
        wait_until(lambda: 20 in turns._polls.ends)
        versions.answers[19].set()
        assert running.result(TIMEOUT).header.version == 20
        assert versions.read == ["head"], "nothing was looked for again"
        assert versions.asked.count(20) == 1, "nor asked for"


def test_who_stands_far_behind_reads_no_commits(patient, persistent, monkeypatch):
    versions, ahead = FakeVersionLog(line_of(12)), []
    for version in range(8, 21):
        versions.answers[version] = threading.Event()
        versions.answers[version].set()

    def sleep(self: Ahead, seconds: float) -> float:
        ahead.append(len(self.places))
        if len(self.places) > 4:
            versions.listed = line_of(len(self.places) - 1)
            assert not versions.read
        return 0.01

    monkeypatch.setattr(Ahead, "pause", sleep)
    pace = Pace()
    pace.met_at = time.monotonic()
    with Turns(versions, FakeTickets(), "main", pace) as turns:  # type: ignore[arg-type]
        assert turns.next(time.monotonic() + LONG).header.version == 20
    assert ahead[:9] == list(range(12, 3, -1))
    assert versions.read == ["head"]


class FakeTickets:
    def put(self, path: str, parts: Any) -> None: ...

    def delete(self, paths: Any) -> None: ...


def test_plain_transactions_do_not_wait(url, patient):
    leave_ticket(url)
    with has_met_others(url).transaction() as store:
        append("mine")(store)
    assert logged(url) == ["mine"]


def test_a_ticket_that_is_much_older_than_the_newest_object_counts_no_more(url, patient, monkeypatch):
    monkeypatch.setattr(tickets, "_YOUNG", -1.0)
    leave_ticket(url)
    has_met_others(url).run(append("mine"))
    wait_until(lambda: not in_line(url))


def test_the_line_is_in_the_order_of_versions_and_the_old_are_left_out():
    def ticket(modified: float | None) -> Object:
        return Object("", 7, modified)

    found = {(11, b"a"): ticket(100.0), (9, b"c"): ticket(None), (9, b"b"): ticket(101.0), (1, b"d"): ticket(41.0)}
    newest = [ticket(101.5), ticket(None)]
    assert Waiting.of(found, newest) == ([(9, b"b"), (9, b"c"), (11, b"a")], [(1, b"d")])
    assert Waiting.of(found, []).left == []


def test_what_can_not_be_drawn_is_done_without(url, monkeypatch):
    """A server may refuse it, and be slow to do so: then those who meet part as they do elsewhere."""
    put = ObjectClient.put

    def refuse(self: ObjectClient, path: str, parts: Any) -> None:
        if "/wait-" in path:
            raise PermissionError(path)
        put(self, path, parts)

    monkeypatch.setattr(ObjectClient, "put", refuse)
    begun, begin = [], Turns.next

    def noted(self: Turns, until: float) -> Any:
        head = begin(self, until)
        begun.append(self.id)
        return head

    monkeypatch.setattr(Turns, "next", noted)
    txstore.Repository(url).run(overtaken(url, "mine", [3, 2, 1, 0]))
    assert logged(url) == [3, 2, 1, 0, "mine"]
    assert len(set(begun)) == len(begun) == 5, "what was staged under an id may be deleted yet"


def test_all_append_and_no_ticket_is_left(url):
    done = threading.Barrier(CREW)

    def crew(number: int) -> None:
        repo = txstore.Repository(url)
        done.wait(TIMEOUT)
        for nth in range(5):
            repo.run(append([number, nth]))

    with ThreadPoolExecutor(CREW) as threads:
        list(threads.map(crew, range(CREW)))
    found = logged(url)
    assert sorted(found) == [[number, nth] for number in range(CREW) for nth in range(5)]
    assert [each for each in found if each[0] == 0] == [[0, nth] for nth in range(5)]
    wait_until(lambda: not in_line(url))


def test_tickets_are_no_part_of_the_data(url, tmp_path):
    repo = txstore.Repository(url)
    leave_ticket(url)
    assert repo.verify().faults == []
    assert repo.backup(tmp_path / "copy.tx")
    assert not list((tmp_path / "copy.tx" / "commits" / "main").glob("wait-*"))
    assert len(in_line(url)) == 1
    repo.vacuum()
    assert in_line(url) == []


@pytest.mark.parametrize(
    "file", ["wait-", "wait-1-" + "0" * 32, "wait-0000000001-" + "0" * 31, "wait-0000000001-" + "A" * 32, "0000000001"]
)
def test_other_names_are_no_tickets(file):
    assert names.parse_ticket(file) is None


def test_a_ticket_lies_behind_all_versions():
    path = names.ticket_path("main", (12, bytes(16)))
    assert names.belongs(path)
    assert names.parse_ticket(path.rpartition("/")[2]) == (12, bytes(16))
    assert path > names.commit_path("main", 10**18)
