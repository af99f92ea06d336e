"""Owners of chunk locks against a dictionary, in every order that Hypothesis finds: each kind, opened twice.

The two openings are as good as two processes. Nobody waits here: who can't have all keys at once is told which are
missing, and nothing has changed. What a closed opening held, as a killed process does, is free, and dirty in a table.
"""

import tempfile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tools.lock_clients import KINDS
from txstore.errors import LockTimeoutError
from txstore.locks.chunk_locks import ChunkLocks

KEYS = [f"a/c/{number}" for number in range(6)]
OPENINGS, OWNERS = 2, 4  # of the owners, each opening has every other one


class Model:
    def __init__(self, directory: str, kind: str) -> None:
        self.directory, self.kind = directory, kind
        self.openings = [self.opened() for _ in range(OPENINGS)]
        self.owners = [self.openings[number % OPENINGS].owner() for number in range(OWNERS)]
        self.held: list[dict[str, int]] = [{} for _ in range(OWNERS)]  # how often each owner has a key
        self.parked: dict[str, tuple[int, int]] = {}  # for whom, and by whom
        self.dirty: set[str] = set()
        self.unsure: set[str] = set()  # whether they are dirty

    def opened(self) -> ChunkLocks:
        return ChunkLocks(self.directory, "data.tx", kind=self.kind)

    def is_taken(self, key: str, number: int, siblings: list[int]) -> bool:
        is_held = any(key in held for other, held in enumerate(self.held) if other != number)
        return is_held or (key in self.parked and self.parked[key][0] not in (number, *siblings))

    def do(self, what: str, number: int, keys: list[str], others: list[int]) -> None:
        owner, held = self.owners[number], self.held[number]
        distinct = list(dict.fromkeys(keys))
        if what == "acquire":
            self.acquire(number, keys, others)
        elif what == "release":
            missing = [key for key in distinct if key not in held]
            if missing:
                with pytest.raises(ValueError, match=missing[0]):
                    owner.release(keys)
            else:
                owner.release(keys if len(keys) > 1 else keys[0])
            self.count_down(number, distinct)
        elif what == "park" and held.keys() >= set(distinct):
            to = others[0] if others else number
            owner.park(keys, self.owners[to].parked)
            for key in self.count_down(number, distinct):
                if self.kind == "table":
                    self.parked[key] = to, number
        elif what == "close":
            owner.close()
            owner.close()
            with pytest.raises(ValueError, match="closed"):
                owner.acquire(KEYS[0], 0)
            self.end(number, is_dead=False)
            self.owners[number] = self.openings[number % OPENINGS].owner()
        elif what == "die":
            self.die(number % OPENINGS)
        owner = self.owners[number]
        owner.fence()
        assert [key for key in KEYS if owner.holds(key)] == [key for key in KEYS if key in self.held[number]]

    def acquire(self, number: int, keys: list[str], siblings: list[int]) -> None:
        owner, held = self.owners[number], self.held[number]
        distinct = list(dict.fromkeys(keys))
        taken = [key for key in distinct if self.is_taken(key, number, siblings)]
        words = [self.owners[sibling].parked for sibling in siblings]
        if taken:
            with pytest.raises(LockTimeoutError) as caught:
                owner.acquire(tuple(keys), 0, words)
            missing = set(caught.value.keys)
            assert missing == set(taken) if self.kind == "table" else missing & set(taken)
            return
        dirty = set(owner.acquire(keys if len(keys) > 1 else keys[0], 0, words))
        assert self.dirty & set(distinct) <= dirty <= (self.dirty | self.unsure) & set(distinct)
        for key in distinct:
            held[key] = held.get(key, 0) + 1
            self.parked.pop(key, None)
        self.dirty.difference_update(distinct)
        self.unsure.difference_update(distinct)

    def count_down(self, number: int, keys: list[str]) -> list[str]:
        """Return the keys that it holds no more."""
        held = self.held[number]
        for key in keys:
            held[key] = held.get(key, 1) - 1
        gone = [key for key in keys if not held[key]]
        for key in gone:
            del held[key]
        return gone

    def end(self, number: int, *, is_dead: bool) -> None:
        parked = {key for key, (to, by) in self.parked.items() if number in (to, by) or (is_dead and to == number)}
        if self.kind == "table":
            self.unsure |= {key for key in parked if number != self.parked[key][1] or is_dead}
            self.dirty |= self.held[number].keys() if is_dead else set()
        for key in parked:
            if self.parked[key][0] == number:
                del self.parked[key]
        self.held[number] = {}

    def die(self, opening: int) -> None:
        self.openings[opening].close()
        self.openings[opening] = self.opened()
        for number in range(opening, OWNERS, OPENINGS):
            self.end(number, is_dead=True)
            self.owners[number] = self.openings[opening].owner()


WHAT = ["acquire", "acquire", "acquire", "acquire", "release", "release", "park", "park", "close", "die"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(WHAT),
        st.integers(0, OWNERS - 1),
        st.lists(st.sampled_from(KEYS), min_size=1, max_size=8),
        st.lists(st.integers(0, OWNERS - 1), max_size=2),
    ),
    max_size=40,
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_who_has_which_key(kind: str, steps: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        model = Model(directory, kind)
        for step in steps:
            model.do(*step)
        for opening in range(OPENINGS):
            model.die(opening)
        model.acquire(0, KEYS, [])
