"""Participants of one transaction, and rivals, write parts of one chunk, in every order that Hypothesis finds.

The oracle knows of each write which others its writer had seen. Of each element, the writes must be in one order in
which each knows of all before it, or the commit is refused; and it is refused only if two participants that did not
know of one another have written the same element.
"""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import txstore
from tests.tools.members import join_in_this_process
from tests.tools.parts import read_chunk, write_part
from txstore.errors import ConflictError
from txstore.transactions.transaction import Transaction

LENGTH, KEY = 6, "x/c/0"
BASE = [100 + place for place in range(LENGTH)]
EVERYTHING = frozenset(range(LENGTH))


@dataclass(frozen=True)
class Write:
    number: int
    writer: int
    elements: frozenset[int]
    value: int
    known: frozenset[int]
    is_prefix: bool  # the deletion of a prefix


@dataclass
class Participant:
    number: int
    transaction: Transaction
    known: set[int] = field(default_factory=set)  # the writes that it has seen
    has_read: bool = False
    outdated: frozenset[int] | None = None  # what it knew when it read the chunk, if it knows more by now


class Parts:
    def __init__(self, directory: str) -> None:
        self.repo = txstore.Repository(Path(directory) / "data.tx", durability="none")
        with self.repo.transaction() as store:
            options = {"shape": (LENGTH,), "chunks": (LENGTH,), "dtype": "u1", "fill_value": 0, "compressors": None}
            zarr.create_array(store, name="x", **options)[:] = BASE
        self.writes: list[Write] = []
        self.rival: tuple[frozenset[int], int] | None = None
        owner = self.repo.begin()
        owner.lifecycle.share()
        self.owner = Participant(0, owner)
        self.members = {0: self.owner}

    def end(self) -> None:
        for member in self.members.values():
            if member.number:
                member.transaction.staging.part.close()
                member.transaction.lifecycle.end()
        self.owner.transaction.rollback()

    def member(self, number: int) -> Participant:
        if number not in self.members:
            joined = join_in_this_process(self.repo, self.owner.transaction.staging.record.id)
            self.members[number] = Participant(number, joined)
            self.learn(self.members[number])
        return self.members[number]

    def learn(self, member: Participant) -> None:
        new = [write for write in self.writes if write.number not in member.known]
        if member.has_read and new and member.outdated is None:
            member.outdated = frozenset(member.known)
        member.known |= {write.number for write in new}

    def do(self, number: int, what: str, start: int, stop: int) -> None:
        member = self.member(number)
        value = len(self.writes) + 1
        if what == "part" and start < stop:
            if member is self.owner:
                self.learn(member)
            write_part(member.transaction, KEY, slice(start, stop), value)
            self.wrote(member, frozenset(range(start, stop)), value)
        elif what == "whole":
            member.transaction[KEY] = bytes([value]) * LENGTH
            self.wrote(member, EVERYTHING, value)
        elif what == "delete":
            member.transaction.delete(KEY)
            self.wrote(member, EVERYTHING, 0)
        elif what == "clear":
            member.transaction.delete_dir("x/c")
            self.wrote(member, EVERYTHING, 0, is_prefix=True)
        elif what == "follow":
            member.transaction.members.follow_others()
            self.learn(member)
        elif what == "read":
            self.read(member)
        elif what == "rival" and self.rival is None and start < stop:
            with self.repo.begin() as rival:
                write_part(rival, KEY, slice(start, stop), 99)
            self.rival = frozenset(range(start, stop)), 99

    def wrote(self, member: Participant, elements: frozenset[int], value: int, *, is_prefix: bool = False) -> None:
        own = {write.number for write in self.writes if write.writer == member.number}
        known = member.known if member.outdated is None else member.outdated | own
        self.writes.append(Write(len(self.writes), member.number, elements, value, frozenset(known), is_prefix))
        member.known.add(self.writes[-1].number)
        member.outdated = None

    def read(self, member: Participant) -> None:
        found = read_chunk(member.transaction, KEY)
        if member is self.owner:
            self.learn(member)
        member.has_read, member.outdated = True, None
        known = [write for write in self.writes if write.number in member.known]
        if not self.collisions(known):
            assert found == self.laid_over(BASE, known)

    # --- what the oracle says

    def laid_over(self, below: list[int], writes: list[Write]) -> list[int]:
        found = list(below)
        for write in writes:
            for element in write.elements:
                found[element] = write.value
        return found

    def all_known(self) -> dict[int, set[int]]:
        known: dict[int, set[int]] = {}
        for write in self.writes:  # in the order of time
            known[write.number] = set(write.known).union(*(known[number] for number in write.known))
        return known

    def clashes(self, writes: list[Write]) -> list[tuple[Write, Write]]:
        """Return writes of one element of which the later did not know of the earlier.

        Such a deletion of a prefix, and a write, may stand if somebody who knew of both has written the whole. So may
        what two have deleted in the end: equal values count as one.
        """
        known, last = self.all_known(), {write.writer: write for write in writes}

        def is_replaced(one: Write, other: Write) -> bool:
            if not last[one.writer].value and not last[other.writer].value:
                return True
            return (one.is_prefix or other.is_prefix) and any(
                {one.number, other.number} <= known[write.number]
                for write in writes
                if write.elements == EVERYTHING and not write.is_prefix
            )

        return [
            (one, other)
            for at, one in enumerate(writes)
            for other in writes[at + 1 :]
            if one.number not in known[other.number] and one.elements & other.elements and not is_replaced(one, other)
        ]

    def collisions(self, writes: list[Write]) -> bool:
        """Tell whether there is a reason to refuse: what a process has written counts as one."""
        known = self.all_known()
        written: dict[int, frozenset[int]] = {}
        for write in writes:
            written[write.writer] = written.get(write.writer, frozenset()) | write.elements
        return any(
            one.writer != other.writer
            and one.number not in known[other.number]
            and written[one.writer] & written[other.writer]
            for at, one in enumerate(writes)
            for other in writes[at + 1 :]
        )

    def commit(self) -> None:
        for member in self.members.values():
            if member.number:
                member.transaction.lifecycle.seal()
        written = frozenset().union(*(write.elements for write in self.writes))
        there = list(BASE)
        if self.rival is not None:
            for element in self.rival[0]:
                there[element] = self.rival[1]
        try:
            self.owner.transaction.commit()
        except ConflictError:
            assert read_chunk(self.repo.snapshot().mapping, KEY) == there
            meets_rival = self.rival is not None and written & self.rival[0]
            assert self.collisions(self.writes) or meets_rival or (self.rival and self.wrote_the_whole())
            return
        assert not self.clashes(self.writes)
        assert not (self.rival is not None and written & self.rival[0])
        assert read_chunk(self.repo.snapshot().mapping, KEY) == self.laid_over(there, self.writes)

    def wrote_the_whole(self) -> bool:
        return any(write.elements == EVERYTHING for write in self.writes)


