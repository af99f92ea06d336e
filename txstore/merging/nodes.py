"""A node as one side of a merge has it: its document, and by what its chunks mean what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from txstore.format.documents import NODE_DOCUMENTS, Node
from txstore.format.encoding import MalformedError, json_value
from txstore.format.keys import document_key
from txstore.format.mapping import Hierarchy

#: Fields of an array's document, of formats 3 and 2, by which chunks mean what they mean.
STRUCTURAL = (
    "node_type", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs", "storage_transformers",
    "dtype", "chunks", "compressor", "filters", "order", "dimension_separator",
)  # fmt: skip


@dataclass(frozen=True)
class NodeSide:
    """A node's document, on one side."""

    key: str
    content: bytes
    node: Node
    document: Mapping[str, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.node.shape

    @property
    def structure(self) -> Any:
        """By what the chunks mean what they mean; of a group, that it is one."""
        fields = {name: self.document[name] for name in STRUCTURAL if name in self.document}
        return self.node.kind, len(self.shape), fields if self.node.kind == "array" else None


def described(view: Hierarchy, path: str) -> NodeSide | None:
    for name in NODE_DOCUMENTS:
        key = document_key(path, name)
        if (found := view.get_view(key)) is not None:
            content = bytes(found)
            document = parsed(content)
            return NodeSide(key, content, Node.parse(key, content), document if isinstance(document, dict) else {})
    return None


def parsed(content: bytes) -> Any:
    try:
        return json_value(content)
    except MalformedError:
        return content
