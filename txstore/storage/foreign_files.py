"""Reads values from files outside the repository: checks that a file is allowed, and that it has not changed.

A repository must not be able to make a process open an arbitrary file. So a process opens only files below a prefix
that the caller has given, with the options of its file system. The options stay in this process and its pickles.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from txstore.errors import SourceChangedError, SourceError
from txstore.storage.foreign_values import FileVersion, ForeignRange, ForeignRanges, canonical, is_below, version_of
from txstore.storage.interface import GONE
from txstore.storage.objects.backend import READ_ONLY, Content
from txstore.storage.objects.client import ObjectClient
from txstore.storage.objects.fsspec_backends import build_plain
from txstore.storage.objects.urls import target_of
from txstore.storage.request_threads import in_parallel

#: What callers give: prefixes of URLs, as a rule with the options of fsspec's file systems.
Given: TypeAlias = Mapping[str, Mapping[str, Any] | None] | Iterable[str | os.PathLike[str]] | str | os.PathLike[str]
Allowed: TypeAlias = Mapping[str, Mapping[str, Any]]  # by canonical prefixes

_NOTHING: Allowed = MappingProxyType({})


def allowed(given: Given | None) -> dict[str, dict[str, Any]]:
    """Return what a caller has given, by canonical prefixes. Raises `SourceError` for one that is no prefix of URLs."""
    if isinstance(given, str | os.PathLike):
        given = [given]
    options = given if isinstance(given, Mapping) else dict.fromkeys(given or ())
    return {_canonical_prefix(prefix): dict(each or {}) for prefix, each in options.items()}


def _canonical_prefix(prefix: str | os.PathLike[str]) -> str:
    url = canonical(prefix)
    return url if url.endswith("://") or url == "file:///" else url.rstrip("/")


class Sources:
    """The files outside a repository that this process may read. Safe in threads, and after a fork."""

    def __init__(self, allowed: Allowed = _NOTHING) -> None:
        self._allowed = sorted(allowed.items(), key=lambda each: len(each[0]), reverse=True)  # the nearest first
        self._clients: dict[str, ObjectClient] = {}

    def __repr__(self) -> str:
        return f"<Sources {', '.join(prefix for prefix, _ in self._allowed) or '(none)'}>"

    def look(self, url: str | os.PathLike[str]) -> FileVersion:
        """Return how large a file is, and of which version. Raises `SourceError`, `FileNotFoundError` or `OSError`."""
        url = canonical(url)
        self._allowing(url)
        if url.startswith("file://"):
            return _version(url, os.stat(_path(url)))
        client, path = self._client(url)
        info = client.info(path)
        if info.get("type") == "directory":
            raise SourceError(url, "this is no file")
        if info.get("size") is None:
            raise SourceError(url, "its server does not tell its size: copy what is in it instead")
        return FileVersion(url, int(info["size"]), version_of(info))

    def read(self, found: ForeignRange, part: slice = slice(None)) -> memoryview:
        """Return a part of a range, read from the file.

        Raises `SourceChangedError` if the file is not the one that was referred to, `SourceError` if it may not be read
        here, or `OSError`.
        """
        begin, end, _ = part.indices(found.length)
        begin, end = found.offset + begin, found.offset + max(begin, end)
        url = canonical(found.file.url)  # again: it is what somebody else has written
        self._allowing(url)
        try:
            content, now = self._content(url, begin, end - begin)
        except GONE:
            raise SourceChangedError(url, found.file.shown, "there is no such file") from None
        if now != found.file._replace(url=url):
            raise SourceChangedError(url, found.file.shown, f"it is {now.shown}")
        if len(content) != end - begin:
            raise SourceError(url, f"it gives {len(content)} bytes at {begin}, not the {end - begin} that are there")
        return memoryview(content)

    def _content(self, url: str, offset: int, length: int) -> tuple[Content, FileVersion]:
        """Return what was read, and the version of the file after that: if it is the same then, it was before."""
        if not url.startswith("file://"):
            client, path = self._client(url)
            return client.get_range(path, offset, length), self.look(url)
        descriptor = os.open(_path(url), _WITHOUT_WAITING)  # one file, whatever has its name meanwhile
        try:
            size, content = _version(url, os.fstat(descriptor)).size, b""
            if offset + length <= size:
                with open(descriptor, "rb", closefd=False) as file:
                    file.seek(offset)
                    content = file.read(length)
            return content, _version(url, os.fstat(descriptor))
        finally:
            os.close(descriptor)

    def range_of(self, file: FileVersion, offset: int, length: int | None) -> ForeignRange:
        """Return a range of a file; without a length, up to its end. Raises `SourceError` if it could not be read."""
        url = canonical(file.url)
        self._allowing(url)
        length = file.size - offset if length is None else length
        if offset < 0 or length < 0 or offset + length > file.size:
            raise SourceError(url, f"{length} bytes at {offset} do not lie in it: it has {file.size} bytes")
        if not file.version:
            reason = "its file system tells neither an etag nor a time of change, so that a change would not be noticed"
            raise SourceError(url, f"{reason}: copy what is in it instead, with import_from")
        return ForeignRange(file._replace(url=url), offset, length)

    def ranges_of(
        self, urls: Sequence[str], offsets: npt.ArrayLike, lengths: npt.ArrayLike, looked_at: dict[str, FileVersion]
    ) -> ForeignRanges:
        """Return many ranges, each as `range_of` does. `looked_at`: files by canonical URLs; those found are added.

        Raises `SourceError` also for a file that does not exist, and `ValueError` for arrays of unequal lengths.
        """
        starts, sizes = _counts("offsets", offsets), _counts("lengths", lengths)
        if not len(urls) == len(starts) == len(sizes):
            raise ValueError(
                f"{len(urls)} URLs, {len(starts)} offsets and {len(sizes)} lengths: one of each for a range"
            )
        numbers: dict[str, int] = {}
        which = np.fromiter((numbers.setdefault(url, len(numbers)) for url in urls), np.intp, len(urls))
        names = [canonical(url) for url in numbers]
        unknown = [name for name in dict.fromkeys(names) if name not in looked_at]
        looked_at.update(zip(unknown, in_parallel(self._look_for, unknown), strict=True))
        files = [looked_at[name] for name in names]
        ends = np.array([file.size for file in files], np.uint64)[which]
        beyond = np.flatnonzero((starts > ends) | (sizes > ends - np.minimum(starts, ends)))
        for row in [*np.unique(which, return_index=True)[1].tolist(), *beyond[:1].tolist()]:
            self.range_of(files[which[row]], int(starts[row]), int(sizes[row]))
        return ForeignRanges(files, which, starts, sizes)

    def _look_for(self, url: str) -> FileVersion:
        try:
            return self.look(url)
        except (FileNotFoundError, NotADirectoryError):
            raise SourceError(url, "a reference leads to it, and there is no such file") from None

    def _allowing(self, url: str) -> tuple[str, Mapping[str, Any]]:
        """Return the prefix that allows a canonical URL, and its options. Raises `SourceError` if there is none."""
        for prefix, options in self._allowed:
            if is_below(url, prefix):
                return prefix, options
        shown = (url.rpartition("/")[0] + "/").removeprefix("file://")
        raise SourceError(url, f"values lie in this file, which may not be read here: to allow it, sources=[{shown!r}]")

    def _client(self, url: str) -> tuple[ObjectClient, str]:
        """Return what reads files of a host, or bucket, and what the file is called there."""
        prefix, options = self._allowing(url)
        scheme, _, rest = url.partition("://")
        host, _, path = rest.partition("/")
        root = f"{scheme}://{host}"
        client = self._clients.get(f"{prefix} {root}")
        if client is None:
            target = target_of(root, options, engine="fsspec", single_writer=False)
            client = self._clients[f"{prefix} {root}"] = ObjectClient(target, READ_ONLY, build_plain)
        return client, path


def _counts(what: str, numbers: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """Return non-negative integers as an array. Raises `ValueError` for others."""
    given = np.asarray(numbers)
    if given.ndim != 1 or (given.size and (given.dtype.kind not in "iu" or given.min() < 0)):
        raise ValueError(f"{what} is a sequence of integers that are not negative")
    return given.astype(np.uint64)


#: How a local file is opened: to open one of another kind than a regular one may wait for ever.
_WITHOUT_WAITING = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def _path(url: str) -> str:
    return url.removeprefix("file://")


def _version(url: str, status: os.stat_result) -> FileVersion:
    """Return the version of a local file. Raises `SourceError` for what is no regular file."""
    if not stat.S_ISREG(status.st_mode):
        raise SourceError(url, "this is no file")
    return FileVersion(url, status.st_size, version_of({"mtime": status.st_mtime}))
