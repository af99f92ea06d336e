"""Implements the xarray backend: `xr.open_dataset("data.tx", engine="txstore")` reads a snapshot as Zarr."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

from xarray import Dataset, Variable
from xarray.backends import BackendEntrypoint
from xarray.backends.zarr import ZarrBackendEntrypoint

from txstore.commit import MAIN
from txstore.history.find import At
from txstore.history.opening import CHAINED, PRINTED, Access, is_repository, locate
from txstore.history.url_parameters import split_parameters
from txstore.interchange.concealing import concealed
from txstore.repository import Repository
from txstore.storage.foreign_files import Given
from txstore.store import TxStore

if TYPE_CHECKING:
    from xarray import DataTree


class TxStoreBackendEntrypoint(BackendEntrypoint):
    """Opens a repository by path, URL or `Repository`: at the newest commit, or the commit that `at` or `tag` names.

    It also reads a store (`repo.snapshot()`, or a transaction's store) at its position. It accepts `consolidated` and
    ignores it: TxStore's metadata look-ups are fast without.

    >>> import xarray as xr
    >>> xr.open_dataset("data.tx", engine="txstore", group="run-17", at=7)              # doctest: +SKIP

    Without `engine`, xarray chooses this backend for directories. For URLs it chooses its netCDF4 engine, if netCDF4
    is installed.
    """

    description = "Open snapshots of TxStore repositories (data.tx)"
    open_dataset_parameters = (
        "filename_or_obj", "drop_variables", "mask_and_scale", "decode_times", "concat_characters", "decode_coords",
        "use_cftime", "decode_timedelta", "group", "consolidated", "zarr_format", "branch", "at", "tag",
        "storage_options", "sources",
    )  # fmt: skip
    supports_groups = True

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Tell whether this is a repository: by its name, or, for other local paths, by the directory's content."""
        if isinstance(filename_or_obj, Repository | TxStore):
            return True
        if not isinstance(filename_or_obj, str | os.PathLike):
            return False
        name = os.fspath(filename_or_obj)
        if not isinstance(name, str):
            return False
        if name.startswith((PRINTED, CHAINED)) or name.rstrip("/").endswith(".tx"):
            return True
        return "://" not in name and is_repository(name)

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        drop_variables: Any = None,
        branch: str = MAIN,
        at: At | None = None,
        tag: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        sources: Given | None = None,
        group: str | None = None,
        consolidated: bool | None = None,
        zarr_format: int | None = None,
        mask_and_scale: bool = True,
        decode_times: Any = True,
        concat_characters: bool = True,
        decode_coords: Any = True,
        use_cftime: bool | None = None,
        decode_timedelta: Any = None,
    ) -> Dataset:
        store, inside = _snapshot(filename_or_obj, branch, at, tag, storage_options, sources)
        opened = ZarrBackendEntrypoint().open_dataset(
            store,
            drop_variables=drop_variables,
            group=_below(inside, group),
            mask_and_scale=mask_and_scale,
            decode_times=decode_times,
            concat_characters=concat_characters,
            decode_coords=decode_coords,
            use_cftime=use_cftime,
            decode_timedelta=decode_timedelta,
            consolidated=False,
            zarr_format=zarr_format,
        )
        return _named_by_commit(opened, store)

    def open_groups_as_dict(
        self,
        filename_or_obj: Any,
        *,
        branch: str = MAIN,
        at: At | None = None,
        tag: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        sources: Given | None = None,
        group: str | None = None,
        consolidated: bool | None = None,
        **options: Any,
    ) -> dict[str, Dataset]:
        store, inside = _snapshot(filename_or_obj, branch, at, tag, storage_options, sources)
        group = _below(inside, group)
        opened = ZarrBackendEntrypoint().open_groups_as_dict(store, group=group, consolidated=False, **options)
        return {name: _named_by_commit(dataset, store) for name, dataset in opened.items()}

    def open_datatree(self, filename_or_obj: Any, **options: Any) -> DataTree:
        from xarray import DataTree

        return DataTree.from_dict(self.open_groups_as_dict(filename_or_obj, **options))


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


def _snapshot(
    given: Any,
    branch: str,
    at: At | None,
    tag: str | None,
    storage_options: Mapping[str, Any] | None,
    sources: Given | None,
) -> tuple[Any, str]:
    """Return a `TxStore`, and the path in it that a printed URL names. xarray's types do not mention such a store."""
    if isinstance(given, TxStore):
        if at is not None or tag is not None or branch != MAIN or storage_options or sources:
            raise ValueError("a store has its own commit and its repository's options: give the Repository instead")
        return given, ""

    def opened() -> tuple[Any, str]:
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
