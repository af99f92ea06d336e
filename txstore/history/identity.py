"""What makes a directory a repository: its birth, its id, and saying what is wrong with one that is none."""

from __future__ import annotations

import contextlib
import errno
import os

from txstore.errors import CorruptionError, RepositoryNotFoundError, UnsupportedFormatError, WrongFileTypeError
from txstore.format import encoding, names, records
from txstore.format.records import VERSIONS_BY_PROMISE, RepositoryFormat
from txstore.steps import step
from txstore.storage.interface import Storage

_PLAIN_ZARR = frozenset({"zarr.json", ".zgroup", ".zarray", ".zmetadata"})


class Identity:
    """`format.json` of one repository, read once."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._format: RepositoryFormat | None = None
        self._is_complete = False  # all directories are there

    @property
    def id(self) -> bytes:
        """Raises `RepositoryNotFoundError` if there is no repository, `UnsupportedFormatError` if it is too new."""
        if self._format is None:
            self._format = self._read()
        return self._format.repository_id

    def exists(self, *, creating: bool = False) -> bool:
        """Tell whether there is a repository. Raises if there is something else in its place.

        `creating`: the caller would create one; only then the error says what place to choose.
        """
        try:
            self._format = self._format or self._read(creating=creating)
        except RepositoryNotFoundError as error:
            if error.creatable:
                return False
            raise
        return True

    def check_there(self) -> None:
        """Raise `RepositoryNotFoundError` if the repository was here and is not any more.

        Callers ask this before they say that something is missing (I4): the repository may have been moved away, or
        its disk may not be mounted any more.
        """
        if self._format is not None and not self._storage.exists(names.FORMAT):
            raise RepositoryNotFoundError(
                self._storage.url,
                reason="the repository was here and is gone: it was moved or deleted, or its disk is not mounted any "
                "more. Bring it back and go on, or look at the path",
            )

    def _read(self, *, creating: bool = False) -> RepositoryFormat:
        try:
            content = self._content()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._why_not_found(creating) from error
        try:
            return RepositoryFormat.decode(content)
        except encoding.NewerFormatError as error:
            raise UnsupportedFormatError(names.FORMAT, found=error.reason, supported=f"{encoding.VERSION}") from error
        except encoding.MalformedError as error:
            raise CorruptionError(names.FORMAT, reason=f"it can't be decoded: {error}") from error

    def _content(self) -> bytes:
        return self._storage.read(names.FORMAT)

    def _why_not_found(self, creating: bool) -> RepositoryNotFoundError:
        url = self._storage.url
        try:
            found = set(self._storage.list(""))
        except NotADirectoryError:
            return RepositoryNotFoundError(url, reason="this is a file; a repository is a directory")
        if found & _PLAIN_ZARR and not self._is_guarded():
            reason = (
                f"this is plain Zarr, not a TxStore repository: use `txstore import {url} NEW.tx` to make one of it"
            )
            return RepositoryNotFoundError(url, reason=reason)
        others = {name for name in found - names.TOP if not names.is_litter(name)}
        if others:
            advice = "choose an empty or a new one" if creating else "look at the path"
            reason = f"this directory holds something else ({min(others)!r}); {advice}"
            return RepositoryNotFoundError(url, reason=reason)
        if self._storage.list(names.commits_directory("main")) and not self._storage.exists(names.FORMAT):
            # It is older than any commit. With a new one, of another id, no process could read them any more.
            raise CorruptionError(names.FORMAT, reason="the file is missing, though there are commits")
        return RepositoryNotFoundError(url, creatable=True)  # empty, or somebody is creating it, or was killed doing so

    def _is_guarded(self) -> bool:
        try:
            return self._storage.read(names.GUARD) == records.encode_guard()
        except (FileNotFoundError, WrongFileTypeError):
            return False

    @step("create repository")
    def create(self, *, durable: bool) -> None:
        """Create the repository, or what of it is missing: directories and the guard; both may have got lost.

        Two processes may do so at once: one id is written, once. Where the guard alone is missing and can't be written,
        for lack of room, say, nothing is raised, and the next call tries again.
        """
        if self._is_complete:
            return
        exists = self.exists(creating=True)
        if exists and self._format is not None:
            self._check_versions(self._format.versions)
        # Of one that exists, too: its files may have been copied to a server that replaces what is there.
        try:
            self._storage.check_creation(waits=not exists)
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                with contextlib.suppress(OSError):
                    self._storage.delete(names.GUARD)  # by which it was found out: there is no repository
            raise
        # Also where it exists: some tools do not copy empty directories, and who makes room may be killed.
        for name in ("", *names.DIRECTORIES):
            self._storage.make_directory(name, durable=durable)
        if not exists:
            try:
                self._storage.write_once(names.GUARD, records.encode_guard(), durable=durable)
            except FileExistsError:
                if durable:  # who has written it may have died before its name was
                    self._storage.sync_directory("")
            # Last: a process that finds format.json finds all other files.
            with contextlib.suppress(FileExistsError):
                self._storage.write_once(
                    names.FORMAT,
                    RepositoryFormat(os.urandom(16), self._storage.capabilities.versions).encode(),
                    durable=durable,
                )
            self._format = self._read()
        self._is_complete = True
        if exists and not self._proves_guard:
            self.restore_guard(durable=durable)

    @property
    def _proves_guard(self) -> bool:
        """Whether `Storage.check_creation` creates the guard where it is missing."""
        return False

    def restore_guard(self, *, durable: bool) -> None:
        """Write the guard, unless it is there. It only keeps plain zarr out: if it can't be written, `create` tries."""
        try:
            if not self._storage.exists(names.GUARD):
                self._storage.write_once(names.GUARD, records.encode_guard(), durable=durable)
        except FileExistsError:
            pass  # by somebody else
        except OSError:
            self._is_complete = False

    def _check_versions(self, versions: str) -> None:
        """Raise `PermissionError` if the writers of this repository count on being alone, or this process does."""
        ours = self._storage.capabilities.versions
        if (versions == VERSIONS_BY_PROMISE) != (ours == VERSIONS_BY_PROMISE):
            what = (
                "was made with single_writer=True: open it so"
                if versions == VERSIONS_BY_PROMISE
                else ("has writers that do not count on being alone: open it without single_writer")
            )
            raise PermissionError(f"{self._storage.url}: this repository {what}")

    @step("sync repository")
    def make_durable(self) -> None:
        """Sync what another process may have created without doing so (I1)."""
        self._storage.sync_file(names.FORMAT)
        with contextlib.suppress(FileNotFoundError):  # somebody has taken it away: that hides nothing
            self._storage.sync_file(names.GUARD)
        for name in ("commits", "", ".."):
            self._storage.sync_directory(name)
