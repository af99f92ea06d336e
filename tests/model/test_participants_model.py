"""Several processes in one transaction against an oracle, in every order that Hypothesis finds.

They set and delete keys, write elements of one chunk, look at what others have staged, leave blocks well or by an
exception, are killed, and are sent newer pickles; rivals commit. The oracle knows of each write which others its writer
had seen. What concerns a key, or an element, must be in one order, in which each write has seen the one before; then
the last one counts. What a failed block or a dead process has left must be written again by who did not know of it.
Everything else has to be refused, and nothing but that.
"""

import pickle
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import txstore
from tests.tools.members import Member
from txstore.store import TxStore

Step = tuple[int, str, str, str, int]

CHUNK, LENGTH = "x/c/0", 6
BASE = tuple(range(100, 100 + LENGTH))
KEYS = ["a", "d/x", "d/e/z"]
PREFIXES = ["", "d", "d/e", "x/c"]
PROCESSES = 3
ALL = frozenset(range(LENGTH))


# --- what a process does when it is told to
_store: list[TxStore] = []


def opens(_: None, sent: bytes, is_block: bool) -> None:
    _store[:] = [pickle.loads(sent)]
    if is_block:
        _store[0].__enter__()
    get(_store[0], "unused")  # one joins with the first use


def in_store(_: None, function: Callable[..., Any], *arguments: Any) -> Any:
    return function(_store[0], *arguments)


def exits(_: None, is_whole: bool) -> None:
    _store[0].__exit__(None if is_whole else RuntimeError, None if is_whole else RuntimeError(), None)
    _store.clear()


def get(store: TxStore, key: str) -> bytes | None:
    with suppress(KeyError):
        return bytes(store[key])
    return None


def put(store: TxStore, key: str, value: bytes | None) -> None:
    if value is None:
        store.mapping.delete(key)
    else:
        store[key] = value


def clear(store: TxStore, prefix: str) -> None:
    store.mapping.delete_dir(prefix)


def fill(store: TxStore, elements: list[int], value: int) -> None:
    z = zarr.open_array(store, path="x", mode="r+")
    z.oindex[elements] = value


def elements(store: TxStore) -> tuple[int, ...]:
    return tuple(zarr.open_array(store, path="x", mode="r")[:].tolist())


def look(store: TxStore, locks: bool) -> None:
    """See what others have staged: under a lock, or where a node is missed, which they may have created."""
    if not locks:
        assert "nothing/zarr.json" not in store
        return
    with store.lock("", txstore.METADATA):
        pass


# --- the oracle
@dataclass(frozen=True)
class Write:
    number: int
    writer: int
    key: str | None  # None: the deletion of a prefix
    prefix: str | None
    value: Any
    known: frozenset[int]
    elements: frozenset[int] = ALL

    def concerns(self, key: str) -> bool:
        if self.key is not None:
            return self.key == key
        return self.prefix == "" or key.startswith(f"{self.prefix}/")


@dataclass
class Participant:
    number: int
    is_block: bool = False
    known: set[int] = field(default_factory=set)  # the writes that it has seen
    read: set[str] = field(default_factory=set)
    outdated: dict[str, frozenset[int]] = field(default_factory=dict)  # what it knew of a key that it does not know now
    ignored: set[int] = field(default_factory=set)
    since: int = 0  # the first write of its block
    is_new: bool = True


