"""Where an import goes: a path that is free, below groups, in a transaction that does nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from txstore.errors import TransactionStateError
from txstore.format.documents import Node
from txstore.format.keys import ancestors, document_key, encode_key
from txstore.store import TxStore

if TYPE_CHECKING:
    from txstore.interchange.facade import Facade

_GROUP_3 = json.dumps({"attributes": {}, "zarr_format": 3, "node_type": "group"}, indent=2).encode()
_GROUP_2 = json.dumps({"zarr_format": 2}, indent=4).encode()

#: What the properties of the commit call what was imported.
PROPERTY = "import"


def checked_path(path: str) -> str:
    """Return the path of the node that an import becomes. Raises `ValueError` if it is none."""
    path = path.strip("/")
    if path:
        encode_key(path)
    return path


def check_same_import(repo: Facade, name: str | None, told: Mapping[str, Any]) -> None:
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


def check_free(repo: Facade, store: TxStore, path: str) -> None:
    """Raise `FileExistsError` if something is at the path already."""
    if store.base is not None and repo.mapping(at=store.base.id).has_keys_below(path):
        where = f"at {path!r}" if path else "in this repository; say below which path it goes (path=, --path)"
        raise FileExistsError(f"{store.url}: there is something {where}; an import takes a path that is free")


def groups_above(store: TxStore, path: str, zarr_format: int) -> Iterator[tuple[str, bytes]]:
    """Yield the documents of the groups above a path that are not there. Raises `ValueError` if they can't be."""
    document, content = ("zarr.json", _GROUP_3) if zarr_format == 3 else (".zgroup", _GROUP_2)
    others = (".zgroup", ".zarray") if zarr_format == 3 else ("zarr.json", ".zarray")
    for above in ancestors(path):
        key = document_key(above, document)
        if any(document_key(above, other) in store for other in others):
            raise ValueError(f"{above or '/'!r} is an array, or a group of another format than {zarr_format}")
        if key not in store:
            yield key, content
        elif zarr_format == 3 and Node.parse(key, store[key]).kind != "group":
            raise ValueError(f"{above!r} is an array: nothing can be imported below it")
