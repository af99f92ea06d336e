"""Consolidated metadata for plain Zarr: one document at the root that holds those of all nodes, of formats 2 and 3."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from txstore.format.encoding import MalformedError, json_value
from txstore.format.keys import DOCUMENT_NAMES, directory_prefix, document_key, node_of_document
from txstore.format.mapping import Hierarchy

#: What zarr 2 calls its consolidated metadata. One that lies in a repository is a copy that nobody keeps up, and
#: through it appends would get lost (docs/understand/architecture.md, "zarr's side"). So importing leaves it out.
ZMETADATA = ".zmetadata"

_BLOCK = "consolidated_metadata"
_EMPTY_BLOCK = {"kind": "inline", "must_understand": False, "metadata": {}}


def is_consolidated(key: str) -> bool:
    return key.rpartition("/")[2] == ZMETADATA


def documents_of(snapshot: Hierarchy, below: str = "") -> dict[str, bytes]:
    """Return the documents of all nodes at and below a path, by their keys from there on, without consolidated blocks.

    Arrays are not descended into.
    """
    documents: dict[str, bytes] = {}
    prefix = directory_prefix(below)
    paths = [""]
    while paths:
        path = paths.pop()
        own = {}
        for name in DOCUMENT_NAMES:
            view = snapshot.get_view(prefix + document_key(path, name))
            if view is not None:
                own[document_key(path, name)] = plain_document(name, bytes(view))
        documents |= own
        if not any(_is_array(key, content) for key, content in own.items()):
            below_it = snapshot.list_dir(prefix + path)
            paths += [document_key(path, name) for name in below_it if name not in DOCUMENT_NAMES]
    return documents


def plain_document(key: str, content: bytes) -> bytes:
    """Return a value without the consolidated block that a `zarr.json` may hold: any other is returned as it is."""
    if key.rpartition("/")[2] != "zarr.json" or _BLOCK.encode() not in content:
        return content
    document = decoded(content)
    if not isinstance(document, dict) or _BLOCK not in document:
        return content
    del document[_BLOCK]
    return _encoded(document)


def consolidate(documents: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the keys and contents of what has to be at the root, where that is a group.

    That is `zarr.json` with the block for format 3, `.zmetadata` for format 2. Whoever reads them needs no listing.
    """
    made: dict[str, bytes] = {}
    root = decoded(documents.get("zarr.json", b"null"))
    if isinstance(root, dict) and root.get("node_type") == "group":
        nodes = {}
        for key, content in sorted(documents.items()):
            node = decoded(content) if key.endswith("/zarr.json") else None
            if isinstance(node, dict):
                if node.get("node_type") == "group":
                    node[_BLOCK] = _EMPTY_BLOCK
                nodes[node_of_document(key)] = node
        made["zarr.json"] = _encoded({**root, _BLOCK: {**_EMPTY_BLOCK, "metadata": nodes}})
    if ".zgroup" in documents:
        metadata = {
            key: decoded(content) for key, content in sorted(documents.items()) if not key.endswith("zarr.json")
        }
        made[ZMETADATA] = _encoded({"metadata": metadata, "zarr_consolidated_format": 1})
    return made


def decoded(content: bytes) -> Any:
    """Return what a document says; None if it is no JSON that can be written anew, which is not for us to judge."""
    try:
        return json_value(content)
    except MalformedError:
        return None


def _encoded(document: Any) -> bytes:
    return json.dumps(document, indent=2).encode()


def _is_array(key: str, content: bytes) -> bool:
    if key.endswith("zarr.json"):
        document = decoded(content)
        return isinstance(document, dict) and document.get("node_type") == "array"
    return key.endswith(".zarray")
