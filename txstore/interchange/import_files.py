"""`Repository.import_from`: imports plain Zarr, NetCDF and HDF5 in one transaction, all of it or nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from zarr.abc.store import Store

from txstore.commit import MAIN, Commit
from txstore.errors import CorruptionError, SourceError
from txstore.format.consolidated import plain_document
from txstore.format.keys import document_key, is_document
from txstore.interchange import zarr_arrays
from txstore.interchange.arrays import ForeignArray, blocks, copy_array, same
from txstore.interchange.concealing import concealing
from txstore.interchange.hdf5_arrays import Hdf5Arrays, NetcdfArrays
from txstore.interchange.import_targets import PROPERTY, check_free, check_same_import, checked_path, documents_at
from txstore.interchange.places import FORMATS, NETCDF, ZARR, ForeignFile, Place, Source, places, stamp
from txstore.progress import Progress
from txstore.store import TxStore
from txstore.transactions.transaction import Transaction

if TYPE_CHECKING:
    from txstore.store import OpenedRepository

#: Seconds after which an import with a name keeps what it has staged: one that is killed then goes on from there.
KEEP_EVERY = 1.0
#: How many bytes arrays may have for each byte of their files, and how many they always may. A file of a few kilobytes
#: may declare any number of values that were never written, and to copy them takes time.
_MOST_OF_BYTE, _ALWAYS = 100_000, 256 << 20


@concealing
def import_from(
    repo: OpenedRepository,
    sources: Source | Sequence[Source],
    path: str = "",
    *,
    concat: str | int | None = None,
    chunks: Mapping[str | int, int] | None = None,
    exclude: Sequence[str] = (),
    format: str | None = None,
    branch: str = MAIN,
    message: str | None = None,
    properties: Mapping[str, Any] | None = None,
    name: str | None = None,
    replace: bool = False,
    verify: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Commit:
    """See `Repository.import_from`."""
    if format not in (None, *FORMATS):
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, not {format!r}")
    found = places([sources] if isinstance(sources, str | os.PathLike | Store) else sources, storage_options)
    if not found:
        raise ValueError("nothing to import: name at least one source")
    if len(found) > 1 and concat is None:
        raise ValueError(f"there are {len(found)} sources: say along which dimension they are joined (concat=)")
    kinds = {format or place.format() for place in found}
    if len(kinds) > 1:
        raise SourceError(found[0].url, f"the sources are of several formats, {', '.join(sorted(kinds))}: import each")
    kind = kinds.pop()
    for place in found:
        if place.is_local and "://" not in repo.url and f"{repo.url}/".startswith(f"{place.root}/"):
            raise SourceError(place.url, "the repository would lie inside of it: give the repository another place")
    job = _Job(kind, found, checked_path(path), concat, dict(chunks or {}), tuple(exclude), verify, replace)
    if replace and not job.is_copy:
        raise ValueError("replace= is for plain Zarr, without concat=")
    files = job.files()
    told = {**(properties or {}), PROPERTY: job.description(files)}
    message = message or f"import {found[0].url}" + (f" and {len(found) - 1} more" if found[1:] else "")
    with repo.transaction(message, name=name, branch=branch, properties=told) as store:
        check_same_import(repo, name, told)
        if not replace:
            check_free(repo, store, job.path)
        _Import(job, store, files, name is not None, progress).run()
        if job.description(job.files()) != told[PROPERTY]:
            raise SourceError(found[0].url, "the source has changed while it was imported: let its writers end first")
        # This import has compared what an interrupted one had staged.
        made = store.commit(allow_lost=name is not None)
        assert made is not None  # it has a message
        return made


@dataclass(frozen=True)
class _Job:
    format: str
    places: Sequence[Place]
    path: str
    concat: str | int | None
    chunks: Mapping[str | int, int]
    exclude: tuple[str, ...]
    verify: bool
    replace: bool

    @property
    def is_copy(self) -> bool:
        """Whether keys are copied unchanged."""
        return self.format == ZARR and self.concat is None

    def files(self) -> list[dict[str, ForeignFile]]:
        """Return the files of each source, by their paths relative to it."""
        if self.format == ZARR:
            return [zarr_arrays.hierarchy_files(place, self.exclude) for place in self.places]
        return [{"": place.file()} for place in self.places]

    def open(self, place: Place) -> zarr_arrays.ZarrArrays | Hdf5Arrays | NetcdfArrays:
        if self.format == ZARR:
            return zarr_arrays.ZarrArrays(place, self.exclude)
        return (NetcdfArrays if self.format == NETCDF else Hdf5Arrays)(place, self.exclude)

    def description(self, found: Sequence[Mapping[str, ForeignFile]]) -> dict[str, Any]:
        """Return the description of the import for the commit; a resumed import must have the same."""
        files = [file for each in found for file in each.values()]
        return {
            "format": self.format,
            "source": self.places[0].url,
            "sources": len(self.places),
            "files": len(files),
            "bytes": sum(file.size for file in files),
            "stamp": stamp(files),
            "path": self.path,
            "concat": self.concat,
            "chunks": {str(name): length for name, length in self.chunks.items()},
            "exclude": list(self.exclude),
        }


# --- copying


@dataclass
class _Import:
    """One import: stages the files of a job into a store."""

    _job: _Job
    _store: TxStore
    _files: Sequence[Mapping[str, ForeignFile]]
    _resuming: bool
    _progress: Progress | None
    _done = _total = 0
    _kept_at: float = field(default_factory=time.monotonic)

    def _advance(self, count: int) -> None:
        transaction = self._store.mapping
        if self._resuming and isinstance(transaction, Transaction) and time.monotonic() - self._kept_at >= KEEP_EVERY:
            transaction.lifecycle.seal()
            self._kept_at = time.monotonic()
        self._done += count
        if self._progress is not None:
            self._progress(self._done, self._total)

    def run(self) -> None:
        if self._job.is_copy:
            self._copy_keys()
        else:
            self._copy_arrays()

    def _copy_keys(self) -> None:
        job, (place,), (files,) = self._job, self._job.places, self._files
        self._total = sum(file.size for file in files.values())
        documents = zarr_arrays.read_documents(place, files)
        self._set(described := documents_at(self._store, job.path, documents, place.url, keeps_root=True))
        self._advance(sum(files[key].size for key in documents))
        chunks = {key: file for key, file in files.items() if key not in documents}
        if job.replace:
            kept = {*described, *(document_key(job.path, key) for key in chunks)}
            for key in [each for each in self._store.mapping.keys_below(job.path) if each not in kept]:
                del self._store[key]
        resuming = self._resuming and not job.replace
        zarr_arrays.copy_hierarchy(
            place, chunks, self._store, job.path, verify=job.verify, resuming=resuming, advance=self._advance
        )

    def _copy_arrays(self) -> None:
        from txstore.pipeline import open_own

        job = self._job
        joined = _survey(job)
        self._total = joined.nbytes
        stored = sum(file.size for files in self._files for file in files.values())
        if self._total > max(_ALWAYS, _MOST_OF_BYTE * stored):
            largest = max(joined.arrays, key=lambda path: joined.arrays[path].nbytes)
            told = f"the arrays have {self._total:,} bytes, and their files {stored:,}: most were never written"
            raise job.places[0].refused(largest, told)
        self._set(documents_at(self._store, job.path, joined.documents(job), job.places[0].url, keeps_root=True))
        for number, place in enumerate(job.places):
            with closing(job.open(place)) as opened:
                for path, array in opened.arrays.items():
                    node = open_own(self._store, f"{job.path}/{path}".strip("/"), mode="r+")
                    self._copy_array(joined, number, place, path, array, node)

    def _set(self, documents: Mapping[str, bytes]) -> None:
        for key, content in documents.items():
            if key not in self._store or self._store[key] != content:
                self._store[key] = content
            if self._job.verify and self._store[key] != content:
                raise CorruptionError(self._store.url, key=key, reason="what was staged is not what comes back")

    def _copy_array(
        self, joined: _Joined, number: int, place: Place, path: str, array: ForeignArray, target: Any
    ) -> None:
        axis = joined.axes[path]
        if axis is None and number:
            for region in blocks([0] * len(array.shape), array.shape, target.shards or target.chunks, array.itemsize):
                if not same(target[region], array.read(region)):
                    raise SourceError(place.url, _not_joined(path, self._job))
            return
        at = [0] * len(array.shape)
        if axis is not None:
            at[axis] = joined.starts[path][number]
        copy_array(
            array.read,
            target,
            at=at,
            shape=array.shape,
            verify=self._job.verify,
            resuming=self._resuming,
            advance=self._advance,
        )


@dataclass
class _Joined:
    """The joined arrays of all sources."""

    arrays: Mapping[str, ForeignArray]  # of the first source
    axes: Mapping[str, int | None]
    starts: Mapping[str, list[int]]  # start of each source along the axis, and the end of the last

    def shape(self, path: str) -> tuple[int, ...]:
        shape, axis = list(self.arrays[path].shape), self.axes[path]
        if axis is not None:
            shape[axis] = self.starts[path][-1]
        return tuple(shape)

    @property
    def nbytes(self) -> int:
        total = 0
        for path, array in self.arrays.items():
            axis = self.axes[path]
            length = 1 if axis is None else array.shape[axis]
            total += array.nbytes if axis is None else self.starts[path][-1] * (array.nbytes // max(1, length))
        return total

    def documents(self, job: _Job) -> dict[str, bytes]:
        """Return all documents of the imported nodes, as the first source describes them, with the whole lengths."""
        from txstore.pipeline import open_own

        kept: dict[str, Any] = {}
        with closing(job.open(job.places[0])) as opened:
            opened.describe(kept, {path: self.shape(path) for path in self.arrays}, job.chunks)
        for path in self.arrays:
            array = open_own(kept, path, mode="r+")
            if array.shape != self.shape(path):
                array.resize(self.shape(path))
        documents = {key: value.to_bytes() for key, value in kept.items() if is_document(key)}
        return {key: plain_document(key, value) for key, value in sorted(documents.items())}


def _survey(job: _Job) -> _Joined:
    """Look at the arrays of each source. Raises `SourceError` if they can't be joined."""
    first: Mapping[str, ForeignArray] = {}
    axes: dict[str, int | None] = {}
    starts: dict[str, list[int]] = {}
    for number, place in enumerate(job.places):
        with closing(job.open(place)) as opened:
            arrays = opened.arrays
        if not number:
            first = arrays
            axes = {path: None if job.concat is None else array.axis(job.concat) for path, array in arrays.items()}
            starts = {path: [0] for path in arrays}
            if job.concat is not None and all(axis is None for axis in axes.values()):
                raise SourceError(place.url, f"no array in it has the dimension {job.concat!r}")
        if differing := set(first) ^ set(arrays):
            raise SourceError(place.url, f"it has not the same arrays as {job.places[0].url}: {min(differing)!r}")
        for path, array in arrays.items():
            _check_fits(job, place, path, first[path], array, axes[path])
            axis = axes[path]
            starts[path].append(starts[path][-1] + (0 if axis is None else array.shape[axis]))
    return _Joined(first, axes, starts)


