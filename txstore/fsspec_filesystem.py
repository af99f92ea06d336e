"""Implements the fsspec protocol `txstore`: `txstore::URL` is a read-only file system over a snapshot of a repository.

`txstore://URL`, which stores print, means the same. A path inside the repository may follow either form.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Never

from fsspec.core import split_protocol
from fsspec.spec import AbstractFileSystem

from txstore.errors import KeyFormatError, RepositoryNotFoundError, SnapshotExpiredError
from txstore.format.consolidated import may_be_consolidated
from txstore.format.keys import encode_key
from txstore.history.find import At
from txstore.history.opening import CHAINED, PRINTED, Access, locate
from txstore.history.snapshot import Snapshot
from txstore.interchange.concealing import concealed
from txstore.repository import Repository
from txstore.storage.foreign_files import Given

#: fsspec's caching protocols. Their caches become stale, and a repository has its own cache.
_CACHES = ("blockcache", "cached", "filecache", "simplecache")
_TO_WRITE = "write to a store, `with txstore.Repository(url).transaction() as store: ds.to_zarr(store)`"


class TxStoreFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The keys of one commit as files: `zarr.open("txstore::s3://bucket/data.tx", mode="r")`.

    Options of the chained protocol go under its name, beside the options of this protocol:
    `storage_options={"at": 7, "s3": {"anon": True}}`. Each new instance looks for the newest commit; an instance and
    its pickles stay at their commit. Paths are the keys of the Zarr hierarchy.

    Parameters
    ----------
    fo : str
        The URL or path of the repository, or of a group, array or key in it, which then is the root. For a chained
        URL, fsspec passes this and the next two parameters.
    target_protocol : str, optional
        The protocol of `fo`, if `fo` is a path without a protocol.
    target_options : dict, optional
        Options for the file system that has the repository.
    branch, at, tag
        The commit to read, as in `Repository.snapshot`.
    sources : dict or list of str, optional
        URLs below which foreign values may lie, as in `Repository`.

    Writing raises `PermissionError`.
    """

    protocol = "txstore"
    cachable = False  # a cached instance would stay at an old commit

    def __init__(
        self,
        fo: str | None = None,
        *,
        target_protocol: str | None = None,
        target_options: Mapping[str, Any] | None = None,
        branch: str = "main",
        at: At | None = None,
        tag: str | None = None,
        sources: Given | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if not fo:
            raise ValueError("which repository? Chain its URL: txstore::s3://bucket/data.tx, txstore::/data/data.tx")
        given = {**options.get(split_protocol(fo)[0], {}), **(target_options or {})}
        self._root = ""
        concealed(lambda: self._find(fo, target_protocol, given, sources), [fo], given)
        self.snapshot: Snapshot = self.repository.mapping(at=at, branch=branch, tag=tag)
        # UPath("txstore::URL") opens the file system at URL, and then also uses URL as a path in it.
        names = [fo.strip("/"), *([os.path.relpath(fo)] if os.path.isabs(fo) else [])]
        self._also_root = tuple(filter(_may_be_path, names))

    def _find(self, fo: str, target_protocol: str | None, given: dict[str, Any], sources: Given | None) -> None:
        url, repository_options = _url_of(fo, target_protocol, given)
        try:
            self.repository = Repository(url, create=False, storage_options=repository_options, sources=sources)
        except RepositoryNotFoundError:
            url, self._root = locate(CHAINED + url, Access(repository_options))
            if not self._root:
                raise RepositoryNotFoundError(
                    url, reason=f"there is no TxStore repository here, and {CHAINED} only reads: {_TO_WRITE}"
                ) from None
            self.repository = Repository(url, create=False, storage_options=repository_options, sources=sources)

    def __reduce__(self) -> tuple[Any, ...]:
        commit = self.snapshot.commit
        place = None if commit is None else (commit.version, commit.id)
        return _restored, (self.storage_args, dict(self.storage_options), place)

    @property
    def fsid(self) -> str:
        commit = self.snapshot.commit
        return f"txstore_{self.repository.id}_{'' if commit is None else commit.id}_{self._root}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TxStoreFileSystem) and self.repository == other.repository and self.fsid == other.fsid

    def __hash__(self) -> int:
        return hash(self.fsid)

    def __dask_tokenize__(self) -> tuple[str, str]:
        return self.repository.url, self.fsid

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        path = str(path).removeprefix(CHAINED)
        return "" if _is_printed(path) else path.removeprefix(PRINTED).strip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        return {"fo": path.removeprefix(PRINTED)} if _is_printed(path) else {}

    def _key(self, path: Any) -> str:
        path = self._strip_protocol(path)
        for root in self._also_root:
            if f"{path}/".startswith(f"{root}/") and not self.snapshot.has_keys_below(root):
                path = path[len(root) :].strip("/")
        return "/".join(part for part in (self._root, path) if part)

    # --- reading

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path, key = self._strip_protocol(path), self._key(path)
        prefix = path + "/" if path else ""
        names = [prefix + name for name in self.snapshot.list_dir(key)]
        if not names and key:
            names = [path] if key in self.snapshot else []
            if not names:
                raise FileNotFoundError(errno.ENOENT, "no such key, and no key below it", path)
        return [self.info(name) for name in names] if detail else names

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path, key = self._strip_protocol(path), self._key(path)
        size = self.snapshot.size_of(key) if key else None
        if size is not None and may_be_consolidated(key):
            size = len(self.snapshot[key])
        if size is not None:
            return {"name": path, "size": size, "type": "file"}
        if key and not self.snapshot.has_keys_below(key):
            raise FileNotFoundError(errno.ENOENT, "no such key, and no key below it", path)
        return {"name": path, "size": 0, "type": "directory"}

    # fsspec's own versions return False on any error, so a damaged key would look missing.

    def _type(self, path: str) -> str | None:
        """Return "file" or "directory". None if there is no such key, and no key below it."""
        try:
            return str(self.info(path)["type"])
        except FileNotFoundError:
            return None

    def exists(self, path: str, **_: Any) -> bool:
        return self._type(path) is not None

    def isfile(self, path: str) -> bool:
        return self._type(path) == "file"

    def isdir(self, path: str) -> bool:
        return self._type(path) == "directory"

    def walk(
        self, path: str, maxdepth: int | None = None, topdown: bool = True, on_error: Any = "omit", **options: Any
    ) -> Any:
        told = _raise_unless_missing if on_error == "omit" else on_error
        return super().walk(path, maxdepth=maxdepth, topdown=topdown, on_error=told, **options)

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **options: Any
    ) -> Any:
        if maxdepth is not None or withdirs:
            return super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **options)
        path, key = self._strip_protocol(path), self._key(path)
        if key and key in self.snapshot:
            found = [path]
        else:
            prefix = path + "/" if path else ""
            found = [prefix + each[len(key) :].lstrip("/") for each in self.snapshot.keys_below(key)]
        return {key: self.info(key) for key in found} if detail else found

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        key = self._key(path)
        if (start is None and end is None) or may_be_consolidated(key):
            view = self.snapshot.served(key) if key else None
            view = None if view is None else view[start:end]
        else:
            view = self.snapshot.get_part(key, slice(start, end)) if key else None
        if view is None:
            if key and not self.snapshot.has_keys_below(key):
                raise FileNotFoundError(errno.ENOENT, "no such key", path)
            raise IsADirectoryError(errno.EISDIR, "this is a directory, not a key", path)
        return bytes(view)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> io.BytesIO:
        if mode != "rb":
            self._refuse(path)
        return io.BytesIO(self.cat_file(path))

    def modified(self, path: str) -> datetime:
        """Return the time of the commit that this file system reads."""
        self.info(path)
        commit = self.snapshot.commit
        if commit is None:
            raise FileNotFoundError(errno.ENOENT, "the repository has no commit yet", path)
        return commit.time

    created = modified

    # --- writing: fsspec's default methods silently do nothing

    def _refuse(self, path: Any = "", *_: Any, **__: Any) -> Never:
        words = f"txstore:: is for reading: {_TO_WRITE}"
        raise PermissionError(errno.EROFS, words, f"{self.repository.url}: {path}")

    pipe_file = put_file = cp_file = mv = rm = rm_file = rmdir = mkdir = makedirs = touch = _rm = _refuse


