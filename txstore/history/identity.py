"""Creates a repository, reads its id, and explains why a directory is no repository."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable

from txstore.errors import CorruptionError, RepositoryNotFoundError, UnsupportedFormatError, WrongFileTypeError
from txstore.format import commitfile, encoding, names, records
from txstore.format.records import VERSIONS_BY_PROMISE, RepositoryFormat
from txstore.steps import step
from txstore.storage.interface import Storage
from txstore.storage.objects.backend import OF_PROCESS, SINGLE_WRITER

_SUPPORTED = f"version {encoding.VERSION}"
_PLAIN_ZARR = frozenset({"zarr.json", ".zgroup", ".zarray", ".zmetadata"})


class Identity:
    """The `format.json` of one repository. It is read once."""

    def __init__(self, storage: Storage, expect_head_cache: Callable[[], object] | None = None) -> None:
        """`expect_head_cache`, of object stores, fetches the head cache at the same time: callers need it next."""
        self._storage = storage
        self._expect_head_cache = expect_head_cache
        self._format: RepositoryFormat | None = None
        self._is_complete = False  # True: all directories exist

    @property
    def id(self) -> bytes:
        """The id. Raises `RepositoryNotFoundError` without a repository, `UnsupportedFormatError` if it is too new."""
        if self._format is None:
            self._format = self._read()
        return self._format.repository_id

    def check_features(self, required: int) -> None:
        """Raise `UnsupportedFormatError` if a process that commits has to know a feature that this version does not.

        `required`: the features of the commit to be. Those of the whole repository are added.
        """
        assert self._format is not None  # for mypy: whoever commits has created it, or has read its id
        try:
            commitfile.check_features(required | self._format.required)
        except encoding.NewerFormatError as error:
            found = f"{error.reason}, which whoever commits has to keep"
            raise UnsupportedFormatError(self._storage.url, found=found, supported=_SUPPORTED) from error

    def exists(self, *, creating: bool = False) -> bool:
        """Tell whether there is a repository. Raises if something else is at its path.

        `creating`: the caller wants to create a repository. Only then does the error say which path to choose.
        """
        try:
            self._format = self._format or self._read(creating=creating)
        except RepositoryNotFoundError as error:
            if error.creatable:
                return False
            raise
        return True

    def check_there(self) -> None:
        """Raise `RepositoryNotFoundError` if the repository was here and is gone.

        Callers check this before they report that something is missing (I4): a user may have moved the repository, or
        its disk may no longer be mounted.
        """
        if self._format is not None and not self._storage.exists(names.FORMAT):
            raise RepositoryNotFoundError(
                self._storage.url,
                reason="the repository was here and is gone: it was moved or deleted, or its disk is not mounted any "
                "more. Restore it and continue, or look at the path",
            )

    def _read(self, *, creating: bool = False) -> RepositoryFormat:
        try:
            if self._expect_head_cache is not None:
                self._expect_head_cache()
            content = self._storage.read(names.FORMAT)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._why_not_found(creating) from error
        try:
            return RepositoryFormat.decode(content)
        except encoding.NewerFormatError as error:
            raise UnsupportedFormatError(names.FORMAT, found=error.reason, supported=_SUPPORTED) from error
        except encoding.MalformedError as error:
            raise CorruptionError(names.FORMAT, reason=f"it can't be decoded: {error}") from error

    def _why_not_found(self, creating: bool) -> RepositoryNotFoundError:
        url = self._storage.url
        try:
            found = set(self._storage.list(""))
        except NotADirectoryError:
            return RepositoryNotFoundError(url, reason="this is a file; a repository is a directory")
        if found & _PLAIN_ZARR and not self._is_guarded():
            reason = f"this is plain Zarr, not a TxStore repository: use `txstore import {url} NEW.tx` to convert it"
            return RepositoryNotFoundError(url, reason=reason)
        others = {name for name in found - names.TOP if not names.is_litter(name)}
        if others:
            advice = "choose an empty or a new directory" if creating else "look at the path"
            reason = f"this directory holds something else ({min(others)!r}); {advice}"
            return RepositoryNotFoundError(url, reason=reason)
        if self._storage.list(names.commits_directory("main")) and not self._storage.exists(names.FORMAT):
            # `create` writes this file before any commit. A new file with another id would make the commits unreadable.
            raise CorruptionError(names.FORMAT, reason="the file is missing, though there are commits")
        return RepositoryNotFoundError(url, creatable=True)  # it is empty, or a creation is going on or was killed

    def _is_guarded(self) -> bool:
        try:
            return self._storage.read(names.GUARD) == records.encode_guard()
        except (FileNotFoundError, WrongFileTypeError):
            return False

    @step("create repository")
    def create(self, *, durable: bool) -> None:
        """Create the repository, or its missing directories and guard, which a user may have lost.

        Two processes may do so at once: only one id is written. If only the guard is missing and can't be written, for
        example on a full disk, this raises nothing, and the next call tries again.
        """
        if self._is_complete:
            return
        exists = self.exists(creating=True)
        if exists and self._format is not None:
            self._check_versions(self._format.versions)
        # Also for an existing repository: a user may have copied its files to a server that can't create exclusively.
        try:
            self._storage.check_creation(waits=not exists)
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                with contextlib.suppress(OSError):
                    self._storage.delete(names.GUARD)  # the check wrote it, but there will be no repository
            raise
        versions = self._storage.capabilities.versions
        # Also if it exists: some tools do not copy empty directories, and a vacuum that frees space may be killed.
        for name in ("", *names.DIRECTORIES):
            self._storage.make_directory(name, durable=durable)
        if not exists:
            try:
                self._storage.write_once(names.GUARD, records.encode_guard(), durable=durable)
            except FileExistsError:
                if durable:  # its writer may have died before it made the name durable
                    self._storage.sync_directory("")
            # Last: a process that finds format.json finds all other files.
            with contextlib.suppress(FileExistsError):
                self._storage.write_once(
                    names.FORMAT,
                    RepositoryFormat(os.urandom(16), versions).encode(),
                    durable=durable,
                )
            self._format = self._read()
        self._is_complete = True
        # The check of an object store creates a missing guard, but for stores that need no check.
        makes_guard = self._expect_head_cache is not None and versions not in (SINGLE_WRITER, OF_PROCESS)
        if exists and not makes_guard:
            self.restore_guard(durable=durable)

    def restore_guard(self, *, durable: bool) -> None:
        """Write the guard if it is missing. It only keeps out plain zarr: if this fails, the next `create` retries."""
        try:
            if not self._storage.exists(names.GUARD):
                self._storage.write_once(names.GUARD, records.encode_guard(), durable=durable)
        except FileExistsError:
            pass  # another process wrote it
        except OSError:
            self._is_complete = False

    def _check_versions(self, versions: str) -> None:
        """Raise `PermissionError` if either this repository or this process, but not both, uses `single_writer`."""
        ours = self._storage.capabilities.versions
        if (versions == VERSIONS_BY_PROMISE) != (ours == VERSIONS_BY_PROMISE):
            what = (
                "was made with single_writer=True: open it with the same option"
                if versions == VERSIONS_BY_PROMISE
                else ("was made without single_writer, and may have several writers: omit that option")
            )
            raise PermissionError(f"{self._storage.url}: this repository {what}")

    @step("sync repository")
    def make_durable(self) -> None:
        """Sync files that another process may have created without a sync (I1)."""
        self._storage.sync_file(names.FORMAT)
        with contextlib.suppress(FileNotFoundError):  # a user may have deleted the guard: that loses no data
            self._storage.sync_file(names.GUARD)
        for name in ("commits", "", ".."):
            self._storage.sync_directory(name)
