"""The results of verifying and repairing: faults, the commits that each touches, repairs, and the report of all."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from txstore.errors import CorruptionError, TxStoreError, WrongFileTypeError
from txstore.format import names, packfile
from txstore.format.commitfile import RunName
from txstore.format.display import html_head, html_table, printable
from txstore.format.keys import encode_key
from txstore.history.commits import Commits
from txstore.history.snapshot import Snapshot, unpinned
from txstore.segments.ranged_packs import open_packs

#: Commit ids that are listed for each fault.
COMMITS_TOLD = 10


#: Faults and repairs that a notebook shows.
_SHOWN = 50


@dataclass(frozen=True, slots=True, repr=False)
class Fault:
    """One fault that `verify` found.

    `part` says what is damaged: "format", "guard", "head cache", "tag" and "staging" are small files; "head", "frame",
    "value", "padding", "run", "carried" (headers) and "header" (footer included) are parts of packs; a "ref" leads
    nowhere; a file is "missing", "unreadable", of the wrong "type" (a link, a FIFO, a directory), or an "orphan", which
    is not in the history; a "link" between commits does not hold; a "stop" says that no process may commit until a
    repair has found which commits follow one another, and a commit that it leaves out is "lost"; a "source" is an
    outside file that holds values and has changed; an "erasure" was interrupted; a "chunk" can't be decoded. `commits`
    are the ids of the first of the `commit_count` commits that the fault touches, the oldest first.
    """

    path: str
    reason: str
    offset: int | None = None
    key: str | None = None
    part: str = "header"
    commits: tuple[str, ...] = ()
    commit_count: int = 0

    @property
    def where(self) -> str:
        return self.path + (f" at byte {self.offset}" if self.offset is not None else "")

    def __repr__(self) -> str:
        return f"<Fault {self.part}: {printable(self.where)}>"

    def _repr_html_(self) -> str:
        return html_head("Fault", str(self))

    def __str__(self) -> str:
        what = self.where + (f" (key {self.key!r})" if self.key is not None else "") + f": {self.reason}"
        if self.commit_count:
            shown = ", ".join(commit[:12] for commit in self.commits)
            more = self.commit_count - len(self.commits)
            what += f" [commits: {shown}" + (f" and {more:,} more]" if more else "]")
        return what


@dataclass(frozen=True, slots=True)
class Repair:
    """One repair: `path` is the repaired file."""

    path: str
    action: str

    def __str__(self) -> str:
        return f"{self.path}: {self.action}"


@dataclass(slots=True, repr=False)
class Report:
    """The result of `verify`. After repairs: the remaining faults, the repairs, and the faults that are gone.

    `strays` are the paths of files that other programs left in the repository: they do no harm, and stay.
    """

    commits: int = 0
    values: int = 0
    refs: int = 0
    foreign: int = 0  # refs to values in outside files
    bytes: int = 0
    faults: list[Fault] = field(default_factory=list)
    repairs: list[Repair] = field(default_factory=list)
    repaired: list[Fault] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.faults

    def __str__(self) -> str:
        repaired = f", {len(self.repaired):,} repaired," if self.repaired else ""
        outside = f" ({self.foreign:,} to files outside)" if self.foreign else ""
        faults = f"{len(self.faults):,} fault{'' if len(self.faults) == 1 else 's'}"
        return (
            f"{faults}{repaired} in {self.commits:,} commits, {self.values:,} values, "
            f"{self.refs:,} refs{outside}, {self.bytes:,} bytes"
        )

    def __repr__(self) -> str:
        return f"<Report: {self}>"

    def _repr_html_(self) -> str:
        rows = [(fault.where, fault.key or "", fault.reason) for fault in self.faults[:_SHOWN]]
        found = html_table(rows, ("file", "key", "fault"), left=len(self.faults) - len(rows))
        rows = [(repair.path, "", repair.action) for repair in self.repairs[:_SHOWN]]
        done = html_table(rows, ("file", "", "repair"), left=len(self.repairs) - len(rows))
        return html_head("Report", str(self)) + found + done


class Faults:
    """The faults that one verification finds, each once."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._told: set[tuple[str, str, int | None, str | None]] = set()

    def add_error(self, error: TxStoreError | OSError, path: str, *, part: str | None = None) -> None:
        """Add what an error says about a file. Raises an error that says nothing about it."""
        if isinstance(error, WrongFileTypeError):
            self.add(Fault(error.path, error.reason, part="type"))
        elif isinstance(error, CorruptionError):
            self.add(Fault(error.path, error.reason, error.offset, error.key, part or "header"))
        elif isinstance(error, ConnectionError | TimeoutError) or _is_refused_by_server(error):
            raise error
        elif isinstance(error, OSError):
            self.add(Fault(path, f"it can't be read: {error}", part=part or "unreadable"))
        else:
            self.add(Fault(str(getattr(error, "path", path)), str(error), part=part or "header"))

    def add(self, fault: Fault) -> None:
        told = fault.path, fault.reason, fault.offset, fault.key
        if told not in self._told:  # a damaged head is met twice, and a lost one, too
            self._told.add(told)
            self._report.faults.append(fault)


