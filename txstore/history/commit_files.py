"""Reads commit files: what is in a version of a branch. Branches go by their ids, as everywhere below the facade."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from typing import TypeVar

from txstore.commit import Stored
from txstore.errors import CorruptionError, UnsupportedFormatError
from txstore.format import commitfile, encoding, names
from txstore.format.commitfile import CommitName, Footer, Header
from txstore.history.branch_names import BranchNames
from txstore.history.identity import Identity
from txstore.storage.interface import Storage
from txstore.storage.kept import PackCache
from txstore.storage.request_threads import in_advance, in_background

S = TypeVar("S")
T = TypeVar("T")

#: Decoded headers that are remembered, those of all repositories of a process together, and up to which size, in bytes.
_REMEMBERED, _REMEMBERED_SIZE = 512, 4096


def _decoded(encoded: bytes, footer: Footer) -> tuple[Header, bytes]:
    """Return a header and its hash, after comparing it with the footer. Raises `MalformedError`."""
    if encoding.crc32c(encoded) != footer.header_checksum:
        raise encoding.MalformedError("the header has a wrong checksum")
    header = Header.decode(encoded)
    header.check_placed(footer.header_offset)
    if header.id != footer.pack_id:
        raise encoding.MalformedError("header and footer name different commits")
    return header, commitfile.header_hash(encoded)


#: As `_decoded`, or what the same bytes were decoded to before: a merge reads the same commits many times.
_remembered = lru_cache(_REMEMBERED)(_decoded)


class CommitFiles:
    """The commit files of one repository."""

    def __init__(
        self,
        storage: Storage,
        identity: Identity,
        branches: BranchNames,
        *,
        tail_size: int = 4096,
        at_once: int = 1,
        kept_in: PackCache | None = None,
    ) -> None:
        """Read with these ways:

        tail_size : enough of a file's end to hold the header of all but very large commits: one read instead of two
        at_once : commits that are read at once for a reader that goes through all of them
        kept_in : where the ends of commit files that were read are kept. None: the system keeps them
        """
        self._storage = storage
        self._identity = identity
        self._branches = branches
        self.tail_size, self.read_at_once, self._kept_in = tail_size, at_once, kept_in

    # --- one commit

    def read(self, branch: str, version: int) -> Stored | None:
        """Return the commit in a version, None if the version is free. Raises `CorruptionError`."""
        found = self.read_with_end(branch, version)
        return None if found is None else found[0]

    def read_with_end(self, branch: str, version: int) -> tuple[Stored, bytes] | None:
        """As `read`; also return the bytes at the end of the file that were read: of a short one all there are."""
        path = names.commit_path(branch, version)
        try:
            tail, size = self._storage.read_tail(path, self.tail_size)
        except FileNotFoundError:
            return None
        return self.decode(path, branch, version, tail, size), tail

    def read_staged(self, commit_id: bytes, branch: str, version: int) -> Stored | None:
        """Return a commit that is on its way to a version, or has just taken it; None if it is neither."""
        path = names.staging_path(commit_id, 0)
        try:
            tail, size = self._storage.read_tail(path, self.tail_size)
        except FileNotFoundError:
            return self.read(branch, version)
        return self.decode(path, branch, version, tail, size)

    def has(self, stored: Stored) -> bool:
        """Tell whether a commit is in its version as it was read: of what the file says, nothing is decoded again."""
        footer = stored.footer
        try:
            tail, size = self._storage.read_tail(stored.path, footer.header_length + commitfile.FOOTER_SIZE)
        except FileNotFoundError:
            return False
        encoded = tail[: footer.header_length]
        return size == footer.file_length and commitfile.header_hash(encoded) == stored.hash

    def has_footer(self, stored: Stored) -> bool:
        """Tell whether a version holds a commit, by as little as tells one from another."""
        try:
            tail, _ = self._storage.read_tail(stored.path, commitfile.FOOTER_SIZE)
            return Footer.decode(tail) == stored.footer
        except (FileNotFoundError, encoding.MalformedError):
            return False

    def decode(self, path: str, branch: str, version: int, tail: bytes, size: int) -> Stored:
        """Return the commit in a file of `size` bytes of which the last are `tail`. Raises `CorruptionError`."""
        stored = self.decode_only(path, branch, version, tail, size)
        self.keep(stored, tail)
        return stored

    def keep(self, stored: Stored, tail: bytes) -> None:
        """Keep the end of a commit file, of which more is asked for next: the index of its run, and small values."""
        if self._kept_in is not None:
            self._kept_in.keep(stored.header.id, stored.footer.file_length - len(tail), tail)

    def decode_only(self, path: str, branch: str, version: int, tail: bytes, size: int) -> Stored:
        """As `decode`, for a caller that has the whole file, and keeps that itself."""
        try:
            footer = Footer.decode(tail[-commitfile.FOOTER_SIZE :])
            if footer.file_length != size:
                raise encoding.MalformedError(f"the file has {size} bytes instead of {footer.file_length}")
            start = len(tail) - commitfile.FOOTER_SIZE - footer.header_length
            if start >= 0:
                encoded = tail[start : start + footer.header_length]
            else:
                encoded = self._storage.read_range(path, footer.header_offset, footer.header_length)
            header, its_hash = (_remembered if len(encoded) <= _REMEMBERED_SIZE else _decoded)(encoded, footer)
        except encoding.NewerFormatError as error:
            raise UnsupportedFormatError(path, found=error.reason, supported=f"version {encoding.VERSION}") from error
        except encoding.MalformedError as error:
            raise CorruptionError(path, reason=error.reason) from error
        if (header.repository_id, header.branch, header.version) != (self._identity.id, branch, version):
            raise CorruptionError(path, reason="this commit belongs to another repository, branch or version")
        return Stored(header, footer, its_hash, self._branches.name_of)

    # --- a commit by its place

    def at(self, branch: str, version: int) -> Stored | None:
        """Return the commit in a version of a branch, or of the branches that it forked from; None if there is none."""
        return self.read(self._branches.owner(branch, version), version)

    def parent(self, stored: Stored) -> Stored | None:
        """Return what is in the version that a commit's parent had, be it that or not."""
        header = stored.header
        return self.read(header.fork or header.branch, header.version - 1) if header.version else None

    def named(self, name: CommitName) -> Stored | None:
        """Return the commit that a branch or a merge names, None if it is not there."""
        stored = self.read(name.branch, name.version)
        return stored if stored is not None and stored.name == name else None

    def fork_point(self, branch: str) -> Stored | None:
        """Return the commit that a branch begins behind; None of the first branch."""
        fork = self._branches.fork(branch)
        if fork is None:
            return None
        stored = self.named(fork)
        if stored is None:
            self._branches.check_living(branch)
            path = names.branch_path(self._branches.name_of(branch))
            reason = f"the commit that it begins behind is gone: {fork.id.hex()}, version {fork.version}"
            raise CorruptionError(path, reason=reason)
        return stored

    # --- many commits

    def each(self, function: Callable[[S], T], arguments: Iterable[S], *, wanted: int | None = None) -> Iterator[T]:
        """Yield what a function that reads commits makes of its arguments, in their order, some in advance.

        No more than are `wanted`, if it is known how many that are.
        """
        if self.read_at_once == 1:
            return map(function, arguments)
        return in_advance(function, arguments, min(wanted or self.read_at_once, self.read_at_once))

    def begin(self, function: Callable[[S], T], argument: S) -> Callable[[], T]:
        """Begin a request, if it takes one; return what returns its answer."""
        if self.read_at_once == 1:
            return partial(function, argument)
        return in_background(function, argument)

    def versions(self, branch: str) -> list[int]:
        """Return the versions of a branch's own that hold a file, in no order."""
        found = map(names.parse_version, self._storage.list(names.commits_directory(branch)))
        return [version for version in found if version is not None]

    def branch_directories(self) -> list[str]:
        """Return the ids of the branches that have commits of their own, deleted ones too."""
        return sorted(filter(names.is_branch_id, self._storage.list("commits")))
