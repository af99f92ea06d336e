"""The rules find what is wrong with a series, and nothing in one that is right."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.threads.layout import Content
from tests.threads.records import DONE, REFUSED, UNKNOWN, End, Operation, Series, Values
from tests.threads.rules import Made, Rules

W, V, L = "r/w/0", "r/e/1", "l/c/0"


class Story:
    """A series, told from its beginning: each call takes some ticks, or ends later."""

    def __init__(self) -> None:
        self.series = Series("session")
        self.made: list[Made] = []
        self.contents: dict[int, Content] = {1: {W: (0,), V: (0,), L: ()}}
        self.tick = 0

    def next(self) -> int:
        self.tick += 1
        return self.tick

    def begin(self, key: str = "", value: int = 0, **read: Values) -> Operation:
        wrote = (key, value) if key else None
        found = {{"w": W, "v": V, "l": L}[name]: values for name, values in read.items()}
        operation = Operation(0, "operation", self.next(), wrote, found)
        self.series.operations.append(operation)
        return operation

    def finish(self, each: Any, outcome: str = DONE) -> Any:
        each.end, each.outcome = self.next(), outcome
        return each

    def write(self, key: str, value: int, outcome: str = DONE) -> None:
        self.finish(self.begin(key, value), outcome)

    def read(self, **read: Values) -> None:
        self.finish(self.begin(**read))

    def begin_end(self, what: str) -> End:
        end = End(0, what, self.next())
        self.series.ends.append(end)
        return end

    def holds(self, end: End, w: Values | int = 0, v: int = 0, l: Values = ()) -> None:  # noqa: E741 - as elsewhere
        seq = len(self.contents) + 1
        self.contents[seq] = {W: w if isinstance(w, tuple) else (w,), V: (v,), L: l}
        self.made.append(Made(seq, end))

    def commit(self, w: Values | int = 0, v: int = 0, l: Values = ()) -> None:  # noqa: E741
        self.holds(self.finish(self.begin_end("commit")), w, v, l)

    def rollback(self, outcome: str = DONE) -> None:
        self.finish(self.begin_end("rollback"), outcome)

    def faults(self) -> set[str]:
        rules = Rules(self.series, self.made, self.contents, [W, V], [L])
        return {fault.name for fault in rules.faults()}


def commits(story: Story) -> None:
    story.write(W, 1)
    story.read(w=(1,))
    story.commit(1)
    story.write(W, 2)
    story.write(W, 3)
    story.write(L, 7)
    story.commit(3, 0, (7,))
    story.read(w=(3,), v=(0,), l=(7,))


def rolls_back(story: Story) -> None:
    story.write(W, 1)
    story.commit(1)
    story.write(W, 2)
    story.write(L, 7)
    story.rollback()
    story.read(w=(1,), l=())
    story.write(V, 5)
    story.commit(1, 5)


def reads_what_is_being_written(story: Story) -> None:
    write = story.begin(W, 2)
    story.read(w=(0, 2))
    story.finish(write)
    commit = story.begin_end("commit")
    later = story.begin(W, 3)
    story.holds(story.finish(commit), 2)
    story.finish(later)
    story.read(w=(3,))


def is_interrupted(story: Story) -> None:
    """What was interrupted may be done, or may not."""
    story.begin(W, 1)
    story.commit(0)
    story.commit(1)
    story.begin(W, 2)
    story.rollback()
    story.commit(1)
    story.rollback(UNKNOWN)
    story.write(V, 1)
    story.rollback(UNKNOWN)
    story.commit(1, 0)


def writes_beside_a_rollback(story: Story) -> None:
    write = story.begin(W, 1)
    story.rollback()
    story.finish(write)
    story.commit(1)
    write = story.begin(W, 2)
    story.rollback()
    story.finish(write)
    story.commit(1)


@pytest.mark.parametrize(
    "tell", [commits, rolls_back, reads_what_is_being_written, is_interrupted, writes_beside_a_rollback]
)
def test_nothing_is_found_where_nothing_is(tell: Callable[[Story], None]) -> None:
    story = Story()
    tell(story)
    assert story.faults() == set()


def tears(story: Story) -> None:
    story.write(W, 1)
    story.write(W, 2)
    story.commit((1, 2))


def loses(story: Story) -> None:
    story.write(W, 1)
    story.commit(0)


def goes_back(story: Story) -> None:
    story.write(W, 1)
    story.write(W, 2)
    story.commit(2)
    story.commit(1)


def loses_an_element(story: Story) -> None:
    story.write(L, 7)
    story.commit(l=())


def reads_without_an_element(story: Story) -> None:
    story.write(L, 7)
    story.read(l=())


def reads_two_commits(story: Story) -> None:
    read = story.begin(w=(1,), v=(2,))
    story.write(W, 1)
    story.commit(1)
    story.write(W, 2)
    story.write(V, 1)
    story.commit(2, 1)
    story.write(V, 2)
    story.commit(2, 2)
    story.finish(read)


def reads_both_sides(story: Story) -> None:
    read = story.begin(w=(1, 3))
    for value in (1, 2, 3):
        story.write(W, value)
        story.commit(value)
    story.finish(read)


def reads_a_list_and_an_element(story: Story) -> None:
    read = story.begin(l=(), v=(2,))
    story.write(L, 7)
    story.commit(l=(7,))
    story.write(V, 2)
    story.commit(0, 2, (7,))
    story.finish(read)


def reads_half(story: Story) -> None:
    story.write(W, 1)
    story.read(w=(0, 1))


def reads_what_was_before(story: Story) -> None:
    story.write(W, 1)
    story.write(W, 2)
    story.read(w=(1,))


def reads_what_was_committed_before(story: Story) -> None:
    story.write(W, 1)
    story.commit(1)
    story.rollback()
    story.read(w=(0,))


def commits_what_was_rolled_back(story: Story) -> None:
    story.write(W, 1)
    story.rollback()
    story.commit(1)


def appends_what_was_rolled_back(story: Story) -> None:
    story.write(L, 1)
    story.rollback()
    story.commit(l=(1,))


def reads_what_was_rolled_back(story: Story) -> None:
    story.write(W, 1)
    story.rollback()
    story.read(w=(1,))


def commits_what_failed(story: Story) -> None:
    story.write(W, 1, REFUSED)
    story.commit(1)


def commits_what_comes_later(story: Story) -> None:
    story.commit(1)
    story.write(W, 1)


def commits_what_nobody_wrote(story: Story) -> None:
    story.commit(9)


def reads_what_nobody_wrote(story: Story) -> None:
    story.read(w=(9,))


@pytest.mark.parametrize(
    ("tell", "name"),
    [
        (tears, "torn commit"),
        (loses, "lost write"),
        (goes_back, "lost write"),
        (loses_an_element, "lost update"),
        (reads_without_an_element, "lost update"),
        (reads_two_commits, "read of two commits"),
        (reads_both_sides, "read of two commits"),
        (reads_a_list_and_an_element, "read of two commits"),
        (reads_half, "mixed read"),
        (reads_what_was_before, "stale read"),
        (reads_what_was_committed_before, "stale read"),
        (commits_what_was_rolled_back, "rolled back"),
        (appends_what_was_rolled_back, "rolled back"),
        (reads_what_was_rolled_back, "rolled back"),
        (commits_what_failed, "half done"),
        (commits_what_comes_later, "from the future"),
        (commits_what_nobody_wrote, "unwritten"),
        (reads_what_nobody_wrote, "unwritten"),
    ],
)
def test_what_is_wrong_is_found(tell: Callable[[Story], None], name: str) -> None:
    story = Story()
    tell(story)
    assert name in story.faults()
