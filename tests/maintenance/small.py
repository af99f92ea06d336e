"""A small repository that has everything: own and merged runs, a data pack, tombstones, a prefix tombstone, a tag."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import txstore

Contents = list[dict[str, bytes]]


def _stage(store: txstore.TxStore) -> None:
    store["shared/c/1"] = b"by another process" * 3


def build(path: Path) -> Contents:
    """Write it; return what each commit holds."""
    repo = txstore.Repository(path)
    contents: Contents = []

    def committed() -> None:
        contents.append({key: bytes(value) for key, value in repo.mapping().items()})

    with repo.transaction("first") as store:
        store["a/zarr.json"] = b'{"zarr_format": 3, "node_type": "group"}'
        store["a/c/0"] = b"zero"
        store["a/c/1"] = b"one" * 400  # aligned, with padding before it
    committed()
    with repo.transaction("second") as store:
        store["a/c/0"] = b"nought"
        store["b/c/0"] = b""
    committed()
    repo.tags["v1"] = 1
    with repo.transaction("of two processes") as store:
        store["shared/c/0"] = b"mine"
        process = multiprocessing.get_context("spawn").Process(target=_stage, args=(store,))
        process.start()
        process.join(60)
        assert process.exitcode == 0
    committed()
    with repo.transaction("delete") as store:
        del store["b/c/0"]
        store.mapping.delete_dir("shared")
        store["d"] = b"d"
    committed()
    with repo.transaction("fifth", properties={"n": 5}) as store:
        store["e"] = b"e" * 100
    committed()
    with repo.transaction("last") as store:
        store["a/c/2"] = b"two"
    committed()
    assert repo.verify().faults == []
    return contents
