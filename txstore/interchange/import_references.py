"""`Repository.import_references`: imports chunks of other files by reference, without a copy, in one transaction."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from txstore.commit import MAIN, Commit
from txstore.errors import SourceError
from txstore.format.consolidated import is_consolidated, plain_document
from txstore.format.keys import document_key, is_document
from txstore.interchange.concealing import concealing
from txstore.interchange.import_targets import (
    PROPERTY,
    check_documents,
    check_free,
    check_same_import,
    checked_path,
    documents_at,
)
from txstore.interchange.manifests import FileRange, Manifest, open_manifest
from txstore.interchange.places import ForeignFile, stamp
from txstore.progress import Progress
from txstore.storage.foreign_files import Sources
from txstore.storage.foreign_values import FileVersion, canonical
from txstore.storage.request_threads import in_parallel

if TYPE_CHECKING:
    from txstore.store import OpenedRepository

_ROOTS = ("zarr.json", ".zgroup", ".zarray")


@concealing
def import_references(
    repo: OpenedRepository,
    manifest: str | os.PathLike[str] | Mapping[str, Any],
    path: str = "",
    *,
    branch: str = MAIN,
    message: str | None = None,
    name: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Commit:
    """See `Repository.import_references`."""
    path = checked_path(path)
    opened = open_manifest(manifest, storage_options)
    entries = _entries(opened)
    files = _look(repo.engine.sources, opened, entries)
    lengths = {
        key: repo.engine.sources.range_of(files[entry.url], entry.offset, entry.length).length
        for key, entry in entries.items()
        if isinstance(entry, FileRange)
    }
    check_documents(opened.url, lengths)
    told = {PROPERTY: _description(opened, path, files, lengths)}
    done, total = 0, sum(lengths.values())
    message = message or f"references of {opened.url}"
    with repo.transaction(message, name=name, branch=branch, properties=told) as store:
        check_same_import(repo, name, told)
        check_free(repo, store, path)
        documents: dict[str, bytes] = {}
        for key, entry in entries.items():
            if not is_document(key):
                continue
            if isinstance(entry, bytes):
                documents[key] = entry
            else:
                found = repo.engine.sources.range_of(files[entry.url], entry.offset, entry.length)
                documents[key] = plain_document(key, bytes(repo.engine.sources.read(found)))
        for target, content in documents_at(store, path, documents, opened.url).items():
            store[target] = content
        for key, entry in entries.items():
            target = document_key(path, key)
            if isinstance(entry, bytes):
                if key not in documents:
                    store[target] = entry
                continue
            if key not in documents:
                file = files[entry.url]
                store.set_reference(target, file.url, entry.offset, entry.length, size=file.size, version=file.version)
            done += lengths[key]
            if progress is not None:
                progress(done, total)
        made = store.commit(allow_lost=name is not None)
        assert made is not None  # it has a message
        return made


def _entries(manifest: Manifest) -> dict[str, bytes | FileRange]:
    """Return the entry of each key, without consolidated metadata, which repeats every shape."""
    found: dict[str, bytes | FileRange] = {}
    for key, entry in manifest.items():
        if not is_consolidated(key):
            found[key] = plain_document(key, entry) if isinstance(entry, bytes) else entry
    if not any(root in found for root in _ROOTS):
        raise SourceError(manifest.url, f"this is no manifest of a Zarr hierarchy: it has none of {', '.join(_ROOTS)}")
    return found


def _look(sources: Sources, manifest: Manifest, entries: Mapping[str, bytes | FileRange]) -> dict[str, FileVersion]:
    """Return the present version of each file, by its URL in the manifest, with one look per file."""
    urls = list(dict.fromkeys(entry.url for entry in entries.values() if isinstance(entry, FileRange)))
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
