"""Opens the group that labels lie in, with its variables as they are stored, not decoded."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import zarr
from zarr.errors import GroupNotFoundError

from txstore.interfaces import AnyStore, zarr_store
from txstore.pipeline import made_own, open_own

if TYPE_CHECKING:
    import xarray as xr


class LabelledGroup:
    """A group of a store: its variables as xarray reads them without decoding, and its arrays to write to.

    The outputs of views are not among them: commits derive those.

    Raises `zarr.errors.GroupNotFoundError` if there is no group, and `CodecRefusedError` for codecs that may not run.
    """

    def __init__(self, store: AnyStore, group: str) -> None:
        import xarray as xr  # late: an extra

        self.store = store
        self.path = group.strip("/")
        self._mode: Literal["r", "r+"] = "r" if store.read_only else "r+"
        self._opened = opened = zarr.open_group(
            zarr_store(store), path=self.path, mode=self._mode, use_consolidated=False
        )
        # Not `open_dataset`: it makes an index of the labels of each dimension, which takes longer than all the rest.
        stored: Any = xr.backends.ZarrStore(
            opened, mode="r", use_zarr_fill_value_as_mask=opened.metadata.zarr_format == 2
        )
        self._arrays: dict[str, zarr.Array[Any]] = dict(stored.arrays())
        variables: dict[Hashable, xr.Variable] = {}
        sizes: dict[Hashable, int] = {}
        self._outputs = {output for view in store.views.values() for output in view.outputs}
        self._derived = {name for name in self._arrays if self.path_of(name) in self._outputs}
        for name in self._arrays.keys() - self._derived:
            made_own(self._arrays[name])
        for name in [name for name in self._arrays if name not in self._derived]:
            try:
                variables[name] = stored.open_store_variable(name)
            except KeyError:  # the array does not name its dimensions: no labels of the group are those of its rows
                continue
            for dim, size in variables[name].sizes.items():
                if sizes.setdefault(dim, size) != size:
                    raise ValueError(
                        f"{self.path_of(name)!r} has {size} along {dim!r}, and another array of the group "
                        f"{sizes[dim]}: make them equal first"
                    )
        self.variables: Mapping[Hashable, xr.Variable] = variables
        self.sizes: Mapping[Hashable, int] = sizes

    def without_derived(self, ds: xr.Dataset) -> xr.Dataset:
        """Return a dataset without the variables that views make here."""
        return ds.drop_vars(self._derived & ds.variables.keys())

    def path_of(self, name: str) -> str:
        return f"{self.path}/{name}" if self.path else name

    def array(self, name: str) -> zarr.Array[Any]:
        """Return the array of a variable, as it was when the group was opened."""
        if name not in self._arrays:
            self._arrays[name] = open_own(zarr_store(self.store), self.path_of(name), mode=self._mode)
        return self._arrays[name]

    def document_of(self, name: str) -> str:
        """Return the key of the document that has an array's shape."""
        return f"{self.path_of(name)}/{'.zarray' if self.array(name).metadata.zarr_format == 2 else 'zarr.json'}"

    def forget(self, name: str) -> None:
        """Open the array again when it is next asked for: it was changed below zarr."""
        self._arrays.pop(name, None)

    def check_none_inherit(self, dim: str) -> None:
        """Raise `ValueError` if arrays of groups below have the labels of this one: their rows would not move along.

        Those of the outputs of views do: who derives these makes them of the moved rows.
        """
        below = {path: node for path, node in self._opened.members(max_depth=None) if isinstance(node, zarr.Array)}
        for path, array in below.items():
            groups = [path.rpartition("/")[0]]
            while "/" in groups[-1]:
                groups.append(groups[-1].rpartition("/")[0])
            has_own = any(f"{group}/{dim}" in below for group in groups)
            names: Any = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS") or ()
            if "/" in path and dim in names and not has_own and self.path_of(path) not in self._outputs:
                raise ValueError(
                    f"{self.path_of(path)!r} lies along the labels {self.path_of(dim)!r} of a group above, and its "
                    "rows would not move with them: give its group a coordinate of its own"
                )

    def with_dimension(self, dims: tuple[str, ...]) -> list[str]:
        """Return the names of the variables that have at least one of some dimensions."""
        return [str(name) for name, variable in self.variables.items() if not set(dims).isdisjoint(variable.dims)]


def open_group(store: AnyStore, group: str) -> LabelledGroup | None:
    """Return the group; None if there is none yet, or if it has no arrays."""
    try:
        found = LabelledGroup(store, group)
    except (GroupNotFoundError, FileNotFoundError):
        return None
    return found if found.variables else None
