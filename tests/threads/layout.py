"""The arrays that the threads use, and what a commit holds of them.

Registers have one writer each; "r/w/3" is the third thread's. Their values ascend, and begin with 0:

- w: an array of 16 chunks with one value; every other one is sharded
- e: an element of the one chunk of `e`, whose other elements are other threads' and processes': written under its lock
- h: a quarter of a row of the one chunk of `h`: written without a lock, so it may be lost, not torn
- c: an array that is created anew each time; g: one that is appended to; s: one that is resized
- a: an attribute of a group; d: a key that the store is given without zarr
- n: a row of 4 chunks, written in the transaction with a name; f: the same, of another process

"l/c/2" is a list, the row of an array and one chunk; all append to it, under its lock.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import zarr

import txstore
from tests.threads.records import Values

THREADS, NEIGHBOURS, LISTS = 8, 2, 5
ROW = 4096  # elements that a list has room for
GROWN = 400  # rows that an array is appended to have, at most
BLOCK = 4  # rows that are appended at once, each with the same value
CHUNKS, CHUNK = 16, 32
SHARD = 4 * CHUNK
LIST_KEYS = [f"l/c/{number}" for number in range(LISTS)]
NAME = "together"

Content = dict[str, Values]


def element_of_neighbour(number: int) -> int:
    return 32 + number


def owned(threads: int = THREADS) -> list[str]:
    """Return the registers that the session's threads write."""
    return [f"r/{kind}/{number}" for kind in "wehcgsad" for number in range(threads)]


def named(threads: int = THREADS) -> list[str]:
    return [f"r/n/{number}" for number in range(threads)]


def of_neighbours() -> list[str]:
    shared = [f"r/e/{element_of_neighbour(number)}" for number in range(NEIGHBOURS)]
    return shared + [f"r/f/{number}" for number in range(NEIGHBOURS)]


def create(store: txstore.TxStore) -> None:
    """Create everything."""
    plain: dict[str, Any] = {"dtype": "i8", "fill_value": 0, "compressors": None}
    for number in range(THREADS):
        shards = {"shards": (SHARD,)} if number % 2 else {}
        zarr.create_array(store, name=f"w{number}", shape=(CHUNKS * CHUNK,), chunks=(CHUNK,), **shards, **plain)
        zarr.create_array(store, name=f"g{number}", shape=(0,), chunks=(16,), **plain)
        zarr.create_array(store, name=f"s{number}", shape=(0,), chunks=(16,), **plain)
        recreate(store, number, 0)
        zarr.create_group(store, path=f"a{number}", attributes={"value": 0})
        store[f"d/{number}"] = b"0"
    zarr.create_array(store, name="e", shape=(64,), chunks=(64,), **plain)
    zarr.create_array(store, name="h", shape=(4 * THREADS,), chunks=(4 * THREADS,), **plain)
    zarr.create_array(store, name="l", shape=(LISTS, ROW), chunks=(1, ROW), **plain)
    zarr.create_array(store, name="n", shape=(4 * THREADS, 16), chunks=(1, 16), **plain)
    zarr.create_array(store, name="f", shape=(4 * NEIGHBOURS, 16), chunks=(1, 16), **plain)


def recreate(store: txstore.TxStore, number: int, value: int) -> None:
    data = np.full(64, value)
    zarr.create_array(store, name=f"c{number}", data=data, chunks=(16,), fill_value=0, compressors=None, overwrite=True)


def distinct(array: Any) -> Values:
    return tuple(np.unique(np.asarray(array)).tolist())


def content(mapping: Mapping[str, bytes]) -> Content:
    """Return what a commit holds: of each register its value, or several where it is torn."""
    found: Content = {}
    elements = _ints(mapping, "e/c/0", 64)
    halves = _ints(mapping, "h/c/0", 4 * THREADS)
    for number in range(THREADS):
        found[f"r/w/{number}"] = _whole(mapping, number)
        found[f"r/e/{number}"] = (int(elements[number]),)
        found[f"r/h/{number}"] = distinct(halves[4 * number : 4 * number + 4])
        found[f"r/c/{number}"] = _rows(mapping, f"c{number}", range(4), 16)
        found[f"r/g/{number}"] = _grown(mapping, number)
        found[f"r/s/{number}"] = (_document(mapping, f"s{number}")["shape"][0],)
        found[f"r/a/{number}"] = (_document(mapping, f"a{number}")["attributes"]["value"],)
        found[f"r/d/{number}"] = (int(mapping[f"d/{number}"]),)
        found[f"r/n/{number}"] = distinct([_ints(mapping, f"n/c/{4 * number + row}/0", 16) for row in range(4)])
    for number in range(NEIGHBOURS):
        element = element_of_neighbour(number)
        found[f"r/e/{element}"] = (int(elements[element]),)
        found[f"r/f/{number}"] = distinct([_ints(mapping, f"f/c/{4 * number + row}/0", 16) for row in range(4)])
    for number, key in enumerate(LIST_KEYS):
        row = _ints(mapping, f"l/c/{number}/0", ROW)
        found[key] = tuple(row[row != 0].tolist())
    return found


def _ints(mapping: Mapping[str, bytes], key: str, count: int) -> Any:
    value = mapping.get(key)
    return np.zeros(count, "i8") if value is None else np.frombuffer(value, "<i8", count)


def _rows(mapping: Mapping[str, bytes], name: str, chunks: range, count: int) -> Values:
    return distinct([_ints(mapping, f"{name}/c/{chunk}", count) for chunk in chunks])


def _whole(mapping: Mapping[str, bytes], number: int) -> Values:
    if number % 2:  # the chunks of a shard come before its index
        return _rows(mapping, f"w{number}", range(CHUNKS * CHUNK // SHARD), SHARD)
    return _rows(mapping, f"w{number}", range(CHUNKS), CHUNK)


def _grown(mapping: Mapping[str, bytes], number: int) -> Values:
    """Return the last value of an array of blocks; of one that is torn, all that is wrong with it."""
    length = _document(mapping, f"g{number}")["shape"][0]
    chunks = [_ints(mapping, f"g{number}/c/{chunk}", 16) for chunk in range(-(-length // 16))]
    rows = np.concatenate(chunks)[:length] if chunks else np.zeros(0, "i8")
    return grown(rows)


def grown(rows: Any) -> Values:
    blocks = [tuple(rows[at : at + BLOCK].tolist()) for at in range(0, len(rows), BLOCK)]
    if not blocks:
        return (0,)
    values = [block[0] for block in blocks]
    whole = all(block == (block[0],) * BLOCK for block in blocks)
    if whole and values == sorted(set(values)) and values[0] > 0:
        return (values[-1],)
    return distinct(rows)


def _document(mapping: Mapping[str, bytes], name: str) -> Any:
    return json.loads(mapping[f"{name}/zarr.json"])