def _may_be_path(name: str) -> bool:
    """Tell whether a node can have this name. No node's name contains `..` or `://`."""
    try:
        encode_key(name)
    except KeyFormatError:
        return False
    return True


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _is_printed(path: str) -> bool:
    """Tell whether this is a URL of, or inside, a repository. A key such as `txstore://position/c/0` is neither."""
    place = path.removeprefix(PRINTED)
    return place != path and (place.startswith("/") or "://" in place)


def _url_of(fo: str, protocol: str | None, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the repository's URL and its options. fsspec has split the URL; this joins the parts again."""
    while protocol in _CACHES and "target_protocol" in options:
        protocol, fo, options = (
            options["target_protocol"],
            options.get("fo", fo),
            dict(options.get("target_options") or {}),
        )
    if not protocol or protocol in ("file", "local"):
        if "://" not in fo:
            options.pop("auto_mkdir", None)
        return fo, options
    if "://" in fo:
        return fo, options
    if "host" in options:  # fsspec removes the host of a file server from the URL
        port = options.pop("port", None)
        return f"{protocol}://{options.pop('host')}{f':{port}' if port else ''}/{fo.lstrip('/')}", options
    return f"{protocol}://{fo.lstrip('/')}", options


def _restored(arguments: tuple[Any, ...], options: dict[str, Any], place: tuple[int, str] | None) -> TxStoreFileSystem:
    if place is None:
        return TxStoreFileSystem(*arguments, **options)
    version, commit_id = place
    restored = TxStoreFileSystem(*arguments, **{**options, "at": version, "tag": None})
    commit = restored.snapshot.commit
    if commit is None or commit.id != commit_id:
        raise SnapshotExpiredError(f"{commit_id} (version {version})")
    return restored
