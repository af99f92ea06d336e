"""Several participants of one transaction against an oracle, in one process and in every order that Hypothesis thinks of.

The oracle knows of each write which others its writer had seen. What concerns a key must be in one order, in which each
write has seen the one before; then the last one counts. Everything else has to be refused, and nothing but that.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

import txstore
from txstore.participants import SharedTransaction
from txstore.transaction import Transaction

KEYS = ["a", "d/x", "d/y", "d/e/z"]
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


def join(repo: txstore.Repository, transaction: bytes) -> Transaction:
    """Join as one more participant; `Engine.join` makes one of a process, however often it is called."""
    engine = repo.engine
    staging = engine._staging_of(SharedTransaction.find(engine.commits, transaction))
    staging.join_others()
    return Transaction(engine.commits, engine.snapshots, staging)


class Participants(RuleBasedStateMachine):
    members = Bundle("members")

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.repo = txstore.Repository(Path(self.directory.name) / "data.tx", durability="none")
        with self.repo.begin() as transaction:
            for key in KEYS[:3]:
                transaction[key] = b"base"
        self.numbers = 0
        self.begin()

    def teardown(self) -> None:
        try:
            self.end()
            assert self.repo.verify().faults == []
        finally:
            self.directory.cleanup()

    def begin(self) -> None:
        self.base = dict(self.repo.mapping())
        self.ops: list[Op] = []
        owner = self.repo.begin()
        owner.share()
        self.everybody = [Participant(0, owner)]

    def end(self) -> None:
        for member in self.everybody[1:]:
            member.transaction._staging.close()
            member.transaction._finalizer.detach()
        self.everybody[0].transaction.rollback()

    @property
    def owner(self) -> Participant:
        return self.everybody[0]

    @property
    def lost(self) -> set[int]:
        return {member.number for member in self.everybody if member.is_dead and not member.is_sealed}

    # --- what participants do

    @initialize(target=members)
    def owner_is_a_member(self) -> int:
        return 0

    @rule(target=members)
    def join_it(self) -> int:
        if len(self.everybody) == 5:
            return 0
        member = Participant(len(self.everybody), join(self.repo, self.owner.transaction._staging.id))
        member.ignored = set(self.lost)
        self.everybody.append(member)
        self.learn(member)
        member.transaction._staging.attach()
        assert member.transaction._staging.staged.me == member.number
        return member.number

    def learn(self, member: Participant) -> None:
        for op in self.ops:
            if op.number in member.known or op.writer in member.ignored:
                continue
            if op.key in member.read:
                member.outdated.setdefault(op.key, self.known(member, op.key))
        member.known |= {op.number for op in self.ops if op.writer not in member.ignored}

    def known(self, member: Participant, key: str | None) -> frozenset[int]:
        own = {op.number for op in self.ops if op.writer == member.number}
        return frozenset(member.outdated[key] | own if key in member.outdated else member.known)

    def active(self, number: int) -> Participant | None:
        if number >= len(self.everybody) or self.everybody[number].is_dead:
            return None  # of an earlier transaction
        return self.everybody[number]

    def write(self, member: Participant, key: str | None, prefix: str | None, value: bytes | None) -> None:
        self.numbers += 1
        op = Op(self.numbers, member.number, key, prefix, value, self.known(member, key))
        self.ops.append(op)
        member.known.add(op.number)
        member.outdated.pop(key, None)
        member.is_sealed = False

    @rule(number=members, key=st.sampled_from(KEYS), equal=st.integers(0, 5))
    def set(self, number: int, key: str, equal: int) -> None:
        if (member := self.active(number)) is not None:
            value = b"equal" if not equal else b"%d" % self.numbers
            member.transaction[key] = value
            self.write(member, key, None, value)

    @rule(number=members, key=st.sampled_from(KEYS))
    def delete(self, number: int, key: str) -> None:
        if (member := self.active(number)) is not None:
            member.transaction.delete(key)
            self.write(member, key, None, None)

    @rule(number=members, prefix=st.sampled_from(PREFIXES))
    def delete_dir(self, number: int, prefix: str) -> None:
        if (member := self.active(number)) is not None:
            member.transaction.delete_dir(prefix)
            self.write(member, None, prefix, None)

    @rule(number=members)
    def follow(self, number: int) -> None:
        if (member := self.active(number)) is not None:
            member.transaction._staging.follow_others()
            self.learn(member)

    @rule(number=members, key=st.sampled_from(KEYS))
    def read(self, number: int, key: str) -> None:
        if (member := self.active(number)) is None:
            return
        found = member.transaction.get(key)
        if not number:
            self.learn(member)
        member.read.add(key)
        member.outdated.pop(key, None)
        chain = self.chain([op for op in self.ops if op.number in member.known and op.concerns(key)])
        if chain is not None:
            assert found == (chain[-1].value if chain else self.base.get(key))

    @rule(number=consumes(members))
    def seal(self, number: int) -> None:
        if number and (member := self.active(number)) is not None:
            member.transaction.seal()
            member.is_sealed = True

    @rule(number=consumes(members))
    def die(self, number: int) -> None:
        if number and (member := self.active(number)) is not None:
            member.transaction._staging._writer.close()  # type: ignore[union-attr]
            member.is_dead = True

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
        if chain is not None and (chain[-1].writer not in lost or chain[-1].key is None):
            return [chain[-1].value]
        if chain is not None:
            return ["lost"]
        needed = [op for op in ops if op.writer not in lost]
        if needed:
            known = frozenset().union(*(op.known for op in needed))
            while True:
                more = [op for op in ops if op.number in known and op not in needed]
                if not more:
                    break
                needed += more
                known = known.union(*(op.known for op in more))
            ops = sorted(needed, key=lambda op: op.number)
            chain = self.chain(ops)
            if chain is not None:
                return [chain[-1].value]
        if all(op.value is None for op in ops):
            return [None, "refused", "lost"]  # deletions, some of whom did not know of one another
        if len({op.value for op in ops}) == 1:
            return [ops[0].value, "refused", "lost"]
        if any(op.writer in lost for op in ops):
            return ["refused", "lost"]
        return ["refused"]

    @rule(allow_lost=st.booleans())
    def commit(self, allow_lost: bool) -> None:
        expected = {key: self.outcomes(key) for key in KEYS}
        lost_prefixes = self.lost_prefixes()
        try:
            self.owner.transaction.commit(allow_lost=allow_lost)
        except txstore.ConflictError as error:
            self.learn(self.owner)
            assert set(error.keys) <= set(KEYS)
            for key in KEYS:
                assert "refused" in expected[key] if key in error.keys else expected[key] != ["refused"], (key, expected)
            assert dict(self.repo.mapping()) == self.base
            self.end()
            self.begin()
            return
        except txstore.ParticipantLostError as error:
            self.learn(self.owner)
            assert not allow_lost
            for key in KEYS:
                assert "lost" in expected[key] if key in error.keys else expected[key] != ["lost"], (key, expected)
            assert lost_prefixes <= {key.strip("/") for key in error.keys if key not in KEYS}
            assert dict(self.repo.mapping()) == self.base
            return
        assert allow_lost or not lost_prefixes
        committed = dict(self.repo.mapping())
        for key in KEYS:
            if expected[key] == ["lost"]:
                assert allow_lost
            elif "lost" not in expected[key] or not allow_lost:
                assert committed.get(key) in expected[key], (key, expected)
        for member in self.everybody[1:]:
            if not member.is_dead:
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

    @rule()
    def rollback(self) -> None:
        self.end()
        self.begin()

    @invariant()
    def nothing_is_seen_before_the_commit(self) -> None:
        assert dict(self.repo.mapping()) == self.base


TestParticipants = Participants.TestCase
TestParticipants.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
