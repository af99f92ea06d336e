"""The rules find what is wrong with a series, and nothing in one that is right."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.threads.layout import Content
from tests.threads.records import DONE, REFUSED, UNKNOWN, End, Operation, Series, Values
from tests.threads.rules import Made, Rules

W, V, L = "r/w/0", "r/e/1", "l/c/0"
PLACES = {"w": W, "v": V, "l": L}


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

    def begin(self, wrote: tuple[str, int] | None, read: dict[str, Values]) -> Operation:
        operation = Operation(0, "operation", self.next(), wrote, {PLACES[name]: read[name] for name in read})
        self.series.operations.append(operation)
        return operation

    def begin_end(self, what: str) -> End:
        self.series.ends.append(End(0, what, self.next()))
        return self.series.ends[-1]

    def finish(self, each: Any, outcome: str, holds: dict[str, Values] | None = None) -> None:
        each.end, each.outcome = self.next(), outcome
        if holds is not None:
            self.made.append(Made(len(self.contents) + 1, each))
            self.contents[len(self.contents) + 1] = {
                PLACES[n]: v for n, v in ({"w": (0,), "v": (0,), "l": ()} | holds).items()
            }

    def faults(self) -> set[str]:
        rules = Rules(self.series, self.made, self.contents, [W, V], [L])
        return {fault.name for fault in rules.faults()}


def told(words: str) -> Story:
    """Tell a story in words.

    "w1" writes 1 to W: "w1!" is refused. "r:w0,2:l" reads two values of W, and no element of L; "c:w1" commits, and
    W is 1 then; "b" rolls back: of "b?" nothing is known. What follows a "(" ends at the next ")", if there is one.
    """
    story, under_way = Story(), deque[Callable[[], None]]()
    for word in words.split():
        if word == ")":
            under_way.popleft()()
            continue
        what, *parts = word.strip("(").split(":")
        values = {part[0]: tuple(int(value) for value in part[1:].split(",") if value) for part in parts}
        outcome = {"!": REFUSED, "?": UNKNOWN}.get(what[-1], DONE)
        if what in ("c", "b", "b?"):
            end = story.begin_end("commit" if what == "c" else "rollback")
            ending = partial(story.finish, end, outcome, values if what == "c" else None)
        else:
            wrote = None if what == "r" else (PLACES[what[0]], int(what[1:].strip("!")))
            ending = partial(story.finish, story.begin(wrote, values), outcome)
        if word.startswith("("):
            under_way.append(ending)
        else:
            ending()
    return story


@pytest.mark.parametrize(
    "words",
    [
        "w1 r:w1 c:w1 w2 w3 l7 c:w3:l7 r:w3:v0:l7",
        "w1 c:w1 w2 l7 b r:w1:l v5 c:w1:v5",
        "(w2 r:w0,2 ) (c:w2 (w3 ) ) r:w3",  # what is being written
        "(w1 c:w0 c:w1 (w2 b c:w1 b? v1 b? c:w1",  # what was interrupted may be done, or may not
        "(w1 b ) c:w1 (w2 b ) c:w1",  # beside a rollback
    ],
)
def test_nothing_is_found_where_nothing_is(words: str) -> None:
    assert told(words).faults() == set()


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("w1 w2 c:w1,2", "torn commit"),
        ("w1 c:w0", "lost write"),
        ("w1 w2 c:w2 c:w1", "lost write"),
        ("l7 c:l", "lost update"),
        ("l7 r:l", "lost update"),
        ("(r:w1:v2 w1 c:w1 w2 v1 c:w2:v1 v2 c:w2:v2 )", "read of two commits"),
        ("(r:w1,3 w1 c:w1 w2 c:w2 w3 c:w3 )", "read of two commits"),
        ("(r:l:v2 l7 c:l7 v2 c:w0:v2:l7 )", "read of two commits"),
        ("w1 r:w0,1", "mixed read"),
        ("w1 w2 r:w1", "stale read"),
        ("w1 c:w1 b r:w0", "stale read"),
        ("w1 b c:w1", "rolled back"),
        ("l1 b c:l1", "rolled back"),
        ("w1 b r:w1", "rolled back"),
        ("w1! c:w1", "half done"),
        ("c:w1 w1", "from the future"),
        ("c:w9", "unwritten"),
        ("r:w9", "unwritten"),
    ],
)
def test_what_is_wrong_is_found(words: str, name: str) -> None:
    assert name in told(words).faults()
