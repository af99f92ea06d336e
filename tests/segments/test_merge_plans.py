"""Which runs a commit merges: few bytes beside what it brings itself, and still never too many runs."""

import math
import random
from collections.abc import Iterable, Sequence

import pytest

from txstore.format.commitfile import RunName
from txstore.format.packfile import PackName
from txstore.segments.compaction import IN_OBJECTS, ON_DISK, merged_by_commit

BYTES = 16  # of an entry


def run(entries: int, seq: int) -> RunName:
    return RunName(PackName(bytes(16), "main", seq), seq, 64, BYTES * entries, entries, seq)


def runs(*sizes: int) -> list[RunName]:
    return [run(size, 1000 - at) for at, size in enumerate(sizes)]


class Line:
    """Commits one after the other, each of so many new keys."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self.runs: list[RunName] = []
        self.copied = 0  # entries
        self.written = 0
        self.most = 0  # bytes that a commit of few keys has merged
        self.seq = 0

    def commit(self, keys: int, value: int = 16) -> None:
        self.seq += 1
        brought = keys * (value + 40 + BYTES)
        if chosen := merged_by_commit(self.runs, self.at_once, brought):
            total = self.merge(chosen)
            if keys < 100:
                self.most = max(self.most, BYTES * total)
        self.runs.insert(0, run(keys, self.seq))
        self.written += keys

    def merge(self, chosen: Sequence[RunName]) -> int:
        at = self.runs.index(chosen[0])
        assert self.runs[at : at + len(chosen)] == list(chosen)  # side by side
        total = sum(each.entries for each in chosen)
        self.copied += total
        self.runs[at : at + len(chosen)] = [run(total, self.seq)]
        return total


AT_ONCE = pytest.mark.parametrize("at_once", [ON_DISK, IN_OBJECTS])

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
@pytest.mark.parametrize("sizes", LINES.values(), ids=LINES)
def test_runs_are_few_and_their_entries_are_copied_few_times(sizes: Iterable[int], at_once: int) -> None:
    line = Line(at_once)
    for keys in sizes:
        line.commit(keys)
        assert len(line.runs) <= 8 + 2 * math.log2(sum(each.entries for each in line.runs) + 1)
    assert line.copied <= line.written * (2 + math.log(line.written, 1.5))


@AT_ONCE
def test_what_small_commits_merge_is_bounded(at_once: int) -> None:
    line = Line(at_once)
    for _ in range(20_000):
        line.commit(20)
    # No run has more than all keys; the others that should not be there are as many as it takes doublings to there.
    assert at_once < line.most <= BYTES * line.written
    assert len(line.runs) <= 24


@AT_ONCE
def test_after_a_load_small_commits_merge_it_by_and_by(at_once: int) -> None:
    line = Line(at_once)
    for keys in [30_000] * 10:
        line.runs.insert(0, run(keys, keys + len(line.runs)))
    for _ in range(100):
        line.commit(1)
    assert line.most <= 4 * at_once
    assert len(line.runs) < 24


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


def test_what_is_left_alone() -> None:
    for each in (runs(1, 3, 9, 27, 81), (), runs(1)):
        assert merged_by_commit(each, 1 << 20, 1 << 30) == ()
    assert merged_by_commit(runs(0, 0, 5), 1 << 20, 0) == runs(0, 0, 5)[:2]  # without entries it is as with one


def test_who_brings_little_merges_more_the_more_there_is_to_be_merged() -> None:
    left = runs(*[3_000, 3_100] * 8)  # of which each commit may merge none
    assert merged_by_commit(left[:9], 16 << 10, 100) == ()
    assert merged_by_commit(left, 16 << 10, 100) == left


# --- what is moved


def _length(answer: object) -> int:
    if isinstance(answer, bytes | bytearray | memoryview):
        return len(answer)
    if isinstance(answer, tuple | list):
        return sum(map(_length, answer))
    return 0
