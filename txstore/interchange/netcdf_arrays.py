"""Reads NetCDF files through xarray, and keeps its way to write them as Zarr: values are not decoded or changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from txstore.errors import SourceError
from txstore.interchange.arrays import ForeignArray, Selection, chunk_shape, is_excluded, meaning_of
from txstore.interchange.hdf5_arrays import check_inside
from txstore.interchange.places import Place

#: Given one by one: some versions of open_groups silently ignore `decode_cf=False` and decode.
_AS_IT_IS: Mapping[str, Any] = {
    "mask_and_scale": False,
    "decode_times": False,
    "decode_timedelta": False,
    "concat_characters": False,
    "decode_coords": False,
    "create_default_indexes": False,  # to make one, all of a coordinate is read, whatever length it declares
}


class NetcdfArrays:
    """An open NetCDF file, with all its groups."""

    def __init__(self, place: Place, exclude: Sequence[str] = ()) -> None:
        try:
            import xarray
        except ImportError:
            raise ModuleNotFoundError("NetCDF files are read by xarray: pip install 'txstore[import]'") from None
        self._opened = None if place.is_local else place.fs.open(place.root, "rb")
        self._datasets: list[Any] = []  # opened by xarray: only closing these closes the file
        self._groups: dict[str, Any] = {}
        try:
            content = place.root if self._opened is None else self._opened
            if not place.is_netcdf_3():
                check_inside(place, content, exclude)
                if self._opened is not None:
                    self._opened.seek(0)
            opened = xarray.open_groups(content, **_AS_IT_IS)
            self._datasets += opened.values()
            for path, dataset in opened.items():
                group = path.strip("/")
                names = [n for n in dataset.variables if is_excluded(_join(group, str(n)), exclude)]
                if not is_excluded(group, exclude):
                    self._groups[group] = dataset.drop_vars(names)
            self.arrays = {
                _join(group, name): _array(variable)
                for group, dataset in self._groups.items()
                for name, variable in dataset.variables.items()
            }
        except BaseException as error:
            self.close()
            if not isinstance(error, ValueError) or isinstance(error, SourceError):
                raise
            raise SourceError(place.url, f"xarray can't read it: {error}. pip install 'txstore[import]'") from error

    def close(self) -> None:
        for dataset in self._datasets:
            dataset.close()
        if self._opened is not None:
            self._opened.close()

    def describe(self, store: Any, shapes: Mapping[str, tuple[int, ...]], chunks: Mapping[str | int, int]) -> None:
        for group, dataset in self._groups.items():
            # One element of each array: xarray loads and writes it, and the rest is copied block by block.
            sample = dataset.isel(dict.fromkeys(dataset.dims, slice(0, 1))).load().drop_encoding()
            for name, variable in sample.variables.items():
                path = _join(group, name)
                array = self.arrays[path]
                if _is_text(variable):
                    sample[name] = (variable.dims, variable.values.astype(object), variable.attrs)
                sample[name].encoding = {
                    "chunks": chunk_shape(
                        shapes[path],
                        array.itemsize,
                        given=dataset.variables[name].encoding.get("chunksizes"),
                        dimensions=array.dimensions,
                        wanted=chunks,
                    )
                }
            sample.to_zarr(store, group=group or None, mode="a", consolidated=False)


def _join(group: str, name: str) -> str:
    return f"{group}/{name}" if group else name


def _is_text(variable: Any) -> bool:
    return variable.dtype.kind in "OUT"


def _array(variable: Any) -> ForeignArray:
    return ForeignArray(
        shape=variable.shape,
        dtype="text" if _is_text(variable) else variable.dtype,
        dimensions=tuple(variable.dims),
        read=_reader(variable),
        meaning=meaning_of(variable.attrs),
        itemsize=variable.dtype.itemsize,
    )


def _reader(variable: Any) -> Callable[[Selection], Any]:
    def read(selection: Selection) -> Any:
        values = variable[selection].values
        return np.asarray(values, dtype=object) if _is_text(variable) else values

    return read
