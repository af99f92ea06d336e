"""Several participants of one transaction against an oracle, in one process, in every order that Hypothesis finds.

The oracle knows of each write which others its writer had seen. What concerns a key must be in one order, in which each
write has seen the one before; then the last one counts. Everything else has to be refused, and nothing but that.
"""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import txstore
from tests.tools.members import join_in_this_process
from txstore.transactions.transaction import Transaction

pytestmark = pytest.mark.long

KEYS = ["a", "d/x", "d/e/z"]
PREFIXES = ["", "d", "d/e"]


@dataclass(frozen=True)
class Op:
    number: int
    writer: int
    key: str | None  # None: the deletion of a prefix
    prefix: str | None
    value: bytes | None
    known: frozenset[int]

    def concerns(self, key: str) -> bool:
        if self.key is not None:
            return self.key == key
        return self.prefix == "" or key.startswith(f"{self.prefix}/")


@dataclass
class Participant:
    number: int
    transaction: Transaction
    known: set[int] = field(default_factory=set)  # the writes that it has seen
    read: set[str] = field(default_factory=set)
    outdated: dict[str, frozenset[int]] = field(default_factory=dict)  # what it knew of a key that it does not know now
    ignored: set[int] = field(default_factory=set)
    is_dead: bool = False
    is_sealed: bool = True


