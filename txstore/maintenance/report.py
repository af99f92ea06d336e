"""The results of verifying and repairing: faults, repairs, and the report of both."""

from __future__ import annotations

from dataclasses import dataclass, field

from txstore.errors import CorruptionError, TxStoreError, WrongFileTypeError
from txstore.format.display import html_head, html_table, printable

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
