"""Which runs a commit merges: few bytes beside what it brings itself, and still never too many runs."""

from __future__ import annotations

import math
import random
import uuid
from collections.abc import Iterable, Sequence

import pytest

import txstore
from txstore.format.commitfile import RunName
from txstore.format.packfile import PackName
from txstore.segments.compaction import STEP, merged_by_commit, merged_in_background
from txstore.segments.compaction_outputs import OutputsInFiles, OutputsInObjects
from txstore.segments.runs import find_runs
from txstore.storage import pack_cache
from txstore.storage.objects import client

BYTES = 16  # of an entry


def run(entries: int, seq: int) -> RunName:
    return RunName(PackName(bytes(16), "main", seq), seq, 64, BYTES * entries, entries, seq)


def runs(*sizes: int) -> list[RunName]:
    return [run(size, 1000 - at) for at, size in enumerate(sizes)]


class Line:
    """Commits one after the other, each of so many new keys.

    `takes`: so many commits are made while a thread of their process merges; None: each is of a process of its own.
    """

    def __init__(self, at_once: int, takes: int | None = None) -> None:
        self._at_once = at_once
        self._takes = takes
        self._aside: tuple[tuple[RunName, ...], int] | None = None  # what a thread merges, and until which commit
        self.runs: list[RunName] = []
        self.copied = 0  # entries
        self.written = 0
        self.most = 0  # bytes that a commit of few keys has merged
        self.aside: list[int] = []  # bytes that a thread has merged each time
        self.seq = 0

    def commit(self, keys: int, value: int = 16) -> None:
        self.seq += 1
        brought = keys * (value + 40 + BYTES)
        at = None if self._aside is None else find_runs(self._aside[0], self.runs)
        chosen = merged_by_commit(self.runs[:at], self._at_once, brought)
        if chosen:
            total = self._merge(chosen)
            if keys < 100:
                self.most = max(self.most, BYTES * total)
        if self._aside is not None and self.seq >= self._aside[1]:
            if find_runs(self._aside[0], self.runs) is not None:
                self.aside.append(BYTES * self._merge(self._aside[0]))
            self._aside = None
        self.runs.insert(0, run(keys, self.seq))
        self.written += keys
        if self._takes is not None and self._aside is None and not self.seq % STEP:
            inputs = tuple(merged_in_background(self.runs, self._at_once))
            self._aside = (inputs, self.seq + self._takes) if inputs else None

    def _merge(self, chosen: Sequence[RunName]) -> int:
        at = self.runs.index(chosen[0])
        assert self.runs[at : at + len(chosen)] == list(chosen)  # side by side
        total = sum(each.entries for each in chosen)
        self.copied += total
        self.runs[at : at + len(chosen)] = [run(total, self.seq)]
        return total


AT_ONCE = pytest.mark.parametrize("at_once", [OutputsInFiles.merged_at_once, OutputsInObjects.merged_at_once])

