"""Stores of whole objects: what a repository needs of a medium that has no renames, maps or locks.

`ObjectStore` is the small protocol that the repository is written against. `open_objects` finds the implementation for
a URL: obstore where it is installed and understands the options, otherwise fsspec.

Paths are relative to the store's root, with `/` between segments. All methods are synchronous and safe in threads; they
may be called from any thread but that of a running event loop, and in a forked child, where connections are made anew.

Errors are `FileNotFoundError`, `FileExistsError`, `PermissionError` and `NotADirectoryError` where they apply,
otherwise `OSError` with the path and the reason in words: `TimeoutError` for time-outs, `ConnectionError` for lost
connections. The libraries' own exceptions do not come out, nor does anything that could hold credentials. What passes
by itself (503, SlowDown, 429, 500, time-outs, lost connections) is tried again here, for `client.RETRY_SECONDS`.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from txstore.storage.objects import fsspec_backends, obstore_backend, urls
from txstore.storage.objects.backend import Content, Object, Objects, TryRange
from txstore.storage.objects.client import ObjectClient

if TYPE_CHECKING:
    from typing_extensions import Buffer


ENGINE_VARIABLE = "TXSTORE_OBJECTS"  # "fsspec" or "obstore": which one is used, where the options do not say
PROBE = "probe-"

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

    is_remote: bool
    """Whether a request goes to another process: if not, there is nothing to be gained by fewer of them."""

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


def open_objects(url: str, options: Mapping[str, Any] | None = None, *, single_writer: bool = False) -> ObjectStore:
    """Return the objects below a URL. Nothing is asked of the server yet.

    `options` are those of the fsspec file system, and "txstore_engine": "fsspec" or "obstore", for the one that must be
    used. With `single_writer` the caller promises to be the only one that writes, which makes those file systems
    writable that can't create exclusively; all others stay as they are.

    Raises ValueError for a scheme that nobody knows and for local paths, and ImportError, naming what to install, for
    one whose package is missing.
    """
    wanted = os.environ.get(ENGINE_VARIABLE) or None
    target = urls.target_of(url, options or {}, engine=wanted, single_writer=single_writer)
    if target.engine != "fsspec" and obstore_backend.is_installed():
        if obstore_backend.connection_of(target) is not None:
            return ObjectClient(target, obstore_backend.CREATION, obstore_backend.build)
        if target.engine == "obstore" and target.family in obstore_backend.FAMILIES:
            raise ValueError(
                f"{target.url}: these storage_options can't be put in obstore's terms, or hold no credentials: "
                "use fsspec, or give them as the options of the fsspec file system"
            )
    elif target.engine == "obstore" and target.family in obstore_backend.FAMILIES:
        raise ImportError(f"{target.url}: obstore is asked for and missing: pip install 'txstore[obstore]'")
    return ObjectClient(target, fsspec_backends.creation_of(target), fsspec_backends.build)


def check_creation(store: ObjectStore, directory: str) -> None:
    """Create a probe in `directory` twice and delete it. Raises OSError if the server lets the second one through."""
    if store.creation == "single writer":
        return
    path = f"{directory}/{PROBE}{uuid.uuid4().hex}" if directory else PROBE + uuid.uuid4().hex
    store.create(path, [b"first"])
    try:
        store.create(path, [b"second"])
    except FileExistsError:
        return
    finally:
        store.delete([path])
    raise OSError(
        errno.EOPNOTSUPP,
        "the server ignores conditional writes: two writers would overwrite each other's commits. Use another server, "
        "or a newer version of it, or single_writer=True if nobody else writes there",
        store.url,
    )