class Participants:
    """Transactions of several participants, one after the other, and what is known of the present one."""

    def __init__(self, directory: str) -> None:
        self.repo = txstore.Repository(Path(directory) / "data.tx", durability="none")
        with self.repo.begin() as transaction:
            for key in KEYS[:2]:
                transaction[key] = b"base"
        self.begin()

    def begin(self) -> None:
        self.base = dict(self.repo.mapping())
        self.ops: list[Op] = []
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

    @property
    def lost(self) -> set[int]:
        return {member.number for member in self.members.values() if member.is_dead and not member.is_sealed}

    # --- what participants do

    def member(self, number: int) -> Participant | None:
        """Return a participant, which joins when it is first used; None if it has died."""
        if number not in self.members:
            member = Participant(number, join_in_this_process(self.repo, self.owner.transaction.staging.record.id))
            member.ignored = set(self.lost)
            self.learn(member)
            # Numbers are given in the order of joining, and frames are read in that of numbers.
            member.number = member.transaction.staging.staged.me
            self.members[number] = member
        member = self.members[number]
        return None if member.is_dead else member

    def do(self, number: int, what: str, key: str, prefix: str) -> None:
        member = self.member(number)
        if what == "commit":
            self.commit(allow_lost=key == "a")
        elif member is None:
            return
        elif what in ("set", "set equal"):
            value = b"equal" if what == "set equal" else b"%d" % len(self.ops)
            member.transaction[key] = value
            self.wrote(member, key, None, value)
        elif what == "delete":
            member.transaction.delete(key)
            self.wrote(member, key, None, None)
        elif what == "delete_dir":
            member.transaction.delete_dir(prefix)
            self.wrote(member, None, prefix, None)
        elif what == "follow":
            member.transaction.staging.members.follow_others()
            self.learn(member)
        elif what == "read":
            self.read(member, key)
        elif number and what == "seal":
            member.transaction.lifecycle.seal()
            member.is_sealed = True
        elif number and what == "die":
            member.transaction.staging.part.writer.close()
            member.is_dead = True

    def learn(self, member: Participant) -> None:
        """Learn of what others have staged, but not of what is lost: of that, it leaves out what it knew, too."""
        member.ignored |= self.lost - {member.number}
        for op in self.ops:
            if op.number in member.known and op.writer in member.ignored and op.key in member.read:
                member.outdated.setdefault(op.key, self.known(member, op.key))
        member.known -= {op.number for op in self.ops if op.writer in member.ignored}
        for op in self.ops:
            if op.number not in member.known and op.writer not in member.ignored and op.key in member.read:
                member.outdated.setdefault(op.key, self.known(member, op.key))
        member.known |= {op.number for op in self.ops if op.writer not in member.ignored}

    def known(self, member: Participant, key: str | None) -> frozenset[int]:
        own = {op.number for op in self.ops if op.writer == member.number}
        return frozenset(member.outdated[key] | own if key in member.outdated else member.known)

    def wrote(self, member: Participant, key: str | None, prefix: str | None, value: bytes | None) -> None:
        op = Op(len(self.ops), member.number, key, prefix, value, self.known(member, key))
        self.ops.append(op)
        member.known.add(op.number)
        member.outdated.pop(key, None)
        member.is_sealed = False

    def read(self, member: Participant, key: str) -> None:
        found = member.transaction.get(key)
        if member is self.owner:
            self.learn(member)
        member.read.add(key)
        member.outdated.pop(key, None)
        chain = self.chain([op for op in self.ops if op.number in member.known and op.concerns(key)])
        if chain is not None:
            assert found == (chain[-1].value if chain else self.base.get(key))

    # --- what the oracle says

    def chain(self, ops: list[Op]) -> list[Op] | None:
        """Return the writes in the one order in which each knows of all before it; None if there is none."""
        known: dict[int, set[int]] = {}
        for op in ops:  # in the order of time
            direct = {other.number for other in ops if other.number in op.known}
            known[op.number] = direct.union(*(known[number] for number in direct))
        if all(a.number in known[b.number] for i, a in enumerate(ops) for b in ops[i + 1 :]):
            return ops
        return None

    def outcomes(self, key: str) -> list[object]:
        """Return what may become of a key: its value, None for none, "refused" or "lost"."""
        lost = self.lost
        ops = [op for op in self.ops if op.concerns(key)]
        if not ops:
            return [self.base.get(key)]
        chain = self.chain(ops)
        if any(
            op.writer in lost and op.number in other.known for op in ops for other in ops if other.writer not in lost
        ):
            return ["refused", "lost"]  # somebody has built on it
        if chain is not None and chain[-1].writer not in lost:
            return [chain[-1].value]
        if chain is not None:
            return ["lost"] if chain[-1].key is not None else [None, "lost"]  # only the prefix may be named
        kept = [op for op in ops if op.writer not in lost]
        needed = list(kept)
        while more := [op for op in ops if op not in needed and any(op.number in other.known for other in needed)]:
            needed += more
        chain = self.chain(sorted(needed, key=lambda op: op.number))
        refused: list[object] = ["refused", "lost"] if lost else ["refused"]
        if not kept or kept[-1].key is None:
            return [None, *refused]  # a deletion that did not know of what was lost
        last = {op.writer: op.value for op in kept}
        if kept and not any(kept[-1].number in op.known for op in ops if op not in needed):
            if chain is not None:
                return [chain[-1].value]
            if self.chain(kept) is not None:
                refused.append(kept[-1].value)  # what was lost was known, and not built on
        if len(set(last.values())) == 1:  # equal values, or deletions: they may count as one
            return [*last.values(), *refused]
        others = {op.number for op in ops[:-1]}
        if any(op.key is None for op in ops[:-1]) and others <= ops[-1].known:
            return [ops[-1].value, *refused]  # a deletion and a write did not know of one another, but the last of both
        return refused

    def commit(self, *, allow_lost: bool) -> None:
        expected = {key: self.outcomes(key) for key in KEYS}
        lost_prefixes = self.lost_prefixes()
        error: txstore.TxStoreError | None = None
        try:
            self.owner.transaction.commit(allow_lost=allow_lost)
        except (txstore.ConflictError, txstore.ParticipantLostError) as raised:
            error = raised
        if error is None:
            self.check_committed(expected, allow_lost or not lost_prefixes, allow_lost)
            return
        assert dict(self.repo.mapping()) == self.base
        self.learn(self.owner)
        outcome = "refused" if isinstance(error, txstore.ConflictError) else "lost"
        for key in KEYS:
            named = key in error.keys
            assert outcome in expected[key] if named else expected[key] != [outcome], (key, expected)
        if isinstance(error, txstore.ConflictError):
            self.end()
            self.begin()
        else:
            assert not allow_lost
            assert lost_prefixes <= {key.strip("/") for key in error.keys if key not in KEYS}

    def check_committed(self, expected: dict[str, list[object]], none_is_lost: bool, allow_lost: bool) -> None:
        assert none_is_lost
        committed = dict(self.repo.mapping())
        for key, outcomes in expected.items():
            if outcomes == ["lost"]:
                assert allow_lost
            elif "lost" not in outcomes or not allow_lost:
                assert committed.get(key) in outcomes, (key, expected)
        for member in self.members.values():
            if member.number and not member.is_dead:
                with pytest.raises(txstore.TransactionStateError, match="has ended"):
                    member.transaction["a"] = b"late"
        self.end()
        assert dict(self.repo.mapping()) == committed
        self.begin()

    def lost_prefixes(self) -> set[str]:
        """Return the prefixes that only lost participants have deleted."""
        lost = self.lost
        deleted: dict[str, set[int]] = {}
        for op in self.ops:
            if op.prefix is not None:
                deleted.setdefault(op.prefix, set()).add(op.writer)
        return {prefix for prefix, writers in deleted.items() if writers <= lost}


