"""Walks what is kept: the one place that decides which files a commit needs to be read."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from txstore.commit import MAIN, Stored
from txstore.errors import CorruptionError, WrongFileTypeError
from txstore.format import names
from txstore.format.commitfile import CommitName, RunName
from txstore.format.cursors import Cursor, is_mark
from txstore.format.packfile import PackName, packs_begin
from txstore.history.commits import Commits
from txstore.history.find import find_tagged, first_since
from txstore.history.kept_commits import kept_with
from txstore.locks.pins import Pins
from txstore.segments.ranged_packs import open_packs
from txstore.segments.ranged_runs import open_run, open_runs
from txstore.segments.runs import Runs, names_of
from txstore.storage.interface import paths_in


class Reachable:
    """The files that some commits need: their own, those of their runs, and those of the values in the runs.

    Each pack in a run's table counts, even if only hidden entries of the run point to it.
    """

    def __init__(self, commits: Commits) -> None:
        self.paths: set[str] = set()
        self._packs = open_packs(commits.storage)
        self._runs: set[RunName] = set()

    def add(self, stored: Stored) -> None:
        """Raises `CorruptionError` if a file that the commit needs is missing or damaged."""
        header = stored.header
        self.paths.add(stored.path)
        self.paths.update(pack.name.path for pack in header.packs)
        for name in names_of(header.runs, header.name):
            if name not in self._runs:
                self._runs.add(name)
                self.paths.update(pack.path for pack in self._packs_of(name))

    def open_runs(self, runs: Sequence[RunName]) -> Runs:
        return open_runs(runs, self._packs)

    def _packs_of(self, name: RunName) -> Iterator[PackName]:
        found = open_run(name, self._packs)
        yield found.file
        for number in range(1, 1 + len(found.run.packs)):
            yield found.pack(number)


def living_branches(commits: Commits) -> list[str]:
    """Return the ids of the existing branches, the first branch first."""
    return [MAIN, *dict.fromkeys(record.id for record in commits.branches.all().values())]


def kept_commits(commits: Commits, oldest_kept_versions: Mapping[str, int]) -> Iterator[Stored]:
    """Yield every kept commit once: each branch down to its oldest kept version, and named commits below.

    Named commits are those with a tag, those where a branch starts, and those merged by a kept commit.
    `oldest_kept_versions` overrides the present oldest kept version of some branches. A process that makes one of these
    names from another, or from a pin, checks afterwards that the commit was kept: so this looks in that order (I10).
    """
    met: set[CommitName] = set()
    merged: set[tuple[str, int]] = set()
    # Before the tags, too: a tag may be made on a branch that is deleted before it would be listed.
    living = living_branches(commits)
    tagged = [find_tagged(commits, name) for name in commits.tags.all()]
    living = [*dict.fromkeys([*living, *living_branches(commits)])]
    related = commits.branches.related()
    begun = [stored for stored in map(commits.files.fork_point, living) if stored is not None]
    for branch in living:
        head = commits.head(branch)
        if head is None or head.header.branch != branch:
            continue
        # The oldest kept version in the head does not count before the file has it: until then, other processes may
        # begin to hold commits below, and the vacuum that raised it may die before it writes the file.
        oldest_kept = oldest_kept_versions[branch] if branch in oldest_kept_versions else commits.oldest_kept.of(branch)
        for stored in commits.chain.ancestors(head, lowest=oldest_kept):
            if stored.header.version < oldest_kept or stored.header.branch != branch:
                break
            met.add(stored.name)
            yield stored
            merged.update(kept_with(stored, related))
    there = [stored for stored in (commits.files.read(*place) for place in sorted(merged)) if stored is not None]
    for stored in (*tagged, *begun, *there):
        if stored.name not in met:
            met.add(stored.name)
            yield stored


def hold_all(commits: Commits, pins: Callable[[str], Pins], holder: object) -> dict[str, int]:
    """Pin the kept commits of every branch while `holder` lives; return the branches' oldest kept versions."""
    return commits.hold_kept(
        lambda: {branch: commits.oldest_kept.of(branch) for branch in living_branches(commits)},
        lambda branch, stored: pins(branch).hold(holder, stored.header.seq),
    )


def data_packs(commits: Commits) -> Iterable[str]:
    """Return the paths of all data packs."""
    found = []
    for folder in paths_in(commits.storage, names.PACKS):
        with contextlib.suppress(WrongFileTypeError):  # not a directory, so none of our files is in it
            found += paths_in(commits.storage, folder)
    return found


class StagedPacks:
    """The data packs of staged files and of their transactions: these may be about to be committed."""

    def __init__(self, files: Iterable[str]) -> None:
        staged = map(names.parse_staging, files)
        self._transactions = {packs_begin(part[0]) for part in staged if part is not None}

    def __contains__(self, path: object) -> bool:
        if not isinstance(path, str):
            return False
        name = posixpath.basename(path)
        pack_id = names.parse_data_pack(name[:2], name)
        return pack_id is not None and packs_begin(pack_id) in self._transactions


def sizes_of(commits: Commits, paths: Iterable[str]) -> dict[str, int]:
    """Return the lengths of files in bytes; 0 for a missing file or a directory."""
    paths = list(paths)
    directories = {posixpath.dirname(path) for path in paths}
    found = {
        posixpath.join(directory, name): size
        for directory in directories
        for name, size in commits.storage.sizes(directory).items()
    }
    return {path: found.get(path, 0) for path in paths}


def kept_for_feeds(commits: Commits, head: Stored) -> Iterator[tuple[int, str]]:
    """Yield for each feed the lowest version that it needs of a branch, whose head is given, and its name.

    The cursors are those in the newest commits of all branches. A feed needs the commit where it is, too: the next
    change is told against it. Raises `CorruptionError` for a cursor that can't be understood.
    """
    branch = head.header.branch
    for name, cursor in _cursors(commits):
        version = max(cursor.place.version, 0)
        line = {cursor.branch: None, **dict(commits.branches.lineage(cursor.branch))}
        last = line.get(branch, -1)  # the last version of this branch that the followed one has
        if last is None or version <= last:
            yield max(version, _limit(commits, head, cursor)), name


def _limit(commits: Commits, head: Stored, cursor: Cursor) -> int:
    """Return the lowest version that the limit of a feed allows to keep."""
    of_commits, of_time = cursor.keep
    lowest = 0 if of_commits is None else head.header.version - of_commits
    if of_time is not None:
        lowest = max(lowest, first_since(commits, head, int(commits.storage.now() * 1_000_000) - of_time) - 1)
    return max(lowest, 0)


def _cursors(commits: Commits) -> Iterator[tuple[str, Cursor]]:
    heads = filter(None, map(commits.head, living_branches(commits)))
    for head in heads:
        for name, written in head.header.declared.cursors.items():
            if not is_mark(name):
                try:
                    yield name, Cursor.from_dict(written)
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    raise CorruptionError(head.path, reason=f"cursor {name!r} is invalid: {error!r}") from error
