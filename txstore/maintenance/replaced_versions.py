"""Restores one line of history after commits replaced each other's versions on a server without exclusive creation.

With exclusive creation, the first commit of each version would have won: the oldest that follows the commit in the
version below. If the server keeps object versions, the replaced commits still exist. Commits that do not follow go to
the quarantine, and the report names each commit that the history has lost, by its id.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from txstore.commit import Stored
from txstore.errors import CorruptionError, TxStoreError
from txstore.format import encoding, names
from txstore.format.records import HeadCache
from txstore.history.commits import Commits
from txstore.history.opening import open_commits
from txstore.maintenance.reachable import living_branches
from txstore.maintenance.replacing import Replacer
from txstore.maintenance.report import Fault
from txstore.storage.interface import Earlier, Storage


class _Occupant(NamedTuple):
    """A commit that a version holds, or held before."""

    stored: Stored
    content: bytes = b""  # if the version held several commits
    versions: tuple[Earlier, ...] = ()  # the server's versions of the object with this content


def were_taken_twice(storage: Storage) -> bool:
    """Tell whether a version of a living branch held several commits, by what the server still keeps."""
    commits, files = open_commits(storage), Replacer(storage)
    if not commits.store.may_be_taken_twice:
        return False
    return any(_Line(commits, files, branch).has_doubles() for branch in living_branches(commits))


def make_one_line(storage: Storage, files: Replacer, branch: str) -> list[Fault]:
    """Put the commits of a branch in one line; return the lost ones.

    It does nothing if no process was stopped and no version is known to have held several commits.
    Raises `OSError`, also if the server still does not create exclusively.
    """
    commits = open_commits(storage)
    if not commits.store.may_be_taken_twice:
        return []
    stops = [stop for stop in map(names.parse_stop, storage.list(names.commits_directory(branch))) if stop is not None]
    line = _Line(commits, files, branch, was_stopped=bool(stops))
    if not stops and not line.has_doubles():
        return []
    storage.check_creation(waits=True)
    line.restore()
    line.tell_of_dropped()
    line.tell_of_named()
    for version, commit_id in stops:
        line.tell_of(commit_id, version, "a process has found that it may have lost its place")
    line.drop_tags()
    if line.is_whole():  # else a file that could not be moved is still in the way
        for version, commit_id in stops:
            files.move_away(names.stop_path(branch, version, commit_id), "moved away: commits may be made again")
    return line.lost


class _Line:
    def __init__(self, commits: Commits, files: Replacer, branch: str, *, was_stopped: bool = False) -> None:
        self.storage = commits.storage
        self.lost: list[Fault] = []
        self._files = files
        self._branch = branch
        self._was_stopped = was_stopped
        self._directory = names.commits_directory(branch)
        self._commits = commits
        self._oldest_kept = self._commits.oldest_kept.of(branch)
        self._told: set[bytes] = set()
        self._dropped: list[Stored] = []
        self._named: HeadCache | None = None  # what the head cache named

    def has_doubles(self) -> bool:
        """Tell whether any version held several commits."""
        earlier = self._earlier
        doubles = [version for version in self._versions() if len(earlier.get(names.version_name(version), ())) > 1]
        return any(len(self._held(version, None)) > 1 for version in doubles)

    def is_whole(self) -> bool:
        """Tell whether each commit follows the one in the version below."""
        below: Stored | None = None
        for stored in self._commits.files.each(self._read, self._versions()):
            if below is not None and stored is not None and not _may_follow(stored, below):
                return False
            below = stored
        return True

    def restore(self) -> None:
        """Restore the oldest line, and move commits that do not follow it out of the way.

        If no process was stopped, commits may follow one that replaced another: these stay.
        """
        versions = self._versions()
        currents = list(self._commits.files.each(self._read, versions))
        below: Stored | None = None
        for version, current, above in zip(versions, currents, [*currents[1:], None], strict=True):
            held = self._held(version, current)
            fit = [each for each in held if below is None or _may_follow(each.stored, below)]
            if held and not fit:
                self._drop_from(version, versions)
                break
            if not self._was_stopped and current is not None and above is not None and above.follows(current):
                fit.sort(key=lambda each: each.stored.hash != current.hash)
            if fit:
                self._settle(current, held, fit[0])
            below = fit[0].stored if fit else current
        self._write_head_cache()

    def _versions(self) -> list[int]:
        return sorted(version for version in self._commits.files.versions(self._branch) if version >= self._oldest_kept)

    def _read(self, version: int) -> Stored | None:
        try:
            return self._commits.files.read(self._branch, version)
        except CorruptionError:
            return None

    @cached_property
    def _earlier(self) -> Mapping[str, Sequence[Earlier]]:
        """Return what the server keeps of this branch's versions; nothing if the server can't tell."""
        try:
            return self.storage.earlier(self._directory)
        except OSError as error:
            if error.errno != errno.ENOTSUP and (self._was_stopped or not isinstance(error, PermissionError)):
                raise
            if self._was_stopped:
                self._files.note(self._directory, f"only the present files were looked at: {error.strerror}")
            return {}

    def _held(self, version: int, current: Stored | None) -> list[_Occupant]:
        """Return the commits that a version held and holds, the oldest first."""
        earlier = self._earlier.get(names.version_name(version), ())
        if len(earlier) < 2:
            return [] if current is None else [_Occupant(current)]
        found: dict[bytes, _Occupant] = {}
        path = names.commit_path(self._branch, version)
        for kept in earlier:
            content = kept.read()
            try:
                stored = self._commits.files.decode(path, self._branch, version, content, len(content))
            except CorruptionError:
                continue
            others = found[stored.hash].versions if stored.hash in found else ()  # an erasure wrote it again
            found[stored.hash] = _Occupant(stored, content, (*others, kept))
        return list(found.values())

    def _settle(self, current: Stored | None, held: Sequence[_Occupant], chosen: _Occupant) -> None:
        """Give a version that held several commits to one of them; the others go to the quarantine."""
        for each in held:
            if each is not chosen:
                self._dropped.append(each.stored)
                self._files.keep(each.stored.path, each.content)
        for each in held:
            for version in each.versions if each is not chosen else ():
                version.forget()
        if current is None or current.hash != chosen.stored.hash:
            self._files.note(chosen.stored.path, f"commit {chosen.stored.header.id.hex()} has its place again")

    def _drop_from(self, first: int, versions: Sequence[int]) -> None:
        """Move away the commits of a version and of those above it, newest first, until a move fails."""
        for version in sorted((version for version in versions if version >= first), reverse=True):
            current = self._read(version)
            held = self._held(version, current)
            path = names.commit_path(self._branch, version)
            if not self._files.move_away(path, "moved away: it does not follow what is below"):
                return
            for each in held:
                self._dropped.append(each.stored)
                if current is None or each.stored.hash != current.hash:
                    self._files.keep(each.stored.path, each.content)
        try:
            self.storage.free_names(self._directory, names.version_name(first - 1) if first else "")
        except OSError as error:
            if error.errno != errno.ENOTSUP:
                raise

    def _write_head_cache(self) -> None:
        commits = open_commits(self.storage)
        with contextlib.suppress(OSError, encoding.MalformedError):
            self._named = commits.store.head_caches.read(self._branch)
        self.storage.delete(names.head_cache_path(self._branch))  # it may name a commit that has lost its place
        head = commits.head(self._branch)
        if head is not None and head.header.branch == self._branch:
            commits.store.head_caches.write_of_copy(head)

    # --- lost commits

    @cached_property
    def _kept(self) -> set[bytes]:
        """Return the ids in the final history. Members of a group commit may have other versions than before."""
        return {
            stored.header.id for stored in self._commits.files.each(self._read, self._versions()) if stored is not None
        }

    def tell_of_dropped(self) -> None:
        """Report the lost commits: the dropped ones, and their parents of which nothing but the id is known."""
        for stored in self._dropped:
            header = stored.header
            said = f"{header.message!r} by {header.author!r}: its file is in {names.QUARANTINE}/"
            self.tell_of(header.id, header.version, said)
        for stored in self._dropped:
            header = stored.header
            if header.parent_id != encoding.NO_ID and header.fork is None:
                self.tell_of(header.parent_id, header.version - 1, "all that is known is that another one followed it")

    def tell_of_named(self) -> None:
        """Report the commit that the head cache named, if it is not in the history: nothing else may know of it."""
        if self._named is not None:
            self.tell_of(self._named.commit_id, self._named.version, "the head cache named it")

    def drop_tags(self) -> None:
        """Move away the tags of commits that are lost."""
        for name in self._commits.tags.names():
            with contextlib.suppress(TxStoreError):  # `verify` reports it
                tag = self._commits.tags.read(name)
                if tag.branch == self._branch and tag.commit_id in self._told:
                    action = f"moved away: the commit that it names is lost, {tag.commit_id.hex()}"
                    self._files.move_away(names.tag_path(name), action)

    def tell_of(self, commit_id: bytes, version: int, said: str) -> None:
        if version < self._oldest_kept or commit_id in self._told or commit_id in self._kept:
            return
        self._told.add(commit_id)
        reason = (
            f"commit {commit_id.hex()} is not in the history: another one had its version, or that of one before it"
        )
        path = names.commit_path(self._branch, version)
        self.lost.append(Fault(path, f"{reason} ({said})", part="lost", commits=(commit_id.hex(),), commit_count=1))


def _may_follow(stored: Stored, below: Stored) -> bool:
    """Tell whether a commit follows one below, or what is between them is missing."""
    return stored.header.version != below.header.version + 1 or stored.follows(below)