class Oracle:
    """The writes of one transaction, and what may come of them."""

    def __init__(self, base: dict[str, Any]) -> None:
        self.base = base
        self.writes: list[Write] = []
        self.lost: set[int] = set()  # of failed blocks, and of processes that were killed in one
        self.killed: set[int] = set()  # of processes that were killed outside: who has not seen it may do it again
        self.rival: frozenset[int] = frozenset()
        self.rival_value = 0

    def learn(self, member: Participant) -> None:
        """Learn of what others have staged, but not of what is lost: of that, it leaves out what it knew, too."""
        member.ignored |= {number for number in self.lost if self.writes[number].writer != member.number}
        seen = {write.number for write in self.writes} - member.ignored
        for write in self.writes:
            if (write.number in member.known) != (write.number in seen):
                for key in member.read:
                    if write.concerns(key):
                        member.outdated.setdefault(key, self.known(member, key))
        member.known = seen

    def known(self, member: Participant, key: str | None) -> frozenset[int]:
        own = {write.number for write in self.writes if write.writer == member.number}
        return frozenset(member.outdated[key] | own if key in member.outdated else member.known)

    def wrote(self, member: Participant, key: str | None, prefix: str | None, value: Any, of: Any = ALL) -> None:
        write = Write(len(self.writes), member.number, key, prefix, value, self.known(member, key), frozenset(of))
        self.writes.append(write)
        member.known.add(write.number)
        member.outdated.pop(key, None)

    def read(self, member: Participant, key: str, found: Any) -> None:
        member.read.add(key)
        member.outdated.pop(key, None)
        known = [write for write in self.writes if write.number in member.known and write.concerns(key)]
        if key == CHUNK:
            if not self.collisions(known) and not any(write.known & self.lost for write in known):
                assert found == self.laid_over(self.base[CHUNK], known)
        elif (chain := self.chain(known)) is not None:
            assert found == (chain[-1].value if chain else self.base.get(key))

    def all_known(self, writes: list[Write]) -> dict[int, set[int]]:
        numbers, known = {write.number for write in writes}, dict[int, set[int]]()
        for write in writes:  # in the order of time
            direct = write.known & numbers
            known[write.number] = set(direct).union(*(known[number] for number in direct))
        return known

    # --- of keys

    def chain(self, writes: list[Write]) -> list[Write] | None:
        """Return the writes in the one order in which each knows of all before it; None if there is none."""
        known = self.all_known(writes)
        if all(a.number in known[b.number] for i, a in enumerate(writes) for b in writes[i + 1 :]):
            return writes
        return None

    def outcomes(self, key: str) -> list[Any]:
        """Return what may become of a key: its value, None for none, "refused" or "lost"."""
        found = self.outcomes_without(key, self.lost)
        if any(write.number in self.killed for write in self.writes if write.concerns(key)):
            found = found + self.outcomes_without(key, self.lost | self.killed)
        return found

    def outcomes_without(self, key: str, lost: set[int]) -> list[Any]:
        writes = [write for write in self.writes if write.concerns(key)]
        if not writes:
            return [self.base.get(key)]
        chain = self.chain(writes)
        if any(w.number in lost and w.number in o.known for w in writes for o in writes if o.number not in lost):
            return ["refused", "lost"]  # somebody has built on it
        if chain is not None and chain[-1].number not in lost:
            return [chain[-1].value]
        if chain is not None:
            return ["lost"] if chain[-1].key is not None else [None, "lost"]  # only the prefix may be named
        kept = [write for write in writes if write.number not in lost]
        needed = list(kept)
        while more := [w for w in writes if w not in needed and any(w.number in other.known for other in needed)]:
            needed += more
        chain = self.chain(sorted(needed, key=lambda write: write.number))
        refused: list[Any] = ["refused", "lost"] if lost else ["refused"]
        if not kept or kept[-1].key is None:
            return [None, *refused]  # a deletion that did not know of what was lost
        last = {write.writer: write.value for write in kept}
        if not any(kept[-1].number in write.known for write in writes if write not in needed):
            if chain is not None:
                return [chain[-1].value, *(refused[1:])]
            if self.chain(kept) is not None:
                refused.append(kept[-1].value)  # what was lost was known, and not built on
        if len(set(last.values())) == 1:  # equal values, or deletions: they may count as one
            return [*last.values(), *refused]
        others = {write.number for write in writes[:-1]}
        if any(write.key is None for write in writes[:-1]) and others <= writes[-1].known:
            return [writes[-1].value, *refused]  # a deletion and a write did not know of one another, but the last did
        return refused

    def lost_prefixes(self) -> set[str]:
        """Return the prefixes that only lost participants have deleted."""
        deleted: dict[str, set[int]] = {}
        for write in self.writes:
            if write.prefix is not None:
                deleted.setdefault(write.prefix, set()).add(write.number)
        return {prefix for prefix, numbers in deleted.items() if numbers <= self.lost}

    # --- of the elements of the chunk

    def laid_over(self, below: tuple[int, ...], writes: list[Write]) -> tuple[int, ...]:
        found = list(below)
        for write in writes:
            for element in write.elements:
                found[element] = write.value or 0
        return tuple(found)

    def clashes(self, writes: list[Write]) -> list[tuple[Write, Write]]:
        """Return writes of one element of which the later did not know of the earlier.

        Such a deletion of a prefix, and a write, may stand if somebody who knew of both has written the whole. So may
        what two have deleted or written as a whole in the end: equal values count as one.
        """
        known, last = self.all_known(writes), {write.writer: write for write in writes}

        def is_replaced(one: Write, other: Write) -> bool:
            if one.value is None and other.value is None:
                return True
            if last[one.writer].value == last[other.writer].value:
                ends = last[one.writer], last[other.writer]
                if not ends[0].value or all(end.elements == ALL for end in ends):
                    return True
            return (one.key is None or other.key is None) and any(
                {one.number, other.number} <= known[write.number]
                for write in writes
                if write.elements == ALL and write.key is not None
            )

        return [
            (one, other)
            for at, one in enumerate(writes)
            for other in writes[at + 1 :]
            if one.number not in known[other.number]
            and one.elements & other.elements
            and not is_replaced(one, other)
            and not {one.number, other.number} & self.killed
        ]

    def collisions(self, writes: list[Write]) -> bool:
        """Tell whether there is a reason to refuse: what a process has written counts as one."""
        known = self.all_known(writes)
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

    def missed(self, lost: Write, kept: list[Write]) -> set[str]:
        """Return "lost" if a lost write was not written again. If nobody can tell, return "value", too.

        So it is if it was written again by one of whom the lost writer had known something.
        """
        known = self.all_known([write for write in self.writes if write.concerns(CHUNK)])[lost.number]
        writers = {self.writes[number].writer for number in known}
        again = [write for write in kept if write.number not in known]
        if not lost.elements <= frozenset[int]().union(*(write.elements for write in again)):
            return {"lost", "prefix"} if lost.key is None else {"lost"}  # only the prefix may be named
        again = [write for write in again if write.writer not in writers]
        is_sure = lost.elements <= frozenset[int]().union(*(write.elements for write in again))
        return set() if is_sure else {"lost", "value"}

    def outcomes_of_chunk(self) -> tuple[set[str], tuple[int, ...] | None]:
        """Return what may become of the chunk: "refused", "lost", or "value", and which value if that is sure."""
        found, value = self.outcomes_of_chunk_without(self.lost)
        if any(write.number in self.killed for write in self.writes if write.concerns(CHUNK)):
            return found | self.outcomes_of_chunk_without(self.lost | self.killed)[0] | {"lost"}, None
        return found, value

    def outcomes_of_chunk_without(self, lost_numbers: set[int]) -> tuple[set[str], tuple[int, ...] | None]:
        writes = [write for write in self.writes if write.concerns(CHUNK)]
        if self.base[CHUNK] is None or (not writes and not self.rival):
            return {"value"}, self.base[CHUNK]
        kept = [write for write in writes if write.number not in lost_numbers]
        lost = [write for write in writes if write.number in lost_numbers]
        below = tuple(self.rival_value if at in self.rival else value for at, value in enumerate(self.base[CHUNK]))
        value = self.laid_over(below, kept)
        written = frozenset[int]().union(*(write.elements for write in writes))
        meets = (
            {"refused"} if self.rival and (written & self.rival or any(w.elements == ALL for w in writes)) else set()
        )
        if any(one.number in other.known for one in lost for other in kept):
            # Somebody has built on it: unless that was in conflict anyway, this can't be told from the rest.
            return {"refused", "lost", *(["value"] if self.collisions(writes) else [])}, value
        missed = [self.missed(one, kept) for one in lost]
        found = meets | ({"refused"} if self.collisions(writes) else set()) | set[str]().union(*missed)
        if lost and self.collisions(kept):
            found.add("lost")
        if any(missed) and not all("value" in each for each in missed if each):
            return found - {"value"}, value
        if self.clashes(kept):
            return (found | {"refused"}) - {"value"}, value
        if not self.rival & written:
            return found | {"value"}, value
        may_be_equal = any(write.value in (0, 1, None) for write in writes)  # to what is there: then it is no change
        return found | ({"value"} if may_be_equal else set()), None


