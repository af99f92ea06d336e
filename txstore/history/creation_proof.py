"""Proves that the server creates objects exclusively, and stops commits when it ignores conditions.

In that case commits may have taken each other's versions. No process commits to the branch until it is repaired.
"""

from __future__ import annotations

import contextlib
import errno

from txstore.commit import Stored
from txstore.errors import CommitUnknownError, CorruptionError
from txstore.format import names
from txstore.history.listings import Listings
from txstore.history.object_head_caches import ObjectHeadCaches
from txstore.storage.objects.errors import NotExclusiveError
from txstore.storage.remote import RemoteStorage


class CreationProof:
    """Asks the server before and after a commit takes a version, and stops the commits to a branch."""

    def __init__(self, storage: RemoteStorage, listings: Listings, head_caches: ObjectHeadCaches) -> None:
        self._storage = storage
        self._listings = listings
        self._head_caches = head_caches
        self._unwritten: dict[str, Stored] = {}  # for each branch, the commit that the stop file will name
        # For each branch, a commit that the next version does not follow, or that may have taken another's version.
        self._doubted: dict[str, Stored] = {}

    def doubt(self, stored: Stored) -> None:
        """Ask the server again before the next commit to the branch: this commit may have taken another's version."""
        self._doubted[stored.header.branch] = stored

    def taken_away(self, known: Stored) -> CorruptionError:
        """Return the error for a commit that this process has seen, and whose version another commit has now."""
        self._head_caches.stop()
        reason = f"commit {known.header.id.hex()} was here, and another one has its place"
        if known.header.branch in self._head_caches.made:  # a process that only reads can ask nothing
            reason += self.why(known)
        return CorruptionError(known.path, reason=f"{reason}: the repository was repaired, deleted or replaced")

    def why(self, stored: Stored) -> str:
        """Ask the server again whether it creates exclusively: a commit is not in its version. Return the cause."""
        self._storage.creation_check.doubt()
        try:
            self._prove(stored)
        except OSError as error:
            return f" ({error})"
        return ""

    def _prove(self, suspect: Stored | None) -> None:
        """Raise `OSError` if the server may not create exclusively.

        If it does not, stop all commits to the branch of `suspect`, which may have taken another's version, or lost its
        own.
        """
        try:
            self._storage.creation_check.wait()
        except NotExclusiveError:
            if suspect is not None:
                self._stop(suspect)
            raise

    def check_listing(self, branch: str) -> None:
        """Raise `OSError` if the present listing says that commits may have taken each other's versions."""
        self._listings.all(branch)
        self._raise_if_stopped(branch)

    def _raise_if_stopped(self, branch: str) -> None:
        if branch in self._listings.stopped:
            self._head_caches.stop()  # a repair may not keep their commits
            words = (
                "a commit has found that the server did not create objects exclusively, so that commits may have taken "
                "each other's places. No process commits until repo.verify(repair=True), or `txstore verify "
                "--repair`, has put them right. Ceph 16.2 does so in a bucket that keeps versions: suspend versioning "
                "first"
            )
            raise OSError(errno.EOPNOTSUPP, words, f"{self._storage.url}/{names.commits_directory(branch)}")

    def check_creation(self, branch: str) -> None:
        """Raise `OSError` if a commit could take another's version, or may have done so."""
        self._write_stop(branch)
        self._raise_if_stopped(branch)
        doubted = self._doubted.get(branch)
        if doubted is not None:
            self._storage.creation_check.doubt()
        self._prove(doubted)
        self._doubted.pop(branch, None)

    def confirm(self, stored: Stored) -> None:
        """Raise `CommitUnknownError` if a new commit may have taken another's version."""
        self._storage.creation_check.renew()  # if it took long
        try:
            self._prove(stored)
            self._raise_if_stopped(stored.header.branch)
        except OSError as error:
            version = stored.header.version
            reason = f"it was put into version {version}, which may have been another's, or may become so ({error})"
            if isinstance(error, NotExclusiveError):
                reason += ". Then run repo.verify(repair=True). Until then"
            raise CommitUnknownError(stored.header.id.hex(), reason=reason) from error

    def _stop(self, stored: Stored) -> None:
        """Stop all commits to a branch until a repair. Each process that looks for its head sees the stop file."""
        self._unwritten[stored.header.branch] = stored
        try:
            self._write_stop(stored.header.branch)
        except BaseException:  # Ctrl-C, for example: other processes may not know of it yet
            self._write_stop(stored.header.branch)
            raise
        self._head_caches.stop()

    def _write_stop(self, branch: str) -> None:
        """Write the stop file. If that fails, the next use of the branch tries again."""
        if (stored := self._unwritten.get(branch)) is None:
            return
        self._listings.stopped.add(branch)
        header = stored.header
        with contextlib.suppress(OSError):
            self._storage.objects.put(names.stop_path(branch, header.version, header.id), [header.id])
            del self._unwritten[branch]
