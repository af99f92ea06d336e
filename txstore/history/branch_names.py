"""Stores the branches of a repository: their names, their ids, and the commit at which each starts.

Files below commits/, heads/ and oldest_kept/ are named by a branch's id, so that a user can delete, reuse or change a
branch's name. Only this module converts between names and ids. It also knows of each branch up to which version it is
durable, and stores the oldest kept version. A vacuum may have deleted the commits below that.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from txstore.commit import Stored
from txstore.errors import CommitNotFoundError, CorruptionError, KeyFormatError
from txstore.format import encoding, names
from txstore.format.commitfile import CommitName
from txstore.format.names import MAIN
from txstore.format.records import Branch, Tag
from txstore.history.identity import Identity
from txstore.steps import step
from txstore.storage.interface import Storage, read_listed, write_over
from txstore.storage.objects.errors import NoListsError


class BranchNames:
    """The branch records of one repository. The first branch, "main", has no record and needs no read."""

    def __init__(self, storage: Storage, identity: Identity) -> None:
        self._storage = storage
        self._identity = identity
        self._known: dict[str, Branch] = {}  # by id: the records as last read
        self._unknown: set[str] = set()  # ids without a record

    def id_of(self, name: str) -> str:
        """Return the id of a branch by its name. Raises `CommitNotFoundError` if there is no such branch."""
        if name == MAIN:
            return MAIN
        try:
            found = self.read(name)
        except KeyFormatError as error:
            raise CommitNotFoundError(f"branch {name!r}", advice=str(error)) from None
        if found is None or found.name != name:
            self._identity.check_there()
            there = self._told() if found is None else f"; there is {found.name!r}"
            advice = f"there is no such branch{there}"
            raise CommitNotFoundError(f"branch {name!r}", advice=advice)
        return found.id

    def _told(self) -> str:
        try:
            return "; there is " + ", ".join(map(repr, [MAIN, *self.files()]))
        except NoListsError:
            return ""

    def name_of(self, branch: str) -> str:
        """Return the name of a branch by its id, as last read."""
        try:
            found = self._find(branch)
        except NoListsError:
            return f"(branch {branch[:8]})"
        return MAIN if branch == MAIN else f"(deleted branch {branch[:8]})" if found is None else found.name

    def lineage(self, branch: str) -> tuple[tuple[str, int], ...]:
        """Return the branches of the commits before a branch's own, nearest first, each with its last version."""
        found = self._find(branch)
        return () if found is None else found.lineage

    def owner(self, branch: str, version: int) -> str:
        """Return the id of the branch that has a commit: of this branch, or of one that it forked from."""
        for older, last in self.lineage(branch):
            if version > last:
                break
            branch = older
        return branch

    def fork(self, branch: str) -> CommitName | None:
        """Return the commit at which a branch starts. None for the first branch."""
        found = self._find(branch)
        return None if found is None else found.fork

    def _find(self, branch: str) -> Branch | None:
        if branch == MAIN or branch in self._unknown:
            return None
        if branch not in self._known:
            self.all()
        if branch not in self._known:
            self._unknown.add(branch)
        return self._known.get(branch)

    def is_living(self, branch: str) -> bool:
        """Tell whether the branch with an id still exists. Where the server lists no names, it may."""
        if branch == MAIN:
            return True
        if branch in self._known:
            found = self.read(self._known[branch].name)
            if found is not None and found.id == branch:
                return True
        try:
            return any(record.id == branch for record in self.all().values())
        except NoListsError:
            return True

    def read(self, name: str) -> Branch | None:
        """Return the record of the branch with this name, or with a name that differs only in case."""
        path = names.branch_path(names.check_branch_name(name))
        try:
            found = Branch.decode(self._storage.read(path))
        except FileNotFoundError:
            return None
        except encoding.MalformedError as error:
            raise CorruptionError(path, reason=error.reason) from error
        if names.branch_path(found.name) != path:
            raise CorruptionError(path, reason=f"this is the record of branch {found.name!r}")
        self._note(found)
        return found

    def _note(self, found: Branch) -> None:
        # An earlier branch of this name has been deleted or renamed.
        known = {branch: record for branch, record in self._known.items() if record.name != found.name}
        self._known = {**known, found.id: found}
        self._unknown.discard(found.id)

    def files(self) -> list[str]:
        """Return the file names of the records: the names of the branches in lower case."""
        return sorted(file for file in self._storage.list(names.BRANCHES) if names.is_branch_file(file))

    def all(self) -> dict[str, Branch]:
        """Return all branches but the first, by their names. Raises `CorruptionError`."""
        found = read_listed(self.files, self.read)
        return {record.name: record for record in found.values()}

    def related(self) -> set[str]:
        """Return the ids of all branches, and of the branches that they forked from."""
        records = self.all().values()
        return {MAIN, *(record.id for record in records), *(each for record in records for each, _ in record.lineage)}

    def label(self, branch: str, version: int) -> str:
        """Return how people call a version of a branch."""
        return f"{self.name_of(branch)}@{version}"

    def check_living(self, branch: str) -> None:
        """Raise `CommitNotFoundError` if a branch has been deleted."""
        if branch != MAIN and not self.is_living(branch):
            advice = "it was deleted meanwhile: what is staged for it can still be read, but not be committed"
            raise CommitNotFoundError(f"branch {self.name_of(branch)!r}", advice=advice)

    # --- changing

    def create(self, name: str, fork: CommitName) -> Branch:
        """Write the record of a branch that starts at a commit, durably. Raises `ValueError` if the name is taken."""
        self.check_free(name)
        lineage = ((fork.branch, fork.version), *self.lineage(fork.branch))
        record = Branch(name, os.urandom(16).hex(), fork.id, fork.hash, lineage)
        self._write(record)
        return record

    def rename(self, name: str, new: str) -> None:
        """Rename a branch, durably. After an interruption it may have both names until the user deletes one."""
        record = self._existing(name)
        renamed = Branch(new, record.id, record.commit_id, record.hash, record.lineage)
        there = self.read(new) if new != MAIN else None
        if names.branch_path(name) == names.branch_path(new):
            write_over(self._storage, names.branch_path(new), renamed.encode())
        else:
            if there is None or there.id != record.id:
                self.check_free(new)
                self._write(renamed)
            self._storage.delete(names.branch_path(name))
        self._storage.sync_directory(names.BRANCHES)
        self._note(renamed)

    @step("delete branch")
    def delete(self, name: str) -> None:
        """Delete the record of a branch, durably. Raises `CommitNotFoundError` if there is no such branch."""
        self._existing(name)
        self._storage.delete(names.branch_path(name))
        # If a loss of power brought the record back, it would lead to commits that a vacuum may have deleted.
        self._storage.sync_directory(names.BRANCHES)

    def _existing(self, name: str) -> Branch:
        if name == MAIN:
            raise ValueError("branch 'main' is the first one of every repository: it can't be deleted or renamed")
        self.id_of(name)
        found = self.read(name)
        if found is None:
            raise CommitNotFoundError(f"branch {name!r}", advice="it was deleted just now")
        return found

    def check_free(self, name: str) -> None:
        """Raise `ValueError` if a branch has this name, or a name that differs only in case."""
        given = MAIN if names.branch_path(name) == names.branch_path(MAIN) else None
        if given is None and (found := self.read(name)) is not None:
            given = found.name
        if given is not None:
            how = "exists" if given == name else f"differs only in case from {given!r}, which some systems can't tell"
            raise ValueError(f"branch {name!r} {how}: choose another name, or delete or rename that branch")

    @step("write branch")
    def _write(self, record: Branch) -> None:
        self._storage.make_directory(names.BRANCHES, durable=False)
        self._storage.sync_directory("")  # another process may have made the directory, and died before its sync
        try:
            self._storage.write_once(names.branch_path(record.name), record.encode(), durable=True)
        except FileExistsError:
            self.check_free(record.name)
            raise
        with contextlib.suppress(KeyError):
            self._unknown.remove(record.id)
        self._note(record)