WHAT = ["part", "part", "part", "part", "whole", "delete", "clear", "follow", "follow", "read", "rival"]
REPLACED = ["clear", "delete"]
STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(WHAT), st.integers(0, LENGTH - 1), st.integers(1, LENGTH)),
    min_size=2,
    max_size=14,
)


def steps(*written: str) -> list[tuple[int, str, int, int]]:
    found = []
    for words in written:
        number, what, *where = words.split(" ")
        start, stop = map(int, where or (0, 0))
        found.append((int(number), what, start, stop))
    return found


CASES = {
    "two halves": steps("1 part 0 3", "2 part 3 6"),
    "an owner over both halves": steps("1 part 0 3", "2 part 3 6", "0 part 2 4"),
    "an owner that writes the whole over both halves": steps("1 part 0 3", "2 part 3 6", "0 read", "0 whole"),
    "a deletion of both halves": steps("1 part 0 3", "2 part 3 6", "0 follow", "0 delete", "0 part 0 1"),
    "one over the other, which goes on": steps("1 part 0 2", "2 follow", "2 part 0 2", "1 part 4 5"),
    "two go on, of whom one has seen the other": steps("1 part 0 2", "2 follow", "2 part 2 4", "1 part 4 6"),
    "who has seen what was written over knows what its writer knew": steps(
        "1 part 0 3", "2 follow", "2 part 3 5", "3 follow", "2 part 5 6", "3 part 0 2"
    ),
    "a part over one that did not know of a deletion": steps("1 part 0 1", "0 clear", "0 part 2 3"),
    "a part over the ends of two that did not know of a deletion": steps(
        "1 part 4 5", "2 part 1 2", "0 clear", "0 part 0 6"
    ),
    "a part over the first end of two that did not know of a deletion": steps(
        "1 part 4 5", "2 part 1 2", "0 clear", "0 part 4 6"
    ),
    "a part over the last end of two that did not know of a deletion": steps(
        "1 part 4 5", "2 part 1 2", "0 clear", "0 part 1 3"
    ),
    "a part over the ends of two that knew of a deletion": steps(
        "0 clear", "1 follow", "2 follow", "1 part 4 5", "2 part 1 2", "0 part 1 6"
    ),
    "a whole over one that did not know of a deletion": steps("1 part 0 1", "0 clear", "0 follow", "0 whole"),
    "two deletions": steps("0 delete", "1 delete"),
    "one deletes what it has written, the other, too": steps("1 part 0 1", "0 delete", "1 delete"),
    "one deletes what another, too, that has written": steps("0 part 0 1", "0 delete", "1 delete"),
    "a rival beside two": steps("1 part 0 1", "2 part 1 2", "0 rival 3 6"),
    "a rival on what the first of a chain has written": steps("1 part 0 2", "2 follow", "2 part 2 4", "0 rival 1 2"),
    "a whole beside a part": steps("1 part 0 4", "2 whole"),
    "parts that overlap": steps("1 part 0 4", "2 part 3 6"),
}


@pytest.mark.parametrize("replaced", [None, *REPLACED])
@pytest.mark.parametrize("case", CASES)
def test_by_hand(case: str, replaced: str | None) -> None:
    run(3, CASES[case], replaced)


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(st.integers(0, 3), STEPS, st.sampled_from([None, *REPLACED]))
def test_no_element_is_lost_and_nothing_refused_without_a_reason(early, steps, replaced):
    run(early, steps, replaced)


def run(early: int, steps: list[tuple[int, str, int, int]], replaced: str | None = None) -> None:
    """Take steps. `early`: how many join before that. `replaced`: what the owner does with the chunk before all."""
    with tempfile.TemporaryDirectory() as directory:
        parts = Parts(directory)
        try:
            if replaced is not None:
                parts.do(0, replaced, 0, 0)
            for number in range(early):
                parts.member(number + 1)
            for step in steps:
                parts.do(*step)
            parts.commit()
        finally:
            parts.end()
        assert parts.repo.verify().faults == []
