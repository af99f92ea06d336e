"""With `zarr.config.enable_gpu()` arrays are as over zarr's own store. A stand-in takes the place of cupy."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import zarr
from zarr.core.buffer import gpu
from zarr.storage import LocalStore

import txstore

pytestmark = pytest.mark.filterwarnings("ignore")


class DeviceArray:
    """As an array of cupy: numpy can't convert it unless it is asked to by name."""

    __cuda_array_interface__: ClassVar[dict[str, Any]] = {}

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values = values

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`.")

    def __array_function__(self, function: Any, _: Any, arguments: Any, named: Any) -> Any:
        return on_device(
            function(*map(in_memory, arguments), **{k: in_memory(v) for k, v in named.items() if k != "like"})
        )

    def __array_ufunc__(self, function: Any, method: str, *arguments: Any, **named: Any) -> Any:
        return on_device(getattr(function, method)(*map(in_memory, arguments), **named))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.values, name)
        if not callable(found) or name == "dtype":
            return on_device(found)
        return lambda *arguments, **named: on_device(found(*map(in_memory, arguments), **named))

    def __getitem__(self, key: Any) -> Any:
        return on_device(np.asarray(self.values[in_memory(key)]))

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, np.ndarray) and value.ndim:
            raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        self.values[in_memory(key)] = in_memory(value)

    def __len__(self) -> int:
        return len(self.values)

    def __eq__(self, other: object) -> Any:
        return on_device(self.values == in_memory(other))

    __hash__ = None  # type: ignore[assignment]


def on_device(value: Any) -> Any:
    return DeviceArray(value) if isinstance(value, np.ndarray) else value


def in_memory(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(map(in_memory, value))
    return value.values if isinstance(value, DeviceArray) else value


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def placed(value: Any, *_: Any, **named: Any) -> Any:
        return DeviceArray(np.asarray(in_memory(value), named.get("dtype")))

    cupy = SimpleNamespace(
        ndarray=DeviceArray, asarray=placed, asanyarray=placed, ascontiguousarray=placed,
        asnumpy=lambda value: np.asarray(in_memory(value)),
        empty=lambda *shape, **named: DeviceArray(np.empty(*shape, **named)),
        array=placed, frombuffer=lambda data, dtype: DeviceArray(np.frombuffer(data, dtype)),
        concatenate=lambda parts: DeviceArray(np.concatenate([in_memory(part) for part in parts])),
    )  # fmt: skip
    monkeypatch.setattr(gpu, "cp", cupy)
    with zarr.config.enable_gpu():
        yield


Operation = Callable[[Any], Any]
OPERATIONS: dict[str, Operation] = {
    "all": lambda z: z.__setitem__(slice(None), on_device(np.arange(1, 11, dtype=z.dtype))),
    "a part of chunks": lambda z: z.__setitem__(slice(1, 7), on_device(np.arange(1, 7, dtype=z.dtype))),
    "one value": lambda z: z.__setitem__(slice(2, 9), 5),
    "one element": lambda z: z.__setitem__(3, 7),
    "with steps": lambda z: z.__setitem__(slice(0, 10, 3), on_device(np.arange(1, 5, dtype=z.dtype))),
    "by positions": lambda z: z.oindex.__setitem__(([1, 2, 8],), on_device(np.arange(1, 4, dtype=z.dtype))),
    "by a mask": lambda z: z.__setitem__(np.arange(10) % 4 == 1, 9),
}
STORED: dict[str, dict[str, Any]] = {
    "raw": {"compressors": None},
    "zstd": {},
    "shards": {"shards": (8,)},
    "format 2": {"zarr_format": 2},
    "gzip": {"compressors": zarr.codecs.GzipCodec()},
}


def outcome(store: Any, options: dict[str, Any], dtype: str, operation: Operation) -> Any:
    """Return what an operation leaves in an array, as all of it and in parts, or the kind of error that it raises."""
    z = zarr.create_array(store, name="x", shape=(10,), chunks=(4,), dtype=dtype, fill_value=2, **options)
    try:
        operation(z)
        found = [z[:], z[1:7], z[3], z[::3], z.oindex[[1, 2, 8],]]
    except TypeError as error:
        return type(error)
    return [(type(each), np.asarray(in_memory(each)).tolist()) for each in found]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("dtype", ["i4", "f8"])
def test_as_over_zarrs_own_store(tmp_path: Path, dtype: str, stored: str, operation: str) -> None:
    expected = outcome(LocalStore(tmp_path / "plain.zarr"), STORED[stored], dtype, OPERATIONS[operation])
    with txstore.Repository(tmp_path / "data.tx").transaction() as store:
        found = outcome(store, STORED[stored], dtype, OPERATIONS[operation])
        store.rollback()
    assert found == expected
    # zarr from 3.2 on hands such arrays of format 2 to numcodecs as they are.
    assert expected is not TypeError or stored == "format 2"