class Participants:
    """Transactions of several processes, one after the other, and what is known of the present one."""

    def __init__(self, repo: txstore.Repository, workers: list[Member]) -> None:
        self.repo, self.workers = repo, workers
        self.rivals = self.written = 0
        with repo.transaction() as store:
            options = {"shape": (LENGTH,), "chunks": (LENGTH,), "dtype": "u1", "fill_value": 0, "compressors": None}
            zarr.create_array(store, name="x", **options)[:] = BASE
            for key in KEYS[:2]:
                store[key] = b"base"
        self.begin()

    def begin(self) -> None:
        self.base = self.at_head()
        self.oracle = Oracle(self.base)
        self.store = self.repo.transaction()
        self.sent = pickle.dumps(self.store)
        self.owner = Participant(0)
        self.members: dict[int, Participant] = {}
        self.rested: dict[int, Participant] = {}  # have left a block well, and may enter the next one
        self.count = 0

    def at_head(self) -> dict[str, Any]:
        found: dict[str, Any] = {key: value for key in KEYS if (value := self.repo.mapping().get(key)) is not None}
        has_chunk = "x/zarr.json" in self.repo.mapping()
        return {**found, CHUNK: elements(self.repo.snapshot()) if has_chunk else None}

    def end(self) -> None:
        for process in list(self.members):
            self.leave(process, is_whole=True)
        self.store.rollback()

    # --- what participants do

    def member(self, process: int, is_block: bool = True) -> Participant:
        """Return the participant in a process, which joins when it is first used."""
        if not process:
            return self.owner
        if process not in self.members:
            member = self.rested.pop(process, None)
            self.workers[process - 1].do(opens, self.sent, is_block if member is None else member.is_block)
            if member is None:
                self.count += 1
                member = Participant(self.count, is_block)
            if member.is_block or member.is_new:
                self.oracle.learn(member)  # else it goes on with what it has seen
            member.since, member.is_new = len(self.oracle.writes) if member.is_block else 0, False
            self.members[process] = member
        return self.members[process]

    def at(self, process: int, function: Callable[..., Any], *arguments: Any) -> Any:
        return (
            self.workers[process - 1].do(in_store, function, *arguments)
            if process
            else function(self.store, *arguments)
        )

    def leave(self, process: int, *, is_whole: bool) -> None:
        member = self.members.pop(process)
        if member.is_block:
            self.workers[process - 1].do(exits, is_whole)
        if member.is_block and not is_whole:
            self.oracle.lost |= self.of_block(member)
        else:
            self.rested[process] = member

    def of_block(self, member: Participant) -> set[int]:
        return {write.number for write in self.oracle.writes[member.since :] if write.writer == member.number}

    def do(self, process: int, what: str, key: str, prefix: str, mask: int) -> None:
        if process in self.rested and self.oracle.lost:
            return  # it may go on as another participant, which has not seen what is left out
        member, oracle = self.member(process, is_block=mask % 4 > 0), self.oracle
        of = sorted(each for each in ALL if mask >> each & 1)
        number = self.written = self.written + 1
        has_chunk = self.base[CHUNK] is not None and not any(write.prefix == "" for write in oracle.writes)
        if what.startswith("delete") and process and not member.is_block:
            return  # such calls of the mapping are no operations of the store
        if what == "commit":
            self.commit(allow_lost=mask % 8 == 0)
        elif what in ("set", "set_equal", "delete"):
            value = None if what == "delete" else b"equal" if what == "set_equal" else b"%d" % number
            self.at(process, put, key, value)
            oracle.wrote(member, key, None, value)
        elif what == "delete_dir" and (prefix or not any(write.key == CHUNK for write in oracle.writes)):
            if prefix != "x/c" or has_chunk:
                self.at(process, clear, prefix)
                oracle.wrote(member, None, prefix, None)
        elif what == "look":
            self.at(process, look, has_chunk and mask % 2 == 1)
            oracle.learn(member)
        elif what == "read":
            self.read(process, key)
        elif what == "read_chunk" and has_chunk:
            self.read(process, CHUNK)
        elif what in ("part", "bits") and has_chunk:
            if member is self.owner:
                oracle.learn(member)
            value = mask % 2 if what == "bits" else number
            self.at(process, fill, of, value)
            oracle.wrote(member, CHUNK, None, value, of)
        elif what in ("whole", "delete_chunk") and has_chunk:
            value = number if what == "whole" else None
            self.at(process, put, CHUNK, None if value is None else bytes([value]) * LENGTH)
            oracle.wrote(member, CHUNK, None, value)
        elif what == "rival" and has_chunk and not oracle.rival:
            with self.repo.transaction() as store:
                fill(store, of, value := 200 + self.rivals)
            self.rivals += 1
            oracle.rival, oracle.rival_value = frozenset(of), value
        elif process and what == "leave":
            self.leave(process, is_whole=True)
        elif process and what == "fail":
            self.leave(process, is_whole=False)
        elif process and what == "die":
            self.die(process)

    def read(self, process: int, key: str) -> None:
        member = self.member(process)
        found = self.at(process, *((elements,) if key == CHUNK else (get, key)))
        if not process:
            self.oracle.learn(member)
        self.oracle.read(member, key, found)

    def die(self, process: int) -> None:
        member = self.members.pop(process)
        self.workers[process - 1].kill()
        self.workers[process - 1] = new_worker()
        if member.is_block:
            self.oracle.lost |= self.of_block(member)
        else:
            self.oracle.killed |= self.of_block(member)

    # --- the end

    def commit(self, *, allow_lost: bool) -> str:
        expected = {key: self.oracle.outcomes(key) for key in KEYS}
        of_chunk, value = self.oracle.outcomes_of_chunk()
        lost_prefixes = self.oracle.lost_prefixes()
        error: txstore.TxStoreError | None = None
        try:
            self.store.commit(allow_lost=allow_lost)
        except (txstore.ConflictError, txstore.ParticipantLostError) as raised:
            error = raised
        if error is None:
            assert allow_lost or not lost_prefixes
            committed = self.at_head()
            for key, outcomes in expected.items():
                if not (allow_lost and "lost" in outcomes):
                    assert (outcomes == ["lost"] and allow_lost) or committed.get(key) in outcomes, (key, expected)
            if not (allow_lost and "lost" in of_chunk) and committed[CHUNK] is not None:
                assert "value" in of_chunk
                assert value is None or committed[CHUNK] == value
            for process in self.members:
                with pytest.raises(txstore.TransactionStateError, match="has ended"):
                    self.at(process, put, "a", b"late")
            self.finish()
            assert self.at_head() == committed
            return "committed"
        self.oracle.learn(self.owner)
        outcome = "refused" if isinstance(error, txstore.ConflictError) else "lost"
        for key in KEYS:
            named = key in error.keys
            assert outcome in expected[key] if named else expected[key] != [outcome], (key, expected)
        if CHUNK in error.keys:
            assert outcome in of_chunk, (of_chunk, error)
        else:  # conflicts with others' commits are told when there are none among the participants
            assert self.oracle.rival or of_chunk != {outcome}, of_chunk
        if outcome == "refused":
            self.finish()
        else:
            assert not allow_lost
            assert lost_prefixes <= {key.strip("/") for key in error.keys if key not in KEYS}
        return outcome

    def finish(self) -> None:
        self.store.rollback()
        for process in self.members:
            self.workers[process - 1].do(forgets)
        self.begin()


