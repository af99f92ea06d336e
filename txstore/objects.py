"""Stores of whole objects: what a repository needs of a medium that has no renames, maps or locks.

`ObjectStore` is the small protocol that the repository is written against. `open_objects` finds the implementation for a
URL: obstore where it is installed and understands the options, otherwise fsspec.

Paths are relative to the store's root, with `/` between segments. All methods are synchronous and safe in threads; they
may be called from any thread but that of a running event loop, and in a forked child, where connections are made anew.

Errors are `FileNotFoundError`, `FileExistsError`, `PermissionError` and `NotADirectoryError` where they apply, otherwise
`OSError` with the path and the reason in words: `TimeoutError` for time-outs, `ConnectionError` for lost connections. The
libraries' own exceptions do not come out, nor does anything that could hold credentials. What passes by itself (503,
SlowDown, 429, 500, time-outs, lost connections) is tried again here, for about half a minute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Object(NamedTuple):
    """One name in a listing. A directory has size 0 and no time."""

    name: str
    size: int  # bytes
    modified: float | None  # seconds since 1970 by the server's clock


class ObjectStore(Protocol):
    """The objects below one URL. Pickles hold what it takes to connect, credentials too; `repr` and `url` never do."""

    url: str
    """Where the root is: without credentials or query, the same string for the same store."""

    creation: str
    """How exclusive creation is done: one word or two, recorded in a repository's format.json. "none": not at all."""

    is_remote: bool
    """Whether a request goes to another process: if not, there is nothing to be gained by fewer of them."""

    def get(self, path: str) -> bytes:
        """Return a whole object; FileNotFoundError if there is none."""

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        """Return a range of an object: shorter only where the object ends, empty beyond its end."""

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return several ranges, (offset, length) each, fetched in parallel. All or an error."""

    def get_tail(self, path: str, length: int) -> tuple[bytes, int]:
        """Return the last bytes of an object (fewer if it is shorter) and its size: one request where that is possible."""

    def exists(self, path: str) -> bool:
        """Tell whether there is an object, as the server says now."""

    def list(self, directory: str) -> list[Object]:
        """Return the direct children, as the server says now: objects, and directories as objects of size 0.

        Empty if there is no such directory. The empty path is the root.
        """

    def list_after(self, directory: str, name: str, limit: int) -> list[str] | None:
        """Return at most `limit` names of a directory above `name`, ascending; None where that takes more than a request."""

    def put(self, path: str, parts: Sequence[Buffer]) -> None:
        """Write an object, replacing what is there in one step."""

    def create(self, path: str, parts: Sequence[Buffer]) -> None:
        """Write an object unless there is one: of racing creators exactly one wins, and readers see all of it or nothing.

        Raises FileExistsError if there is one. That may be the caller's own: where a response was lost the request is
        sent again, and finds what the first one wrote. Read the object back to know whose it is. After any other error
        the object may exist, too. Empty content is a ValueError, since some servers do not protect it.
        """

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects; one that does not exist is no error."""

    def now(self) -> float:
        """Return the time by the server's clock, in seconds since 1970."""


def open_objects(url: str, options: Mapping[str, Any] | None = None, *, single_writer: bool = False) -> ObjectStore:
    """Return the objects below a URL. Nothing is asked of the server yet.

    `options` are those of the fsspec file system. With `single_writer` the caller promises to be the only one that
    writes, which makes those file systems writable that can't create exclusively; all others stay as they are.

    Raises ValueError for a scheme that nobody knows and for local paths, and ImportError, naming the package, for one
    whose package is missing.
    """
    raise NotImplementedError


def check_creation(store: ObjectStore, directory: str) -> None:
    """Create a probe in `directory` twice and delete it. Raises OSError if the server lets the second one through."""
    raise NotImplementedError
