"""Implements the fsspec protocol `txstore`: the keys of a repository as files, at a commit or in a transaction.

`txstore::URL` and `txstore://URL`, which stores print, mean the same. A path inside the repository may follow either
form. Parameters of the URL (`history.url_parameters`) say what to read, and what becomes of writes.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from fsspec.core import split_protocol
from fsspec.spec import AbstractFileSystem
from fsspec.transaction import Transaction

from txstore import processes
from txstore.commit import MAIN
from txstore.engine import Position
from txstore.errors import KeyFormatError, RepositoryNotFoundError, UncommittedChangesWarning
from txstore.format.consolidated import may_be_consolidated
from txstore.format.keys import encode_key
from txstore.format.mapping import Hierarchy
from txstore.history.find import At
from txstore.history.opening import CHAINED, PRINTED, Access, locate
from txstore.history.snapshot import Snapshot
from txstore.history.url_parameters import Parameters, parse_parameters, split_parameters
from txstore.interchange.concealing import concealed
from txstore.repository import Repository
from txstore.storage.foreign_files import Given
from txstore.store import TxStore

#: fsspec's caching protocols. Their caches become stale, and a repository has its own cache.
_CACHES = ("blockcache", "cached", "filecache", "simplecache")
_TO_WRITE = (
    "write to a store, `with txstore.Repository(url).transaction() as store: ds.to_zarr(store)`, and give a tool that "
    "takes only a URL `store.share()`"
)


class CommittedTogether(Transaction):  # type: ignore[misc]
    """What is written in `with fs.transaction:` becomes one commit at its end. An exception drops it.

    The commit's errors are those of `TxStore.commit`. Nothing is staged any more then.
    """

    def __init__(self, fs: TxStoreFileSystem, **options: Any) -> None:
        super().__init__(fs, **options)
        self._store: TxStore | None = None
        self._beginning = processes.new_lock()

    @property
    def store(self) -> TxStore:
        """The store of the transaction, which begins at the first use. Safe in threads."""
        with self._beginning:
            if self._store is None:
                self._store = self.fs.begin()
            return self._store

    @property
    def begun(self) -> TxStore | None:
        """The store, if anything has been written."""
        return self._store

    def start(self) -> None:
        self.fs.check_may_begin()
        super().start()

    def complete(self, commit: bool = True) -> None:
        fs, store, self._store = self.fs, self._store, None
        still_open = sum(not file.closed for file in self.files)
        self.files.clear()  # a file is staged when it is closed
        try:
            if store is not None and commit and not still_open:
                with store:
                    pass
                fs.look_again()
            elif store is not None:
                store.rollback()
            if commit and still_open:
                raise ValueError(f"{still_open} files are still open: close them before the transaction ends")
        finally:
            super().complete(commit)


class TxStoreFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The keys of a repository as files: `zarr.open("txstore::s3://bucket/data.tx", mode="r")`.

    Options of the chained protocol go under its name, beside the options of this protocol:
    `storage_options={"at": 7, "s3": {"anon": True}}`. Each new instance looks for the newest commit; an instance and
    its pickles stay at their commit. Paths are the keys of the Zarr hierarchy.

    Writing raises `PermissionError`, unless the URL says what becomes of writes, or in `with fs.transaction:`, which
    makes one commit.

    Parameters
    ----------
    fo : str
        The URL or path of the repository, or of a group, array or key in it, which then is the root. For a chained
        URL, fsspec passes this and the next two parameters. It may have the parameters of `docs/reference/urls.md`:
        `data.tx?branch=dev&commit=on-close`.
    target_protocol : str, optional
        The protocol of `fo`, if `fo` is a path without a protocol.
    target_options : dict, optional
        Options for the file system that has the repository.
    branch, at, tag
        The commit to read, as in `Repository.snapshot`, if the URL does not say.
    sources : dict or list of str, optional
        URLs below which foreign values may lie, as in `Repository`.
    """

    protocol = "txstore"
    cachable = False  # a cached instance would stay at an old commit
    transaction_type = CommittedTogether

    def __init__(
        self,
        fo: str | None = None,
        *,
        target_protocol: str | None = None,
        target_options: Mapping[str, Any] | None = None,
        branch: str | None = None,
        at: At | None = None,
        tag: str | None = None,
        sources: Given | None = None,
        exact: tuple[str, tuple[int, str] | None] | None = None,
        **options: Any,
    ) -> None:
        """`exact`: the branch and the `Position.exact` of a pickle."""
        super().__init__(**options)
        if not fo:
            raise ValueError("which repository? Chain its URL: txstore::s3://bucket/data.tx, txstore::/data/data.tx")
        given = {**options.get(split_protocol(fo)[0], {}), **(target_options or {})}
        url, self._parameters = _parameters_of(fo, given)
        self._branch, self._at, self._tag = _reads_of(self._parameters, branch, at, tag)
        self._root = ""
        concealed(lambda: self._find(url, target_protocol, given, sources), [fo], given)
        self._staging = self._joined()
        if exact is None:
            self.snapshot: Snapshot = self.repository.mapping(at=self._at, branch=self._branch, tag=self._tag)
        else:
            self.snapshot = Position(self.repository.engine, branch=exact[0], exact=exact[1]).snapshot()
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
                reason = f"there is no TxStore repository here, and a URL makes none: {_TO_WRITE}"
                raise RepositoryNotFoundError(url, reason=reason) from None
            self.repository = Repository(url, create=False, storage_options=repository_options, sources=sources)

    def _joined(self) -> TxStore | None:
        """Return a store on the transaction that the URL names."""
        if self._parameters.shared is not None:
            return TxStore.joining(self.repository.engine, self._parameters.shared)
        if self._parameters.transaction is not None:
            name, message = self._parameters.transaction, self._parameters.message
            return self.repository.transaction(message, name=name, branch=self._branch)
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        stored = self.snapshot.stored
        branch = MAIN if stored is None else stored.header.branch
        exact = (branch, Position.of(self.repository.engine, self.snapshot, branch).exact)
        return _restored, (self.storage_args, {**self.storage_options, "exact": exact})

    @property
    def fsid(self) -> str:
        commit = self.snapshot.commit
        store = self._store()
        content = ("" if commit is None else commit.id) if store is None else repr(store.__dask_tokenize__())
        return f"txstore_{self.repository.id}_{content}_{self._root}"

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
        # A path that begins with "/" keeps it: UPath cuts its own path off the names that it is told.
        return "" if _is_printed(path) else path.removeprefix(PRINTED).rstrip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        return {"fo": path.removeprefix(PRINTED)} if _is_printed(path) else {}

    def _key(self, path: Any) -> str:
        path = self._strip_protocol(path).lstrip("/")
        for root in self._also_root:
            if f"{path}/".startswith(f"{root}/") and not self._tree.has_keys_below(root):
                path = path[len(root) :].strip("/")
        return "/".join(part for part in (self._root, path) if part)

    # --- reading

    def _store(self) -> TxStore | None:
        """Return the store of the transaction that writes are staged into. None if there is none, so far."""
        return self._staging or (self._transaction.begun if self._intrans and self._transaction else None)

    @property
    def _tree(self) -> Hierarchy:
        store = self._store()
        return self.snapshot if store is None else store.mapping

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        # zarr before 3.4 asks for `/group`, and takes the names for what follows that.
        root = "/" if str(path).startswith("/") else ""
        path, key = self._strip_protocol(path), self._key(path)
        prefix = f"{path}/" if path else root
        names = [prefix + name for name in self._tree.list_dir(key)]
        if not names and key:
            names = [path] if key in self._tree else []
            if not names:
                raise FileNotFoundError(errno.ENOENT, "no such key, and no key below it", path)
        return [{**self.info(name), "name": name} for name in names] if detail else names

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path, key = self._strip_protocol(path), self._key(path)
        size = self._tree.size_of(key) if key else None
        if size is not None and may_be_consolidated(key):
            size = len(self._tree[key])
        if size is not None:
            return {"name": path, "size": size, "type": "file"}
        if key and not self._tree.has_keys_below(key):
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
        if key and key in self._tree:
            found = [path]
        else:
            prefix = path + "/" if path else ""
            found = [prefix + each[len(key) :].lstrip("/") for each in self._tree.keys_below(key)]
        return {key: self.info(key) for key in found} if detail else found

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        key, part = self._key(path), slice(start, end)
        view: memoryview | bytes | None
        if not key:
            view = None
        elif (store := self._store()) is not None:
            view = _staged(store, key)
            view = None if view is None else view[part]
        elif (start is None and end is None) or may_be_consolidated(key):
            view = self.snapshot.served(key)
            view = None if view is None else view[part]
        else:
            view = self.snapshot.get_part(key, part)
        if view is None:
            if key and not self._tree.has_keys_below(key):
                raise FileNotFoundError(errno.ENOENT, "no such key", path)
            raise IsADirectoryError(errno.EISDIR, "this is a directory, not a key", path)
        return bytes(view)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> io.BytesIO:
        if mode == "rb":
            return io.BytesIO(self.cat_file(path))
        if mode not in ("wb", "xb", "ab"):
            raise ValueError(f"mode {mode!r}: a key is opened to be read (rb), written (wb, xb) or added to (ab)")
        if self._parameters.commit is None:
            self._writer(path)
        if mode == "xb" and self.exists(path):
            raise FileExistsError(errno.EEXIST, "the key exists", path)
        within = self._transaction if self._intrans else None
        return WrittenFile(lambda content: self._write_file(path, content, mode, within))

    def modified(self, path: str) -> datetime:
        """Return the time of the commit that this file system reads."""
        self.info(path)
        commit = self.snapshot.commit
        if commit is None:
            raise FileNotFoundError(errno.ENOENT, "the repository has no commit yet", path)
        return commit.time

    created = modified

    # --- writing: fsspec's default methods silently do nothing

    def begin(self) -> TxStore:
        """Begin the transaction of `with fs.transaction:`."""
        return self.repository.transaction(self._parameters.message, branch=self._branch)

    def look_again(self) -> None:
        """Read the newest commit from now on: this file system has made one."""
        self.snapshot = self.repository.mapping(branch=self._branch)

    def check_may_begin(self) -> None:
        """Raise `PermissionError` if `with fs.transaction:` could not make a commit."""
        if self._staging is not None:
            raise self._refusal("what is written here is in a transaction already, and who began that commits it")
        if self._at is not None or self._tag is not None:
            raise self._refusal("at= and tag= name a commit, which never changes: give branch=, or nothing")

    def _writer(self, path: Any) -> TxStore:
        """Return the store to stage into. Raises `PermissionError` if nobody would commit."""
        if self._staging is not None:
            return self._staging
        if self._intrans:
            store: TxStore = self.transaction.store
            return store
        if self._parameters.commit is not None:
            why = "commit=on-close commits a file that is opened and closed, and this is none"
        else:
            why = "txstore:: is for reading, unless the URL says who commits"
        raise self._refusal(f"{why}: {_TO_WRITE}, or write in `with fs.transaction:`", path)

    def _refusal(self, words: str, path: Any = "") -> PermissionError:
        return PermissionError(errno.EROFS, words, f"{self.repository.url}: {path}")

    def _file_key(self, path: Any) -> str:
        key = self._key(path)
        if not key:
            raise IsADirectoryError(errno.EISDIR, "this is the root: give the key to write", path)
        return key

    def _write_file(self, path: str, content: bytes, mode: str, within: CommittedTogether | None) -> None:
        """Stage or commit a file that was opened for writing, `within` a transaction of this file system."""
        key = self._file_key(path)

        def write(store: TxStore) -> None:
            before = _staged(store, key) if mode != "wb" else None
            if mode == "xb" and before is not None:
                raise FileExistsError(errno.EEXIST, "the key exists", path)
            store[key] = content if before is None else before + content

        if within is not None and within is not self._transaction:
            raise self._refusal("the transaction in which this file was opened has ended", path)
        if within is not None or self._parameters.commit is None:
            write(self._writer(path))
        else:
            self.repository.run(write, branch=self._branch, message=self._parameters.message)
            self.look_again()

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **_: Any) -> None:
        store = self._writer(path)
        if mode == "create" and self.exists(path):
            raise FileExistsError(errno.EEXIST, "the key exists", path)
        store[self._file_key(path)] = value

    def put_file(self, lpath: Any, rpath: str, mode: str = "overwrite", **_: Any) -> None:
        self._writer(rpath)
        if os.path.isdir(lpath):
            return  # a directory exists as soon as it has a key
        with open(lpath, "rb") as file:
            self.pipe_file(rpath, file.read(), mode)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        self._writer(path2)
        if not self.isdir(path1):
            self.pipe_file(path2, self.cat_file(path1))

    def touch(self, path: str, truncate: bool = True, **_: Any) -> None:
        if self._writer(path) and (truncate or not self.exists(path)):
            self.pipe_file(path, b"")

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        store = self._writer(path)
        for each in self.expand_path(path):
            key = self._key(each)
            if key and key in self._tree:
                store.delete_sync(key)
            elif not recursive:
                raise IsADirectoryError(errno.EISDIR, "this is a directory: give recursive=True", each)
            elif maxdepth is None:
                store.delete_dir_sync(key)
            else:
                for found in self.find(each, maxdepth=maxdepth):
                    store.delete_sync(self._key(found))

    def rm_file(self, path: str) -> None:
        self.rm(path)

    _rm = rm_file

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Do nothing: a directory exists as soon as it has a key."""
        if self._parameters.commit is None:
            self._writer(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self.mkdir(path)

    def rmdir(self, path: str) -> None:
        """Do nothing, as there are no empty directories. Raises `OSError` for one that is not empty."""
        self._writer(path)
        if self.isdir(path):
            raise OSError(errno.ENOTEMPTY, "the directory is not empty: rm(path, recursive=True)", path)


class WrittenFile(io.BytesIO):
    """A file for writing, which `write` gets when it is closed.

    If an exception closes it, as at the end of a `with` block, or it is never closed, its content is dropped, and a
    warning says so.
    """

    def __init__(self, write: Callable[[bytes], None]) -> None:
        super().__init__()
        self._write = write
        self._outside = sys.exception()
        self._finalizing = False  # `io` sets it to True before it closes a file that the caller has dropped

    def _dealloc_warn(self, source: object) -> None:
        """A text file around this one, which the caller has dropped, is about to close it."""
        self._finalizing = True

    def close(self) -> None:
        if self.closed:
            return
        content, error = self.getvalue(), sys.exception()
        super().close()
        if not self._finalizing and error is self._outside:
            self._write(content)
            return
        why = "was not closed" if self._finalizing else f"was closed because of {type(error).__name__}"
        warnings.warn(f"a file for writing {why}: its content is dropped", UncommittedChangesWarning, stacklevel=2)


def _parameters_of(fo: str, given: dict[str, Any]) -> tuple[str, Parameters]:
    """Return a URL without its parameters, and these. fsspec passes those of a file server's URL as an option."""
    url, parameters = split_parameters(fo)
    query = given.pop("url_query", None)
    return url, parameters if query is None else parse_parameters(query)


def _reads_of(
    parameters: Parameters, branch: str | None, at: At | None, tag: str | None
) -> tuple[str, At | None, str | None]:
    """Return the branch, commit and tag to read. Raises `ValueError` if the URL and the options name different ones."""
    of_url = parameters.reads
    for name, option, has in (
        ("branch", branch, parameters.branch),
        ("at", at, parameters.at),
        ("tag", tag, parameters.tag),
    ):
        if option is not None and has is not None and option != has:
            raise ValueError(f"{name}={option!r}, and ?{name}={has} in the URL: give one of them")
    if parameters.writes and (at is not None or tag is not None):
        raise ValueError(f"?{parameters} is for writing: leave out at= and tag=, which name a commit to read")
    return branch or of_url[0], of_url[1] if at is None else at, tag or of_url[2]


def _staged(store: TxStore, key: str) -> bytes | None:
    """Return a value through the store, which keeps account of the documents that are read."""
    found = store.get_sync(key)
    return None if found is None else found.to_bytes()


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


def _restored(arguments: tuple[Any, ...], options: dict[str, Any]) -> TxStoreFileSystem:
    return TxStoreFileSystem(*arguments, **options)
