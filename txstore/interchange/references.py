"""`Repository.references`: where the packs hold the values of a tagged commit, for readers with only zarr and fsspec.

A pack never changes, and a vacuum keeps the packs of tagged commits, so the references are valid while the tag exists.
They are kerchunk's, which fsspec's `ReferenceFileSystem` reads: JSON, or Parquet (`reference_parquet`).
"""

from __future__ import annotations

import base64
import contextlib
import heapq
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from txstore.commit import Commit
from txstore.errors import CommitNotFoundError, ExportError
from txstore.format.consolidated import consolidate, documents_of, is_consolidated, plain_document
from txstore.format.keys import is_document
from txstore.history.snapshot import Snapshot
from txstore.interchange.concealing import concealing
from txstore.interchange.destinations import (
    Destination,
    LocalDestination,
    bits_of_copies,
    check_outside,
    open_destination,
)
from txstore.interchange.reference_parquet import Entry, entries, write_parquet
from txstore.storage.objects.urls import has_parameters, public

if TYPE_CHECKING:
    from txstore.store import OpenedRepository

#: The only template in the JSON: the repository's URL. Every reference has it, so it is short.
_TEMPLATE = "u"
_BASE64 = "base64:"


@dataclass(frozen=True, slots=True)
class References:
    """The result: number of keys, and number of those with values."""

    url: str
    commit: Commit
    keys: int
    inline: int


