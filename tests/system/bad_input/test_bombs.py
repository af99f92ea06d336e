"""Repositories of a few kilobytes, all of whose checksums are right, that would take all memory, or time without end.

Each ends in an error of ours that names the file, or in a report. Where it did not, its time-out killed the test.
"""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import txstore
from tests.fuzz import forging
from tests.fuzz.forging import Forged, Run
from tests.tools.commits import set_keys
from tests.tools.faults import watch
from txstore import METADATA
from txstore.constraints import Complete, EqualLength, Fixed, OnlyGrows, Sorted, Unique
from txstore.errors import CorruptionError
from txstore.format import commitfile, names, packfile

FAR = 400_000_000


def alone_in_a_far_version(parts: Forged) -> None:
    """The first commit, which has no parent, far up: all versions below are missing."""
    first, *others = parts.commits
    for path in others:
        del parts.packs[path]
    parts.move(first, FAR)


def head_in_a_far_version(parts: Forged) -> None:
    """The head says that it needs nothing below it, but for what the oldest kept version names."""
    head = parts.packs[parts.move(parts.commits[-1], FAR)]
    head.fixed[forging.PARENT_ID] = head.fixed[forging.PARENT_HASH] = bytes(16)


@pytest.mark.parametrize("change", [alone_in_a_far_version, head_in_a_far_version])
def test_versions_up_to_a_far_one_are_not_counted(forged, tmp_path, change):
    """`verify` looked for each of them, and told of it; `backup` held all their numbers in memory."""
    path = forged(change)
    faults = txstore.Repository(path).verify().faults
    told = [fault for fault in faults if fault.part == "missing"]
    assert [fault.path for fault in told] == [names.commit_path("main", FAR - 1)]
    assert f"{FAR - (1 if change is alone_in_a_far_version else 3):,}".replace(",", "") in told[0].reason
    assert len(faults) < 20
    with pytest.raises(CorruptionError):
        txstore.Repository(path).backup(tmp_path / "copy.tx")
    with pytest.raises(CorruptionError):
        txstore.Repository(path).usage()
    txstore.Repository(path).verify(repair=True)
    assert txstore.Repository(path).head().version == FAR


def test_a_vacuum_does_not_count_the_versions_that_a_record_is_based_on(forged):
    """Down to the base of a transaction, which anybody may write into its record, each version was looked for."""

    def change(parts: Forged) -> None:
        head_in_a_far_version(parts)
        head = parts.packs[parts.commits[-1]]
        head.fixed[forging.OLDEST_KEPT] = FAR
        record = {
            "transaction": "ab" * 16, "branch": "main", "base": [0, "0" * 32], "name": "run-17", "message": None,
            "properties": {}, "durability": "fsync", "owner": "", "time": 0, "isolation": "snapshot",
        }  # fmt: skip
        parts.others[f"{names.STAGING}/{'ab' * 16}.open"] = forging.forge_json(record)
        parts.others[names.named_path("run-17")] = b"ab" * 16

    path = forged(change)
    repo = txstore.Repository(path)
    repo.vacuum()
    assert [commit.version for commit in repo.log()] == [FAR]


@pytest.mark.long
def test_many_runs_that_are_one(forged):
    """Each was opened, and each look-up went through all of them."""

    def change(parts: Forged) -> None:
        head = parts.packs[parts.commits[-1]]
        head.runs = head.runs[:1] * 300_000

    path = forged(change)
    with pytest.raises(CorruptionError, match="a run twice"):
        txstore.Repository(path).mapping()
    assert [fault.part for fault in txstore.Repository(path).verify().faults] == ["header"]


def test_keys_that_unfold(forged):
    """Entries of eight bytes stood for keys of 4,096."""

    def change(parts: Forged) -> None:
        run = parts.packs[parts.commits[-1]].sections[0]
        assert isinstance(run, Run)
        run.entries = [forging.Entry(b"k" * 4093 + b"%03d" % i, 0) for i in range(1000)]
        run.restart_every, run.block_bytes = 1000, 16_000

    path = forged(change)
    with pytest.raises(CorruptionError, match="bad restart points"):
        list(txstore.Repository(path).mapping())
    with pytest.raises(CorruptionError):
        txstore.Repository(path).backup(path.with_name("copy.tx"))
    assert any(fault.part == "run" for fault in txstore.Repository(path).verify().faults)


def test_a_file_of_many_gigabytes_that_takes_no_room(forged):
    """A small file is read as a whole: of one with a hole in it, all of the hole was."""
    path = forged(lambda parts: None)
    (path / "tags").mkdir(exist_ok=True)
    with open(path / "tags/v1", "wb") as file:
        file.truncate(1 << 40)
    repo = txstore.Repository(path)
    with pytest.raises(CorruptionError, match="tags/v1"):
        dict(repo.tags)
    assert [fault.path for fault in repo.verify().faults] == ["tags/v1"]


