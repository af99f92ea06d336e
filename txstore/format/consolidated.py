"""Consolidated metadata: one document of a group that holds those of all nodes below, of formats 2 and 3. No I/O.

It is a second copy of every shape, which goes stale with the first append. So TxStore never stores one. If a client
sets one, TxStore stores a mark instead: `"consolidated_metadata": null` in a `zarr.json`, the key `.zmetadata` in
format 2. A reader gets a document that is built from the current documents at the time of the read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from txstore.format.encoding import MalformedError, json_value
from txstore.format.keys import DOCUMENT_NAMES, directory_prefix, document_key, node_of_document

#: The key of consolidated metadata in format 2.
ZMETADATA = ".zmetadata"

_BLOCK = "consolidated_metadata"
_EMPTY_BLOCK = {"kind": "inline", "must_understand": False, "metadata": {}}
_HOLDERS = ("zarr.json", ZMETADATA)
_MARK_OF_FORMAT_2 = b'{"zarr_consolidated_format": 1}'


class Documents(Protocol):
    """What documents are read from."""

    def get_view(self, key: str, /) -> memoryview | None: ...

    def list_dir(self, path: str, /) -> Iterator[str]: ...


def may_be_consolidated(key: str) -> bool:
    """Tell whether the key is one that consolidated metadata may be stored at."""
    return key.endswith(_HOLDERS) and key.rpartition("/")[2] in _HOLDERS


def is_consolidated(key: str) -> bool:
    return key.rpartition("/")[2] == ZMETADATA


def mark_for(key: str, content: bytes) -> bytes:
    """Return what is stored in place of a value at a key that `may_be_consolidated`: at most a mark of that."""
    if is_consolidated(key):
        return _MARK_OF_FORMAT_2
    document = decoded(content) if _BLOCK.encode() in content else None
    if not isinstance(document, dict) or document.get(_BLOCK) is None:
        return content
    return _encoded({**document, _BLOCK: None})


def with_mark(key: str, content: bytes) -> bytes:
    """Return a value at a key that `may_be_consolidated` with the mark that a client has consolidated the metadata."""
    document = decoded(content) if not is_consolidated(key) else None
    return _encoded({**document, _BLOCK: None}) if isinstance(document, dict) else content


def is_marked(key: str, content: bytes) -> bool:
    """Tell whether what is stored at a key says that a client has consolidated the metadata of the group."""
    if is_consolidated(key):
        return True
    document = decoded(content) if _BLOCK.encode() in content else None
    return isinstance(document, dict) and _BLOCK in document and document.get("node_type") == "group"


def consolidated_at(documents: Documents, key: str) -> bytes:
    """Return what a reader gets at a key that `is_marked`."""
    path, _, name = key.rpartition("/")
    made = consolidate(documents_of(documents, path))
    return made[name] if name in made else _consolidated_2({})  # `.zmetadata` without a group


def documents_of(snapshot: Documents, below: str = "") -> dict[str, bytes]:
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

    That is `zarr.json` with the block for format 3, `.zmetadata` for format 2. A client that reads them needs no
    listing.
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
        made[ZMETADATA] = _consolidated_2(
            {key: decoded(content) for key, content in sorted(documents.items()) if not key.endswith("zarr.json")}
        )
    return made


def _consolidated_2(metadata: Mapping[str, Any]) -> bytes:
    return _encoded({"metadata": metadata, "zarr_consolidated_format": 1})


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