WHAT = ["set", "set", "set", "set equal", "delete", "delete_dir", "follow", "follow", "read", "seal", "die", "commit"]
STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(WHAT), st.sampled_from(KEYS), st.sampled_from(PREFIXES)),
    min_size=2,
    max_size=20,
)


def steps(*written: str) -> list[tuple[int, str, str, str]]:
    """Return steps from words such as "1 set a" and "2 delete_dir d"."""
    found = []
    for words in written:
        number, what, *where = words.split(" ")
        place = where[0] if where else ""
        found.append((int(number), what, place, place) if what == "delete_dir" else (int(number), what, place, ""))
    return found


#: What has gone wrong once: the least cases that Hypothesis has found.
CASES = {
    "a process under a cleared root follows another": steps(
        "0 delete_dir ", "2 set a", "1 set a", "2 follow", "2 set a"
    ),
    "an absence was read before another wrote": steps(
        "2 delete_dir ", "0 read d/x", "1 set d/x", "0 follow", "0 set d/x"
    ),
    "a wider deletion knows of a narrower one": steps("1 delete_dir d", "2 delete_dir ", "0 follow", "0 set d/x"),
    "deleted and written again below what another deleted": steps(
        "1 follow", "2 delete_dir ", "1 follow", "1 set d/x", "1 delete_dir ", "1 set d/x"
    ),
    "two that died had gone on from one chunk": steps(
        "0 set a", "1 follow", "2 follow", "1 set a", "2 set a", "1 die", "2 die"
    ),
    "who is read first builds on who is read later": steps(
        "1 follow", "2 set d/x", "2 delete_dir d", "1 follow", "1 set d/x"
    ),
    "who is read first deletes what is read later": steps("1 follow", "2 set d/x", "1 follow", "1 delete_dir d"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_has_gone_wrong_once(case: str) -> None:
    run(0, CASES[case])


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 3), STEPS)
def test_what_is_in_one_order_is_committed_and_all_else_refused(early, steps):
    run(early, steps)


def run(early: int, steps: list[tuple[int, str, str, str]]) -> None:
    """Take steps. `early`: how many join before anything is staged; the others do when they are first named."""
    with tempfile.TemporaryDirectory() as directory:
        participants = Participants(directory)
        try:
            for number in range(early):
                participants.member(number + 1)
            for step in steps:
                participants.do(*step)
                assert dict(participants.repo.mapping()) == participants.base  # nothing is seen before the commit
            participants.commit(allow_lost=False)
        finally:
            participants.end()
        assert participants.repo.verify().faults == []
