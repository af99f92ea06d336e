"""Write the golden repository of the present format version, once for each: `python -m tests.system.golden.write`.

It is kept as it was written, and every later version has to read it: see test_golden.py. It refuses to write over one.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import shutil
import sys
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import txstore
from txstore.format import encoding

HERE = Path(__file__).parent
NAME = "run-17"


def _name_nobody() -> None:
    """Who wrote it, and where, is nobody's business."""
    os.environ["LOGNAME"] = "golden"
    platform.node = lambda: "example"


def _by_another_process(store: txstore.TxStore) -> None:
    _name_nobody()
    zarr.open_array(store, path="shared")[10:20] = 7


def write(path: Path) -> None:
    _name_nobody()
    repo = txstore.Repository(path)
    raw: dict[str, Any] = {"compressors": None}
    with repo.transaction("first", properties={"run": 1, "by": {"whom": "ä"}}) as store:
        group = zarr.create_group(store, path="storm", attributes={"title": "golden"})
        group.create_array("position", data=np.arange(60.0).reshape(15, 4), chunks=(5, 4))
        zarr.create_array(store, name="old/scalar", shape=(), dtype="i4", fill_value=3, zarr_format=2)
        zarr.create_array(store, name="old/u1", data=np.arange(6, dtype="u1"), chunks=(2,), zarr_format=2)
        zarr.create_array(store, name="large", data=np.arange(500, dtype="i8"), chunks=(250,), **raw)
    with repo.transaction("append") as store:
        zarr.open_array(store, path="storm/position").append(np.full((5, 4), 0.5))
    repo.tags["v1.0"] = 1
    with repo.transaction("of two processes") as store:
        zarr.create_array(store, name="shared", data=np.zeros(20, dtype="i2"), chunks=(10,), **raw)
        process = multiprocessing.get_context("spawn").Process(target=_by_another_process, args=(store,))
        process.start()
        process.join()
        if process.exitcode:
            raise RuntimeError("the other process has failed")
    with repo.transaction("delete") as store:
        store.mapping.delete_dir("old/u1")
        del store["large/c/1"]
    for number in range(4):
        with repo.transaction(f"small {number}") as store:
            zarr.open_array(store, path="storm/position")[number] = -number
    with repo.transaction(name=NAME, message="to be committed") as store:
        zarr.create_array(store, name="later", data=np.arange(3), chunks=(3,), **raw)


def describe(path: Path) -> dict[str, Any]:
    """Return what every later version has to find in it."""
    repo = txstore.Repository(path)
    return {
        "id": repo.id,
        "tags": {name: commit.id for name, commit in repo.tags.items()},
        "commits": [
            {
                "id": commit.id,
                "time": commit.time.isoformat(),
                "message": commit.message,
                "properties": dict(commit.properties),
                "statistics": dict(commit.statistics),
                "keys": {k: blake2b(v, digest_size=16).hexdigest() for k, v in repo.mapping(at=commit.version).items()},
            }
            for commit in reversed(list(repo.log()))
        ],
    }


def main() -> None:
    path = HERE / str(encoding.VERSION)
    if path.exists():
        sys.exit(f"{path} exists: what was written by a version is never changed")
    write(path / "data.tx")
    shutil.rmtree(path / "data.tx" / "locks")
    (path / "expected.json").write_text(json.dumps(describe(path / "data.tx"), indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(path / "data.tx" / "locks", ignore_errors=True)


if __name__ == "__main__":
    main()
