"""Values in files outside the repository: the canonical URL of a file, and the record that refers to its bytes.

A pack holds such a record in place of the value. It names the file, its version and the range of bytes. No I/O.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from txstore.errors import SourceError
from txstore.format.encoding import MalformedError, NewerFormatError, Reader
from txstore.storage.objects.urls import LOCAL, has_parameters, lacks_slashes, public

_MAGIC = b"TXSTFORN"
_VERSION = 1
_RECORD = struct.Struct("<8sIIQQQ")  # format.md, "Foreign record"; what follows is the URL and the version of the file
assert _RECORD.size == 40

#: What file systems call the version of a file's content, the surest first.
_VERSIONS = (
    "ETag",
    "etag",
    "md5Hash",
    "content_md5",
    "Content-MD5",
    "generation",
    "mtime",
    "LastModified",
    "last_modified",
    "Last-Modified",
    "updated",
    "created",
)
#: How many times a URL is decoded at most, to find escapes within escapes.
_DECODED_AT_MOST = 4
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SHOWN_MOST = 300
_SAME = {"s3a": "s3", "gcs": "gs", "local": "file", "ssh": "sftp"}  # names of one protocol


class FileVersion(NamedTuple):
    """The size of a file and its version, which shows whether the file has changed."""

    url: str
    size: int  # bytes
    version: str  # an etag, or the time of the last change; empty if its file system knows neither

    @property
    def shown(self) -> str:
        return f"{self.size} bytes, version {self.version or 'unknown'}"


class ForeignRanges(NamedTuple):
    """Ranges of bytes of several files: the nth is `lengths[n]` bytes at `offsets[n]` of `files[which[n]]`."""

    files: Sequence[FileVersion]
    which: npt.NDArray[np.intp]
    offsets: npt.NDArray[np.uint64]
    lengths: npt.NDArray[np.uint64]

    def records(self, part: slice) -> list[bytes]:
        """Return the record of each range in a part of them, as `ForeignRange.encode` does."""
        told = [(len(file.url.encode()), file.size, (file.url + file.version).encode()) for file in self.files]
        made = []
        for file, offset, length in zip(*(numbers[part].tolist() for numbers in self[1:]), strict=True):
            url_length, size, rest = told[file]
            made.append(_RECORD.pack(_MAGIC, _VERSION, url_length, offset, length, size) + rest)
        return made


class ForeignRange(NamedTuple):
    """A range of bytes of a file, as a ref of kind 3 leads to it."""

    file: FileVersion
    offset: int
    length: int

    def encode(self) -> bytes:
        url, version = self.file.url.encode(), self.file.version.encode()
        fixed = _RECORD.pack(_MAGIC, _VERSION, len(url), self.offset, self.length, self.file.size)
        return fixed + url + version

    @classmethod
    def decode(cls, data: bytes) -> ForeignRange:
        """Raises `MalformedError` unless this is a record of a range that lies inside its file."""
        reader = Reader(data)
        magic, version, url_length, offset, length, size = _RECORD.unpack(reader.take(_RECORD.size))
        if magic != _MAGIC:
            raise MalformedError("no record of a file outside is here: wrong magic")
        if version != _VERSION:
            raise NewerFormatError(f"a record of a file outside of version {version}")
        url = reader.text(url_length)
        file_version = reader.text(len(data) - reader.position)
        if not url or offset + length > size:
            raise MalformedError("the record of a file outside names no range of it")
        return cls(FileVersion(url, size, file_version), offset, length)


def version_of(info: Mapping[str, Any]) -> str:
    """Return what tells of which version a file is, by what fsspec says of it; empty if that is nothing."""
    return next((str(info[name]) for name in _VERSIONS if info.get(name) is not None), "")


def canonical(url: str | os.PathLike[str]) -> str:
    """Return the one way to write the URL of a file: of a local one `file://` and its absolute path.

    Raises `SourceError` for what can't be compared segment by segment with what is allowed, or may hold a password.
    """
    address = os.fspath(url)
    if _CONTROL.search(address):  # some libraries drop tabs and line ends, and then read what is left
        raise SourceError(_shown(address), "a URL with control characters in it can't be referred to")
    scheme, separator, rest = address.partition("://")
    scheme = scheme.lower()
    if "::" in address.partition("[")[0]:  # not those of an IPv6 address
        raise SourceError(_shown(address), "a file inside of another can't be referred to: give the URL of a file")
    if lacks_slashes(address):
        reason = "two slashes follow the scheme of a URL; if this is a file of this machine, write ./ before its name"
        raise SourceError(_shown(address), reason)
    if not separator or scheme in LOCAL:
        path = os.path.abspath(os.path.expanduser(rest if separator else address))
        return "file:///" + path.lstrip("/")
    scheme = _SAME.get(scheme, scheme)
    host, slash, path = rest.partition("/")
    plain_host, plain = _decoded(address, host), _decoded(address, path)
    whole = plain_host + plain
    has_query = "?" in whole or (scheme in ("http", "https") and "#" in whole)
    has_query |= ";" in whole and has_parameters(scheme)
    if has_query or _has_user(scheme, plain_host, plain):
        reason = "a reference holds no user, no query, no parameters, which may be secret: they are options in sources="
        raise SourceError(_shown(address), reason)
    if _CONTROL.search(plain_host + plain) or "/" in plain_host:
        raise SourceError(_shown(address), "a URL with control characters, or with a slash in its host, is refused")
    if {".", ".."} & set(re.split(r"[/\\]", plain)):
        raise SourceError(_shown(address), "a path with . or .. in it can't be referred to")
    return f"{scheme}://{host}{slash}{path}"


def _decoded(address: str, quoted: str) -> str:
    """Return a part of a URL without escapes, nor any that these hide."""
    for _ in range(_DECODED_AT_MOST):
        plain = unquote(quoted)
        if plain == quoted:
            return plain
        quoted = plain
    raise SourceError(_shown(address), "a URL with escapes within escapes can't be referred to")


def _has_user(scheme: str, host: str, path: str) -> bool:
    if "@" not in host:  # unless the password has a slash
        return "@" in path and (not host or re.search(r":(?!\d*$)", host.rpartition("]")[2]) is not None)
    # Before the account of Azure there may be a container.
    return ":" in host.rpartition("@")[0] or scheme not in ("abfs", "abfss", "az")


def _shown(address: str) -> str:
    """Return what a message may say of a URL that is refused, whatever it is."""
    plain = address[: 2 * _SHOWN_MOST]
    for _ in range(_DECODED_AT_MOST):
        plain = unquote(plain)
    shown = re.sub("://.*@", "://", public(_CONTROL.sub("", plain)))  # wherever its user ends
    return shown if len(shown) <= _SHOWN_MOST else shown[:_SHOWN_MOST] + "..."


def is_below(url: str, prefix: str) -> bool:
    """Tell whether a canonical URL is a canonical prefix, or lies below it, by whole segments."""
    return url == prefix or url.startswith(prefix if prefix.endswith("/") else prefix + "/")
