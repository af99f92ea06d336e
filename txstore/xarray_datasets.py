"""Opens commits as xarray datasets: what `xarray_backend` does when it is asked for a repository."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable, Mapping
from typing import Any

from xarray import Dataset, Variable
from xarray.backends.zarr import ZarrBackendEntrypoint

from txstore.commit import MAIN
from txstore.format.names import CHAINED, PRINTED
from txstore.history.find import At
from txstore.history.opening import Access, locate
from txstore.history.url_parameters import split_parameters
from txstore.interchange.concealing import concealed
from txstore.repository import Repository
from txstore.storage.foreign_files import Given
from txstore.store import TxStore


def open_dataset(store: TxStore, inside: str, group: str | None, options: Mapping[str, Any]) -> Dataset:
    """Return a group below a path. `options`: the arguments of xarray that say how it decodes."""
    opened = ZarrBackendEntrypoint().open_dataset(
        store,  # type: ignore[arg-type]
        group=_below(inside, group), consolidated=False, **options,
    )  # fmt: skip
    return _named_by_commit(opened, store)


def open_groups(store: TxStore, inside: str, group: str | None, options: Mapping[str, Any]) -> dict[str, Dataset]:
    """Return the groups at and below a path, by their paths."""
    opened = ZarrBackendEntrypoint().open_groups_as_dict(
        store,  # type: ignore[arg-type]
        group=_below(inside, group), consolidated=False, **options,
    )  # fmt: skip
    return {name: _named_by_commit(dataset, store) for name, dataset in opened.items()}


class _CommitVariable(Variable):
    """A variable whose dask names include the commit at which it was read.

    xarray names dask arrays after the path and its modification time, which a commit does not change. If you opened a
    dataset with `chunks={}` before and after a commit, dask would compute one dataset with values of the other.
    """

    __slots__ = ("commit",)

    commit: str | None

    def _replace(self, *changes: Any, **named: Any) -> Any:
        replaced = super()._replace(*changes, **named)
        replaced.commit = getattr(self, "commit", None)
        return replaced

    def chunk(self, *chunks: Any, **options: Any) -> Any:
        given = options.get("from_array_kwargs")
        commit = getattr(self, "commit", None)
        if commit is not None and given and isinstance(given.get("name"), str):
            options["from_array_kwargs"] = {**given, "name": f"{given['name']}-{commit}"}
        chunked = super().chunk(*chunks, **options)
        return Variable(chunked.dims, chunked.data, chunked.attrs, chunked.encoding, fastpath=True)


def open_snapshot(
    given: Any,
    branch: str,
    at: At | None,
    tag: str | None,
    storage_options: Mapping[str, Any] | None,
    sources: Given | None,
) -> tuple[TxStore, str]:
    """Return a store that reads one commit, and the path in it that a printed URL names."""
    if isinstance(given, TxStore):
        if at is not None or tag is not None or branch != MAIN or storage_options or sources:
            raise ValueError("a store has its own commit and its repository's options: give the Repository instead")
        return given, ""

    def opened() -> tuple[TxStore, str]:
        if isinstance(given, Repository):
            return given.snapshot(at, branch=branch, tag=tag), ""
        url, reads = _reads_of(address, branch, at, tag)
        url, inside = locate(url, Access(dict(options)))
        repository = Repository(url, create=False, storage_options=options, sources=sources)
        return repository.snapshot(reads[1], branch=reads[0], tag=reads[2]), inside

    address, options = given, storage_options or {}
    if not isinstance(given, Repository):
        address, options = _address_of(given, options)
    return concealed(opened, [address], options)


def _address_of(given: Any, storage_options: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return a path or URL as text, and its options. A path of universal_pathlib has options of its own."""
    if isinstance(given, str | os.PathLike) or not (hasattr(given, "fs") and hasattr(given, "storage_options")):
        return os.fspath(given), storage_options
    own = given.storage_options
    if given.protocol + "://" == PRINTED:
        own = own.get("target_options") or {}
    return given.fs.unstrip_protocol(given.path), storage_options or own


def _reads_of(url: str, branch: str, at: At | None, tag: str | None) -> tuple[str, tuple[str, At | None, str | None]]:
    """Return a URL without its parameters, and the branch, commit and tag to read. Raises `ValueError`."""
    if not url.startswith((PRINTED, CHAINED)):
        return url, (branch, at, tag)
    url, parameters = split_parameters(url)
    if parameters.writes:
        raise ValueError(f"?{parameters}: engine='txstore' reads commits; xr.open_zarr(url) reads what is staged")
    if str(parameters) and (branch, at, tag) != (MAIN, None, None):
        raise ValueError(f"?{parameters}: give branch, at and tag in the URL, or all of them as arguments")
    return url, parameters.reads if str(parameters) else (branch, at, tag)


def _below(inside: str, group: str | None) -> str | None:
    return "/".join(part for part in (inside, group) if part) or None


def _named_by_commit(dataset: Dataset, store: TxStore) -> Dataset:
    commit = "" if store.base is None else store.base.id[:16]
    if store.staged_count:
        commit = hashlib.sha256(repr(store.__dask_tokenize__()).encode()).hexdigest()[:16]
    variables: dict[Hashable, Variable] = {}
    for name, variable in dataset.variables.items():
        if type(variable) is Variable and variable.ndim:
            named = _CommitVariable(variable.dims, variable._data, variable.attrs, variable.encoding, fastpath=True)
            named.commit = commit
            variables[name] = named
        else:
            variables[name] = variable
    replaced = dataset._replace(variables)
    replaced.set_close(dataset._close)  # xarray.open_mfdataset calls it
    return replaced
