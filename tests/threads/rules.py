"""What threads that share a store may see and must find again, going by when each call began and ended.

An operation is whole within one transaction: one that was open at some moment between its beginning and its end. So in
a series of transactions, each of which begins where the one before ended:

- a commit holds every operation that had ended before it began, unless a rollback may have come in between, or a later
  operation wrote the same; it holds none that began after it ended, none that was rolled back, and no half of one
- a read is of one transaction: nothing in it is older than what was acknowledged before it and not rolled back, and no
  commit stands between two parts of it. Only of an operation that ran at the same time it may see a half

Values of a register ascend, so that "older" is "less". What holds among processes is in `tests.isolation.checker`.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from tests.threads.layout import Content
from tests.threads.records import DONE, NEVER, REFUSED, End, Operation, Series, Values


class Fault(NamedTuple):
    name: str
    what: str

    def __str__(self) -> str:
        return f"{self.name}: {self.what}"


class Made(NamedTuple):
    """A commit of a series, in the history."""

    seq: int
    end: End


class _Rollbacks:
    def __init__(self, ends: list[End]) -> None:
        tried = sorted((end for end in ends if end.what == "rollback"), key=lambda end: end.begin)
        self.begins = [end.begin for end in tried]
        self.last_ends: list[int] = []  # of those up to here
        for end in tried:
            self.last_ends.append(max(end.end, self.last_ends[-1] if self.last_ends else 0))
        done = [end for end in tried if end.outcome == DONE]
        self.done_begins = [end.begin for end in done]
        self.first_ends: list[int] = []  # of those from here on
        for end in reversed(done):
            self.first_ends.append(min(end.end, self.first_ends[-1] if self.first_ends else NEVER))
        self.first_ends.reverse()

    def may_have_dropped(self, operation: Operation, until: int) -> bool:
        """Tell whether one that began before a moment may have come after the beginning of an operation."""
        place = bisect_left(self.begins, until)
        return place > 0 and self.last_ends[place - 1] > operation.begin

    def has_dropped(self, operation: Operation, before: int) -> bool:
        """Tell whether one came for sure after an operation, and before a moment."""
        place = bisect_right(self.done_begins, operation.end)
        return place < len(self.first_ends) and self.first_ends[place] < before


class _Register:
    """What was written to one register, and which commits hold what of it."""

    def __init__(self, key: str, writes: list[Operation], made: list[Made], contents: dict[int, Content]) -> None:
        self.key = key
        self.writes = {each.wrote[1]: each for each in writes if each.wrote is not None}
        self.held = [contents[commit.seq][key][-1] for commit in made]  # ascending, or it is a fault
        self.first: dict[int, int] = {}  # of a value: the first place in `held`
        for place, value in enumerate(self.held):
            self.first.setdefault(value, place)
        self.done = [each for each in writes if each.outcome == DONE]
        self.ends = [each.end for each in self.done]

    def needed(self, begin: int, end: int, rollbacks: _Rollbacks) -> int:
        """Return the last value acknowledged before something began, if nothing dropped it before that ended; or 0."""
        place = bisect_left(self.ends, begin)
        if not place or rollbacks.may_have_dropped(last := self.done[place - 1], end):
            return 0
        return last.wrote[1]

    def may_be_under_way(self, read: Operation, rollbacks: _Rollbacks) -> bool:
        """Tell whether a write may be half done when a read sees it."""
        return any(
            each.begin < read.end
            and (each.end > read.begin if each.outcome == DONE else not rollbacks.has_dropped(each, read.begin))
            for each in self.writes.values()
        )


class _List:
    """What was appended to one list, and which commit is the first to hold an element."""

    def __init__(self, key: str, appends: list[Operation], made: list[Made], contents: dict[int, Content]) -> None:
        self.key = key
        self.appends = {each.wrote[1]: each for each in appends if each.wrote is not None}
        self.first: dict[int, int] = {}
        for place, commit in enumerate(made):
            for element in contents[commit.seq][key]:
                self.first.setdefault(element, place)


class Rules:
    """A series, with what there is of it: `made`, its commits, in order, and the contents of all commits by seq."""

    def __init__(
        self, series: Series, made: list[Made], contents: dict[int, Content], registers: list[str], lists: list[str]
    ) -> None:
        self.series = series
        self.made = made
        self.contents = contents
        self.rollbacks = _Rollbacks(series.ends)
        writes = defaultdict(list)
        for each in series.operations:
            if each.wrote is not None:
                writes[each.wrote[0]].append(each)
        self.registers = {key: _Register(key, writes[key], made, contents) for key in registers}
        self.lists = {key: _List(key, writes[key], made, contents) for key in lists}
        self.in_any = {key: {e for each in contents.values() for e in each[key]} for key in lists}
        # Which commit had ended when. After one that was interrupted, the session may not yet be based on it.
        self.ended = sorted((commit.end.end, place) for place, commit in enumerate(made) if commit.end.outcome == DONE)

    def faults(self) -> Iterator[Fault]:
        for register in self.registers.values():
            yield from self.torn(register)
            if not _may_be_lost(register.key):
                yield from self.held(register)
        for each in self.lists.values():
            yield from self.kept(each)
        for operation in self.series.operations:
            if operation.read and operation.outcome == DONE:
                yield from self.read(operation)
                if len(operation.read) > 1:
                    yield from self.sides(operation)

    # --- what commits hold

    def torn(self, register: _Register) -> Iterator[Fault]:
        for commit in self.made:
            values = self.contents[commit.seq][register.key]
            if len(values) > 1:
                yield Fault("torn commit", f"{commit.end} holds {_shown(values)} of {register.key}")
                return  # and so do those that follow

    def held(self, register: _Register) -> Iterator[Fault]:
        before = 0
        for value, (_, end) in zip(register.held, self.made, strict=True):
            holds = f"{end} holds {value} of {register.key}"
            write = register.writes.get(value)
            if value < before:
                yield Fault("lost write", f"{holds}, an earlier one held {before}")
            if write is None:
                if value:
                    yield Fault("unwritten", f"{holds}, which nobody wrote")
            elif write.outcome == REFUSED:
                if value != before:
                    yield Fault("half done", f"{holds}, of an operation that failed: {write}")
            elif write.begin > end.end:
                yield Fault("from the future", f"{holds}: {write}")
            elif value != before and self.rollbacks.has_dropped(write, end.begin):
                yield Fault("rolled back", f"{holds}, which was rolled back before: {write}")
            needed = register.needed(end.begin, end.end, self.rollbacks)
            if value < needed:
                yield Fault("lost write", f"{holds}, and not {register.writes[needed]}")
            before = max(before, value)

    def kept(self, each: _List) -> Iterator[Fault]:
        for element, append in each.appends.items():
            place = each.first.get(element)
            if place is not None:
                end = self.made[place].end
                if append.outcome == REFUSED:
                    yield Fault("half done", f"{end} holds what has failed: {append}")
                if self.rollbacks.has_dropped(append, end.begin):
                    yield Fault("rolled back", f"{end} holds what was rolled back before: {append}")
            if append.outcome == DONE:
                for number, commit in enumerate(self.made):
                    needs = commit.end.begin > append.end
                    if needs and self.rollbacks.may_have_dropped(append, commit.end.end):
                        break
                    if needs and (place is None or number < place):
                        yield Fault("lost update", f"{commit.end} does not hold {append}")
                        break

    # --- what reads see

    def read(self, read: Operation) -> Iterator[Fault]:
        place = bisect_left(self.ended, (read.begin, 0))
        base = max((each for _, each in self.ended[:place]), default=-1)
        for key, values in read.read.items():
            if key in self.registers and not _may_be_lost(key):
                yield from self.read_register(read, self.registers[key], values, base)
            elif key in self.lists:
                yield from self.read_list(read, self.lists[key], frozenset(values), base)

    def read_register(self, read: Operation, register: _Register, values: Values, base: int) -> Iterator[Fault]:
        if _is_created_anew(register.key) and register.may_be_under_way(read, self.rollbacks):
            values = tuple(value for value in values if value)  # the chunks may be gone, not yet there
            if not values:
                return
        saw = f"{read} saw {_shown(values)} of {register.key}"
        for value in values:
            write = register.writes.get(value)
            if write is None:
                if value:
                    yield Fault("unwritten", f"{saw}: {value} was written by nobody")
            elif write.begin > read.end:
                yield Fault("from the future", f"{saw}: {write}")
            elif value not in register.first and self.rollbacks.has_dropped(write, read.begin):
                yield Fault("rolled back", f"{saw}, which was rolled back before: {write}")
            elif value > values[0] and write.outcome == DONE and write.end < read.begin:
                yield Fault("mixed read", f"{saw}, after {write}")
        needed = register.needed(read.begin, read.end, self.rollbacks)
        if values[-1] < needed:
            yield Fault("stale read", f"{saw}, and not {register.writes[needed]}")
        if base >= 0 and values[-1] < register.held[base]:
            yield Fault("stale read", f"{saw}, after {self.made[base].end} with {register.held[base]}")
        between = bisect_right(register.held, values[0])
        if between < bisect_left(register.held, values[-1]):
            commit = self.made[between].end
            yield Fault("read of two commits", f"{saw}, from before and after {commit} with {register.held[between]}")

    def read_list(self, read: Operation, each: _List, elements: frozenset[int], base: int) -> Iterator[Fault]:
        saw = f"{read} saw {len(elements)} elements of {each.key}"
        for element in elements:
            append = each.appends.get(element)
            if append is None:
                if element not in self.in_any[each.key]:
                    yield Fault("unwritten", f"{saw}, among them {element}, which nobody appended")
            elif append.begin > read.end:
                yield Fault("from the future", f"{saw}, among them {append}")
            elif element not in each.first and self.rollbacks.has_dropped(append, read.begin):
                yield Fault("rolled back", f"{saw}, among them {append}, which was rolled back before")
        for element, append in each.appends.items():
            is_there = append.outcome == DONE and append.end < read.begin
            if is_there and element not in elements and not self.rollbacks.may_have_dropped(append, read.end):
                yield Fault("lost update", f"{saw}, without {append}")
                break
        if base >= 0:
            missing = set(self.contents[self.made[base].seq][each.key]) - elements
            if missing:
                yield Fault("stale read", f"{saw}, without {sorted(missing)[:3]}, after {self.made[base].end}")

    def sides(self, read: Operation) -> Iterator[Fault]:
        """Yield a commit that one register or list was read from before, and another from after."""
        before, after = len(self.made), -1  # the first commit that some part is older than, the last that one is newer
        old = new = ""
        for key, values in read.read.items():
            if key in self.registers and values and not _may_be_lost(key) and not _is_created_anew(key):
                register = self.registers[key]
                older = bisect_right(register.held, values[0])
                first = register.first
            elif key in self.lists:
                first, there = self.lists[key].first, frozenset(values)
                older = min((place for element, place in first.items() if element not in there), default=len(self.made))
            else:
                continue
            if older < before:
                before, old = older, key
            newer = max((first[value] for value in values if value in first), default=0) - 1
            if newer > after:
                after, new = newer, key
        if before <= after:
            commit = self.made[before].end
            yield Fault("read of two commits", f"{read}: {old} is from before {commit}, {new} from after it")


def _may_be_lost(key: str) -> bool:
    """Tell whether two threads write a register's chunk without a lock: then the last one counts, for all of it."""
    return key[:3] == "r/h"


def _is_created_anew(key: str) -> bool:
    return key[:3] == "r/c"


def _shown(values: Values) -> str:
    return str(values if len(values) < 8 else (*values[:3], "...", *values[-3:]))
