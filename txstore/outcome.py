"""What the head will hold once a transaction's writes are on top of it: what constraints are asked about.

The transaction's own view lies over its base; this one lies over the head, after it was found that what others have
committed since is no conflict.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from txstore import format
from txstore.documents import NODE_DOCUMENTS, DocumentChange, Node, compare_documents
from txstore.encoding import MalformedError, json_value
from txstore.keys import after_prefix, directory_prefix, document_key

if TYPE_CHECKING:
    from txstore.grids import Grid
    from txstore.snapshot import Snapshot
    from txstore.staging import Staging


@dataclass(frozen=True)
class Described:
    """What the documents of a node say."""

    path: str
    key: str  # of the document that says what it is
    content: bytes
    node: Node
    document: Mapping[str, Any]
    attributes: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """ "array", "group", or "unknown" for what can't be understood."""
        return self.node.kind

    def grid(self) -> Grid:
        """Raises what `Grid` does for a document that can't be understood."""
        from txstore.grids import Grid  # late: it imports numpy

        return Grid(self.path, self.document)


def describe(get: Callable[[str], bytes | memoryview | None], path: str) -> Described | None:
    """Return what is at a path; None if there is nothing. `get` returns documents."""
    for name in NODE_DOCUMENTS:
        key = document_key(path, name)
        if (found := get(key)) is not None:
            content = bytes(found)
            document = _object(content)
            is_3 = name == "zarr.json"
            attributes = document.get("attributes") if is_3 else _object(get(document_key(path, ".zattrs")))
            if not isinstance(attributes, dict):
                attributes = {}
            return Described(path, key, content, Node.parse(key, content), document, attributes)
    return None


def written_by_zarr(key: str, document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an array's document as zarr writes it. Raises `ImportError` with zarr 2, and what zarr raises."""
    from zarr.core.buffer.core import default_buffer_prototype  # late: most commits compare nothing
    from zarr.core.metadata import ArrayV2Metadata, ArrayV3Metadata

    name = key.rpartition("/")[2]
    kind = ArrayV3Metadata if name == "zarr.json" else ArrayV2Metadata
    written = kind.from_dict(dict(document)).to_buffer_dict(default_buffer_prototype())[name]
    return _object(written.to_bytes())


def _object(content: bytes | memoryview | None) -> dict[str, Any]:
    try:
        found = json_value(content or b"{}")
    except MalformedError:
        return {}
    return found if isinstance(found, dict) else {}


class Outcome:
    """The head with a transaction on top. `unchanged` are staged keys that the commit leaves out."""

    def __init__(self, staging: Staging, unchanged: Collection[str], head: Snapshot) -> None:
        self._staging = staging
        self._unchanged = unchanged
        self._head = head

    def get(self, key: str) -> bytes | memoryview | None:
        """Return a document."""
        link = self._staging.staged.get(key)
        if link is not None and key not in self._unchanged:
            return None if link.kind == format.FRAME_TOMBSTONE else self._staging.read(link)
        return None if self._staging.is_below_deleted(key) else self._head.get_view(key)

    def __contains__(self, key: str) -> bool:
        link = self._staging.staged.get(key)
        if link is not None and key not in self._unchanged:
            return link.kind != format.FRAME_TOMBSTONE
        return not self._staging.is_below_deleted(key) and key in self._head

    def after(self, path: str) -> Described | None:
        """Return what will be at a path."""
        return describe(self.get, path)

    def before(self, path: str) -> Described | None:
        """Return what is at a path, at the head."""
        return describe(self._head.get_view, path)

    def rewrites(self, path: str) -> bool:
        """Tell whether a document of a node is set or deleted."""
        documents = [document_key(path, name) for name in (*NODE_DOCUMENTS, ".zattrs")]
        return self.remakes(path) or any(
            key in self._staging.staged and key not in self._unchanged for key in documents
        )

    def remakes(self, path: str) -> bool:
        """Tell whether a node is deleted as a whole, whatever is there afterwards."""
        return any(self._staging.is_below_deleted(document_key(path, name)) for name in NODE_DOCUMENTS)

    def clears_below(self, path: str) -> bool:
        """Tell whether all below some prefix is deleted that has to do with a node: it lies above, at or below it."""
        here = directory_prefix(path)
        return any(prefix.startswith(here) or here.startswith(prefix) for prefix in self._staging.prefixes)

    def restructures(self, path: str) -> bool:
        """Tell whether an array is changed in more than shape and attributes."""
        before, after = self.before(path), self.after(path)
        if before is None or after is None or before.key != after.key:
            return True
        return compare_documents(after.key, before.content, after.content) is DocumentChange.STRUCTURE

    def deleted_below(self, path: str) -> Iterator[str]:
        """Yield the keys below a path that are deleted one by one, also those that were not there."""
        prefix = directory_prefix(path)
        for key in self._staging.staged.between(prefix, after_prefix(prefix)):
            link = self._staging.staged.get(key)
            if link is not None and link.kind == format.FRAME_TOMBSTONE:
                yield key
