"""zarr 2 reads a plain copy of format 2, beside a writer that appends, in a process without txstore."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import zarr

import txstore

READER = """
import sys
sys.modules["txstore"] = None
import numpy as np, zarr
assert zarr.__version__.startswith("2.")
torn, lengths, done = 0, set(), 0
while done < 30 or len(lengths) < 3:
    group = zarr.open_consolidated(sys.argv[1], mode="r")
    x, y = group["x"][:], group["deep/y"][:]
    torn += not (np.array_equal(x, np.arange(1, len(x) + 1)) and np.array_equal(y, -x))
    lengths.add(len(x))
    done += 1
print(torn, group.attrs["title"])
"""


def test_a_published_copy_is_read_while_it_grows(repo: txstore.Repository, tmp_path: Path) -> None:
    def extend(transaction: txstore.Transaction, length: int) -> None:
        group = zarr.open_group(transaction)
        end = group["x"].shape[0] + 1
        group["x"].append(np.arange(end, end + length))
        group["deep/y"].append(-np.arange(end, end + length))

    with repo.begin() as transaction:
        group = zarr.open_group(transaction)
        group.attrs["title"] = "a copy"
        for name in ("x", "deep/y"):
            group.create_dataset(name, shape=(0,), chunks=(50,), dtype="i8", fill_value=-7)
        extend(transaction, 60)
    copy = tmp_path / "copy.zarr"
    repo.publish(copy)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            with repo.begin() as transaction:
                extend(transaction, 35)
            repo.publish(copy)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        command = [sys.executable, "-c", READER, str(copy)]
        told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    finally:
        stop.set()
        writer.join(30)
    assert told.returncode == 0, told.stderr
    assert told.stdout.split(maxsplit=1) == ["0", "a copy\n"]
    group = zarr.open_consolidated(str(copy), mode="r")
    np.testing.assert_array_equal(group["x"][:], zarr.open_group(repo.mapping(), mode="r")["x"][:])