LINES: dict[str, Iterable[int]] = {
    "small commits": [1] * 6_000,
    "small ones after a large load": [500_000, 500_000, *[1] * 3_000],
    "large and small ones in turns": [300_000, 1] * 200,
    "as large as one another": [5_000] * 500,
    "of all sizes": random.Random(3).choices([1, 10, 300, 5_000, 100_000], k=1_000),
    "ever smaller": [1 << max(0, 20 - n) for n in range(300)],
    "ever larger": [1 << (n // 10) for n in range(200)],
}


@AT_ONCE
@pytest.mark.parametrize("takes", [None, 1, 20])
@pytest.mark.parametrize("sizes", LINES.values(), ids=LINES)
def test_runs_are_few_and_their_entries_are_copied_few_times(
    sizes: Iterable[int], at_once: int, takes: int | None
) -> None:
    line = Line(at_once, takes)
    for keys in sizes:
        line.commit(keys)
        assert len(line.runs) <= 8 + 2 * math.log2(sum(each.entries for each in line.runs) + 1)
    assert line.copied <= line.written * (2 + math.log(line.written, 1.5))


@AT_ONCE
@pytest.mark.parametrize("takes", [1, 20, 50])
def test_of_one_process_no_small_commit_merges_more_than_a_little(at_once: int, takes: int) -> None:
    for keys in (1, 20):
        line = Line(at_once, takes)
        for _ in range(10_000):
            line.commit(keys)
        assert line.most <= at_once
        assert len(line.runs) <= 16


@AT_ONCE
def test_where_each_process_commits_once_merges_are_bounded_all_the_same(at_once: int) -> None:
    line = Line(at_once)
    for _ in range(20_000):
        line.commit(20)
    # No run has more than all keys; the others that should not be there are as many as it takes doublings to there.
    assert at_once < line.most <= BYTES * line.written
    assert len(line.runs) <= 24


@AT_ONCE
def test_after_a_load_a_thread_merges_what_no_small_commit_does(at_once: int) -> None:
    line = Line(at_once, 20)
    for keys in [30_000] * 10:  # 4.8 MB in all
        line.runs.insert(0, run(keys, keys + len(line.runs)))
    for _ in range(100):
        line.commit(1)
    assert line.most <= at_once
    assert line.aside
    assert max(line.aside) >= 4_800_000
    assert len(line.runs) < 16


@AT_ONCE
def test_after_a_load_processes_that_commit_once_merge_it_by_and_by(at_once: int) -> None:
    line = Line(at_once)
    for keys in [30_000] * 10:
        line.runs.insert(0, run(keys, keys + len(line.runs)))
    for _ in range(100):
        line.commit(1)
    assert line.most <= 4 * at_once
    assert len(line.runs) < 24


def test_a_thread_merges_neither_what_others_are_about_to_nor_what_takes_too_much_memory() -> None:
    small, large, huge = runs(300, 300), runs(3_000, 3_000), runs(4 << 20, 4 << 20)
    assert merged_in_background(small, 16 << 10) == merged_in_background(runs(600, 300), 16 << 10) == ()
    assert merged_in_background([*small, *large], 16 << 10) == large
    assert merged_in_background([*large, *huge], 16 << 10) == large
    assert merged_in_background(huge, 16 << 10) == ()
    assert merged_in_background(runs(3_000, 9_000), 16 << 10) == ()


@AT_ONCE
def test_a_small_commit_after_a_large_load_merges_nothing_large(at_once: int) -> None:
    line = Line(at_once)
    for keys in (500_000, 500_000, *[1] * 2_000):
        line.commit(keys)
    assert line.most <= 4 * at_once
    assert len(line.runs) < 16


def test_who_brings_much_merges_what_others_have_left() -> None:
    large = runs(1, 500_000, 500_000)
    assert merged_by_commit(large, 16 << 10, 1000) == ()
    assert merged_by_commit(large, 16 << 10, 100 << 20) == large[1:]


def test_who_brings_little_merges_more_the_more_there_is_to_be_merged() -> None:
    left = runs(*[3_000, 3_100] * 8)  # of which each commit may merge none
    assert merged_by_commit(left[:9], 16 << 10, 100) == ()
    assert merged_by_commit(left, 16 << 10, 100) == left


def test_sizes_that_triple_are_left_alone() -> None:
    assert merged_by_commit(runs(1, 3, 9, 27, 81), 1 << 20, 1 << 30) == ()
    assert merged_by_commit((), 1 << 20, 1 << 30) == ()
    assert merged_by_commit(runs(1), 1 << 20, 1 << 30) == ()


def test_a_run_without_entries_is_merged_like_one_with_one() -> None:
    assert merged_by_commit(runs(0, 0, 5), 1 << 20, 0) == runs(0, 0, 5)[:2]


# --- what is moved


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of what goes to an object store, or comes from there."""
    found: list[int] = []
    send = client.ObjectClient._request

    def counted(self: client.ObjectClient, path: str, request: object, **how: bool) -> object:
        def noted(backend: object) -> object:
            answer = request(backend)  # type: ignore[operator]
            found.append(_length(answer))
            return answer

        return send(self, path, noted, **how)

    monkeypatch.setattr(client.ObjectClient, "_request", counted)
    for name in ("create", "put"):
        kept = getattr(client.ObjectClient, name)

        def sent(
            self: client.ObjectClient, path: str, parts: Sequence[bytes], *rest: object, kept: object = kept
        ) -> object:
            found.append(sum(len(memoryview(part).cast("B")) for part in parts if len(part)))
            return kept(self, path, parts, *rest)  # type: ignore[operator]

        monkeypatch.setattr(client.ObjectClient, name, sent)
    return found


def _length(answer: object) -> int:
    if isinstance(answer, bytes | bytearray | memoryview):
        return len(answer)
    if isinstance(answer, tuple | list):
        return sum(map(_length, answer))
    return 0


def load(repo: txstore.Repository, number: int) -> None:
    with repo.begin() as mapping:
        for key in range(5_000):
            mapping[f"x{number}/c/{key}"] = b"1234"


def test_the_first_small_commit_after_a_load_moves_little(moved: list[int]) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    load(txstore.Repository(url), 0)
    load(txstore.Repository(url), 1)
    pack_cache._shared._empty()  # as in a process that has read nothing
    repo = txstore.Repository(url)
    assert sum(name.length for name in repo.mapping().run_names) > 100_000
    del moved[:]
    with repo.begin() as mapping:
        mapping["x0/c/7"] = b"x" * 100
    assert 0 < sum(moved) < 100_000, moved
    assert len(repo.mapping().runs) == 3
    load(repo, 2)  # who brings as much as that merges what was left
    assert len(repo.mapping().runs) == 3
    found = repo.mapping()
    assert bytes(found["x0/c/7"]) == b"x" * 100
    assert bytes(found["x1/c/4999"]) == bytes(found["x2/c/0"]) == b"1234"
    assert repo.verify().ok