@concealing
def references(
    repo: OpenedRepository,
    destination: str | os.PathLike[str],
    *,
    tag: str,
    create_tag: bool = False,
    templates: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> References:
    """See `Repository.references`."""
    above, name = _split(destination)
    is_json = name.endswith(".json")
    at_most = bits_of_copies(repo.engine.storage)
    target = open_destination(above, storage_options, durable=True, at_most=at_most, refused=ExportError)
    check_outside(target, repo.url)
    url = f"{target.url}/{name}"
    _check_free(target, name, is_json=is_json)
    if create_tag and tag not in repo.tags:
        head = repo.head()
        if head is not None:
            repo.tags[tag] = head
    snapshot, commit = _tagged(repo, tag)
    with _complete(target, name, at_most) as path:
        if is_json:
            keys, inline = _write_json(snapshot, _url(repo), path, templates=templates)
        else:
            keys, inline = write_parquet(snapshot, _url(repo), path, url)
    return References(url, commit, keys, inline)


def _split(destination: str | os.PathLike[str]) -> tuple[str, str]:
    """Return the directory or its URL, and the name in it. Raises `ValueError` unless the suffix names a format."""
    address = os.path.expanduser(os.fspath(destination))
    scheme, separator, _ = address.partition("://")
    behind = re.search("[?;]" if has_parameters(scheme) else "[?]", address) if separator else None
    address, query = (address, "") if behind is None else (address[: behind.start()], address[behind.start() :])
    address = address.rstrip("/")
    above, _, name = address.rpartition("/")
    if not name.endswith((".json", ".parquet", ".parq")) or above.endswith(":/"):
        raise ValueError(f"{public(address)}: its name has to end in .json or .parquet, which selects the format")
    return (above or ("/" if address.startswith("/") else ".")) + query, name


def _tagged(repo: OpenedRepository, tag: str) -> tuple[Snapshot, Commit]:
    try:
        snapshot = repo.mapping(tag=tag)
    except CommitNotFoundError:
        advice = (
            f"there is no such tag, and only what is tagged stays: repo.tags[{tag!r}] = repo.head().version tags the "
            "newest commit, and so does create_tag=True (--create-tag)"
        )
        raise CommitNotFoundError(f"tag {tag!r}", advice=advice) from None
    if snapshot.commit is None:
        raise CommitNotFoundError(repo.url, advice="there is no commit yet, so there is nothing to refer to")
    return snapshot, snapshot.commit


def _url(repo: OpenedRepository) -> str:
    """Return the repository's URL for fsspec, without credentials."""
    return public(repo.url) if "://" in repo.url else f"file://{os.path.abspath(repo.url)}"


# --- JSON


def _write_json(snapshot: Snapshot, url: str, path: str, *, templates: bool) -> tuple[int, int]:
    """Write kerchunk's version 1, entry by entry."""
    told, base = "", url
    if templates:
        # Braces mark templates, so a URL with braces can't be one.
        is_template = "{{" not in url
        told = f'"templates": {json.dumps({_TEMPLATE: url} if is_template else {})}, '
        base = f"{{{{{_TEMPLATE}}}}}" if is_template else url
    keys = inline = 0
    with open(path, "w", encoding="ascii") as file:
        file.write(f'{{"version": 1, {told}"refs": {{')
        for key, entry in _entries_and_root(snapshot):
            value: str | list[str | int]
            if isinstance(entry, bytes):
                value = _as_text(key, entry)
                inline += 1
            else:
                value = [f"{base}/{entry.pack}", entry.offset, entry.length]
            file.write(f"{',' if keys else ''}\n{json.dumps(key)}: {json.dumps(value)}")
            keys += 1
        file.write("\n}}\n")
    return keys, inline


def _entries_and_root(snapshot: Snapshot) -> Iterator[tuple[str, Entry]]:
    """Yield the entries, with consolidated metadata at the root: not every zarr can list groups in references.

    Consolidated metadata of the repository is left out, since no writer keeps it up to date.
    """
    root: dict[str, Entry] = {**consolidate(documents_of(snapshot))}
    others = (
        (key, plain_document(key, entry) if isinstance(entry, bytes) else entry)
        for key, entry in entries(snapshot)
        if key not in root and not is_consolidated(key)
    )
    return heapq.merge(sorted(root.items()), others, key=lambda item: item[0].encode())


def _as_text(key: str, value: bytes) -> str:
    if (is_document(key) or is_consolidated(key)) and value.isascii() and not value.startswith(_BASE64.encode()):
        return value.decode()
    return _BASE64 + base64.b64encode(value).decode()


# --- writing all or nothing


def _check_free(target: Destination, name: str, *, is_json: bool) -> None:
    """Raise `ExportError` for a place where references can't be written, or could not be read."""
    url = f"{target.url}/{name}"
    is_local = isinstance(target, LocalDestination)
    is_directory = os.path.isdir(url) if is_local else next(iter(target.list(name)), None) is not None
    if is_json and is_directory:
        raise ExportError(url, "this is a directory; choose another name")
    if is_json:
        return
    if is_directory or target.read(name) is not None:
        raise ExportError(url, "it exists already; delete it, or choose another name")
    if ".json" in url or set("{}") & set(url):
        raise ExportError(url, "fsspec reads no Parquet below a path with .json, { or } in it; choose another")


@contextlib.contextmanager
def _complete(target: Destination, name: str, at_most: int) -> Iterator[str]:
    """Yield a temporary path for the file or directory, and move it into place when it is complete.

    Local files get no more than the permission bits `at_most`.

    On a server the files of a directory are written one by one, last the file that readers open first.
    """
    above = target.url if isinstance(target, LocalDestination) else None
    if above is not None:
        os.makedirs(above, at_most, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".txstore-references-", dir=above) as directory:
        path = os.path.join(directory, "new")
        yield path
        if above is not None:
            for top, directories, names in os.walk(directory):
                for each in (os.path.join(top, each) for each in (*directories, *names)):
                    os.chmod(each, stat.S_IMODE(os.stat(each).st_mode) & at_most)
            for file in _files(path):
                _sync(file)
            os.replace(path, os.path.join(above, name))  # replaces a link there, and does not follow it
            return
        for file in _files(path):
            with open(file, "rb") as content:
                target.write(name + file[len(path) :], content.read())


def _files(path: str) -> list[str]:
    """Return the path, or the files below it, last those at the top, which readers open first."""
    if os.path.isfile(path):
        return [path]
    return [os.path.join(top, name) for top, _, names in os.walk(path, topdown=False) for name in names]


def _sync(path: str) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
