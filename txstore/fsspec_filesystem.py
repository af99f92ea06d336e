"""Implements the fsspec protocol `txstore`: the keys of a repository as files, at a commit or in a transaction.

`txstore::URL` and `txstore://URL`, which stores print, mean the same. A path inside the repository may follow either
form. Parameters of the URL (`history.url_parameters`) say what to read, and what becomes of writes.

fsspec opens one file system for a list of URLs: that of the first. So the paths of a file system that a URL has opened
are these URLs without their protocol. A path in another repository, or at another commit, is an error.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from glob import has_magic
from typing import Any, NamedTuple
from urllib.parse import quote

from fsspec.core import split_protocol
from fsspec.implementations.chained import ChainedFileSystem
from fsspec.spec import AbstractBufferedFile
from fsspec.transaction import Transaction
from fsspec.utils import stringify_path, tokenize

from txstore import processes
from txstore.commit import MAIN
from txstore.engine import Position
from txstore.errors import RepositoryNotFoundError, UncommittedChangesWarning, warn
from txstore.format.consolidated import may_be_consolidated
from txstore.format.mapping import Hierarchy
from txstore.format.names import CHAINED, PRINTED
from txstore.history.find import At
from txstore.history.opening import Access, locate
from txstore.history.snapshot import Snapshot
from txstore.history.url_parameters import NAMED, Parameters, split_parameters
from txstore.interchange.concealing import concealed
from txstore.repository import Repository
from txstore.storage.foreign_files import Given
from txstore.store import TxStore

#: fsspec's caching protocols, beneath `txstore::`. Their caches become stale, and a repository has its own cache.
_CACHES = ("blockcache", "cached", "filecache", "simplecache")
#: What names another commit when there is a new one.
_MOVES = re.compile("^-|HEAD|~")
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


class AskedPath(NamedTuple):
    """What a path asks for."""

    key: str
    begin: str  # of names in the answer
    root: str  # what names in the answer leave out of their keys

    def name(self, key: str) -> str:
        """Return the name of a key in the answer. It begins as the path does: callers cut that off."""
        return (self.begin + key[len(self.root) :].lstrip("/")).rstrip("/")


class StrippedPath:
    """`_strip_protocol`: the path of a URL. On a file system, the name of a file that tells repository and commit.

    The caches of fsspec ask the file system, and keep the file under that name.
    """

    def __get__(self, fs: TxStoreFileSystem | None, owner: type[TxStoreFileSystem]) -> Callable[[Any], Any]:
        return _stripped if fs is None else fs.full_name


class TxStoreFileSystem(ChainedFileSystem):  # type: ignore[misc]
    """The keys of a repository as files: `zarr.open("txstore::s3://bucket/data.tx", mode="r")`.

    Options of the chained protocol go under its name, beside the options of this protocol:
    `storage_options={"at": 7, "s3": {"anon": True}}`. Each new instance looks for the newest commit; an instance and
    its pickles stay at their commit.

    If fsspec has made it of a URL, its paths are such URLs without the protocol: `/data/data.tx?tag=v1/temperature`. If
    you have made it, `fsspec.filesystem("txstore", fo=url)`, they may also be keys of the Zarr hierarchy, below `fo`.

    Writing raises `PermissionError`, unless the URL says what becomes of writes, or in `with fs.transaction:`, which
    makes one commit.

    Parameters
    ----------
    fo : str
        The URL or path of the repository, or of a group, array or key in it. For a chained URL, fsspec passes this and
        the next two parameters. It may have the parameters of `docs/reference/urls.md`:
        `data.tx?branch=dev&commit=on-close`.
    target_protocol : str, optional
        The protocol of `fo`, if `fo` is a path without a protocol.
    target_options : dict, optional
        Options for the file system that has the repository.
    branch, at, tag
        The commit to read, as in `Repository.snapshot`, if the URL does not say.
    sources : dict or list of str, optional
        URLs below which foreign values may lie, as in `Repository`.
    url : str, optional
        What follows `txstore://` in a URL. fsspec passes it.
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
        url: str | None = None,
        exact: tuple[str, tuple[int, str] | None] | None = None,
        **options: Any,
    ) -> None:
        """`exact`: the branch and the `Position.exact` of a pickle."""
        super().__init__(**options)
        self._is_of_url = target_protocol is not None or url is not None
        fo = fo or url
        if not fo:
            raise ValueError("which repository? Chain its URL: txstore::s3://bucket/data.tx, txstore::/data/data.tx")
        given = {**options.get(split_protocol(fo)[0], {}), **(target_options or {})}
        place, self._parameters = split_parameters(fo)
        self._branch, self._at, self._tag = _reads_of(self._parameters, branch, at, tag)
        self._root = ""
        concealed(lambda: self._find(place, target_protocol, given, sources), [fo], given)
        self._staging = self._joined()
        if exact is None:
            self.snapshot: Snapshot = self.repository.mapping(at=self._at, branch=self._branch, tag=self._tag)
        else:
            self.snapshot = Position(self.repository.engine, branch=exact[0], exact=exact[1]).snapshot()
        place = place.rstrip("/").removesuffix(self._root).rstrip("/")
        # A relative place may also be a key, if no URL has named it: keys win.
        self._places = {self.repository.url, *([place] if self._is_of_url or _is_place(place) else [])}
        self._full_names = {self._full_name_of_root()}

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

    # --- paths

    _strip_protocol = StrippedPath()

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        place = path.removeprefix(PRINTED).partition("::")[0]
        return {"url": place} if path.startswith(PRINTED) and _is_place(place) else {}

    def unstrip_protocol(self, name: str) -> str:
        return PRINTED + str(self.full_name(name))

    def _asked(self, path: Any) -> AskedPath:
        """Raises `ValueError` for a path in another repository, or at another commit."""
        stripped = _stripped(path)
        for name in self._full_names:
            if f"{stripped}/".startswith(f"{name}/"):
                return AskedPath(stripped[len(name) :].strip("/"), f"{name}/", "")
        for place in self._places:
            below = stripped.removeprefix(place)
            if stripped.startswith(place) and below[:1] in ("", "/", "?", ";"):
                key, parameters = split_parameters(below)
                if parameters != self._parameters:
                    raise self._other()
                return AskedPath(key.strip("/"), f"{place}{''.join(NAMED.findall(below)[-1:])}/", "")
        if self._is_of_url or str(path).startswith(PRINTED):
            raise self._other()
        key = "/".join(part for part in (self._root, stripped.strip("/")) if part)
        # zarr before 3.4 asks for `/group`.
        return AskedPath(key, "/" if str(path).startswith("/") else "", self._root)

    def _other(self) -> ValueError:
        parameters = f"?{self._parameters}" if str(self._parameters) else ""
        return ValueError(
            f"the paths of this file system begin with {self.repository.url}{parameters}: open another repository, or "
            "another commit, by a call of its own, as a list of URLs names one commit. "
            "fsspec.filesystem('txstore', fo=URL) takes keys, too"
        )

    def _key(self, path: Any) -> str:
        return self._asked(path).key

    def _full_name_of_root(self) -> str:
        if self._staging is not None:
            told = ";transaction=" + quote(self._parameters.transaction or "", safe="")
            if self._parameters.shared is not None:
                told = f";shared={self._parameters.shared}"
        elif self._store() is not None:
            told = ";staged"
        else:
            commit = self.snapshot.commit
            told = "" if commit is None else f";at={commit.id}"
        # What is a wildcard in a list of files is none here.
        return re.sub(r"[*?[]", lambda found: quote(found[0]), self.repository.url) + told

    def full_name(self, path: Any) -> Any:
        """Return the name of a file that tells repository and commit, or such a list. `txstore://NAME` opens it."""
        if isinstance(path, list | tuple | set):
            return [self.full_name(each) for each in path]
        key, root = self._key(path), self._full_name_of_root()
        if root not in self._full_names:
            self._full_names = {*self._full_names, root}  # threads may be iterating over the old set
        return f"{root}/{key}" if key else root

    def _full_name_as_spelled(self, path: Any) -> Any:
        """Return `full_name`, with a slash at the end if there is one: to fsspec it makes a difference."""
        if isinstance(path, list | tuple | set):
            return [self._full_name_as_spelled(each) for each in path]
        return self.full_name(path) + ("/" if stringify_path(path).endswith("/") else "")

    def _check_may_be_cached(self, path: str, file: Any) -> None:
        """Raise `ValueError` if a cache of fsspec would find this file at later commits, too.

        A cache that gets several files at once names each after the hash of its path as it was given.
        """
        at, tag = self._parameters.at, self._parameters.tag
        is_fixed = tag is not None or (at is not None and not _MOVES.search(at))
        if is_fixed or any(path.startswith(name) for name in self._full_names):
            return
        if isinstance(file, str) and os.path.basename(file) == hashlib.sha256(path.encode()).hexdigest():
            raise ValueError("a cache would keep this file for later commits, too: name the commit, as in ?tag=v1")

    def renamed(self, found: Any, path: Any) -> Any:
        """Return what was found by full names with names that begin as the path does, or as the first of a list."""
        if not isinstance(found, dict | list):
            return found
        asked = self._asked(next(iter(path), "") if isinstance(path, list | tuple | set) else path)
        if isinstance(found, dict):
            return {
                asked.name(self._key(name)): (
                    {**each, "name": asked.name(self._key(name))} if isinstance(each, dict) else each
                )
                for name, each in found.items()
            }
        return [asked.name(self._key(name)) for name in found]

    # --- reading

    def _store(self) -> TxStore | None:
        """Return the store of the transaction that writes are staged into. None if there is none, so far."""
        return self._staging or (self._transaction.begun if self._intrans and self._transaction else None)

    @property
    def _tree(self) -> Hierarchy:
        store = self._store()
        return self.snapshot if store is None else store.mapping

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        asked = self._asked(path)
        keys = [f"{asked.key}/{name}" if asked.key else name for name in self._tree.list_dir(asked.key)]
        if not keys and asked.key:
            if asked.key not in self._tree:
                raise FileNotFoundError(errno.ENOENT, "no such key, and no key below it", path)
            keys = [asked.key]
        return [self._info(asked, key) for key in keys] if detail else [asked.name(key) for key in keys]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        asked = self._asked(path)
        return self._info(asked, asked.key)

    def _info(self, asked: AskedPath, key: str) -> dict[str, Any]:
        name = asked.name(key)
        size = self._tree.size_of(key) if key else None
        if size is not None and may_be_consolidated(key):
            size = len(self._tree[key])
        if size is not None:
            return {"name": name, "size": size, "type": "file"}
        if key and not self._tree.has_keys_below(key):
            raise FileNotFoundError(errno.ENOENT, "no such key, and no key below it", name)
        return {"name": name, "size": 0, "type": "directory"}

    def ukey(self, path: str) -> str:
        """Return a token of a file's content. dask names what it has read after it."""
        self.info(path)
        return str(tokenize(self.fsid, self._key(path)))

    def checksum(self, path: str) -> int:
        return int(self.ukey(path), 16)

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
    ) -> Iterator[tuple[str, Any, Any]]:
        asked = self._asked(path)
        told = _raise_unless_missing if on_error == "omit" else on_error
        walked = super().walk(self.full_name(path), maxdepth=maxdepth, topdown=topdown, on_error=told, **options)
        for directory, *listed in walked:
            for info in (info for each in listed if isinstance(each, dict) for info in each.values()):
                info["name"] = asked.name(self._key(info["name"]))
            yield asked.name(self._key(directory)), *listed

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **options: Any
    ) -> Any:
        if maxdepth is not None or withdirs:
            full = self.full_name(path)
            found = super().find(full, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **options)
            return self.renamed(found, path)
        asked = self._asked(path)
        key = asked.key
        keys = [key] if key and key in self._tree else list(self._tree.keys_below(key))
        return {asked.name(each): self._info(asked, each) for each in keys} if detail else list(map(asked.name, keys))

    def glob(self, path: str, maxdepth: int | None = None, **options: Any) -> Any:
        full = self._full_name_as_spelled(path)
        found = self.renamed(super().glob(full, maxdepth=maxdepth, **options), path)
        if not found and has_magic(path) and not has_magic(full):
            # fsspec takes the ? of ?tag=v1 for a wildcard, and would leave the file out of a list of files.
            raise FileNotFoundError(errno.ENOENT, "no such key, and no key below it", path)
        return found

    def expand_path(self, path: Any, *arguments: Any, **options: Any) -> list[str]:
        found: list[str] = self.renamed(super().expand_path(self.full_name(path), *arguments, **options), path)
        return found

    def cat(self, path: Any, *arguments: Any, **options: Any) -> Any:
        return self.renamed(super().cat(self.full_name(path), *arguments, **options), path)

    def du(self, path: str, *arguments: Any, **options: Any) -> Any:
        return self.renamed(super().du(self.full_name(path), *arguments, **options), path)

    def get(self, rpath: Any, lpath: Any, *arguments: Any, **options: Any) -> None:
        if isinstance(rpath, list) and isinstance(lpath, list):
            for path, file in zip(rpath, lpath, strict=False):
                self._check_may_be_cached(path, file)
        super().get(self._full_name_as_spelled(rpath), lpath, *arguments, **options)

    def copy(self, path1: Any, path2: Any, *arguments: Any, **options: Any) -> None:
        super().copy(self._full_name_as_spelled(path1), path2, *arguments, **options)

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

    def _open(self, path: str, mode: str = "rb", **options: Any) -> io.BytesIO | ReadFile:
        if mode == "rb":
            return ReadFile(self, path, self.cat_file(path), options.get("block_size"))
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
            elif not self.isdir(each):
                raise FileNotFoundError(errno.ENOENT, "no such key, and no key below it", each)
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
        """Do nothing: a directory exists as soon as it has a key. Raises `FileExistsError` for one that has."""
        self.makedirs(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        if self._parameters.commit is None:
            self._writer(path)
        if not exist_ok and self.exists(path):
            raise FileExistsError(errno.EEXIST, "it exists", path)

    def rmdir(self, path: str) -> None:
        """Raise `OSError`, as there are no empty directories."""
        self._writer(path)
        if self.info(path)["type"] == "file":
            raise NotADirectoryError(errno.ENOTDIR, "this is a key, not a directory: rm(path)", path)
        raise OSError(errno.ENOTEMPTY, "the directory is not empty: rm(path, recursive=True)", path)


class ReadFile(AbstractBufferedFile):  # type: ignore[misc]
    """A file for reading: the content that it had when it was opened."""

    def __init__(self, fs: TxStoreFileSystem, path: str, content: bytes, block_size: int | str | None) -> None:
        self._content = content
        super().__init__(fs, path, block_size=block_size, cache_type="none", size=len(content))

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self._content[start:end]


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
        warn(f"a file for writing {why}: its content is dropped", UncommittedChangesWarning)


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


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _stripped(path: Any) -> Any:
    """Return the path of a URL, or of each in a list."""
    if isinstance(path, list):
        return [_stripped(each) for each in path]
    return stringify_path(path).removeprefix(CHAINED).removeprefix(PRINTED).rstrip("/")


def _is_place(name: str) -> bool:
    """Tell whether this says where a repository is. A key such as `position/c/0` does not."""
    return name.startswith("/") or "://" in name


def _url_of(fo: str, protocol: str | None, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the repository's URL and its options. fsspec has split the URL; this joins the parts again."""
    while protocol in _CACHES and "target_protocol" in options:
        protocol, fo, options = (
            options["target_protocol"],
            options.get("fo", fo),
            dict(options.get("target_options") or {}),
        )
    if "host" in options:
        raise ValueError(
            f"chained to {protocol}://, a path does not tell its server: write txstore://{protocol}://HOST/PATH"
        )
    if not protocol or protocol in ("file", "local"):
        if "://" not in fo:
            options.pop("auto_mkdir", None)
        return fo, options
    return fo if "://" in fo else f"{protocol}://{fo.lstrip('/')}", options


def _restored(arguments: tuple[Any, ...], options: dict[str, Any]) -> TxStoreFileSystem:
    return TxStoreFileSystem(*arguments, **options)
