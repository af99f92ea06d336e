"""Rounds: each has every peer once, in an order drawn anew, so that all meet the same machine at the same time."""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.fresh import Failed
from benchmarks.peers.peer import NotOffered
from benchmarks.peers.results import Results
from benchmarks.peers.rows import Row


def take_rounds(results: Results, row: Row, scratch: Path, *, rounds: int, only: Sequence[str] = ()) -> None:
    """Add what a row measures to the results; of the peers, those whose names contain one of `only`, or all."""
    order = random.Random(row.name)
    taking_part = _taking_part(results, row, only)
    for _ in range(min(rounds, row.rounds or rounds)):
        for peer in order.sample(taking_part, len(taking_part)):
            # On ext4 the hash of a name that was never used before chooses the part of the disk.
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
