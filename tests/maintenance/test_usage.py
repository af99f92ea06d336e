"""Usage: what the bytes are for adds up to what is there, and arrays get what is theirs."""

from pathlib import Path

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.faults import watch
from tests.tools.upkeep import put, rewrite, tree


def packed(repo: txstore.Repository) -> int:
    return sum(size for path, size in tree(repo).items() if path.startswith(("commits/", "packs/")))


def test_there_is_nothing(repo):
    with pytest.raises(txstore.RepositoryNotFoundError):
        repo.usage()


def test_it_adds_up(repo):
    rewrite(repo, 20)
    repo.tags["v1"] = 3
    usages = []

    def look():
        usage = repo.usage()
        assert usage.live + usage.history + usage.overwritten + usage.orphan == packed(repo)
        assert usage.live == sum(len(value) for value in repo.mapping().values())
        assert min(usage.live, usage.history, usage.overwritten, usage.staged, usage.orphan) >= 0
        assert usage.total == usage.live + usage.history + usage.overwritten + usage.orphan + usage.staged
        usages.append(usage)
        return usage

    assert look().orphan == look().overwritten == 0
    with repo.begin() as transaction:
        transaction["b"] = bytes(100_000)
        transaction.lifecycle.share()
        assert look().staged > 100_000
        transaction.rollback()
    assert look().staged == 0
    repo.optimize()
    assert look().orphan == 0
    (Path(repo.url, "packs") / "ab").mkdir(exist_ok=True)
    (Path(repo.url, "packs") / "ab" / ("ab" * 16)).write_bytes(bytes(1_000))
    assert look().orphan == 1_000
    report = repo.vacuum(keep=1)
    usage = look()
    assert usage.orphan == 0
    assert usage.history < usages[0].history
    assert report.bytes > 1_000
    del repo.tags["v1"]
    assert look().orphan > 0
    assert look().orphan == repo.vacuum().bytes
    assert look().orphan == 0


SIZES = pytest.mark.parametrize("size", [100, 5_000, 200_000, 2 << 20])


@SIZES
def test_what_a_transaction_has_overwritten_itself_is_not_history(repo, size):
    put(repo, {"old": bytes(size)})
    with repo.begin() as transaction:
        for number in range(10):
            transaction["key"] = b"%09d" % number * (size // 9)
            transaction[f"once/{number}"] = bytes(size)
    del transaction  # or a vacuum would keep what it was based on
    usage = repo.usage()
    assert 0.6 * 9 * size <= usage.overwritten <= 1.6 * 9 * size
    assert usage.history < 12 * 200 + 10_000
    assert usage.total == packed(repo)
    repo.optimize()
    assert repo.usage().overwritten == usage.overwritten
    repo.vacuum(keep=1)
    assert repo.usage().overwritten == 0


@SIZES
def test_what_other_commits_have_is_history_until_they_are_given_up(repo, size):
    for number in range(10):
        put(repo, {"key": b"%09d" % number * (size // 9), f"once/{number}": bytes(size)})
    repo.tags["v1"] = 3
    repo.tags["v2"] = 5
    assert repo.usage().overwritten == 0
    before = repo.usage().history
    assert before > 9 * size
    repo.optimize()
    assert repo.usage().overwritten == 0
    repo.vacuum(keep=1)
    usage = repo.usage()
    assert usage.total == packed(repo)
    assert size < usage.history  # the commits with tags
    assert 2 * size < usage.overwritten < 4.5 * size  # of "key" in the files of the versions 0, 1, 2 and 4
    del repo.tags["v2"], repo.tags["v1"]
    repo.vacuum(keep=1)
    assert repo.usage().overwritten == 0


def test_arrays_of_both_formats_in_nested_groups(repo):
    with repo.transaction() as store:
        root = zarr.create_group(store, zarr_format=3)
        storm = root.create_group("storm").create_group("deep")
        storm.create_array("position", data=np.arange(10), chunks=(5,), compressors=None)
        root.create_array("storm-2", data=np.arange(4), chunks=(4,), compressors=None)
        root.create_array("scalar", data=np.array(1), compressors=None)
        old = zarr.create_group(store, path="old", zarr_format=2)
        old.create_array("x", data=np.arange(6, dtype="i4"), chunks=(2,), compressors=None)
    put(repo, {"loose": b"123", "storm/notes": b"12"})
    usage = repo.usage()
    mapping = repo.mapping()

    def below(path: str) -> tuple[int, int]:
        found = [len(mapping[key]) for key in mapping if key.startswith(path + "/")]
        return len(found), sum(found)

    told = {path: (array.keys, array.bytes) for path, array in usage.arrays.items()}
    for path in ("storm/deep/position", "storm-2", "scalar", "old/x"):
        assert told.pop(path) == below(path)
    assert told.keys() == {"", "storm", "storm/deep", "old"}
    at_the_top = [len(mapping[key]) for key in mapping if "/" not in key]
    assert told[""] == (len(at_the_top), sum(at_the_top))
    assert told["storm"] == (2, len(mapping["storm/zarr.json"]) + 2)
    assert sum(array.bytes for array in usage.arrays.values()) == usage.live
    assert sum(array.keys for array in usage.arrays.values()) == len(mapping)


def test_a_vacuum_does_not_delete_what_is_being_counted(open_repo):
    repo, other = open_repo(durability="none"), open_repo(durability="none")
    rewrite(repo, 10)
    watched = watch(repo)

    def vacuum_now(path):
        watched.before.clear()
        other.optimize()
        assert other.vacuum(keep=1).oldest_kept == 0

    watched.before["map"] = vacuum_now
    assert repo.usage().orphan == 0
