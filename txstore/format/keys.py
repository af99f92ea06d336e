"""Keys of the Zarr hierarchy: checks a key, and finds the nodes above it and the documents that describe a node."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from txstore.errors import CorruptionError, KeyFormatError

MAX_KEY_BYTES = 4096

#: Names of the documents in which Zarr 3 and Zarr 2 describe a node.
DOCUMENT_NAMES = ("zarr.json", ".zarray", ".zgroup", ".zattrs")
_DOCUMENT_SUFFIXES = tuple("/" + name for name in DOCUMENT_NAMES)

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


def encode_key(key: str) -> bytes:
    """Return the UTF-8 bytes of a valid key.

    Raises `KeyFormatError` for an empty, too long or malformed key, `TypeError` for one that is not a string.
    """
    if not isinstance(key, str):
        raise TypeError(f"a key is a string, not {type(key).__name__}")
    try:
        encoded = key.encode()
    except UnicodeEncodeError:
        raise KeyFormatError(f"key {key!r} has a lone surrogate: it can't be stored as UTF-8") from None
    if not encoded:
        raise KeyFormatError("the key is empty")
    if len(encoded) > MAX_KEY_BYTES:
        raise KeyFormatError(f"key {key[:40]!r}... has {len(encoded)} bytes; at most {MAX_KEY_BYTES} are possible")
    if key[0] == "/" or key[-1] == "/" or "//" in key:
        raise KeyFormatError(f"key {key!r} begins or ends with '/' or has an empty segment")
    if (key[0] == "." or "/." in key) and not {".", ".."}.isdisjoint(key.split("/")):
        raise KeyFormatError(f"key {key!r} has a segment '.' or '..': it would lead elsewhere as a file name")
    return encoded


def decode_key(encoded: bytes) -> str | None:
    """Return a stored key; None if it is none that `encode_key` lets pass: then no writer of ours has stored it."""
    try:
        key = encoded.decode()
        # Most keys are seen to be right by this, in half the time.
        if not key or key[0] <= "/" or "/." in key or key[-1] == "/" or "//" in key or len(encoded) > MAX_KEY_BYTES:
            encode_key(key)
    except (UnicodeDecodeError, KeyFormatError):
        return None
    return key


def stored_key(encoded: bytes, path: str) -> str:
    """Return a key that was read from a file of the repository. Raises `CorruptionError` if it is none."""
    key = decode_key(encoded)
    if key is None:
        raise CorruptionError(path, reason=f"{encoded!r} is no key")
    return key


def decode_prefix(encoded: bytes) -> str | None:
    """Return a stored directory prefix, which ends in `/` or is empty; None if it is none."""
    if encoded[-1:] == b"/":
        path = decode_key(encoded[:-1])
        return None if path is None else path + "/"
    return None if encoded else ""


def stored_prefix(encoded: bytes, path: str) -> str:
    """Return a directory prefix that was read from a file of the repository. Raises `CorruptionError` if it is none."""
    prefix = decode_prefix(encoded)
    if prefix is None:
        raise CorruptionError(path, reason=f"{encoded!r} is no prefix of keys")
    return prefix


def is_related(one: str, other: str) -> bool:
    """Tell whether two paths are the same, or one of them lies below the other."""
    here, there = directory_prefix(one), directory_prefix(other)
    return here.startswith(there) or there.startswith(here)


def directory_prefix(path: str) -> str:
    """Return the prefix of all keys below a node: `a/b` gives `a/b/`, the root gives the empty string."""
    path = path.strip("/")
    if path:
        encode_key(path)
    return path + "/" if path else ""


def after_prefix(prefix: str) -> str | None:
    """Return the smallest string above every key with this directory prefix; None above the root's."""
    return prefix[:-1] + "0" if prefix else None  # "0" follows "/"


def covering_prefixes(key: str) -> Iterator[str]:
    """Yield the directory prefixes that cover a key, longest first, the empty one last."""
    end = key.rfind("/")
    while end >= 0:
        yield key[: end + 1]
        end = key.rfind("/", 0, end)
    yield ""


def is_document(key: str) -> bool:
    """Tell whether the key is a metadata document, of Zarr 3 or 2."""
    return key.endswith(_DOCUMENT_SUFFIXES) or key in DOCUMENT_NAMES


def node_of_document(key: str) -> str:
    """Return the path of the node that a document describes: `a/b/zarr.json` gives `a/b`."""
    return key.rpartition("/")[0]


def document_key(path: str, name: str) -> str:
    """Return the key of a node's document: the inverse of `node_of_document`."""
    return f"{path}/{name}" if path else name


def documents_of_members(names: Collection[str]) -> list[str]:
    """Return which documents the members of a group may have, from the names right below it; none if it is no group."""
    documents: tuple[str, ...] = ()
    if "zarr.json" in names:
        documents = DOCUMENT_NAMES[:1]
    elif ".zgroup" in names:
        documents = DOCUMENT_NAMES[1:]
    return [f"{name}/{document}" for name in names if name not in DOCUMENT_NAMES for document in documents]


def ancestors(path: str) -> Iterator[str]:
    """Yield the paths of the nodes above a path or key, nearest first, the root (empty) last."""
    while path:
        path = path.rpartition("/")[0]
        yield path


def check_name(kind: str, name: str) -> str:
    """Return a branch or tag name, or raise `KeyFormatError`. It becomes a file name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise KeyFormatError(f"{kind} {name!r}: use 1 to 100 letters, digits, '.', '_' or '-', not '.' or '-' first")
    if name.upper() == "HEAD" and kind in ("branch", "tag"):
        raise KeyFormatError(f"{kind} {name!r}: this names the newest commit of a branch: choose another name")
    return name
