"""Checks the history: the records of branches, and the commits of each from the oldest kept version to the head."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from txstore.commit import MAIN, Stored
from txstore.errors import CorruptionError, TxStoreError
from txstore.format import encoding, names
from txstore.history.branch_store import check_not_lost
from txstore.history.commits import Commits
from txstore.history.erasures import RECHUNK, last_met
from txstore.maintenance.commits_of_faults import Place
from txstore.maintenance.report import Fault, Faults
from txstore.storage.kept import FileReader

#: At most this many missing files in a row are reported one by one.
_MISSING_TOLD = 1000


class HistoryCheck:
    """Finds the readable commits, and reports what is wrong with the others and between them."""

    def __init__(self, commits: Commits, faults: Faults, fetched: FileReader) -> None:
        self._commits = commits
        self._faults = faults
        self._fetched = fetched
        self.ids: dict[Place, bytes] = {}  # of the readable commits
        self.files_of: dict[Place, list[tuple[str, int]]] = {}  # by commit: its files and packs, with their lengths
        self.total = 0  # bytes of these
        self.named: set[Place] = set()  # kept below an oldest kept version: tagged, start of a branch, or merged
        self.oldest_kept_of: dict[str, int] = {}  # of the existing branches
        #: The same, by their heads when these were found; None if unknown.
        self.oldest_kept_versions: dict[str, int] | None = {}

    def check_branches(self, living: list[str]) -> None:
        """Add the ids of the existing branches; report damaged records, and lost fork points."""
        living.append(MAIN)
        for file in self._commits.branches.files():
            path = names.branch_path(file)
            try:
                record = self._commits.branches.read(file)
            except (TxStoreError, OSError) as error:
                self._faults.add_error(error, path, part="branch")
                self.oldest_kept_versions = None
                continue
            if record is None or record.id in living:
                continue
            living.append(record.id)
            try:
                self._commits.files.fork_point(record.id)
            except (TxStoreError, OSError) as error:
                self._faults.add_error(error, path, part="branch")
            self.named.add((record.fork.branch, record.fork.version))

    def check_chain(self, branch: str) -> None:
        """Find the readable commits; report the unreadable ones, and links that do not hold."""
        there = self._commits.files.versions(branch)  # before the head is read: other processes may be committing
        oldest_kept, top = min(there, default=0), max(there, default=-1)
        fork = self._commits.branches.fork(branch)
        first = 0 if fork is None else fork.version + 1
        checked = self._commits.files.begin(self._check_head_cache, branch)
        try:
            try:
                head = self._commits.head(branch)
            finally:
                checked()  # first: it says of a lost commit that it is missing
            if self.oldest_kept_versions is not None:
                self.oldest_kept_versions[branch] = -1 if head is None else head.header.oldest_kept
            has_own = head is not None and head.header.branch == branch
            oldest_kept, top = (
                (head.header.oldest_kept, head.header.version) if head is not None and has_own else (0, first - 1)
            )
        except (TxStoreError, OSError) as error:
            self._faults.add_error(error, names.commits_directory(branch))
            self.oldest_kept_versions = None
            read = (self.read_quietly((branch, version)) for version in there)
            oldest_kept = max((s.header.oldest_kept for s in read if s is not None), default=oldest_kept)
        oldest_kept = self.oldest_kept_of[branch] = max(oldest_kept, first)
        for version in sorted(there):
            if version > top:
                path = names.commit_path(branch, version)
                self._faults.add(
                    Fault(path, "this commit does not follow the one in the version before it", part="orphan")
                )
        child: Stored | None = None
        versions = self._versions_down(branch, there, top, oldest_kept)
        for version, stored, end, refused in self._commits.files.each(partial(self._read_or_error, branch), versions):
            path = names.commit_path(branch, version)
            if refused is not None:
                self._faults.add_error(refused, path)
            elif stored is None:
                self._faults.add(Fault(path, "the file is missing", part="missing"))
            if stored is not None:
                if len(end) == stored.footer.file_length:
                    self._fetched.keep(path, end)
                self.ids[branch, version] = stored.header.id
                self.files_of[branch, version] = [(stored.path, stored.footer.file_length)]
                self.files_of[branch, version] += [(pack.name.path, pack.end) for pack in stored.header.packs]
                self._check_merged(stored)
                if stored.header.seq != version + 1:
                    reason = f"its seq is {stored.header.seq}, and has to be its parent's + 1: {version + 1}"
                    self._faults.add(Fault(path, reason, part="link"))
                self.total += stored.footer.file_length + sum(pack.end for pack in stored.header.packs)
                is_below = child is not None and child.header.version == version + 1
                if child is not None and is_below and child.follows(stored):
                    self._check_counts(child, stored)
                elif child is not None and is_below:
                    self._faults.add(
                        Fault(path, f"this is not the parent that version {version + 1} names", part="link")
                    )
            child = stored
        if fork is not None and child is not None and child.header.version == first == oldest_kept:
            named = (child.header.parent_id, child.header.parent_hash)
            if (child.header.fork, *named) != (fork.branch, fork.id, fork.hash):
                path = names.commit_path(branch, first)
                self._faults.add(
                    Fault(path, "it does not follow the commit that its branch begins behind", part="link")
                )
            elif (stored := self.read_quietly((fork.branch, fork.version))) is not None:
                self._check_counts(child, stored)

    def _check_counts(self, stored: Stored, parent: Stored) -> None:
        """Report numbers of a commit that do not count on from those of its parent."""
        header, before = stored.header, parent.header
        for is_right, reason in (
            (header.time > before.time, "its time is not above its parent's"),
            (header.oldest_kept >= before.oldest_kept, "its oldest kept version is below its parent's"),
        ):
            if not is_right:
                self._faults.add(Fault(stored.path, reason, part="link"))

    def check_kept_aside(self, branch: str) -> None:
        """Report a rechunk that has gone on after an erasure of its array: its copy may be of values from before."""
        try:
            head = self._commits.head(branch)
            told = None if head is None else head.header.properties.get(RECHUNK)
            path = told.get("path") if isinstance(told, dict) and "pieces" in told else None
            if head is None or not isinstance(path, str):
                return
            last = last_met(self._commits.storage, branch, path)
        except (TxStoreError, OSError):
            return  # reported at its own place
        if last is not None and head.header.branch == branch and head.header.version > last:
            name = self._commits.branches.name_of(branch)
            reason = (
                f"the branch {name!r} has a copy of {path!r} that a rechunk makes, perhaps with values that were "
                "erased meanwhile: repeat the rechunk, which begins anew, or delete the branch; then vacuum"
            )
            self._faults.add(Fault(head.path, reason, part="erasure"))

    def _check_merged(self, stored: Stored) -> None:
        """Report a merge whose other parent is missing, although no vacuum expired it."""
        merged = stored.header.merged
        if merged is None:
            return
        try:
            if self._commits.files.named(merged) is not None:
                self.named.add((merged.branch, merged.version))
                return
            is_given_up = merged.version < self._commits.oldest_kept.of(merged.branch)
            if is_given_up or not self._commits.branches.is_living(merged.branch):
                return
        except (TxStoreError, OSError):
            return  # reported at its own place
        self._faults.add(
            Fault(stored.path, f"the commit that it has merged is not there: {merged.id.hex()}", part="link")
        )

    def _versions_down(self, branch: str, listed: Iterable[int], top: int, oldest_kept: int) -> Iterator[int]:
        """Yield the versions from the top down to the oldest kept version. Report a long row of missing ones as one
        fault.

        Names of files and the oldest kept version in a header only claim how many versions exist.
        """
        there = sorted({version for version in listed if oldest_kept <= version <= top}, reverse=True)
        above = top + 1
        for version in [*there, oldest_kept - 1]:
            missing = range(above - 1, version, -1)
            if len(missing) <= _MISSING_TOLD:
                yield from missing
            else:
                reason = f"the file is missing, and so are those of the {len(missing) - 1} versions below it"
                self._faults.add(Fault(names.commit_path(branch, above - 1), reason, part="missing"))
            if version >= oldest_kept:
                yield version
            above = version

    def _read_or_error(
        self, branch: str, version: int
    ) -> tuple[int, Stored | None, bytes, TxStoreError | OSError | None]:
        try:
            stored, end = self._commits.files.read_with_end(branch, version) or (None, b"")
        except (TxStoreError, OSError) as error:
            return version, None, b"", error
        return version, stored, end, None

    def read_quietly(self, place: Place) -> Stored | None:
        try:
            return self._commits.files.read(*place)
        except (TxStoreError, OSError):
            return None

    def _check_head_cache(self, branch: str) -> None:
        """Report a damaged head cache, and a lost newest commit: a durable one that it names."""
        path = names.head_cache_path(branch)
        try:
            head_cache = self._commits.store.head_caches.read(branch)
        except FileNotFoundError:
            return
        except OSError as error:
            self._faults.add_error(error, path, part="head cache")
            return
        except encoding.MalformedError as error:
            content = self._commits.storage.read(path)
            if any(content):  # all zeros: its writer was killed, or power was lost, before the write
                self._faults.add(Fault(path, error.reason, part="head cache"))
            return
        if not head_cache.is_durable_at(self._commits.storage.place()):
            return
        try:
            stored = self._commits.files.read(branch, head_cache.version)
            if stored is not None and stored.header.id == head_cache.commit_id:
                return
        except (OSError, TxStoreError):
            return  # it is only a cache; a damaged commit is reported where its version is read
        try:
            check_not_lost(self._commits.branches, self._commits.oldest_kept, branch, head_cache)
        except CorruptionError as error:
            self._faults.add_error(error, path, part="missing")
