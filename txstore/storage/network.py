"""A directory that several machines share: NFS, CIFS, Lustre, or any file system that is not known to be local.

Files are not mapped: if another machine deletes a mapped file, the reading process crashes. A client may cache look-ups
for a while (`Capabilities.stale_seconds`), so it sees a new commit late, but never wrong. Data that the server has
confirmed is on its disk, and does not depend on the boot of this machine.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from txstore.format import names
from txstore.storage.capabilities import NETWORK
from txstore.storage.dispatch import Dispatch, InThread
from txstore.storage.interface import Mapped
from txstore.storage.kept import PackCache
from txstore.storage.local import LocalStorage

#: Seconds after which a staged file without a visible holder counts as abandoned.
_ABANDONED = 3600.0


class NetworkStorage(LocalStorage):
    """A directory on a file system that several machines share."""

    capabilities = NETWORK
    dispatch: Dispatch = InThread()
    try_range = None

    def __init__(self, root: str, cache: PackCache) -> None:
        super().__init__(root)
        self.cache = cache
        self.ranges = self

    def map(self, path: str) -> Mapped:
        return self.read(path)

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        return self.read_range(path, offset, length)

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.read_range(path, offset, length) for offset, length in ranges]

    def get_tail(self, path: str, length: int) -> tuple[bytes, int]:
        return self.read_tail(path, length)

    def list(self, path: str) -> list[str]:
        self._look_anew(path)
        return super().list(path)

    def _look_anew(self, path: str) -> None:
        """Open and close a directory: an NFS client asks the server then whether it has changed."""
        with contextlib.suppress(OSError):
            self._tree.open_directory(path).close()

    def boot(self) -> int:
        return 0

    def is_abandoned(self, path: str) -> bool:
        # Not every such file system shares its locks between machines (sshfs does not): what no process seems to
        # hold may be another machine's, unless it was not written for long (I10: by the server's clock).
        age = self.now() - self._tree.status(path).st_mtime
        return age > _ABANDONED and super().is_abandoned(path)

    def reclaim(self, path: str) -> bool:
        try:
            is_abandoned = self.is_abandoned(path)
        except OSError:
            return False
        return is_abandoned and super().reclaim(path)

    def now(self) -> float:
        """Return the time by the clock that the times of files are by."""
        path = f"{names.STAGING}/{os.urandom(8).hex()}{names.NEW}"
        descriptor = self._tree.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            with descriptor as number:
                os.write(number, b"\0")
                return os.fstat(number).st_mtime
        finally:
            self._tree.delete(path)