def _is_refused_by_server(error: BaseException) -> bool:
    """Tell whether the server refused these credentials. An unreadable file on a disk is a fault instead."""
    return isinstance(error, PermissionError) and "://" in str(error.filename)


#: At most this many commits are searched for a value whose commit is not known.
_LOOKED_AT_MOST = 1000


#: A branch, by its id, and a version of its own.
Place = tuple[str, int]


class ListedRun(NamedTuple):
    """A run, and for each branch the versions of the first and last commit that list it; all between do, too."""

    name: RunName
    versions: Mapping[str, tuple[int, int]]

    def also_in(self, place: Place) -> ListedRun:
        branch, version = place
        first, last = self.versions.get(branch, (version, version))
        return ListedRun(self.name, {**self.versions, branch: (min(first, version), max(last, version))})

    @property
    def firsts(self) -> list[Place]:
        return [(branch, first) for branch, (first, _) in self.versions.items()]

    @property
    def spans(self) -> set[tuple[str, int, int]]:
        """Return branches, each with a first and last version."""
        return {(branch, first, last) for branch, (first, last) in self.versions.items()}


class Tracer:
    """Searches one history.

    `ids` has the ids of its commits, by place. `runs` has all runs that they list, `readers` the span of versions that
    read each unreadable pack, and `brought` the commit that each pack came with.
    """

    def __init__(
        self,
        commits: Commits,
        ids: Mapping[Place, bytes],
        runs: Sequence[ListedRun],
        readers: Mapping[bytes, set[tuple[str, int, int]]],
        brought: Mapping[str, Place],
    ) -> None:
        self._commits = commits
        self._ids = ids
        self._versions: dict[str, list[int]] = {}
        for branch, version in sorted(ids):
            self._versions.setdefault(branch, []).append(version)
        self._runs = runs
        self._readers = readers
        self._brought = brought
        self._packs = open_packs(commits.storage)
        # Many faults touch the same commits.
        self._snapshot = lru_cache(_LOOKED_AT_MOST)(self._read)

    def _read(self, place: Place) -> Snapshot:
        return unpinned(self._commits, self._commits.files.read(*place), self._packs)

    def with_commits(self, fault: Fault) -> Fault:
        places = sorted(self._touched(fault))
        if not places or fault.commits:
            return fault
        ids = [self._ids[place].hex() for place in islice(places, COMMITS_TOLD)]
        return Fault(fault.path, fault.reason, fault.offset, fault.key, fault.part, tuple(ids), len(places))

    def _touched(self, fault: Fault) -> set[Place]:
        """Return the places of the commits that a fault touches."""
        own = names.parse_commit_path(fault.path)
        found = {own} if own is not None else set()
        if fault.part in ("value", "ref") and fault.key is not None and fault.offset is not None:
            return self._readers_of(fault.path, fault.key, fault.offset)
        if fault.part == "run" and fault.offset is not None:
            for listed in self._runs:
                if listed.name.pack is not None and (listed.name.pack.path, listed.name.offset) == (
                    fault.path,
                    fault.offset,
                ):
                    found |= self._between(listed.spans)
        elif fault.part in ("head", "missing", "unreadable"):
            for listed in self._runs:
                if listed.name.pack is not None and listed.name.pack.path == fault.path:
                    found |= self._between(listed.spans)
            for pack_id, spans in self._readers.items():
                if fault.path.endswith(pack_id.hex()) or (own is not None and self._ids.get(own) == pack_id):
                    found |= self._between(spans)
        return found & self._ids.keys()

    def _between(self, spans: set[tuple[str, int, int]]) -> set[Place]:
        """Return the existing commits of the spans, from one version to another."""
        found: set[Place] = set()
        for branch, first, last in spans:
            versions = self._versions.get(branch, [])
            found.update(
                (branch, version) for version in versions[bisect_left(versions, first) : bisect_right(versions, last)]
            )
        return found

    def _readers_of(self, path: str, key: str, offset: int) -> set[Place]:
        """Return the commits in which a key has the value at this offset: on each branch they are consecutive."""
        brought = self._brought.get(path)
        found: set[Place] = set()
        for branch, versions in self._versions.items():
            begin = bisect_left(versions, brought[1]) if brought is not None and brought[0] == branch else 0
            found.update(
                (branch, version) for version in self._readers_on(branch, versions, begin, (path, key, offset))
            )
        return found

    def _readers_on(self, branch: str, versions: list[int], begin: int, value: tuple[str, str, int]) -> set[int]:
        path, key, offset = value

        def reads(version: int) -> bool | None:
            try:
                runs = self._snapshot((branch, version)).runs
                found = runs.lookup(encode_key(key))
                if found is None or found.kind not in packfile.FRAME_OF_REF:
                    return False
                return found.offset == offset and runs.pack_name(found.run, found.pack).path == path
            except (TxStoreError, OSError):
                return None

        if begin < len(versions) and reads(versions[begin]):
            end = bisect_left(range(begin, len(versions)), True, key=lambda i: reads(versions[i]) is not True) + begin
            return set(versions[begin:end])
        return {version for version in versions[:_LOOKED_AT_MOST] if reads(version)}
