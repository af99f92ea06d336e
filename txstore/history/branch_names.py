"""Which branches there are: their names, their ids, and where each begins.

What lies below commits/, heads/ and oldest_kept/ is found by the id of a branch, so that a name can be deleted, given
again, or changed. Nothing but this module, and what reads for it, turns one into the other.
"""

from __future__ import annotations

import contextlib
import os

from txstore.errors import CommitNotFoundError, CorruptionError, KeyFormatError
from txstore.format import encoding, names
from txstore.format.commitfile import CommitName
from txstore.format.names import MAIN
from txstore.format.records import Branch
from txstore.history.identity import Identity
from txstore.steps import step
from txstore.storage.interface import Storage, write_over


class BranchNames:
    """The records of the branches of one repository. The first branch, "main", has none, and costs nothing."""

    def __init__(self, storage: Storage, identity: Identity) -> None:
        self._storage = storage
        self._identity = identity
        self._known: dict[str, Branch] = {}  # by id: as they were when they were read
        self._unknown: set[str] = set()  # ids without a record

    def id_of(self, name: str) -> str:
        """Return the id of the branch with a name. Raises `CommitNotFoundError` if there is none."""
        if name == MAIN:
            return MAIN
        try:
            found = self.read(name)
        except KeyFormatError as error:
            raise CommitNotFoundError(f"branch {name!r}", advice=str(error)) from None
        if found is None or found.name != name:
            self._identity.check_there()
            there = ", ".join(map(repr, [MAIN, *self.files()])) if found is None else repr(found.name)
            advice = f"there is no such branch, but {there}"
            raise CommitNotFoundError(f"branch {name!r}", advice=advice)
        return found.id

    def name_of(self, branch: str) -> str:
        """Return the name that the branch with an id had when that was last looked for."""
        found = self._find(branch)
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
        """Return the commit that a branch begins behind; None of the first branch."""
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
        """Tell whether the branch with an id has not been deleted, by now."""
        if branch == MAIN:
            return True
        if branch in self._known:
            found = self.read(self._known[branch].name)
            if found is not None and found.id == branch:
                return True
        return any(record.id == branch for record in self.all().values())

    def read(self, name: str) -> Branch | None:
        """Return the record of the branch with this name, or one that differs in case alone."""
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
        # One that had this name before has been deleted, or renamed.
        known = {branch: record for branch, record in self._known.items() if record.name != found.name}
        self._known = {**known, found.id: found}
        self._unknown.discard(found.id)

    def files(self) -> list[str]:
        """Return the names of the records: those of the branches in small letters."""
        return sorted(file for file in self._storage.list(names.BRANCHES) if names.is_branch_file(file))

    def all(self) -> dict[str, Branch]:
        """Return the branches other than the first by their names. Raises `CorruptionError`."""
        found = filter(None, map(self.read, self.files()))  # else deleted meanwhile
        return {record.name: record for record in found}

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
        """Write the record of a new branch behind a commit, durably. Raises `ValueError` if the name is given."""
        self.check_free(name)
        lineage = ((fork.branch, fork.version), *self.lineage(fork.branch))
        record = Branch(name, os.urandom(16).hex(), fork.id, fork.hash, lineage)
        self._write(record)
        return record

    def rename(self, name: str, new: str) -> None:
        """Give a branch another name, durably. If it is interrupted, the branch may have both, until one is deleted."""
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
        """Delete the record of a branch, durably. Raises `CommitNotFoundError` if there is none."""
        self._existing(name)
        self._storage.delete(names.branch_path(name))
        # One that came back after a power loss would lead to commits that a vacuum may have deleted.
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
        """Raise `ValueError` if a branch has this name, or one that differs in case alone."""
        given = MAIN if names.branch_path(name) == names.branch_path(MAIN) else None
        if given is None and (found := self.read(name)) is not None:
            given = found.name
        if given is not None:
            how = "exists" if given == name else f"differs in case alone from {given!r}, which some systems can't tell"
            raise ValueError(f"branch {name!r} {how}: choose another name, or delete or rename that one")

    @step("write branch")
    def _write(self, record: Branch) -> None:
        self._storage.make_directory(names.BRANCHES, durable=False)
        self._storage.sync_directory("")  # it may be another's, who has died before this
        try:
            self._storage.write_once(names.branch_path(record.name), record.encode(), durable=True)
        except FileExistsError:
            self.check_free(record.name)
            raise
        with contextlib.suppress(KeyError):
            self._unknown.remove(record.id)
        self._note(record)
