"""Long chunks of a repository that is read by ranges: they are read to where they are wanted, if they lie so."""

import uuid
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import TransposeCodec, ZstdCodec

import txstore
from tests.tools.inside import objects_of
from txstore.errors import CorruptionError
from txstore.format import names
from txstore.segments import range_planning, ranged_packs, ranged_runs
from txstore.segments.ranged_packs import PackReader
from txstore.storage import kept

SHAPE, CHUNK = (100, 90), (40, 45)  # of 4 bytes; the last row of chunks reaches beyond the array


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How long the values are that are read to where they are wanted; a value of a KB is long."""
    for module in (ranged_packs, ranged_runs, range_planning):
        monkeypatch.setattr(module, "RANGE", 1000)
    found: list[int] = []
    read_into = PackReader.read_into

    def noted(reader: PackReader, offset: int, place: Any) -> None:
        found.append(len(place))
        read_into(reader, offset, place)

    monkeypatch.setattr(PackReader, "read_into", noted)
    return found


def written(data: np.ndarray, **how: Any) -> txstore.Repository:
    repo = txstore.Repository(f"memory://{uuid.uuid4().hex}")
    with repo.transaction() as store:
        array = zarr.create_array(
            store, name="x", shape=data.shape, chunks=CHUNK[-data.ndim :], dtype=data.dtype, fill_value=0,
            **{"compressors": None, **how},
        )  # fmt: skip
        array[:] = data
    return txstore.Repository(repo.url)


def opened(repo: txstore.Repository) -> Any:
    return zarr.open_array(repo.snapshot(), path="x", mode="r")


def test_whole_chunks_are_read_to_their_place_where_it_is_in_one_piece(pieces: list[int]) -> None:
    data = np.arange(1, 1000, dtype="i4")
    array = opened(written(data.reshape(-1)))
    assert np.array_equal(array[:], data)
    assert not pieces  # none is as long as that
    wide = np.arange(1, 9001, dtype="i4")
    repo = txstore.Repository(f"memory://{uuid.uuid4().hex}")
    with repo.transaction() as store:
        zarr.create_array(store, name="x", shape=wide.shape, chunks=(900,), dtype="i4", compressors=None)[:] = wide
    assert np.array_equal(opened(repo)[:], wide)
    assert pieces == [3600] * 10
    pieces.clear()
    assert np.array_equal(opened(repo)[900:2700], wide[900:2700])
    assert pieces == [3600] * 2
    pieces.clear()
    for part in (slice(5, 2700), slice(0, 9000, 2), slice(901, 1000)):
        assert np.array_equal(opened(repo)[part], wide[part])
    assert len(pieces) <= 2  # of the first, the chunks that are read whole


def test_a_long_value_without_axes_is_read_to_the_array_and_not_to_a_copy(pieces: list[int]) -> None:
    data = np.array(np.void(b"a" * 2000))
    with (repo := txstore.Repository(f"memory://{uuid.uuid4().hex}")).transaction() as store:
        zarr.create_array(store, name="x", shape=(), chunks=(), dtype=data.dtype, compressors=None)[...] = data
    assert opened(txstore.Repository(repo.url))[...].tobytes() == data.tobytes()
    assert pieces == [2000]


@pytest.mark.parametrize(
    "how",
    [{}, {"filters": [TransposeCodec(order=(1, 0))]}, {"compressors": [ZstdCodec(level=0)]}, {"dtype": ">f8"}],
    ids=["raw", "transposed", "compressed", "swapped"],
)
def test_others_are_read_as_ever(pieces: list[int], how: dict[str, Any]) -> None:
    how = dict(how)
    data = np.random.default_rng(0).integers(1, 1 << 30, SHAPE).astype(how.pop("dtype", "i4"))
    array = opened(written(data, **how))
    for part in (np.s_[:], np.s_[40:80, 45:90], np.s_[3:99, 7], np.s_[::3, ::2]):
        assert np.array_equal(array[part], data[part])
    if how:
        assert not pieces


def test_a_long_value_that_is_damaged_is_an_error(pieces: list[int]) -> None:
    wide = np.arange(1, 90_001, dtype="i4")
    repo = txstore.Repository(f"memory://{uuid.uuid4().hex}")
    with repo.transaction() as store:
        zarr.create_array(store, name="x", shape=wide.shape, chunks=(900,), dtype="i4", compressors=None)[:] = wide
    objects = objects_of(repo)
    path = names.commit_path("main", 0)
    content = bytearray(objects.get(path))
    content[content.index(wide[2000:2010].tobytes())] ^= 1
    objects.put(path, [content])
    kept._shared._empty()  # the end of the file is at hand
    array = opened(txstore.Repository(repo.url))
    with pytest.raises(CorruptionError, match="checksum mismatch"):
        array[:]
    assert np.array_equal(array[:1800], wide[:1800])


def test_two_that_read_and_write_a_long_value_are_in_conflict(pieces: list[int]) -> None:
    wide = np.arange(1, 9001, dtype="i4")
    repo = txstore.Repository(f"memory://{uuid.uuid4().hex}")
    with repo.transaction() as store:
        zarr.create_array(store, name="x", shape=wide.shape, chunks=(900,), dtype="i4", compressors=None)[:] = wide
    store = repo.transaction()
    array = zarr.open_array(store, path="x")
    array[:900] = array[900:1800]
    array[900:1800] = array[900:1800]  # equal to what is there: a write, since it was read
    with repo.transaction() as other:
        zarr.open_array(other, path="x")[900:1800] = 5
    with pytest.raises(txstore.ConflictError):
        store.commit()
    store.rollback()
