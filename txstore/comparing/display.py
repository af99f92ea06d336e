"""Shows a diff to people: as text that fits 80 columns, and as HTML."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from txstore.comparing.changed_documents import FieldChange
from txstore.comparing.nodes import ADDED, CHANGED, MOVED, REMOVED, NodeDiff
from txstore.format.display import html_head, html_text, printable
from txstore.format.documents import ABSENT

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