class OldestKept:
    """The oldest kept versions of one repository. A vacuum writes one small file for each."""

    def __init__(self, storage: Storage, branches: BranchNames) -> None:
        self._storage = storage
        self._branches = branches
        self.head: Callable[[str], Stored | None] = lambda _: None  # what finds heads

    def of(self, branch: str) -> int:
        """Return the lowest version that every vacuum has kept. For a new branch: the version it starts at.

        0 where the server lists no names.
        """
        try:
            return self._listed(branch)
        except NoListsError:
            return 0

    def of_history(self, branch: str) -> int:
        """As `of`. Where the server lists no names, the header of the newest commit says it."""
        try:
            return self._listed(branch)
        except NoListsError:
            try:
                head = self.head(branch)
            except NoListsError:  # it may have been deleted
                return encoding.MAX_COUNT
            return head.header.oldest_kept if head is not None and head.header.branch == branch else 0

    def _listed(self, branch: str) -> int:
        directory = names.oldest_kept_directory(branch)
        raised = [each for each in map(names.parse_version, self._storage.list(directory)) if each is not None]
        fork = None if raised else self._branches.fork(branch)
        return max(raised, default=0) if fork is None else fork.version

    def is_above(self, branch: str, version: int) -> bool:
        """Tell whether a vacuum has expired a version. Version -1 is the empty state before the first commit."""
        oldest_kept = self.of(branch)
        return oldest_kept > 0 and version < oldest_kept

    @step("write oldest kept version")
    def write(self, stored: Stored) -> None:
        """Record the oldest kept version of a vacuum's durable commit: the vacuum deletes the commits below it next.

        Raises `OSError`.
        """
        header = stored.header
        content = Tag(header.branch, header.version, header.id).encode()
        self._storage.make_directory(names.oldest_kept_directory(header.branch), durable=True)
        # the process that made the branch's directory may not have synced it
        self._storage.sync_directory(names.OLDEST_KEPT)
        with contextlib.suppress(FileExistsError):  # an interrupted vacuum has written it
            self._storage.write_once(names.oldest_kept_path(header.branch, header.oldest_kept), content, durable=True)
