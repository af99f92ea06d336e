"""Checks the names in a repository, and its small files: guard, tags, oldest kept versions, erasures, operations,
staging.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from txstore.errors import TxStoreError, UnsupportedFormatError, WrongFileTypeError
from txstore.format import encoding, names, records
from txstore.format.records import Tag, TransactionRecord
from txstore.history.commits import Commits
from txstore.history.erasures import Erasure, as_erasure
from txstore.history.find import find_tagged
from txstore.history.operations import read_operation
from txstore.maintenance.commits_of_faults import Place
from txstore.maintenance.report import Fault, Faults
from txstore.segments.replaced import read_record
from txstore.storage.interface import paths_in

S = TypeVar("S")
T = TypeVar("T")


class SmallFilesCheck:
    """Reports damaged small files, and files that do not belong there."""

    def __init__(self, commits: Commits, faults: Faults, named: set[Place], strays: list[str]) -> None:
        """Adds the tagged commits to `named`, and what does not belong there to `strays`."""
        self._commits = commits
        self._storage = commits.storage
        self._faults = faults
        self._named = named
        self.strays = strays
        self.erasures: list[Erasure] = []

    def check_guard(self) -> None:
        try:
            if self._storage.read(names.GUARD) != records.encode_guard():
                self._faults.add(Fault(names.GUARD, "this is not the guard that keeps plain zarr out", part="guard"))
        except FileNotFoundError:
            self._faults.add(Fault(names.GUARD, "the file is missing", part="guard"))
        except (TxStoreError, OSError) as error:
            self._faults.add_error(error, names.GUARD, part="guard")

    def check_tags(self) -> None:
        deque(self._each(self._check_tag, sorted(self._commits.tags.names())), maxlen=0)

    def _check_tag(self, name: str) -> None:
        try:
            header = find_tagged(self._commits, name).header
            self._named.add((header.branch, header.version))
        except UnsupportedFormatError as error:
            self._faults.add_error(error, error.path)
        except (TxStoreError, OSError) as error:
            self._faults.add_error(error, names.tag_path(name), part="tag")

    def check_oldest_kept_versions(self) -> None:
        oldest_kept_versions = [names.oldest_kept_directory(branch) for branch in self._storage.list(names.OLDEST_KEPT)]
        for path in sorted(
            path
            for oldest_kept in oldest_kept_versions
            if names.belongs(oldest_kept)
            for path in paths_in(self._commits.storage, oldest_kept)
        ):
            try:
                Tag.decode(self._storage.read(path))
            except FileNotFoundError:
                continue
            except (TxStoreError, OSError) as error:
                self._faults.add_error(error, path, part="oldest_kept")
            except encoding.MalformedError as error:
                self._faults.add(Fault(path, error.reason, part="oldest_kept"))

    def check_erasures(self) -> None:
        for name in sorted(self._storage.list(names.ERASED)):
            path = f"{names.ERASED}/{name}"
            if not names.belongs(path):
                continue
            try:
                record = read_record(self._storage, path)
            except (TxStoreError, OSError) as error:
                self._faults.add_error(error, path, part="erasure")
                continue
            self.erasures.append(as_erasure(record))
            if record.finished is None:
                shown = ", ".join(map(repr, record.paths))
                reason = f"the erasure of {shown} by {record.by} was interrupted: erase it again"
                self._faults.add(Fault(path, reason, part="erasure"))

    def check_operations(self) -> None:
        deque(self._each(self._check_operation, sorted(paths_in(self._storage, names.OPERATIONS))), maxlen=0)

    def _check_operation(self, path: str) -> None:
        try:
            read_operation(self._storage, path)
        except FileNotFoundError:
            return  # a vacuum has just deleted it
        except (TxStoreError, OSError) as error:
            self._faults.add_error(error, path, part="operation")

    def check_staging(self) -> None:
        staged: list[str] = []
        with contextlib.suppress(PermissionError):  # a user who may only read has no access
            staged = self._storage.list(names.STAGING)
        for file in sorted(staged):
            path = f"{names.STAGING}/{file}"
            name = names.parse_named(file)
            if names.parse_record(file) is None and name is None:
                continue
            try:
                content = self._storage.read(path)
                if name is None and content:  # an empty one: its owner is about to write it, or died before
                    TransactionRecord.decode(content)
                elif content and (len(content) != 32 or len(bytes.fromhex(content.decode())) != 16):
                    raise encoding.MalformedError("it names no transaction")
            except FileNotFoundError:
                continue  # the transaction has ended
            except (TxStoreError, OSError) as error:
                self._faults.add_error(error, path, part="staging")
            except ValueError as error:
                self._faults.add(Fault(path, str(error), part="staging"))

    def check_names(self) -> bool:
        """Report strays; return whether each directory is one, so that its files can be checked."""
        directories = ["", *names.DIRECTORIES, names.BRANCHES, names.ERASED, names.OPERATIONS]
        known, are_directories = set(directories), True
        while directories:
            listed, below = zip(directories, self._each(self._names_in, directories), strict=True), []
            for directory, found in listed:
                if isinstance(found, WrongFileTypeError):
                    self._faults.add_error(found, directory)
                    are_directories = False
                    continue
                for path in (f"{directory}/{name}" if directory else name for name in found):
                    if not names.belongs(path):
                        self.strays.append(path)
                    elif names.parse_stop(path.rpartition("/")[2]) is not None:
                        reason = "the server did not create exclusively: commits may have taken each other's places"
                        self._faults.add(Fault(path, reason, part="stop"))
                    elif directory == names.PACKS or (
                        directory in ("commits", names.OLDEST_KEPT) and path not in known
                    ):
                        below.append(path)
                    elif directory == names.LOCKS:
                        self._check_type(path)
            directories = below
        return are_directories

    def _names_in(self, directory: str) -> list[str] | WrongFileTypeError:
        try:
            return sorted(self._storage.list(directory))
        except PermissionError:  # a user who may only read has no access to `.staging`
            return []
        except WrongFileTypeError as error:
            return error

    def _each(self, check: Callable[[S], T], arguments: Iterable[S]) -> Iterator[T]:
        """Yield the results of checks that make requests: on a remote storage, in parallel."""
        return self._storage.dispatch.each(check, arguments)

    def _check_type(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError, PermissionError):
            try:
                self._storage.read_tail(path, 0)
            except WrongFileTypeError as error:
                self._faults.add_error(error, path)
