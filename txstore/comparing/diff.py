"""Diff: how two commits differ, or a commit and the changes staged on top of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from txstore.commit import Commit
from txstore.comparing.nodes import ADDED, CHANGED, MOVED, REMOVED, FieldChange, NodeDiff
from txstore.errors import NodeNotFoundError
from txstore.format.display import html_head, html_text, printable
from txstore.format.documents import ABSENT

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


# --- a diff for people: as text that fits 80 columns, and as HTML


_SIGNS = {ADDED: "+", REMOVED: "-", MOVED: ">", CHANGED: "~"}
#: At most this many regions of an array, and characters of a value, are shown.
_REGIONS, _VALUE = 8, 32


def counted(nodes: Sequence[NodeDiff]) -> str:
    """Return the numbers of nodes added, removed, moved and changed, as text."""
    counts = {change: sum(node.change == change for node in nodes) for change in _SIGNS}
    return ", ".join(f"{count} {change}" for change, count in counts.items() if count) or "nothing differs"


def as_text(title: str, nodes: Sequence[NodeDiff]) -> str:
    """Return a line for each node, followed by its changes."""
    lines = [f"{title}: {counted(nodes)}{_sizes(nodes)}"]
    for node in _topmost(nodes):
        lines.append(f"{_SIGNS[node.change]} {_name(node)}{_summary(node)}")
        lines += [f"    {line}" for line in _details(node)]
    return "\n".join(printable(line) for line in lines)


def as_html(title: str, nodes: Sequence[NodeDiff]) -> str:
    rows = "".join(
        f"<tr><td>{html_text(_SIGNS[node.change])}</td><td><code>{html_text(_name(node))}</code></td>"
        f"<td>{html_text(_summary(node).lstrip(' :'))}</td>"
        f"<td>{'<br>'.join(map(html_text, _details(node)))}</td></tr>"
        for node in _topmost(nodes)
    )
    head = html_head("Diff", f"{title}: {counted(nodes)}{_sizes(nodes)}")
    return f"{head}<table>{rows}</table>" if rows else head


def _topmost(nodes: Sequence[NodeDiff]) -> Iterator[NodeDiff]:
    """Yield the nodes without those that were added, removed or moved with the group above them."""
    above: dict[str, NodeDiff] = {}
    for node in nodes:
        parent = above.get(node.path.rpartition("/")[0]) if node.path else None
        above[node.path] = node
        if parent is None or {parent.change, node.change} != {MOVED}:
            yield node
            continue
        if (node.moved_from or "").rpartition("/")[0] != parent.moved_from:
            yield node


def _name(node: NodeDiff) -> str:
    name = (node.path or "/") + ("/" if node.kind == "group" and node.path else "")
    return name if node.moved_from is None else f"{node.moved_from} -> {name}"


def _summary(node: NodeDiff) -> str:
    told = []
    if node.change in (ADDED, REMOVED) and node.shape is not None:
        told.append(f"array {'x'.join(map(str, node.shape)) or 'scalar'}")
    counts = {ADDED: node.chunks_added, REMOVED: node.chunks_removed, CHANGED: node.chunks_changed}
    chunks = [f"{count:,} {what}" for what, count in counts.items() if count]
    if chunks:
        told.append(f"chunks {', '.join(chunks)}")
    if node.keys:
        told.append(f"{len(node.keys):,} other keys")
    return f": {', '.join(told)}" if told else ""


def _details(node: NodeDiff) -> Iterator[str]:
    for each in node.fields:
        yield _field(each)
    if node.change in (ADDED, REMOVED):
        return
    for each in node.attributes:
        yield f"attribute {_field(each)}"
    if node.kind == "array" and node.chunks:
        regions = node.regions
        for region in regions[:_REGIONS]:
            yield f"[{', '.join(f'{part.start}:{part.stop}' for part in region)}]"
        if len(regions) > _REGIONS:
            yield f"and {len(regions) - _REGIONS:,} more regions"


def _field(change: FieldChange) -> str:
    return f"{change.name}: {_value(change.before)} -> {_value(change.after)}"


def _value(value: Any) -> str:
    told = "absent" if value is ABSENT else json.dumps(value, ensure_ascii=False)
    return told if len(told) <= _VALUE else told[: _VALUE - 3] + "..."


def _sizes(nodes: Sequence[NodeDiff]) -> str:
    added, dropped = sum(node.bytes_added for node in nodes), sum(node.bytes_dropped for node in nodes)
    return f" ({added:,} bytes added, {dropped:,} dropped)" if added or dropped else ""
