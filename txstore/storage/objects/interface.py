"""The interface of object stores: what a repository needs of a server that has no renames, maps or locks.

The repository uses only the protocol `ObjectStore`. `open_objects` chooses the implementation for a URL: obstore if it
is installed and understands the options, otherwise fsspec.

Paths are relative to the store's root, with `/` between segments. All methods are synchronous and safe in threads; they
may be called from any thread but that of a running event loop, and in a forked child, where connections are made anew.

Errors are `FileNotFoundError`, `FileExistsError`, `PermissionError` and `NotADirectoryError` where they apply,
otherwise `OSError` with the path and the reason in words: `TimeoutError` for time-outs, `ConnectionError` for lost
connections. No exception of a library comes out, and no message that could hold credentials. The client retries
temporary failures (503, SlowDown, 429, 500, time-outs, lost connections) for `client.RETRY_SECONDS` seconds.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from txstore.storage.objects import fsspec_backends, obstore_backend, urls
from txstore.storage.objects.backend import (
    OF_PROCESS,
    SINGLE_WRITER,
    Content,
    Object,
    Objects,
    TryRange,
    Version,
)
from txstore.storage.objects.client import ObjectClient
from txstore.storage.objects.errors import NotExclusiveError

if TYPE_CHECKING:
    from typing_extensions import Buffer


ENGINE_VARIABLE = "TXSTORE_OBJECTS"  # "fsspec" or "obstore": which one is used, where the options do not say

__all__ = ["Object", "ObjectStore", "check_creation", "open_objects"]


class Ranges(Protocol):
    """What finished packs can be read from: see `ObjectStore`."""

    @property
    def try_range(self) -> TryRange | None:
        """What reads a range on any event loop, without a thread; None if that can't be done."""

    def get_range(self, path: str, offset: int, length: int) -> Content: ...
    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Content]: ...
    def get_tail(self, path: str, length: int) -> tuple[bytes, int]: ...


class ObjectStore(Ranges, Protocol):
    """The objects below one URL. Pickles hold what it takes to connect, credentials too; `repr` and `url` never do."""

    url: str
    """Where the root is: without credentials or query, the same string for the same store."""

    creation: str
    """How exclusive creation is done: one word or two, recorded in a repository's format.json. "none": not at all."""

    makes_requests: bool
    """Whether a request goes to another process: if not, there is nothing to be gained by fewer of them."""

    has_links: bool
    """Whether a name may lead to a file elsewhere, as links do, or redirects of a web server."""

    @property
    def versions_begun(self) -> int:
        """How often the server has begun to keep what objects were before, as its answers to this process tell.

        The answer to whatever writes an object tells whether it does, that to `get` if it does.
        """

    def get(self, path: str) -> bytes:
        """Return a whole object; FileNotFoundError if there is none."""

    def get_range(self, path: str, offset: int, length: int) -> Content:
        """Return a range of an object: shorter only where the object ends, empty beyond its end."""

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Content]:
        """Return several ranges, (offset, length) each, fetched in parallel; OSError if the object ends within one."""

    def get_tail(self, path: str, length: int) -> tuple[bytes, int]:
        """Return the last bytes of an object (fewer if it is shorter) and its size: one request, where there is one."""

    def exists(self, path: str) -> bool:
        """Tell whether there is an object, as the server says now."""

    def list(self, directory: str) -> list[Object]:
        """Return the direct children, as the server says now: objects, and directories as objects of size 0.

        Empty if there is no such directory. The empty path is the root.
        """

    def list_after(self, directory: str, name: str, limit: int) -> Objects | None:
        """Return what has the first `limit` names of a directory above `name`, ascending; fewer if there are no more.

        None where one request can't tell that.
        """

    def is_link(self, path: str) -> bool:
        """Tell whether a name leads to something else, as symbolic links do. Where there are none, nothing is asked."""

    def put(self, path: str, parts: Sequence[Buffer]) -> None:
        """Write an object, replacing what is there in one step. Not in one step where `creation` is "single writer"."""

    def create(self, path: str, parts: Sequence[Buffer]) -> None:
        """Write an object unless there is one: of racing creators exactly one wins, and readers see it whole or not.

        Raises FileExistsError if there is one. That may be the caller's own: where a response was lost the request is
        sent again, and finds what the first one wrote. Read the object back to know whose it is. After any other error
        the object may exist, too, or come to exist for as long as a request is still under way.
        Empty content is a ValueError, since some servers do not protect it.
        """

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects; one that does not exist is no error."""

    def now(self) -> float:
        """Return the time by the server's clock, in seconds since 1970."""

    def list_versions(self, directory: str) -> Sequence[Version]:
        """Return the versions of the direct children, if the server keeps them: of each child, the oldest first.

        Raises OSError if the library can't ask for versions.
        """

    def get_version(self, path: str, version: str) -> bytes:
        """Return an older version of an object; FileNotFoundError if the server has not kept it."""

    def delete_versions(self, path: str, versions: Sequence[str]) -> None:
        """Delete versions of an object for good. Once all are deleted, the name looks as if it was never used."""


def open_objects(url: str, options: Mapping[str, Any] | None = None, *, single_writer: bool = False) -> ObjectStore:
    """Return the objects below a URL. Nothing is asked of the server yet.

    `options` are those of the fsspec file system, and "txstore_engine": "fsspec" or "obstore", for the one that must be
    used. With `single_writer` the caller promises to be the only one that writes: then objects are created by looking
    first and writing then, which makes those file systems and servers writable that can't create exclusively.

    Raises ValueError for an unknown scheme and for local paths, and ModuleNotFoundError, naming what to
    install, for one whose package is missing.
    """
    wanted = os.environ.get(ENGINE_VARIABLE) or None
    target = urls.target_of(url, options or {}, engine=wanted, single_writer=single_writer)
    if target.engine != "fsspec" and obstore_backend.is_installed():
        if obstore_backend.connection_of(target) is not None:
            creation = SINGLE_WRITER if single_writer else obstore_backend.CREATION
            return ObjectClient(target, creation, obstore_backend.build)
        if target.engine == "obstore" and target.family in obstore_backend.FAMILIES:
            raise ValueError(
                f"{target.url}: these storage_options can't be put in obstore's terms, or hold no credentials: "
                "use fsspec, or give them as the options of the fsspec file system"
            )
    elif target.engine == "obstore" and target.family in obstore_backend.FAMILIES:
        raise ModuleNotFoundError(f"{target.url}: obstore is asked for and missing: pip install 'txstore[obstore]'")
    return ObjectClient(target, fsspec_backends.creation_of(target), fsspec_backends.build)


def check_creation(store: ObjectStore, path: str, content: bytes) -> None:
    """Raise `NotExclusiveError` if the server lets a second creator of an object through; `OSError`: it is not known.

    The object is one that is there, or may be, with just this content: so a server that replaces it does no harm.
    """
    if store.creation in (SINGLE_WRITER, OF_PROCESS):  # nothing to be found out
        return
    for _ in range(3):  # the first may be the one that creates it, and a vacuum of a full bucket may delete it once
        try:
            store.create(path, [content])
        except FileExistsError:
            return
    raise NotExclusiveError(
        errno.EOPNOTSUPP,
        "the server ignores conditional writes: two writers would overwrite each other's commits. Ceph 16.2 does so in "
        "a bucket that keeps versions: suspend versioning there. Else use another server, or a newer version of it, or "
        "single_writer=True if no other process writes there",
        store.url,
    )
