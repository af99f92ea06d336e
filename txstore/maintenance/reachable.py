"""The one walk over what is kept: which files a commit needs to be read."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterable, Iterator, Sequence

from txstore.errors import WrongFileTypeError
from txstore.format import names
from txstore.format.commitfile import RunName
from txstore.format.packfile import PackName, packs_begin
from txstore.history.commit import Stored
from txstore.history.commits import Commits
from txstore.history.find import find_tagged
from txstore.history.ranged_packs import open_packs
from txstore.history.ranged_runs import open_run, open_runs
from txstore.history.runs import Runs, names_of


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


def kept_commits(commits: Commits, branch: str, head: Stored, floor: int) -> Iterator[Stored]:
    """Yield the commits from the head down to a floor, and the tagged ones below it."""
    seen = set()
    for stored in commits.ancestors(head):
        if stored.header.slot < floor:
            break
        seen.add(stored.header.id)
        yield stored
    for name, tag in commits.tags().items():
        if tag.commit_id not in seen and tag.branch == branch:
            yield find_tagged(commits, name)


def data_packs(commits: Commits) -> Iterable[str]:
    """Return the paths of all data packs."""
    found = []
    for folder in commits.pack_folders():
        with contextlib.suppress(WrongFileTypeError):  # no directory, so that nothing of ours is in it
            found += commits.paths_in(folder)
    return found


class StagedPacks:
    """Which data packs are of transactions that files of `.staging/` belong to: they may be about to be committed."""

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
    """Return the lengths of files in bytes; 0 of one that is gone, or a directory."""
    paths = list(paths)
    directories = {posixpath.dirname(path) for path in paths}
    found = {
        posixpath.join(directory, name): size
        for directory in directories
        for name, size in commits.storage.sizes(directory).items()
    }
    return {path: found.get(path, 0) for path in paths}
