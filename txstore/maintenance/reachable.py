"""The one walk over what is kept: which files a commit needs to be read."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from txstore.commit import MAIN, Stored
from txstore.errors import WrongFileTypeError
from txstore.format import names
from txstore.format.commitfile import CommitName, RunName
from txstore.format.packfile import PackName, packs_begin
from txstore.history.commits import Commits
from txstore.history.find import find_tagged
from txstore.locks.pins import Pins
from txstore.segments.ranged_packs import open_packs
from txstore.segments.ranged_runs import open_run, open_runs
from txstore.segments.runs import Runs, names_of


class Reachable:
    """The files that some commits need: their own, those of their runs, and those of the values in the runs.

    A run's table of packs is taken at its word: a pack that only hidden entries of the run point at counts, too.
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
    """Return the ids of the branches that there are, the first one first."""
    return [MAIN, *dict.fromkeys(record.id for record in commits.branches.all().values())]


def kept_commits(commits: Commits, oldest_kept_versions: Mapping[str, int]) -> Iterator[Stored]:
    """Yield every commit that is kept, once: each branch down to its oldest kept version, and what has a name below.

    That is: what is tagged, what a branch begins behind, and what a commit that is kept has merged.
    `oldest_kept_versions` are those of branches of which it is not the oldest kept version as it is now. Who makes one
    of these of another, or of a pin, looks afterwards whether it was kept, so they are looked for in this order (I10).
    """
    met: set[CommitName] = set()
    merged: set[tuple[str, int]] = set()
    tagged = [find_tagged(commits, name) for name in commits.tags()]
    living = living_branches(commits)
    related = commits.related()
    begun = [stored for stored in map(commits.fork_point, living) if stored is not None]
    for branch in living:
        head = commits.head(branch)
        if head is None or head.header.branch != branch:
            continue
        # What the head says of its oldest kept version does not count before the file does: until then, others may
        # begin to hold what is below, and the vacuum that has raised it may never come to the file.
        oldest_kept = oldest_kept_versions[branch] if branch in oldest_kept_versions else commits.oldest_kept(branch)
        for stored in commits.ancestors(head, lowest=oldest_kept):
            if stored.header.version < oldest_kept or stored.header.branch != branch:
                break
            met.add(stored.name)
            yield stored
            merged.update(commits.kept_with(stored, related))
    there = [stored for stored in (commits.read(*place) for place in sorted(merged)) if stored is not None]
    for stored in (*tagged, *begun, *there):
        if stored.name not in met:
            met.add(stored.name)
            yield stored


def hold_all(commits: Commits, pins: Callable[[str], Pins], holder: object) -> dict[str, int]:
    """Pin what is kept of every branch for as long as `holder` lives; return their oldest kept versions."""
    return commits.hold_kept(
        lambda: {branch: commits.oldest_kept(branch) for branch in living_branches(commits)},
        lambda branch, stored: pins(branch).hold(holder, stored.header.seq),
    )


def data_packs(commits: Commits) -> Iterable[str]:
    """Return the paths of all data packs."""
    found = []
    for folder in commits.pack_folders():
        with contextlib.suppress(WrongFileTypeError):  # no directory, so that nothing of ours is in it
            found += commits.paths_in(folder)
    return found


class StagedPacks:
    """Which data packs files of `.staging/` belong to, or their transactions do: they may be about to be committed."""

    def __init__(self, files: Iterable[str]) -> None:
        files = list(files)
        staged = map(names.parse_staging, files)
        self._transactions = {packs_begin(part[0]) for part in staged if part is not None}
        self._runs = set(map(names.parse_staged_run, files)) - {None}

    def __contains__(self, path: object) -> bool:
        if not isinstance(path, str):
            return False
        name = posixpath.basename(path)
        pack_id = names.parse_data_pack(name[:2], name)
        return pack_id is not None and (packs_begin(pack_id) in self._transactions or pack_id in self._runs)


def sizes_of(commits: Commits, paths: Iterable[str]) -> dict[str, int]:
    """Return the lengths of files in bytes; 0 of one that is gone, or a directory."""
    paths = list(paths)
    directories = {posixpath.dirname(path) for path in paths}
    found = {
        posixpath.join(directory, name): size
        for directory in directories
        for name, size in commits.storage.sizes(directory).items()
    }
    return {path: found.get(path, 0) for path in paths}
