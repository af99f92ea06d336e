"""Implements the xarray backend: `xr.open_dataset("data.tx", engine="txstore")` reads a snapshot as Zarr.

xarray imports this module wherever TxStore is installed, for any file. So it imports the rest when it opens a
repository.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from xarray.backends import BackendEntrypoint

from txstore.format import names

if TYPE_CHECKING:
    from xarray import Dataset, DataTree

    from txstore.history.find import At
    from txstore.storage.foreign_files import Given


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
        for module, kind in (("store", "TxStore"), ("repository", "Repository")):
            loaded = sys.modules.get(f"txstore.{module}")  # if not, this can be none
            if loaded is not None and isinstance(filename_or_obj, getattr(loaded, kind)):
                return True
        if not isinstance(filename_or_obj, str | os.PathLike):
            return False
        name = os.fspath(filename_or_obj)
        if not isinstance(name, str):
            return False
        if name.startswith((names.PRINTED, names.CHAINED)) or name.rstrip("/").endswith(".tx"):
            return True
        return "://" not in name and names.is_repository(name)

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        branch: str = names.MAIN,
        at: At | None = None,
        tag: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        sources: Given | None = None,
        group: str | None = None,
        consolidated: bool | None = None,
        **options: Any,
    ) -> Dataset:
        from txstore.xarray_datasets import open_dataset, open_snapshot

        store, inside = open_snapshot(filename_or_obj, branch, at, tag, storage_options, sources)
        return open_dataset(store, inside, group, options)

    def open_groups_as_dict(
        self,
        filename_or_obj: Any,
        *,
        branch: str = names.MAIN,
        at: At | None = None,
        tag: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        sources: Given | None = None,
        group: str | None = None,
        consolidated: bool | None = None,
        **options: Any,
    ) -> dict[str, Dataset]:
        from txstore.xarray_datasets import open_groups, open_snapshot

        store, inside = open_snapshot(filename_or_obj, branch, at, tag, storage_options, sources)
        return open_groups(store, inside, group, options)

    def open_datatree(self, filename_or_obj: Any, **options: Any) -> DataTree:
        from xarray import DataTree

        return DataTree.from_dict(self.open_groups_as_dict(filename_or_obj, **options))
