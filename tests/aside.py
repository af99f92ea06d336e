"""Runs that are merged while nobody waits: few keys are enough here, after each commit; and by whoever makes that."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import txstore
from txstore.segments import compaction, compaction_outputs
from txstore.segments.compaction_outputs import CompactionOutput, OutputsInFiles, OutputsInObjects

#: So many bytes of runs small commits merge themselves, and so many keys have a run that is larger than they take.
AT_ONCE, KEYS = 1024, 60


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a thread merge runs of few keys, after any commit but the first of a process."""
    monkeypatch.setattr(OutputsInFiles, "merged_at_once", AT_ONCE)
    monkeypatch.setattr(OutputsInObjects, "merged_at_once", AT_ONCE)
    monkeypatch.setattr(compaction, "STEP", 1)


def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `small`; and let it be merged before the commit returns, by the thread that has made it."""
    small(monkeypatch)
    monkeypatch.setattr(compaction_outputs, "threading", SimpleNamespace(Thread=_Thread))


def merge_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the commits of now merge all runs, aside and inline, whatever their lengths, but the first of a process."""
    inline(monkeypatch)
    monkeypatch.setattr(compaction, "merged_in_background", lambda runs, at_once: runs if len(runs) > 1 else ())


class MergesAll:
    """What a state machine of hypothesis has before its other class, so that its commits do as `merge_all` says."""

    def __init__(self) -> None:
        super().__init__()
        self._patched = pytest.MonkeyPatch()
        merge_all(self._patched)

    def teardown(self) -> None:
        try:
            super().teardown()  # type: ignore[misc]
        finally:
            self._patched.undo()


class _Thread:
    def __init__(self, target: Callable[..., object], args: tuple[Any, ...], name: str, daemon: bool) -> None:
        assert daemon, "it must keep no process from ending"
        self._target, self._args = target, args

    def start(self) -> None:
        self._target(*self._args)


def fill(repo: txstore.Repository, number: int, branch: str = "main") -> dict[str, bytes]:
    """Commit `KEYS` keys: what no small commit merges."""
    values = {f"x{number}/c/{key}": b"%d" % number for key in range(KEYS)}
    with repo.begin(branch=branch) as mapping:
        mapping.update(values)
    return values


def waiting(repo: txstore.Repository, branch: str = "main") -> CompactionOutput | None:
    """Return the pack that waits for a commit of this process."""
    merge = repo.engine.commits.compaction_outputs._merges.get(repo.engine.branch(branch))
    return None if merge is None else merge.pack


def some(repo: txstore.Repository, branch: str = "main") -> CompactionOutput:
    pack = waiting(repo, branch)
    assert pack is not None
    return pack


def installed(repo: txstore.Repository, branch: str = "main") -> list[str]:
    """Return the paths of the compaction outputs that the head lists."""
    head = repo.engine.commits.head(repo.engine.branch(branch))
    return [] if head is None else sorted(pack.path for pack in head.header.compaction_outputs)