@pytest.mark.parametrize("count", [32, 2000])
def test_orphans_without_end(forged, count):
    """Each was followed down to where the chain breaks, and so was each below it."""

    def change(parts: Forged) -> None:
        for path in parts.commits[:-1]:
            del parts.packs[path]
        last = parts.packs[parts.move(parts.commits[-1], 10)]
        assert last.fixed is not None
        for version in range(11, 11 + count):
            other = parts.copy_pack(last)
            other.id = other.fixed[forging.ID] = version.to_bytes(16, "little")
            other.fixed[forging.VERSION], other.fixed[forging.SEQ] = version, version + 1
            other.fixed[forging.OPTIONAL] = 1  # not synced: it vouches for nothing
            parts.packs[names.commit_path("main", version)] = other

    repo = txstore.Repository(forged(change))
    watched = watch(repo)
    with pytest.raises(CorruptionError, match="there is version 10, and a commit below it is missing"):
        repo.head()  # it was synced, and vouches for what is gone
    assert 0 < len(watched.named("read_tail")) < 3 * count + 10


# --- transactions that are open, or say that they are
@pytest.fixture
def open_transaction(tmp_path: Path) -> Callable[[Callable[[Forged], object]], txstore.Repository]:
    """Return a repository with a transaction `run-17`, in which a process that died has staged, and a lie about it."""
    repo = txstore.Repository(tmp_path / "true.tx")
    set_keys(repo, {"zarr.json": b'{"zarr_format": 3, "node_type": "group"}'})
    with repo.transaction(name="run-17") as store:
        store["b"] = b"b"

    def made(change: Callable[[Forged], object]) -> txstore.Repository:
        parts = Forged.read(tmp_path / "true.tx")
        change(parts)
        parts.write(tmp_path / "data.tx")
        return txstore.Repository(tmp_path / "data.tx")

    return made


def staged(parts: Forged) -> str:
    return next(path for path in parts.packs if path.startswith(names.STAGING))


@pytest.mark.parametrize(
    "about",
    [
        {"pid": "1e400"},
        {"pid": 1e400},
        {"pid": None, "host": []},
        {"pid": 10**400},
        {"locks": 10**30},
        {"locks": 2},
        [],
    ],
)
def test_what_a_process_says_of_itself(open_transaction, about):
    def change(parts: Forged) -> None:
        parts.packs[staged(parts)].frames[0].value = json.dumps(about).encode()

    repo = open_transaction(change)
    (found,) = repo.transactions()
    assert all(isinstance(each.pid, int) and isinstance(each.host, str) for each in found.participants)
    with repo.transaction(name="run-17") as store, store.lock("", METADATA):
        assert store["b"] == b"b"
    assert repo.transaction(name="run-17").commit() is not None


def test_a_frame_of_a_process_that_says_it_has_no_end(open_transaction):
    """Room was made for its value before that was read."""

    def change(parts: Forged) -> None:
        parts.packs[staged(parts)].frames[-2].length = 1 << 62

    repo = open_transaction(change)
    assert [found.name for found in repo.transactions()] == ["run-17"]
    repo.transaction(name="run-17").rollback()


@pytest.mark.parametrize("number", [65_535, 65_536, 1 << 32, 10**200])
def test_the_last_participant_that_there_can_be(open_transaction, number):
    """The next had a number that no pack can have."""

    def change(parts: Forged) -> None:
        path = staged(parts)
        pack = parts.packs.pop(path)
        transaction = path.rpartition("/")[2].partition(".")[0]
        pack.number = number % (1 << 32)
        pack.id = packfile.participants_pack(bytes.fromhex(transaction), pack.number)
        parts.packs[f"{names.STAGING}/{transaction}.{number}"] = pack

    repo = open_transaction(change)
    if number < 1 << 32:
        with pytest.raises(txstore.TransactionStateError, match="can be no more"):
            repo.transaction(name="run-17")
    else:  # it is no name of a pack
        repo.transaction(name="run-17").rollback()
    repo.usage()
    repo.vacuum()
    repo.verify()


def test_a_transaction_that_was_begun_at_no_time(open_transaction):
    def change(parts: Forged) -> None:
        (path,) = (path for path in parts.others if path.endswith(".open"))
        parts.others[path] = forging.forge_json(json.loads(parts.others[path]) | {"time": (1 << 63) - 1})

    repo = open_transaction(change)
    with pytest.raises(CorruptionError, match="no time that makes sense"):
        repo.transactions()
    assert [fault.part for fault in repo.verify().faults] == ["staging"]


# --- what beside these was found by tests/fuzz/hostile.py
def test_a_data_pack_that_is_not_there(forged, tmp_path):
    def change(parts: Forged) -> None:
        head = parts.packs[parts.commits[-1]]
        head.set(forging.PACKS, forging.forge_data_packs([commitfile.DataPack(packfile.PackName(bytes(16)), 64)]))

    path = forged(change)
    with pytest.raises(CorruptionError, match=f"{names.data_pack_path(bytes(16))}.*missing"):
        txstore.Repository(path).backup(tmp_path / "copy.tx")


