"""The rows of a run, and the rounds in which they are measured."""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from benchmarks.own_process import Failed, NotOffered
from benchmarks.peers import tasks
from benchmarks.peers.results import Results
from benchmarks.peers.works import SHARDED, WORKS
from benchmarks.stores import PEERS, REMOTE, Store

#: Who is in what TxStore has to show.
CORE = (
    "TxStore", "TxStore, chunk cache", "TxStore, durability none",
    "LocalStore, batched", "LocalStore, fused", "LocalStore, zarrs", "MemoryStore, fused", "Icechunk, fused",
    "TensorStore file", "TensorStore file, cache_pool", "TensorStore ocdbt", "TensorStore ocdbt, transaction", "HDF5",
)  # fmt: skip
#: And one of each kind. All pipelines are beside one another in the first row.
EVERY_KIND = (*CORE, "ZipStore, fused", "ObjectStore, fused", "ObjectStore, zarrs", "FsspecStore, fused")
FEW = ("TxStore", "LocalStore, fused", "Icechunk, fused", "TensorStore file", "TensorStore ocdbt", "HDF5")
#: Who writes a file for each chunk: a million of them would take an hour.
FILES = ("LocalStore, fused", "TensorStore file")
SEVERAL_PROCESSES = (
    "TxStore", "LocalStore, fused", "LocalStore, zarrs", "Icechunk, fused", "TensorStore file", "TensorStore ocdbt",
)  # fmt: skip
SMALL = (
    "TxStore", "TxStore, batched", "TxStore, fused", "MemoryStore, batched", "MemoryStore, fused",
    "LocalStore, batched", "LocalStore, fused", "LocalStore, zarrs", "TensorStore ocdbt", "HDF5",
)  # fmt: skip
_CHUNKS_FAR = 2000
FAR = f"{_CHUNKS_FAR:,} × 16 KiB on S3, {tasks.LATE} ms a request"
BYSTANDERS = "other stores in the process"


class Row(NamedTuple):
    name: str
    measure: tasks.Measure
    peers: Sequence[str]
    #: At most so many, where one has many samples in itself, or takes long.
    rounds: int | None = None
    #: By task; seconds where nothing else is said.
    units: Mapping[str, str] = MappingProxyType({})
    #: Whose names are in it is a store; other names are the row's own.
    roster: Mapping[str, type[Store]] = PEERS


def _whole(name: str, peers: Sequence[str], *parts: str, rounds: int | None = None) -> Row:
    return Row(name, partial(tasks.whole, work=WORKS[name], parts=parts), peers, rounds, {tasks.STORED: "MiB"})


def make_rows(*, quick: bool, keys: int) -> dict[str, Row]:
    counts = [10**power for power in range(3, 8) if 10**power <= keys]
    commits = 50 if quick else 1000
    peaks = dict.fromkeys([f"{task}{kind}" for task in ("write", "read") for kind in ("", tasks.RESIDENT)], "MiB")
    no_files = [peer for peer in FEW if peer not in FILES]
    together, at_once = WORKS["4096 × 16 KiB, zstd"], (1, 2) if quick else (1, 2, 4, 8)
    alone, keys_of = partial(partial, tasks.in_one), partial(partial, tasks.among_keys)
    rows = [
        _whole("4096 × 16 KiB, raw", tuple(PEERS), tasks.RANDOM),
        _whole("4096 × 16 KiB, zstd", CORE, tasks.RANDOM, tasks.LINE, tasks.STRIDED),
        _whole("4096 × 16 KiB, blosc", CORE),
        _whole(SHARDED.name, CORE, tasks.RANDOM),
        _whole("512 × 1 MiB, raw", EVERY_KIND),
        _whole("512 × 1 MiB, zstd", EVERY_KIND),
        _whole("512 × 1 MiB, blosc", FEW, rounds=2),
        *(_whole(f"32 × 16 MiB, {codec}", FEW, rounds=1) for codec in ("raw", "zstd", "blosc")),
        *(Row(f"10 × 16 KiB, {codec}", alone(task=tasks.read_again, codec=codec), SMALL) for codec in ("raw", "zstd")),
        Row(FAR, partial(tasks.remote, chunks=_CHUNKS_FAR), tuple(REMOTE), 2, {tasks.REQUESTS: ""}, REMOTE),
        *(Row(f"peak memory, {one}", partial(tasks.memory, work=WORKS[one]), FEW, 1, peaks) for one in tasks.MEASURED),
        Row(BYSTANDERS, tasks.bystanders, (tasks.WITHOUT, tasks.BESIDE), None, {tasks.CHANGED: ""}, {}),
        Row(f"append {commits:,} × 16 KiB, each committed", alone(task=tasks.append, commits=commits), CORE, 1),
        Row(
            f"{together.name}: written by several processes", partial(tasks.crowd, work=together, counts=at_once),
            SEVERAL_PROCESSES, 1, {tasks.LOST: "chunks"},
        ),
        *(Row(f"{n:,} keys", keys_of(keys=n), FEW if n <= 10**4 else no_files, 1) for n in counts),
    ]  # fmt: skip
    return {row.name: row for row in rows}


# --- rounds: each has every store once, in an order drawn anew, so that all meet the same machine at the same time


def take_rounds(results: Results, row: Row, scratch: Path, *, rounds: int, only: Sequence[str] = ()) -> None:
    """Add what a row measures to the results; of the stores, those whose names contain one of `only`, or all."""
    order = random.Random(row.name)
    taking_part = _taking_part(results, row, only)
    for _ in range(min(rounds, row.rounds or rounds)):
        for peer in order.sample(taking_part, len(taking_part)):
            place = scratch / uuid.uuid4().hex
            os.sync()  # what others have left in memory is not for this one to write
            try:
                results.add(row.name, peer, row.measure(peer, place), row.units)
            except (NotOffered, Failed) as why:
                results.skip(row.name, peer, str(why))
                taking_part.remove(peer)


def _taking_part(results: Results, row: Row, only: Sequence[str]) -> list[str]:
    found = []
    for name in row.peers:
        peer = row.roster.get(name)
        if peer is not None:
            if only and not any(part in name for part in only):
                continue
            if missing := peer.missing():
                results.skip(row.name, name, f"not installed: {', '.join(missing)}")
                continue
            results.describe(row.name, name, durable=peer.durable, processes=peer.processes)
        found.append(name)
    return found
