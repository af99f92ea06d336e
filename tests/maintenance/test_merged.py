"""Looking after a history of merges, moves, copies and restores: verify, usage, optimize, vacuum, backup, publish."""

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zarr

import txstore
from tests.history.test_branches import on
from tests.tools.upkeep import tree
from txstore.errors import CorruptionError


def write(repo: txstore.Repository, branch: str, path: str, place: int, value: int) -> None:
    with repo.transaction(branch=branch) as store:
        zarr.open_array(store, path=path)[place] = value


@pytest.fixture
def repo(open_repo: Callable[..., txstore.Repository]) -> txstore.Repository:
    """Two branches that were merged into each other, a third that was deleted; groups that were moved and restored."""
    repo = open_repo()
    with repo.transaction() as store:
        for name in ("g/x", "g/y"):
            zarr.create_array(store, name=name, data=np.arange(200), chunks=(50,), compressors=None)
    repo.branches["dev"] = repo.branches["gone"] = repo.head()
    write(repo, "dev", "g/x", 0, 1000)
    write(repo, "main", "g/x", 199, 2000)
    write(repo, "gone", "g/y", 60, 3000)
    repo.merge("gone", "dev")
    repo.merge("dev")
    with repo.transaction() as store:
        store.move("g/y", "moved")
        store.copy("g/x", "copied", at=0)
    write(repo, "dev", "g/x", 120, 4000)
    repo.merge("dev")
    with repo.transaction() as store:
        store.restore("g/y", at=0)
    repo.merge("main", "dev")
    write(repo, "dev", "moved", 7, 5000)
    del repo.branches["gone"]
    return repo


def contents(repo: txstore.Repository) -> dict[str, dict[str, bytes]]:
    return {name: on(repo, name) for name in repo.branches}


def history(repo: txstore.Repository) -> dict[str, dict[str, bytes]]:
    """Return what every commit holds that the logs of the branches show."""
    return {each.id: on(repo, at=each.id) for name in repo.branches for each in repo.log(name)}


def test_nothing_is_wrong_or_left_over(repo: txstore.Repository) -> None:
    there = history(repo)
    assert repo.verify().faults == []
    for name in repo.branches:
        usage = repo.usage(branch=name)
        assert usage.live == sum(map(len, on(repo, name).values()))
    repo.vacuum()
    assert repo.usage().orphan == 0
    files = tree(repo).items()
    assert repo.usage().total == sum(size for path, size in files if path.startswith(("commits/", "packs/")))
    assert history(repo) == there


def test_what_is_exported_and_published(repo: txstore.Repository, tmp_path: Path) -> None:
    repo.publish(tmp_path / "published.zarr")
    repo.merge("dev")
    with repo.transaction() as store:
        store.move("moved", "g/z")
    repo.publish(tmp_path / "published.zarr")
    repo.export(tmp_path / "exported.zarr")
    for name in ("published", "exported"):
        plain = zarr.open_group(tmp_path / f"{name}.zarr", mode="r")
        assert sorted(plain["g"].array_keys()) == ["x", "y", "z"]  # type: ignore[union-attr]
        for path in ("g/x", "g/y", "g/z", "copied"):
            ours = zarr.open_array(repo.snapshot(), path=path, mode="r")
            assert np.array_equal(plain[path][:], ours[:])  # type: ignore[index]
        assert not (tmp_path / f"{name}.zarr/moved").exists()
    repo.export(tmp_path / "dev.zarr", branch="dev")
    assert zarr.open_array(tmp_path / "dev.zarr", path="moved", mode="r")[7] == 5000


@pytest.mark.long
def test_a_turned_bit_is_never_other_data(repo: txstore.Repository) -> None:
    """In the commits of merges, moves and restores: it is repaired, or told of. Runs of refs alone can't be rebuilt."""
    there = contents(repo)
    for path in sorted(Path(repo.url, "commits").glob("*/*")):
        content = path.read_bytes()
        for bit in range(5, 8 * len(content), 8 * len(content) // 12):
            turned = bytearray(content)
            turned[bit // 8] ^= 1 << bit % 8
            path.write_bytes(turned)
            report = txstore.Repository(repo.url).verify(repair=True)
            assert {fault.part for fault in report.faults} <= {"value", "run"}
            for branch, expected in there.items():
                try:
                    assert on(txstore.Repository(repo.url), branch) == expected
                except CorruptionError:
                    assert report.faults
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(Path(repo.url, "quarantine"))
            path.write_bytes(content)