def forgets(_: None) -> None:
    _store.clear()


WHAT = [
    "set", "set", "set_equal", "delete", "delete_dir", "part", "part", "part", "bits", "bits", "whole", "delete_chunk",
    "look", "look", "look", "read", "read_chunk", "leave", "leave", "fail", "fail", "die", "rival", "commit",
]  # fmt: skip
STEPS = st.lists(
    st.tuples(
        st.integers(0, PROCESSES),
        st.sampled_from(WHAT),
        st.sampled_from(KEYS),
        st.sampled_from(PREFIXES),
        st.integers(1, 2**LENGTH - 1),
    ),
    min_size=2,
    max_size=20,
)


def steps(*written: str) -> list[Step]:
    """Return steps from words such as "1 set a", "2 delete_dir d" and "3 part 0 2"; all are in blocks."""
    found = []
    for words in written:
        process, what, *where = words.split(" ")
        at = range(*map(int, where)) if len(where) == 2 else ()
        place = where[0] if len(where) == 1 else ""
        found.append((int(process), what, place, place, sum(1 << each for each in at) or 63))
    return found


#: What has gone wrong once, the least cases that Hypothesis has found, and one for each rule.
CASES = {
    "a process under a cleared root looks at another": steps(
        "0 delete_dir ", "2 set a", "1 set a", "2 look", "2 set a"
    ),
    "an absence was read before another wrote": steps(
        "2 delete_dir ", "0 read d/x", "1 set d/x", "0 look", "0 set d/x"
    ),
    "a wider deletion knows of a narrower one": steps("1 delete_dir d", "2 delete_dir ", "0 look", "0 set d/x"),
    "deleted and written again below what another deleted": steps(
        "1 look", "2 delete_dir ", "1 look", "1 set d/x", "1 delete_dir ", "1 set d/x"
    ),
    "two that died had gone on from one key": steps(
        "0 set a", "1 look", "2 look", "1 set a", "2 set a", "1 die", "2 die"
    ),
    "who is read first builds on who is read later": steps(
        "1 look", "2 set d/x", "2 delete_dir d", "1 look", "1 set d/x"
    ),
    "who is read first deletes what is read later": steps("1 look", "2 set d/x", "1 look", "1 delete_dir d"),
    "two halves": steps("1 part 0 3", "2 part 3 6"),
    "an owner over both halves": steps("1 part 0 3", "2 part 3 6", "0 part 2 4"),
    "an owner that writes the whole over both": steps("1 part 0 3", "2 part 3 6", "0 read_chunk", "0 whole"),
    "a deletion of both": steps("1 part 0 3", "2 part 3 6", "0 look", "0 delete_chunk", "0 part 0 1"),
    "one over the other, which goes on": steps("1 part 0 2", "2 look", "2 part 0 2", "1 part 4 5"),
    "two go on, of whom one has seen the other": steps("1 part 0 2", "2 look", "2 part 2 4", "1 part 4 6"),
    "who has seen what was written over knows what its writer knew": steps(
        "1 part 0 3", "2 look", "2 part 3 5", "3 look", "2 part 5 6", "3 part 0 2"
    ),
    "a part over one that did not know of a deletion": steps("1 part 0 1", "0 delete_dir x/c", "0 part 2 3"),
    "a part over the ends of two that did not know of a deletion": steps(
        "1 part 4 5", "2 part 1 2", "0 delete_dir x/c", "0 part 0 6"
    ),
    "a part over the first end of two that did not know of a deletion": steps(
        "1 part 4 5", "2 part 1 2", "0 delete_dir x/c", "0 part 4 6"
    ),
    "a part over the last end of two that did not know of a deletion": steps(
        "1 part 4 5", "2 part 1 2", "0 delete_dir x/c", "0 part 1 3"
    ),
    "a part over the ends of two that knew of a deletion": steps(
        "0 delete_dir x/c", "1 look", "2 look", "1 part 4 5", "2 part 1 2", "0 part 1 6"
    ),
    "a whole over one that did not know of a deletion": steps("1 part 0 1", "0 delete_dir x/c", "0 look", "0 whole"),
    "two deletions": steps("0 delete_chunk", "1 delete_chunk"),
    "one deletes what another, too, that has written": steps("0 part 0 1", "0 delete_chunk", "1 delete_chunk"),
    "a rival beside two": steps("1 part 0 1", "2 part 1 2", "0 rival 3 6"),
    "a rival on what the first of a chain has written": steps("1 part 0 2", "2 look", "2 part 2 4", "0 rival 1 2"),
    "a whole beside a part": steps("1 part 0 4", "2 whole"),
    "parts that overlap": steps("1 part 0 4", "2 part 3 6"),
    "a part that is lost, beside another": steps("1 part 0 3", "2 part 4 6", "1 die"),
    "a lost part that is done again by halves": steps("1 part 0 3", "1 fail", "0 part 0 2", "0 commit", "2 part 2 4"),
    "a lost part under a whole that did not know of it": steps("2 look", "1 part 0 3", "2 whole", "1 die"),
    "what was added to a block that is killed then": steps("1 part 0 2", "2 look", "2 part 0 2", "1 die"),
    "a lost deletion that is done again": steps("1 delete_dir d", "1 fail", "0 commit", "2 delete_dir d"),
    "a first block that ended well and a second one that failed": steps(
        "1 part 0 2", "1 leave", "1 part 1 3", "1 fail", "2 part 1 3"
    ),
}
#: Where the oracle allows for more than one outcome: what has to come, if all three have joined before.
OUTCOMES = {
    "two that set the same": ("committed", steps("1 set_equal a", "2 set_equal a")),
    "one of two that set the same has read before": ("refused", steps("1 read a", "1 set_equal a", "2 set_equal a")),
    "two that set the same, and one that died": (
        "committed", steps("1 set_equal a", "2 set_equal a", "3 set a", "3 die")
    ),
    "a part over the first of two blocks": (
        "refused", steps("1 part 0 2", "1 leave", "1 part 4 5", "1 leave", "2 part 0 1")
    ),
    "who wrote on did not know what was lost": (
        "lost", steps("1 part 0 4", "2 look", "2 part 0 2", "1 part 2 4", "2 fail")
    ),
    "a lost part that was done again": ("committed", steps("1 part 0 2", "1 fail", "0 commit", "2 part 0 3")),
    "a lost part that was done again by halves": (
        "committed", steps("1 part 0 3", "1 fail", "0 commit", "2 part 0 2", "3 part 2 4")
    ),
    "what was given up is done again in the next block": (
        "committed", steps("1 part 0 3", "1 fail", "1 part 0 3")
    ),
    "who has built on a block that failed": ("refused", steps("1 part 0 2", "2 look", "2 part 2 4", "1 fail")),
    "a lost deletion that another has done again": (
        "committed", steps("1 delete_dir d", "1 fail", "0 commit", "2 delete_dir d")
    ),
}  # fmt: skip