def test_a_data_pack_that_is_listed_many_times(forged):
    """It was checked as often: in a header, and in those of many commits."""

    def change(parts: Forged) -> None:
        pack = commitfile.DataPack(packfile.PackName(bytes(16)), 64)
        parts.packs[parts.commits[-1]].set(forging.PACKS, forging.forge_data_packs([pack] * 500))
        for path in parts.commits[:-1]:
            parts.packs[path].set(forging.PACKS, forging.forge_data_packs([pack]))

    path = forged(change)
    faults = txstore.Repository(path).verify().faults
    assert any("lists a data pack twice" in fault.reason for fault in faults)
    assert sum("so does commits/main/0000000000" in fault.reason for fault in faults) == 1


# --- documents
ARRAY = (
    '{"zarr_format": 3, "node_type": "array", "shape": %s, "data_type": "int64", "fill_value": 0, '
    '"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": %s}}, "attributes": %s, '
    '"chunk_key_encoding": {"name": "default"}, "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]}'
)
DEEP = "[" * 3000 + "]" * 3000


@pytest.mark.parametrize(
    "document",
    [ARRAY % ([10**400], [1], "{}"), ARRAY % ([4], [0], "{}"), ARRAY % ([4, 4], [1], "{}"), ARRAY % ([4], [2], DEEP),
     DEEP, ARRAY % ("[1e400]", [1], "{}"), '"\\ud800"', "\ufeff{}"],
    ids=range(8),
)  # fmt: skip
def test_documents_that_are_absurd(tmp_path, document):
    """What is done with them by us ends in an answer, or in an error of ours."""
    repo = txstore.Repository(tmp_path / "data.tx")
    for i in range(2):
        with repo.transaction() as store:
            store["zarr.json"] = b'{"zarr_format": 3, "node_type": "group"}'
            store["x/zarr.json"] = document.encode() + b" " * i
            store["x/c/0"] = b"%d" % i * 100
    repo.tags["v1"] = 1
    with repo.transaction() as one:  # it is asked what the other has changed of the array
        one["x/c/1"] = b"one"
        set_keys(repo, {"x/zarr.json": document.encode(), "x/c/2": b"other"})
        with contextlib.suppress(txstore.ConflictError):
            one.commit()
        one.rollback()
    assert set(repo.usage().arrays) <= {"", "x"}
    kinds = (EqualLength(["x", "x/y"]), Fixed("x"), OnlyGrows("x"), Complete("x"), Unique("x"), Sorted("x"))
    for constraint in kinds:
        with contextlib.suppress(txstore.TxStoreError):
            repo.constraints["c"] = constraint
    copies = (
        lambda: repo.export(tmp_path / "plain.zarr"),
        lambda: repo.publish(tmp_path / "published.zarr"),
        lambda: repo.references(tmp_path / "x.json", tag="v1"),
        lambda: repo.references(tmp_path / "x.parquet", tag="v1"),
    )
    for copy in copies:
        with contextlib.suppress(txstore.ExportError):
            copy()
    copied = txstore.Repository(tmp_path / "copy.tx")
    copied.import_from(tmp_path / "plain.zarr")
    assert copied.mapping()["x/zarr.json"] == repo.mapping()["x/zarr.json"]


def test_keys_of_thousands_of_segments(tmp_path):
    """What had changed above them was asked by one call in another for each segment."""
    repo = txstore.Repository(tmp_path / "data.tx")
    key = "a/" * 2000 + "c"
    set_keys(repo, {key: b"1"})
    with repo.transaction() as one:
        one[key + "/d"] = b"one"
        set_keys(repo, {"b": b"other"})
    assert repo.mapping()[key + "/d"] == b"one"
    assert repo.usage().arrays[""].keys == 3


def test_a_value_behind_the_end_of_all_files(forged, tmp_path):
    def change(parts: Forged) -> None:
        for path in parts.commits:
            for run in parts.packs[path].sections:
                for entry in run.entries if isinstance(run, Run) else ():
                    entry.of, entry.offset, entry.length = None, (1 << 64) - 8, 1000

    repo = txstore.Repository(forged(change))
    repo.tags["v1"] = 2
    with pytest.raises(CorruptionError, match="no file is so long"):
        repo.references(tmp_path / "x.json", tag="v1")
    with pytest.raises(CorruptionError):
        bytes(repo.mapping()["a/c/0"])
    assert repo.verify().faults


def test_what_a_commit_carries_can_be_read(tmp_path):
    """Who commits is told before the work is done, not who reads."""
    repo = txstore.Repository(tmp_path / "data.tx")
    deep: list = []
    for _ in range(100):
        deep = [deep]
    for properties, error in (
        ({"a": deep}, TypeError),
        ({"a": "x" * (1 << 20)}, ValueError),
        ({"a": "\ud800"}, TypeError),
    ):
        with pytest.raises(error):
            repo.transaction(properties=properties)
    with pytest.raises(ValueError, match="at most 1048576"):
        repo.transaction("x" * (1 << 20))
    set_keys(repo, {"a": b"a"}, "x" * 1000, properties={"a": deep[0][0], "b": "y" * 1_000_000})
    assert repo.head().properties["a"] == deep[0][0]
