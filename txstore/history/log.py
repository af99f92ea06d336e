"""Lists commits, newest first, and reads them only as far as the caller iterates. It can filter them by a path."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, pairwise
from typing import overload

from txstore.commit import Commit, Stored
from txstore.errors import TxStoreError
from txstore.format import encoding
from txstore.format.display import html_head, html_table, printable
from txstore.history.changes import changed
from txstore.history.snapshot import Snapshots

#: Number of commits that a printed log shows.
_SHOWN = 20
_MESSAGE, _NARROWEST = 80, 12


class Log(Sequence[Commit]):
    """Commits, newest first. Each is read when you first ask for it; the length, or a negative index, reads all."""

    def __init__(self, commits: Iterator[Stored], limit: int | None = None) -> None:
        self._source = islice(commits, limit)
        self._read: list[Commit] = []

    def __iter__(self) -> Iterator[Commit]:
        at = 0
        while self._reach(at):
            yield self._read[at]
            at += 1

    def _reach(self, at: int) -> bool:
        """Read commits up to an index; return whether the log has that many."""
        while len(self._read) <= at:
            found = next(self._source, None)
            if found is None:
                return False
            self._read.append(found.commit)
        return True

    def __len__(self) -> int:
        while self._reach(len(self._read)):
            pass
        return len(self._read)

    def __bool__(self) -> bool:
        return self._reach(0)

    @overload
    def __getitem__(self, index: int) -> Commit: ...
    @overload
    def __getitem__(self, index: slice) -> list[Commit]: ...
    def __getitem__(self, index: int | slice) -> Commit | list[Commit]:
        if isinstance(index, slice):
            bounds = [bound for bound in (index.start, index.stop) if bound is not None]
            if index.stop is None or min(bounds) < 0 or (index.step or 1) < 0:
                len(self)
            else:
                self._reach(index.stop - 1)
        elif index < 0:
            len(self)
        else:
            self._reach(index)
        return self._read[index]

    def _rows(self) -> tuple[list[Commit], bool]:
        """Return the commits to show, and whether the log has more."""
        more = self._reach(_SHOWN)
        return self._read[:_SHOWN], more

    def __repr__(self) -> str:
        commits, more = self._rows()
        if not commits:
            return "no commits"
        rows = [_row(commit) for commit in commits]
        widths = [max(len(row[at]) for row in [_HEAD, *rows]) for at in range(4)]
        room = max(_MESSAGE - sum(widths) - 2 * len(widths), _NARROWEST)
        lines = [
            "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4][:room]]).rstrip()
            for row in [_HEAD, *rows]
        ]
        return "\n".join([*lines, *(["..."] if more else [])])

    def _repr_html_(self) -> str:
        commits, more = self._rows()
        return (html_table(map(_row, commits), _HEAD) or "no commits") + ("..." if more else "")


_HEAD = ("commit", "id", "time", "keys", "message")


def _row(commit: Commit) -> tuple[str, ...]:
    statistics = commit.statistics
    deleted = statistics["keys_deleted"] + statistics["prefixes_deleted"]
    told = commit.message.partition("\n")[0]
    return (
        str(commit),
        commit.id[:12],
        commit.time.astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        f"+{statistics['keys_set']:,}" + (f" -{deleted:,}" if deleted else ""),
        printable(told),
    )


def html_of_named(kind: str, commits: Mapping[str, Commit]) -> str:
    """Return a notebook's table of named commits, or the error that prevents it."""
    try:
        names = list(commits)
        rows = [(name, *_row(commit)) for name in names[:_SHOWN] if (commit := commits.get(name)) is not None]
    except (TxStoreError, OSError) as error:  # a notebook's cell shows the error and does not fail
        return html_head(kind, str(error))
    return html_head(kind, f"{len(names):,}") + html_table(rows, ("name", *_HEAD), left=len(names) - _SHOWN)


def changing(line: Iterable[Stored], snapshots: Snapshots, path: str) -> Iterator[Stored]:
    """Yield the commits of a history, newest first, that changed something below a path.

    This omits the oldest kept commit, unless it is the very first: without its parent, its changes are unknown.
    """
    for stored, parent in pairwise(chain(line, [None])):
        if stored is None or (parent is None and stored.header.parent_id != encoding.NO_ID):
            return
        # `changed` looks only at the commit's own entries, and most commits have none below the path.
        if next(changed(snapshots.of(parent), snapshots.of(stored), path), None) is not None:
            yield stored