def new_worker() -> Member:
    return Member(None)


@pytest.fixture(scope="module")
def workers() -> Iterator[list[Member]]:
    found = [new_worker() for _ in range(PROCESSES)]
    yield found
    for worker in found:
        worker.kill()


@pytest.mark.parametrize("early", [0, PROCESSES])
@pytest.mark.parametrize("case", CASES)
def test_by_hand(workers: list[Member], case: str, early: int) -> None:
    run(workers, early, CASES[case])


@pytest.mark.parametrize("case", OUTCOMES)
def test_outcomes(workers: list[Member], case: str) -> None:
    outcome, steps = OUTCOMES[case]
    assert run(workers, PROCESSES, steps) == outcome


@pytest.mark.long
@settings(max_examples=500, deadline=None)
@given(st.integers(0, PROCESSES), STEPS)
def test_what_is_in_one_order_is_committed_and_all_else_refused(workers, early, steps):
    run(workers, early, steps)


def run(workers: list[Member], early: int, steps: list[Step]) -> str:
    """Take steps. `early`: how many join before anything is staged; the others do when they are first named."""
    with tempfile.TemporaryDirectory() as directory:
        repo = txstore.Repository(Path(directory) / "data.tx", durability="none")
        participants = Participants(repo, workers)
        try:
            for process in range(early):
                participants.member(process + 1)
            for step in steps:
                participants.do(*step)
                assert (
                    participants.oracle.rival or participants.at_head() == participants.base
                )  # nothing is seen before
            outcome = participants.commit(allow_lost=False)
        except BaseException:
            for at, worker in enumerate(workers):
                worker.kill()
                workers[at] = new_worker()
            raise
        participants.end()
        assert repo.verify().faults == []
    return outcome
