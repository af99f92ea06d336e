"""`Repository.import_references`: the chunks of other files as values that stay where they are, in one transaction."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from txstore.errors import SourceError
from txstore.format.keys import document_key, is_document
from txstore.history.commit import Commit
from txstore.interchange.concealing import concealing
from txstore.interchange.consolidated import is_consolidated, plain_document
from txstore.interchange.import_targets import PROPERTY, check_free, check_same_import, checked_path, groups_above
from txstore.interchange.manifests import Manifest, Reference, open_manifest
from txstore.interchange.places import ForeignFile, stamp
from txstore.storage.foreign import FileVersion, canonical
from txstore.storage.request_threads import in_parallel
from txstore.storage.sources import Sources

if TYPE_CHECKING:
    from txstore.interchange.facade import Facade

_ROOTS = ("zarr.json", ".zgroup", ".zarray")


@concealing
def import_references(
    repo: Facade,
    manifest: str | os.PathLike[str] | Mapping[str, Any],
    path: str = "",
    *,
    message: str | None = None,
    name: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Commit:
    """See `Repository.import_references`."""
    path = checked_path(path)
    opened = open_manifest(manifest, storage_options)
    entries = _entries(opened)
    files = _look(repo.engine.sources, opened, entries)
    lengths = {
        key: repo.engine.sources.range_of(files[entry.url], entry.offset, entry.length).length
        for key, entry in entries.items()
        if isinstance(entry, Reference)
    }
    told = {PROPERTY: _description(opened, path, files, lengths)}
    done, total = 0, sum(lengths.values())
    with repo.transaction(message or f"references of {opened.url}", name=name, properties=told) as store:
        check_same_import(repo, name, told)
        check_free(repo, store, path)
        for key, content in groups_above(store, path, 3 if "zarr.json" in entries else 2):
            store[key] = content
        for key, entry in entries.items():
            target = document_key(path, key)
            if isinstance(entry, bytes):
                store[target] = entry
                continue
            file = files[entry.url]
            if is_document(key):
                found = repo.engine.sources.range_of(file, entry.offset, entry.length)
                store[target] = plain_document(key, bytes(repo.engine.sources.read(found)))
            else:
                store.set_reference(target, file.url, entry.offset, entry.length, size=file.size, version=file.version)
            done += lengths[key]
            if progress is not None:
                progress(done, total)
        made = store.commit(allow_lost=name is not None)
        if made is None:
            raise SourceError(opened.url, "there is nothing in it")
        return made


def _entries(manifest: Manifest) -> dict[str, bytes | Reference]:
    """Return what the keys are, but for consolidated metadata: a second copy of every shape."""
    found: dict[str, bytes | Reference] = {}
    for key, entry in manifest.items():
        if not is_consolidated(key):
            found[key] = plain_document(key, entry) if isinstance(entry, bytes) else entry
    if not any(root in found for root in _ROOTS):
        raise SourceError(manifest.url, f"this is no manifest of a Zarr hierarchy: it has none of {', '.join(_ROOTS)}")
    return found


def _look(sources: Sources, manifest: Manifest, entries: Mapping[str, bytes | Reference]) -> dict[str, FileVersion]:
    """Return what the files are now, by the URLs that the manifest gives: one look for each."""
    urls = list(dict.fromkeys(entry.url for entry in entries.values() if isinstance(entry, Reference)))
    names = {url: canonical(url) for url in urls}

    def look(name: str) -> FileVersion:
        try:
            return sources.look(name)
        except (FileNotFoundError, NotADirectoryError):
            raise SourceError(name, f"{manifest.url} refers to it, and there is no such file") from None

    distinct = list(dict.fromkeys(names.values()))
    found = dict(zip(distinct, in_parallel(look, distinct), strict=True))
    return {url: found[name] for url, name in names.items()}


def _description(
    manifest: Manifest, path: str, files: Mapping[str, FileVersion], lengths: Mapping[str, int]
) -> dict[str, Any]:
    distinct = sorted(set(files.values()))
    return {
        "format": "references",
        "source": manifest.url,
        "files": len(distinct),
        "references": len(lengths),
        "bytes": sum(lengths.values()),
        "stamp": stamp([ForeignFile(*file) for file in distinct]),
        "path": path,
    }
