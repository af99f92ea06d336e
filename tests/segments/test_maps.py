"""A map that nobody needs is let go, so a vacuum frees the disk; the maps of a process are bounded together."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zarr

import txstore
from txstore.segments import packs

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs /proc")

LARGE = 2 << 20

OpenRepo = Callable[..., txstore.Repository]


def maps(path: Path) -> list[tuple[str, int]]:
    """The files below a path that this process has mapped, and how much of each, in bytes."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        extent, _, _, _, _, *name = line.split(maxsplit=5)
        if name and name[0].startswith(f"{path}/") and "/locks/" not in name[0]:
            begin, end = (int(number, 16) for number in extent.split("-"))
            found.append((name[0], end - begin))
    return found


def kept_from_the_disk(path: Path) -> int:
    """How many bytes of deleted files below a path are still mapped, and so are not free."""
    return sum(size for name, size in maps(path) if name.endswith("(deleted)"))


def put(repo: txstore.Repository, value: bytes) -> None:
    with repo.begin() as transaction:
        transaction["value"] = value


def replace(repo: txstore.Repository, value: bytes) -> None:
    """Put a value, and delete all that held the one before: so often that the runs are merged in the old files."""
    for each in (*(b"%d" % number for number in range(4)), value):
        put(repo, each)
    assert repo.vacuum(keep=1).files > 3


def test_a_writer_that_vacuums(open_repo: OpenRepo, tmp_path: Path) -> None:
    repo = open_repo(durability="none")
    store = txstore.TxStore(repo)
    array = zarr.create_array(store, name="x", shape=(LARGE,), chunks=(LARGE // 4,), dtype="u1", compressors=None)
    for number in range(1, 8):
        array[:] = number
        store.commit()
        assert np.all(array[:] == number)
        repo.vacuum(keep=1)
        assert kept_from_the_disk(tmp_path) == 0


def test_a_reader_that_reads_no_more(open_repo: OpenRepo, tmp_path: Path) -> None:
    writer, reader = open_repo(durability="none"), open_repo()
    for number in range(3):
        put(writer, bytes([number]) * LARGE)
        snapshot = reader.mapping()
        assert snapshot["value"][0] == number
    del snapshot
    replace(writer, b"new" * LARGE)
    assert kept_from_the_disk(tmp_path) == 0
    assert reader.mapping()["value"][:3] == b"new"


def test_what_is_read_stays(open_repo: OpenRepo, tmp_path: Path) -> None:
    writer, reader = open_repo(durability="none"), open_repo()
    put(writer, b"old" * LARGE)
    view = reader.mapping().get_view("value")
    assert view is not None
    replace(writer, b"new" * LARGE)
    assert kept_from_the_disk(tmp_path) >= 3 * LARGE  # the view is all that is left of the snapshot
    assert bytes(view) == b"old" * LARGE
    del view
    assert kept_from_the_disk(tmp_path) == 0


@pytest.mark.long
def test_of_small_files_little_is_kept(open_repo: OpenRepo, tmp_path: Path) -> None:
    """Whoever commits or reads now and then needs not open again what was open a moment ago."""
    repo = open_repo(durability="none")
    for number in range(100):
        put(repo, b"%d" % number)
    assert repo.mapping()["value"] == b"99"
    few = len(maps(tmp_path))
    assert 0 < few < 20
    for number in range(30):
        put(repo, b"%d" % number)
        repo.vacuum(keep=1)
    assert len(maps(tmp_path)) < 20
    assert kept_from_the_disk(tmp_path) < 20 << 20


def test_all_repositories_share_a_bound(open_repo: OpenRepo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "MAX_MAPS", 40)
    snapshots, views = [], []
    for name in "abc":
        repo = open_repo(f"{name}.tx", durability="none")
        for number in range(60):
            with repo.begin() as transaction:
                transaction[f"{number}"] = b"%s%d" % (name.encode(), number)
        snapshots.append(repo.mapping())
    for _ in range(2):
        for name, snapshot in zip("abc", snapshots, strict=True):
            assert [snapshot[str(number)] for number in range(60)] == [b"%s%d" % (name.encode(), n) for n in range(60)]
    runs = sum(len(snapshot.runs) for snapshot in snapshots)
    assert len(maps(tmp_path)) <= 40 + runs
    views = [snapshot.get_view(str(number)) for snapshot in snapshots for number in range(60)]
    assert [bytes(view or b"") for view in views] == [b"%s%d" % (n.encode(), i) for n in "abc" for i in range(60)]


def test_what_is_gone_does_not_count(open_repo: OpenRepo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read again and again stays mapped, however much was read once, and let go, meanwhile."""
    monkeypatch.setattr(packs, "MAX_MAPS", 40)
    repo, other = open_repo(durability="none"), open_repo("other.tx", durability="none")
    for number in range(20):
        with repo.begin() as transaction:
            transaction[f"{number}"] = b"value"
    snapshot = repo.mapping()
    assert len(snapshot) == len([snapshot[key] for key in snapshot])
    there = set(maps(tmp_path / "data.tx"))
    for number in range(100):
        put(other, b"%d" % number)
        assert other.mapping()["value"] == b"%d" % number
    assert there <= set(maps(tmp_path / "data.tx"))
