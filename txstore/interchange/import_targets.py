"""Checks the target of an import: a free path below groups, in a transaction that does nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from txstore.codecs import bounded_codecs
from txstore.errors import SourceError, TransactionStateError
from txstore.format.documents import Node
from txstore.format.keys import ancestors, document_key, encode_key, is_document
from txstore.interchange.format2 import NoEquivalentError
from txstore.interchange.format3 import documents_in_format_3
from txstore.store import TxStore

if TYPE_CHECKING:
    from txstore.store import OpenedRepository

_GROUP_3 = json.dumps({"attributes": {}, "zarr_format": 3, "node_type": "group"}, indent=2).encode()
_GROUP_2 = json.dumps({"zarr_format": 2}, indent=4).encode()

#: Key of the import's description in the properties of the commit.
PROPERTY = "import"

#: How many bytes a document has at most: each is read whole, and understood.
_MOST_OF_DOCUMENT = 256 << 20


def check_documents(url: str, sizes: Mapping[str, int]) -> None:
    """Raise `SourceError` if a document, or all of them, are too long to be read whole. `sizes` in bytes, by key."""
    total, most = 0, bounded_codecs.MOST_IN_MEMORY  # all are held at once
    for key, size in sizes.items():
        if not is_document(key):
            continue
        total += size
        if size > _MOST_OF_DOCUMENT:
            reason = f"{key!r} has {size:,} bytes: no document of Zarr has more than {_MOST_OF_DOCUMENT:,}"
            raise SourceError(url, reason)
        if total > most:
            reason = f"up to {key!r}, its documents have {total:,} bytes: an import reads at most {most:,} of them"
            raise SourceError(url, reason)


def checked_path(path: str) -> str:
    """Return the path of the imported node. Raises `ValueError` for an invalid path."""
    path = path.strip("/")
    if path:
        encode_key(path)
    return path


def check_same_import(repo: OpenedRepository, name: str | None, told: Mapping[str, Any]) -> None:
    """Raise `TransactionStateError` if the transaction with this name does something else."""
    if name is None:
        return
    found = next((each for each in repo.transactions() if each.name == name), None)
    if found is None or dict(found.properties) == told:
        return
    before = found.properties.get(PROPERTY)
    what = "the source has changed since, or other things were asked for" if before else "it is no import"
    raise TransactionStateError(
        f"the transaction {name!r} can't be resumed by this import: {what}; choose another name, or drop what it has "
        f"staged: repo.transaction(name={name!r}).rollback(), txstore tx rollback",
        state="open",
    )


def check_free(repo: OpenedRepository, store: TxStore, path: str) -> None:
    """Raise `FileExistsError` if the path is not free."""
    if store.base is not None and repo.mapping(at=store.base.id).has_keys_below(path):
        where = f"at {path!r}" if path else "in this repository; say below which path it goes (path=, --path)"
        raise FileExistsError(f"{store.url}: there is something {where}; an import takes a path that is free")


def documents_at(
    store: TxStore, path: str, documents: Mapping[str, bytes], url: str, *, keeps_root: bool = False
) -> dict[str, bytes]:
    """Return the documents to store for an import, by keys of the repository.

    These are the import's own, and those of missing groups above the path. Documents of format 2 are converted to
    format 3, unless the group above is of format 2: zarr makes nodes of format 3 by default, and beside these it would
    not see them. The root stays as it is if `keeps_root`, or if format 3 can't describe it. Raises `SourceError` if it
    can't describe what is below the root, `ValueError` if a node above the path can't have nodes below it.
    """
    zarr_format = 3 if "zarr.json" in documents else 2
    if zarr_format == 2 and (path or not keeps_root) and not is_below_format_2(store, path):
        try:
            documents, zarr_format = documents_in_format_3(documents), 3
        except NoEquivalentError as error:
            if not path:
                return dict(documents)
            raise SourceError(
                url, f"{error}. What lies above is of format 3: import it into a repository of its own, as its root"
            ) from error
    own = {document_key(path, key): content for key, content in documents.items()}
    return {**dict(groups_above(store, path, zarr_format)), **own}


def is_below_format_2(store: TxStore, path: str) -> bool:
    """Tell whether the nearest group above a path is of format 2."""
    for above in ancestors(path):
        if document_key(above, "zarr.json") in store:
            return False
        if document_key(above, ".zgroup") in store:
            return True
    return False


def groups_above(store: TxStore, path: str, zarr_format: int) -> Iterator[tuple[str, bytes]]:
    """Yield the documents of the groups that a path lacks above it, by key. Raises `ValueError` as `documents_at`."""
    document, content = ("zarr.json", _GROUP_3) if zarr_format == 3 else (".zgroup", _GROUP_2)
    others = (".zgroup", ".zarray") if zarr_format == 3 else ("zarr.json", ".zarray")
    for above in ancestors(path):
        key = document_key(above, document)
        if any(document_key(above, other) in store for other in others):
            raise ValueError(
                f"{above or '/'!r} is an array, or a group of another format than {zarr_format}: import to another "
                "path, or into a repository of its own"
            )
        if key not in store:
            yield key, content
        elif zarr_format == 3 and Node.parse(key, store[key]).kind != "group":
            raise ValueError(f"{above!r} is an array: nothing can be imported below it")
