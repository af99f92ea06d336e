"""Reads NetCDF files through xarray, and keeps its way to write them as Zarr: values are not decoded or changed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from txstore.errors import SourceError
from txstore.interchange.arrays import ForeignArray, Selection, chunk_shape, is_excluded, meaning_of
from txstore.interchange.hdf5_arrays import check_inside
from txstore.interchange.hdf5_chunks import of_netcdf
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

#: What xarray takes for an array of texts, also if it has no elements.
_TEXT = np.dtype("O", metadata={"element_type": str})


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
        self._refused = place.refused
        self._file: Any = None  # as HDF5
        try:
            content = place.root if self._opened is None else self._opened
            if place.is_netcdf_3():
                _check_length(place)
            else:
                self._file = check_inside(place, content, exclude)
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
                _join(group, name): self._array(_join(group, name), variable)
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
        if self._file is not None:
            self._file.close()
        if self._opened is not None:
            self._opened.close()

    def describe(self, store: Any, shapes: Mapping[str, tuple[int, ...]], chunks: Mapping[str | int, int]) -> None:
        for group, dataset in self._groups.items():
            # xarray writes one element of each array, which stands for those that the import copies: it reads no chunk.
            sample = dataset.isel(dict.fromkeys(dataset.dims, slice(0, 1))).drop_encoding()
            for name, variable in sample.variables.items():
                path = _join(group, name)
                array = self.arrays[path]
                value, dtype = ("", _TEXT) if _is_text(variable) else (0, variable.dtype)
                sample[name] = (variable.dims, np.full(variable.shape, value, dtype), variable.attrs)
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

    def _array(self, path: str, variable: Any) -> ForeignArray:
        if "_FillValue" in variable.attrs and variable.dtype.kind in "OSTU":
            raise self._refused(path, "xarray can't open Zarr in which texts have a fill value (_FillValue)")

        def read(selection: Selection) -> Any:
            values = variable[selection].values
            return np.asarray(values, dtype=object) if _is_text(variable) else values

        return ForeignArray(
            shape=variable.shape,
            dtype="text" if _is_text(variable) else variable.dtype,
            dimensions=tuple(variable.dims),
            read=read if self._file is None else of_netcdf(path, self._node(path), read, self._refused),
            meaning=meaning_of(variable.attrs),
            itemsize=variable.dtype.itemsize,
        )

    def _node(self, path: str) -> Any:
        """Return the data set of a variable. NetCDF has another name for one that is called as a dimension is."""
        above, _, name = path.rpartition("/")
        for each in (_join(above, f"_nc4_non_coord_{name}"), path):
            if each in self._file:
                return self._file[each]
        raise self._refused(path, "its values are not found in the file")


#: How many bytes a value has, by the number of its type in NetCDF 3.
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 4, 6: 8, 7: 1, 8: 2, 9: 4, 10: 8, 11: 8}


def _check_length(place: Place) -> None:
    """Raise `SourceError` if a file of NetCDF 3 is shorter than its header says.

    For values that a shorter file lacks, the library of NetCDF returns others of the file, and zeros.
    """
    size = place.file().size
    with place.fs.open(place.root, "rb") as file:
        try:
            length = _length_of_netcdf_3(file)
        except (ValueError, LookupError, OverflowError, OSError) as error:
            raise SourceError(place.url, f"the header of this NetCDF file can't be understood ({error!r})") from None
    if length > size:
        raise SourceError(place.url, f"it is cut off: it has {size:,} bytes, and its header says {length:,}")


def _length_of_netcdf_3(file: Any) -> int:
    """Return where the last value ends, in bytes: "The NetCDF Classic Format Specification"."""
    version = file.read(4)[3]
    wide, far = 8 if version == 5 else 4, 4 if version == 1 else 8

    def number(size: int = wide) -> int:
        content = file.read(size)
        if len(content) < size:
            raise ValueError("it ends in its header")
        return int.from_bytes(content, "big")

    def skip(size: int) -> None:
        file.seek(-(-size // 4) * 4, 1)

    def skip_attributes() -> None:
        number(4)
        for _ in range(number()):
            skip(number())
            kind = number(4)
            skip(number() * _SIZES[kind])

    records = number()
    if records == (1 << 8 * wide) - 1:  # as many as there is room for
        records = 0
    number(4)
    sides = []
    for _ in range(number()):
        skip(number())
        sides.append(number())
    skip_attributes()
    number(4)
    ends, of_records = [0], []
    for _ in range(number()):
        skip(number())
        shape = [sides[number()] for _ in range(number())]
        skip_attributes()
        item = _SIZES[number(4)]
        number()
        begin = number(far)
        if shape and not shape[0]:  # the dimension without a limit
            of_records.append((begin, item * math.prod(shape[1:])))
        else:
            ends.append(begin + item * math.prod(shape))
    # A record has a part of each, padded unless it is the only one.
    whole = sum(-(-size // 4) * 4 if len(of_records) > 1 else size for _, size in of_records)
    return max([*ends, *[begin + (records - 1) * whole + size for begin, size in of_records if records]])


def _join(group: str, name: str) -> str:
    return f"{group}/{name}" if group else name


def _is_text(variable: Any) -> bool:
    return variable.dtype.kind in "OUT"
