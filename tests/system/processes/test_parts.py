"""Processes that write tiles of any shape, which chunks have no part in: nothing is lost, and nothing conflicts."""

import itertools
import random
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.parts import write_part
from tests.tools.workers import QUICK, TIMEOUT
from txstore.errors import ConflictError
from txstore.transactions.transaction import Transaction

SHAPE, CHUNKS = (24, 24), (8, 8)
PROCESSES = 4
Tile = tuple[slice, slice]


def tiles(seed: int) -> list[Tile]:
    """Return tiles that cover the array, cut anywhere."""
    chance = random.Random(seed)
    cuts = [[0, *sorted(chance.sample(range(1, extent), 4)), extent] for extent in SHAPE]
    rows, columns = ([slice(*pair) for pair in itertools.pairwise(each)] for each in cuts)
    found = [(row, column) for row in rows for column in columns]
    chance.shuffle(found)
    return found


def write_tile(transaction: Transaction, tile: Tile, change: Any) -> None:
    """Write a tile chunk by chunk, as a codec pipeline does."""
    for row in range(tile[0].start // CHUNKS[0], -(-tile[0].stop // CHUNKS[0])):
        for column in range(tile[1].start // CHUNKS[1], -(-tile[1].stop // CHUNKS[1])):
            corner = row * CHUNKS[0], column * CHUNKS[1]
            inside = tuple(
                slice(max(axis.start - start, 0), min(axis.stop - start, size))
                for axis, start, size in zip(tile, corner, CHUNKS, strict=True)
            )
            write_part(transaction, f"x/c/{row}/{column}", inside, change)


def created(path: Path) -> txstore.Repository:
    repo = txstore.Repository(path / "data.tx", durability="none")
    with repo.transaction() as store:
        zarr.create_array(store, name="x", shape=SHAPE, chunks=CHUNKS, dtype="i4")
    return repo


def expected(tiling: list[Tile]) -> np.ndarray[Any, Any]:
    found = np.zeros(SHAPE, "i4")
    for number, tile in enumerate(tiling):
        found[tile] = number + 1
    return found


def at_head(repo: txstore.Repository) -> np.ndarray[Any, Any]:
    return zarr.open_array(repo.snapshot(), path="x", mode="r")[...]  # type: ignore[return-value]


def commit_tiles(pipe: Connection, url: str, numbered: list[tuple[int, Tile]]) -> None:
    repo = txstore.Repository(url, durability="none")
    transaction = repo.begin()
    for number, tile in numbered:
        write_tile(transaction, tile, number + 1)
    pipe.send("staged")
    pipe.recv()
    try:
        transaction.commit()
        pipe.send(None)
    except ConflictError as error:
        pipe.send(error)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_transactions_of_several_processes(tmp_path: Path, seed: int) -> None:
    """All begin at one commit, and commit at the same time."""
    repo, tiling = created(tmp_path), tiles(seed)
    pipes, processes = [], []
    for number in range(PROCESSES):
        mine, theirs = QUICK.Pipe()
        numbered = list(enumerate(tiling))[number::PROCESSES]
        processes.append(QUICK.Process(target=commit_tiles, args=(theirs, repo.url, numbered), daemon=True))
        processes[-1].start()
        pipes.append(mine)
    for pipe in pipes:
        assert pipe.poll(TIMEOUT)
        assert pipe.recv() == "staged"
    for pipe in pipes:
        pipe.send("go")
    for pipe in pipes:
        assert pipe.poll(TIMEOUT)
        assert pipe.recv() is None
    for process in processes:
        process.join(TIMEOUT)
    assert (at_head(repo) == expected(tiling)).all()
    assert repo.verify().faults == []


def increment(pipe: Connection, url: str, seed: int, times: int) -> None:
    """Increment tiles that overlap those of others; say how often each try was acknowledged, and which tiles."""
    repo, chance = txstore.Repository(url, durability="none"), random.Random(seed)
    done = []
    for _ in range(times):
        corner = chance.randrange(20), chance.randrange(20)
        tile = tuple(slice(start, start + chance.randint(1, 4)) for start in corner)
        while True:
            transaction = repo.begin()
            write_tile(transaction, tile, lambda there: there + 1)  # type: ignore[arg-type]
            try:
                transaction.commit()
            except ConflictError:
                transaction.rollback()
                continue
            break
        done.append(tile)
    pipe.send(done)


def test_every_increment_is_counted(tmp_path: Path) -> None:
    repo = created(tmp_path)
    running = []
    for seed in range(PROCESSES):
        mine, theirs = QUICK.Pipe()
        process = QUICK.Process(target=increment, args=(theirs, repo.url, seed, 12), daemon=True)
        process.start()
        running.append((mine, process))
    count = np.zeros(SHAPE, "i4")
    for pipe, process in running:
        assert pipe.poll(TIMEOUT)
        for tile in pipe.recv():
            count[tile] += 1
        process.join(TIMEOUT)
    assert (at_head(repo) == count).all()
    assert repo.verify().faults == []
