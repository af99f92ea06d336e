"""A million chunks in one transaction: what they take of memory, and that they are all there."""

import subprocess
import sys
from pathlib import Path

import pytest

import txstore

pytestmark = pytest.mark.long

KEYS = 1_000_000
MEGABYTES = 300

CHILD = """
import sys
import txstore

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024

path, keys = sys.argv[1], int(sys.argv[2])
transaction = txstore.Repository(path).begin()
transaction["position/zarr.json"] = b"{}"
before = peak()
for number in range(keys):
    transaction[f"position/c/{number}"] = number.to_bytes(8, "little")
print(peak() - before, flush=True)
transaction.commit()
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_a_million_staged_keys_fit_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "data.tx"
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), str(KEYS)], check=True, capture_output=True, text=True, timeout=200
    )
    staged, committed = map(float, child.stdout.split())
    assert staged <= committed <= MEGABYTES, f"{staged:.0f} MB staged, {committed:.0f} MB at the commit"

    snapshot = txstore.Repository(path).mapping()
    for number in (0, 1, 9, 123_456, 500_000, KEYS - 1):
        assert snapshot[f"position/c/{number}"] == number.to_bytes(8, "little")
    assert f"position/c/{KEYS}" not in snapshot
    assert len(snapshot) == KEYS + 1
    assert list(snapshot.list_dir("position")) == ["c", "zarr.json"]
    report = txstore.Repository(path).verify()
    assert report.faults == []
    assert report.values == KEYS + 1
