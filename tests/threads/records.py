"""What threads say of what they did: operations, and the ends of transactions, each with when it began and ended.

Times are ticks of one counter for all threads, so that no two are equal. What was interrupted may have been done, or be
done later: its outcome is "unknown", and it has no end.
"""

import itertools
from dataclasses import dataclass, field

#: The outcomes: "refused" by an error of TxStore's.
DONE, REFUSED, UNKNOWN = "done", "refused", "unknown"
NEVER = 1 << 62

#: Several values where one is expected: what there is of a torn one.
Values = tuple[int, ...]


@dataclass(slots=True)
class Operation:
    """A call that reads or writes, whole, some registers: `wrote` a value to one, or an element to a list."""

    thread: int
    what: str
    begin: int
    wrote: tuple[str, int] | None = None
    read: dict[str, Values] = field(default_factory=dict)
    knew: Values = ()  # the list to which it appended, as it was read before
    end: int = NEVER
    outcome: str = UNKNOWN

    def __str__(self) -> str:
        what = f"{self.what} of {self.wrote[1]} to {self.wrote[0]}" if self.wrote else self.what
        end = "" if self.end == NEVER else self.end
        return f"{what} by thread {self.thread} at {self.begin}..{end} ({self.outcome})"


@dataclass(slots=True)
class End:
    """A commit or a rollback. What an interrupted one has done is done when it raises."""

    thread: int
    what: str
    begin: int
    message: str = ""
    seq: int | None = None  # of the commit that it returned
    end: int = NEVER
    outcome: str = UNKNOWN

    def __str__(self) -> str:
        seq = "" if self.seq is None else f" {self.seq}"
        return f"{self.what}{seq} by thread {self.thread} at {self.begin}..{self.end} ({self.outcome})"


class Ticks:
    def __init__(self) -> None:
        self.count = itertools.count(1)

    def __call__(self) -> int:
        return next(self.count)


@dataclass
class Series:
    """What was done in successive transactions that have one base after the other: of a session, or of one name.

    Each register has one writer, whose values ascend, and which waits for each before the next.
    """

    name: str
    operations: list[Operation] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
