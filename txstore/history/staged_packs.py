"""Where the packs of a transaction lie until it is committed."""

from __future__ import annotations

import posixpath
import time
from collections.abc import Collection
from typing import Protocol

from txstore.format import names, packfile
from txstore.format.keys import is_document
from txstore.history.identity import Identity
from txstore.segments.object_writer import ObjectWriter
from txstore.segments.packs import PackWriter, Writer
from txstore.storage.interface import Storage, paths_in
from txstore.storage.remote import RemoteStorage

#: Seconds from when a process has opened a repository on an object store until it looks for what the dead have
#: uploaded, unless it uploads much itself: then it looks at once. And until it looks again.
FIRST_LOOK, NEXT_LOOK = 30.0, 600.0


class StagingPlace(Protocol):
    """The packs of the transactions of one repository that are open."""

    def new(self, transaction: bytes, number: int) -> Writer:
        """Return a pack of a transaction to be written; that of number 0 becomes the commit file."""

    def path(self, transaction: bytes, number: int) -> str:
        """Return where a pack of a transaction lies until it is committed."""

    def beside(self, transaction: bytes) -> Collection[str]:
        """Return the names of what participants have stored beside their own packs, all with one request."""

    def delete(self, transaction: bytes, numbers: Collection[int] | None = None) -> None:
        """Delete what is stored beside the participants' own packs: packs of these numbers, or all there are."""

    def group(self, key: str) -> int:
        """Return in which of several packs a value lies when packs are rewritten: values of one group lie together."""

    def tidies_first(self) -> bool:
        """Tell, once, whether this process is to look for what dead processes have staged before it stages more."""

    def due_for_look(self, *, is_large: bool) -> RemoteStorage | None:
        """Return where it is time to look for what dead processes have uploaded; None: it is not.

        `is_large`: the caller uploads so much itself that one more request is nothing.
        """


class PacksInStaging:
    """All lie below `.staging/`."""

    def __init__(self, storage: Storage, identity: Identity) -> None:
        self._storage = storage
        self._identity = identity
        self._is_tidy = False

    def new(self, transaction: bytes, number: int) -> Writer:
        return PackWriter.of_participant(self._storage, transaction, number, self._identity.id)

    def path(self, transaction: bytes, number: int) -> str:
        return names.staging_path(transaction, number)

    def beside(self, transaction: bytes) -> Collection[str]:
        return ()

    def delete(self, transaction: bytes, numbers: Collection[int] | None = None) -> None:
        """There is nothing beside them."""

    def group(self, key: str) -> int:
        return 0

    def tidies_first(self) -> bool:
        is_tidy, self._is_tidy = self._is_tidy, True
        return not is_tidy

    def due_for_look(self, *, is_large: bool) -> RemoteStorage | None:
        return None  # `tidies_first` says when


class PacksInPlace:
    """Data packs are uploaded to where commits refer to them: an object can't be moved."""

    def __init__(self, storage: RemoteStorage, identity: Identity) -> None:
        self._storage = storage
        self._identity = identity
        self._opened_at = time.monotonic()
        self._looked_at: float | None = None  # for what dead processes have uploaded

    def new(self, transaction: bytes, number: int) -> Writer:
        return ObjectWriter(self._storage, transaction, number, self._identity.id)

    def path(self, transaction: bytes, number: int) -> str:
        if not number:
            return names.staging_path(transaction, number)
        return names.data_pack_path(packfile.participants_pack(transaction, number))

    def beside(self, transaction: bytes) -> Collection[str]:
        return set(self._storage.list(names.data_pack_directory(transaction)))

    def delete(self, transaction: bytes, numbers: Collection[int] | None = None) -> None:
        if numbers is None:
            paths = paths_in(self._storage, names.data_pack_directory(transaction))
            found = [bytes.fromhex(posixpath.basename(path)) for path in paths]
            packs = [pack for pack in found if packfile.packs_begin(pack) == packfile.packs_begin(transaction)]
        else:
            packs = [packfile.participants_pack(transaction, number) for number in numbers]
        self._storage.objects.delete([names.data_pack_path(pack) for pack in packs])

    def group(self, key: str) -> int:
        # Opening a group reads many documents, and little else.
        return int(is_document(key))

    def tidies_first(self) -> bool:
        return False  # that takes a request: it is done by the way

    def due_for_look(self, *, is_large: bool) -> RemoteStorage | None:
        now = time.monotonic()
        if self._looked_at is None:
            is_due = is_large or now - self._opened_at >= FIRST_LOOK
        else:
            is_due = now - self._looked_at >= NEXT_LOOK
        if not is_due:
            return None
        self._looked_at = now
        return self._storage
