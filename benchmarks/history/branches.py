"""Branches of a large repository, and of a long history."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from pathlib import Path

import txstore
from benchmarks.harness import OURS, Row, Setting, interleaved, medians, ratio, settle, timed
from benchmarks.local import large

_COMMIT, _ONE = "a small durable commit", "one branch"
_BRANCHES, _COMMITS, _KEYS = 50, 10_000, 1_000


def _files(path: Path) -> dict[str, int]:
    return {f"{top}/{name}": os.stat(f"{top}/{name}").st_size for top, _, files in os.walk(path) for name in files}


def create(setting: Setting) -> list[Row]:
    """Begin a branch behind the head of a repository of a million chunks, against a commit to it."""
    keys = 10_000 if setting.quick else large.KEYS
    with setting.scratch() as scratch:
        repo = large.build(scratch / "data.tx", keys, 10)
        numbers = itertools.count()
        repo.branches["first"] = repo.head()  # it makes the directory

        def begin() -> float:
            with timed() as seconds:
                repo.branches[f"b{next(numbers)}"] = repo.head()
            return seconds()

        def commit() -> float:
            with timed() as seconds, repo.begin("small") as transaction:
                transaction[f"position/c/{next(numbers)}"] = b"12345678"
            return seconds()

        settle(scratch)
        samples = interleaved({OURS: begin, _COMMIT: commit}, setting.rounds(200, 20), before_each=lambda: None)
        before = _files(scratch)
        begin()
        added = {path: size for path, size in _files(scratch).items() if path not in before}
    what = f"a branch of a repository of {keys:,} chunks"
    return [
        Row(
            "history: create a branch", f"{what}: time of {_COMMIT}", ratio(samples, OURS, _COMMIT), 2.0,
            medians=medians(samples), samples=samples,
        ),
        Row("history: files of a branch", f"{what}: files", len(added), 1, "files"),
        Row("history: bytes of a branch", f"{what}: bytes", sum(added.values()), 4096, "bytes"),
    ]  # fmt: skip


class _Branch:
    """What one does with a branch of a repository."""

    def __init__(self, path: Path, branch: str) -> None:
        self._path, self._branch = path, branch
        self._repo = txstore.Repository(path)
        self._snapshot = self._repo.mapping(branch=branch)
        self._numbers = itertools.count()

    def open(self) -> float:
        with timed() as seconds:
            found = txstore.Repository(self._path).mapping(branch=self._branch)["a/c/7"]
        assert len(found) == 100
        return seconds()

    def look_up(self) -> float:
        with timed() as seconds:
            for number in range(_KEYS):
                self._snapshot.lookup(f"a/c/{number}")
        return seconds()

    def commit(self) -> float:
        with timed() as seconds, self._repo.begin("small", branch=self._branch) as transaction:
            transaction[f"a/c/{next(self._numbers) % _KEYS}"] = bytes(100)
        return seconds()


def _write(repo: txstore.Repository, commits: int, branch: str = "main") -> None:
    for number in range(commits):
        with repo.begin(branch=branch) as transaction:
            transaction[f"a/c/{number * 7 % _KEYS}"] = os.urandom(100)


def many(setting: Setting) -> list[Row]:
    """50 branches, and half of all commits on them, against one branch with all of them."""
    commits, branches = (500, 10) if setting.quick else (_COMMITS, _BRANCHES)
    with setting.scratch() as scratch:
        one, several = (txstore.Repository(scratch / name, durability="none") for name in ("one.tx", "several.tx"))
        _write(one, commits)
        _write(several, commits // 2)
        for number in range(branches):
            several.branches[f"b{number}"] = several.head()
            _write(several, commits // 2 // branches, f"b{number}")
        ours = _Branch(scratch / "several.tx", f"b{branches // 2}")
        peer = _Branch(scratch / "one.tx", "main")
        rows = []
        for name in ("open", "look_up", "commit"):
            settle(scratch)
            takes = {OURS: getattr(ours, name), _ONE: getattr(peer, name)}
            samples = interleaved(takes, setting.rounds(200, 20), before_each=lambda: None)
            what = f"{name.replace('_', ' ')} on one of {branches} branches, {commits:,} commits: time of {_ONE}"
            row = Row(f"history: {name} on a branch", what, ratio(samples, OURS, _ONE), 1.2)
            rows.append(replace(row, medians=medians(samples), samples=samples))
    return rows


BENCHMARKS = {"history: create a branch": create, "history: many branches": many}
