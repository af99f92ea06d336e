"""The line of those whose commits conflict: who has its turn when, and what becomes of tickets that nobody needs."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import txstore
from tests.waiting import TIMEOUT, wait_until
from txstore.format import names
from txstore.history import tickets
from txstore.history.tickets import Turns, Waiting
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
    place = 0, number.to_bytes(16, "big")
    objects_of(url).put(names.ticket_path("main", place), [b"waiting"])
    return place


def knows_head(url: str) -> txstore.Repository:
    """Return a repository as it is in a process that has used it: without a hint, a first look shows no line."""
    repo = txstore.Repository(url)
    assert repo.head()
    return repo


def has_met_others(url: str) -> txstore.Repository:
    """Return a repository as it is in a process that has met a conflict a moment ago."""
    repo = knows_head(url)
    pace(repo).met_at = time.monotonic()
    return repo


def pace(repo: txstore.Repository) -> tickets.Pace:
    with repo.engine.commits.turns("main") as turns:
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


def overtaken(url: str, what: object) -> Callable[[Any], None]:
    """Return what appends to the log, and is overtaken by a transaction of another process when it does so first."""
    change, is_first = append(what), True

    def run(store: Any) -> None:
        nonlocal is_first
        change(store)
        if is_first:
            is_first = False
            other = txstore.Repository(url)
            with other.transaction("other") as theirs:
                append("other")(theirs)

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
    assert drawn[0].endswith(head.id), "others see that who has drawn this ticket has had its turn"


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


def test_those_in_line_have_their_turns_in_order(url, patient):
    """Each begins when the one before it has committed, and meets nobody."""

    def one(repo: txstore.Repository, turns: Turns) -> None:
        with turns:  # which are given back when the commit is there: else the next one might begin a moment too early
            head = turns.next(time.monotonic() + LONG)
            with repo._transaction(turn=(repo.engine.snapshots.newest("main", head), turns.id)) as store:
                append(turns.id.hex())(store)

    crew = []
    for repo in [knows_head(url) for _ in range(CREW)]:
        turns = repo.engine.commits.turns("main")
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


def test_who_loses_its_turn_stays_where_it_is_in_line(url):
    with txstore.Repository(url).engine.commits.turns("main") as turns:
        assert turns is not None
        assert turns.lost()
        wait_until(lambda: in_line(url))
        (first,) = in_line(url)
        assert turns.lost()
        wait_until(lambda: in_line(url) not in ([first], []) and len(in_line(url)) == 1)
        (second,) = in_line(url)
        assert first != second, "what was staged under the first id may be deleted yet"
        for between in (0, 1 << 128 - 1):  # whoever else is there is before both, or behind both
            other = first[0], between.to_bytes(16, "big")
            assert (first < other) == (second < other)


def test_a_ticket_of_the_dead_is_waited_for_and_deleted(url, impatient):
    repo = has_met_others(url)
    for number in range(1, CREW + 3):  # some look at the slot, and some at the line
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


def test_who_has_met_nobody_does_not_wait(url, patient, drawn):
    """Its commits may have nothing to do with those of the others."""
    leave_ticket(url)
    knows_head(url).run(append("mine"))
    assert logged(url) == ["mine"]
    assert len(drawn) == 1, "the one that was there"


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


def test_the_line_is_in_the_order_of_slots_and_the_old_are_left_out():
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
    change, left = append("mine"), 4

    def run(store: Any) -> None:
        nonlocal left
        change(store)
        if left:
            left -= 1
            with txstore.Repository(url).transaction() as theirs:
                append(left)(theirs)

    begun, begin = [], Turns.next

    def noted(self: Turns, until: float) -> Any:
        head = begin(self, until)
        begun.append(self.id)
        return head

    monkeypatch.setattr(Turns, "next", noted)
    txstore.Repository(url).run(run)
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


def test_a_ticket_lies_behind_all_slots():
    path = names.ticket_path("main", (12, bytes(16)))
    assert names.belongs(path)
    assert names.parse_ticket(path.rpartition("/")[2]) == (12, bytes(16))
    assert path > names.commit_path("main", 10**18)