def _check_fits(job: _Job, place: Place, path: str, first: ForeignArray, array: ForeignArray, axis: int | None) -> None:
    said = f"{path!r} does not fit that of {job.places[0].url}"
    if array.dtype != first.dtype:
        raise SourceError(place.url, f"{said}: its data type is {array.dtype}, not {first.dtype}")
    if array.meaning != first.meaning:
        names = sorted(n for n in {*array.meaning, *first.meaning} if array.meaning.get(n) != first.meaning.get(n))
        raise SourceError(
            place.url,
            f"{said}: other {', '.join(names)}, so its numbers mean something else. Let xarray convert them: "
            "xarray.open_mfdataset(...).to_zarr(store)",
        )
    for pair in zip(first.dimensions, array.dimensions, strict=False):
        # h5netcdf numbers those without a name, by the lengths in the file.
        if len({name for name in pair if name is not None and not name.startswith("phony_dim_")}) > 1:
            raise SourceError(place.url, f"{said}: its dimensions are {array.dimensions}, not {first.dimensions}")
    others = [n for number, n in enumerate(array.shape) if number != axis]
    if len(array.shape) != len(first.shape) or others != [n for i, n in enumerate(first.shape) if i != axis]:
        if axis is None and job.concat is not None:
            raise SourceError(place.url, _not_joined(path, job))
        raise SourceError(place.url, f"{said}: its shape is {array.shape}, not {first.shape}")


def _not_joined(path: str, job: _Job) -> str:
    return (
        f"{path!r} is not along {job.concat!r}, and differs from that of {job.places[0].url}; to leave it out: "
        f"exclude=[{path!r}]"
    )
