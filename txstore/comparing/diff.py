"""Diff: how two commits differ, or a commit and the changes staged on top of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from txstore.commit import Commit
from txstore.comparing.display import as_html, as_text, counted
from txstore.comparing.nodes import ADDED, CHANGED, MOVED, REMOVED, NodeDiff
from txstore.errors import NodeNotFoundError

if TYPE_CHECKING:
    from txstore.comparing.elements import ChunkValues

#: Opens the array at a path of one side, as zarr does.
OpenArray = Callable[[str], Any]


class Diff:
    """The differences between two commits: `Repository.diff`. Iterating yields a `NodeDiff` for each node, by path.

    Attributes
    ----------
    before, after : Commit or None
        The commits. None: before the first one; as `after`, also the staged changes.
    nodes : list of NodeDiff
    """

    def __init__(
        self,
        before: Commit | None,
        after: Commit | None,
        nodes: list[NodeDiff],
        open_before: OpenArray,
        open_after: OpenArray,
        *,
        is_staged: bool = False,
    ) -> None:
        self.before = before
        self.after = after
        self.nodes = nodes
        self.is_staged = is_staged
        self._open = open_before, open_after

    def __iter__(self) -> Iterator[NodeDiff]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, path: str) -> NodeDiff:
        """Return the changes of one node. Raises `NodeNotFoundError` if it has not changed.

        If an array has become a group, or the reverse, it is the one that was added.
        """
        return self._at(path)[-1]

    def _at(self, path: str) -> list[NodeDiff]:
        name = path.strip("/")
        found = [node for node in self.nodes if node.path == name]
        if not found:
            raise NodeNotFoundError(name, "change")
        return found

    def _of(self, change: str) -> list[NodeDiff]:
        return [node for node in self.nodes if node.change == change]

    @property
    def added(self) -> list[NodeDiff]:
        return self._of(ADDED)

    @property
    def removed(self) -> list[NodeDiff]:
        return self._of(REMOVED)

    @property
    def moved(self) -> list[NodeDiff]:
        """The moved nodes: each holds what a removed node held. For a group, also those below it."""
        return self._of(MOVED)

    @property
    def changed(self) -> list[NodeDiff]:
        return self._of(CHANGED)

    @property
    def bytes_added(self) -> int:
        return sum(node.bytes_added for node in self.nodes)

    @property
    def bytes_dropped(self) -> int:
        return sum(node.bytes_dropped for node in self.nodes)

    def values(self, path: str) -> Iterator[ChunkValues]:
        """Yield the changes of an array, chunk by chunk: `region`, `before`, `after` and the mask `differs`.

        Each chunk is read on demand. Where the array did not exist, or was shorter, the value is its fill value, and
        counts as different. Raises `NodeNotFoundError` if nothing has changed at that path, `ValueError` if it is not
        an array.
        """
        from txstore.comparing.elements import changed_values  # late: it imports numpy

        nodes = self._at(path)
        node = next((node for node in nodes if node.kind == "array"), None)
        if node is None:
            raise ValueError(f"{nodes[0].path!r} is not an array: only arrays have values")
        was_at = node.moved_from or node.path
        open_before, open_after = self._open
        return changed_values(
            node.before, node.after, node.chunks, lambda: open_before(was_at), lambda: open_after(node.path)
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the diff for JSON."""
        return {
            "before": None if self.before is None else self.before.id,
            "after": None if self.after is None else self.after.id,
            "bytes_added": self.bytes_added,
            "bytes_dropped": self.bytes_dropped,
            "nodes": [node.as_dict() for node in self.nodes],
        }

    @property
    def title(self) -> str:
        return f"{self.before or 'nothing'} to {'what is staged' if self.is_staged else self.after or 'nothing'}"

    def __repr__(self) -> str:
        return f"<Diff {self.title}: {counted(self.nodes)}>"

    def __str__(self) -> str:
        return as_text(self.title, self.nodes)

    def _repr_html_(self) -> str:
        return as_html(self.title, self.nodes)
