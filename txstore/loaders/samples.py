"""Samples: several arrays of one commit whose first dimension counts the same things."""

from __future__ import annotations

import asyncio
import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import zarr
from zarr.api.asynchronous import open_array
from zarr.core.sync import sync
from zarr.errors import BaseZarrError

from txstore.codecs.allowed import check_array
from txstore.commit import MAIN, Commit
from txstore.errors import SchemaError
from txstore.history.find import At
from txstore.repository import Repository
from txstore.store import TxStore

#: Bytes that are read together at most; and blocks at most, whose order fits in a gigabyte.
_MOST_BYTES, _MOST_BLOCKS = 64 << 30, 1 << 27

#: One sample, or a batch of them: by name, what the arrays hold.
Sample = dict[str, Any]


class Field(NamedTuple):
    """What each sample has of one array: its dtype, and its shape without the first dimension."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class Samples:
    """Arrays of one commit with equal first dimensions: sample i is row i of each.

    The commit is found once, here. A process that gets a pickle of this, or inherits it by a fork, reads the same one;
    any other can be given its id: `Samples(url, arrays, at=samples.commit.id)`.

    Parameters
    ----------
    source : str, PathLike or Repository
        Where the repository is.
    arrays : str, list of str, or dict
        Paths of arrays, or `{name: path}`. The names are the keys of the samples.
    at, branch, tag
        The commit, as in `Repository.snapshot`; by default the newest.
    expect : dict, optional
        What the arrays have to be: `{name: (dtype, shape of one sample)}`, such as the `schema` of other samples.
    storage_options : dict, optional
        Of the fsspec file system that the URL is of.

    Raises
    ------
    SchemaError
        An array is not there, or not what is expected, or they are not equally long: all of it is in the message.
    RepositoryNotFoundError, CommitNotFoundError, SnapshotExpiredError
        There is no such commit.
    CodecRefusedError
        An array has a codec that TxStore does not run on its own.

    Examples
    --------
    >>> import numpy as np, tempfile, txstore, zarr
    >>> from txstore.loaders import Samples, SampleStream
    >>> repo = txstore.Repository(tempfile.mkdtemp() + "/data.tx")
    >>> with repo.transaction("training data") as store:
    ...     x = zarr.create_array(store, name="x", data=np.zeros((10, 3), "f4"), chunks=(2, 3))
    ...     y = zarr.create_array(store, name="y", data=np.arange(10), chunks=(2,))
    >>> samples = Samples(repo, ["x", "y"])
    >>> len(samples), samples.schema["x"].shape
    (10, (3,))
    >>> sorted(int(sample["y"]) for sample in SampleStream(samples, seed=1))
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Repository,
        arrays: str | Sequence[str] | Mapping[str, str],
        *,
        at: At | None = None,
        branch: str = MAIN,
        tag: str | None = None,
        expect: Mapping[str, tuple[Any, Sequence[int]]] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(source, Repository):
            if storage_options:
                raise ValueError("storage_options belong to the Repository: give them to it, not to the samples")
            repository = source
        else:
            repository = Repository(source, storage_options=storage_options)
        paths = _named(arrays)
        store = repository.snapshot(at, branch=branch, tag=tag)
        if store.base is None:
            raise SchemaError(repository.url, ["nothing was committed yet"])
        self.url = repository.url
        self.commit: Commit = store.base
        found = dict(zip(paths, sync(_open(store, list(paths.values()))), strict=True))
        self.arrays: dict[str, zarr.Array[Any]] = {name: array for name, array in found.items() if array is not None}
        for array in self.arrays.values():
            check_array(array)
        faults = [f"there is no array at {paths[name]!r}" for name, array in found.items() if array is None]
        gone = paths.keys() - self.arrays.keys()
        faults += _faults(self.arrays, {name: each for name, each in (expect or {}).items() if name not in gone})
        if faults:
            raise SchemaError(f"{self.url}, commit {self.commit}", faults)

    def __len__(self) -> int:
        return int(next(iter(self.arrays.values())).shape[0])

    def __repr__(self) -> str:
        return f"<Samples {len(self)} of {', '.join(self.arrays)} in {self.url} {self.commit}>"

    @property
    def schema(self) -> dict[str, Field]:
        """What a sample is made of, by name."""
        return _schema(self.arrays)

    @property
    def sample_bytes(self) -> int:
        """How many bytes a sample takes, decoded."""
        return max(1, sum(field.dtype.itemsize * math.prod(field.shape) for field in self.schema.values()))

    def block_length(self, most: int) -> int:
        """Return how many successive samples to read together, so that each chunk is read once.

        That is the length of the chunks, or of the shards if these have at most `most` bytes; where arrays differ, the
        least common multiple. Where it has more bytes than `most`, it is the chunk of the array whose samples are
        largest: longer chunks of the others are then read several times.

        Raises `SchemaError` where that is more than can be read, or there are more blocks than can be put in order: how
        many samples there are, and how large they are, is what the documents of the arrays say.
        """
        rows = max(1, most // self.sample_bytes)
        chunks = [int(array.chunks[0]) for array in self.arrays.values()]
        shards = [int((array.shards or array.chunks)[0]) for array in self.arrays.values()]
        sizes = [math.prod(field.shape) * field.dtype.itemsize for field in self.schema.values()]
        length = next(
            (length for length in (math.lcm(*shards), math.lcm(*chunks)) if length <= rows),
            chunks[sizes.index(max(sizes))],
        )
        length = max(1, min(length, len(self)))
        if length * self.sample_bytes > _MOST_BYTES:
            reason = f"{length} samples would have to be read at once, which have {length * self.sample_bytes} bytes"
            raise SchemaError(self.url, [f"{reason}, and at most {_MOST_BYTES} are read: use smaller chunks"])
        if len(self) > length * _MOST_BLOCKS:
            reason = f"there are {len(self)} samples, which are read {length} at a time"
            raise SchemaError(self.url, [f"{reason}: more than {_MOST_BLOCKS} times. Use longer chunks"])
        return length


def _named(arrays: str | Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    if isinstance(arrays, str):
        arrays = [arrays]
    paths = dict(arrays) if isinstance(arrays, Mapping) else {path: path for path in arrays}
    if not paths:
        raise ValueError("samples are of at least one array: give its path")
    return paths


async def _open(store: TxStore, paths: Sequence[str]) -> list[zarr.Array[Any] | None]:
    """Return the arrays, None where there is none. One trip to zarr's event loop, however many they are."""
    opened = await asyncio.gather(
        *(open_array(store=store, path=path, mode="r") for path in paths), return_exceptions=True
    )
    arrays: list[zarr.Array[Any] | None] = []
    for one in opened:
        if isinstance(one, BaseException) and not isinstance(one, BaseZarrError | FileNotFoundError):
            raise one
        arrays.append(None if isinstance(one, BaseException) else zarr.Array(one))
    return arrays


def _schema(arrays: Mapping[str, zarr.Array[Any]]) -> dict[str, Field]:
    return {name: Field(np.dtype(array.dtype), tuple(array.shape[1:])) for name, array in arrays.items()}


def _faults(
    arrays: Mapping[str, zarr.Array[Any]], expected: Mapping[str, tuple[Any, Sequence[int]]] | None
) -> list[str]:
    """Say what is wrong with the arrays that are there."""
    scalars = [name for name, array in arrays.items() if not array.ndim]
    if scalars:
        return [f"{name!r} has no dimension that could count samples" for name in scalars]
    faults = []
    lengths = {name: array.shape[0] for name, array in arrays.items()}
    faults += [f"{name!r} has more samples than can be counted" for name in lengths if lengths[name] > sys.maxsize]
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        faults.append(f"the first dimensions differ: {shown}")
    schema = _schema(arrays)
    for name, (dtype, shape) in (expected or {}).items():
        wanted = Field(np.dtype(dtype), tuple(shape))
        if name in schema and schema[name] != wanted:
            faults.append(
                f"a sample of {name!r} is {schema[name].dtype} {schema[name].shape}, "
                f"expected was {wanted.dtype} {wanted.shape}"
            )
        elif name not in schema:
            faults.append(f"{name!r} is expected, and not among the arrays that were asked for")
    return faults
