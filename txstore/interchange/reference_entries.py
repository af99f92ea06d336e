"""Finds the reference of each key of a commit: the value itself, or where it is stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from txstore.errors import CorruptionError, ExportError
from txstore.format.keys import after_prefix, directory_prefix, is_document, stored_key
from txstore.format.packfile import REF_FOREIGN, PackName
from txstore.history.snapshot import Snapshot

#: Values shorter than this, in bytes, are stored in the references: in base64 they take hardly more room than the name
#: of a pack, an offset and a length, and reading one takes no request.
INLINE_BELOW = 64

_PAGE = 4096
_LARGEST = (1 << 63) - 1


class Reference(NamedTuple):
    """The place of a value."""

    pack: str  # relative to the repository
    offset: int
    length: int


#: The value, or its place.
Entry = bytes | Reference


def entries(snapshot: Snapshot, path: str = "") -> Iterator[tuple[str, Entry]]:
    """Yield the live keys below a path in byte order, each with its reference.

    Documents are included as values, at any length. Raises `CorruptionError`, and `ExportError` for a value outside the
    repository.
    """
    prefix = directory_prefix(path)
    stop = after_prefix(prefix)
    start, end = prefix.encode(), None if stop is None else stop.encode()
    paths: dict[PackName, str] = {}
    while page := snapshot.runs.scan(start, end, _PAGE):
        for listed in page:
            key = stored_key(listed.key, snapshot.runs.file(listed.run).path)
            if listed.kind == REF_FOREIGN:
                reason = (
                    f"the value of {key!r} lies in another file, and references can't tell whether that has changed: "
                    "export copies it, or give the manifest that it was imported by"
                )
                raise ExportError(snapshot.url, reason)
            if listed.length < INLINE_BELOW or is_document(key):
                pack = snapshot.runs.open_pack(listed.run, listed.pack)
                yield key, bytes(pack.view(listed.offset, listed.length, listed.checksum, key))
                continue
            name = snapshot.runs.pack_name(listed.run, listed.pack)
            if listed.offset + listed.length > _LARGEST:
                raise CorruptionError(name.path, offset=listed.offset, key=key, reason="no file is so long")
            pack_path = paths.get(name) or paths.setdefault(name, name.path)
            yield key, Reference(pack_path, listed.offset, listed.length)
        start = page[-1].key + b"\0"
