"""A pack with a compacted run, which a header lists: it is checked, repaired, counted, swept, copied and erased."""

import gc
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import txstore
from tests.fuzz.forging import Forged
from tests.tools.compaction_outputs import listed, outputs_of
from tests.tools.upkeep import content, put, tree
from tests.vectors.make import REPOSITORIES
from txstore.errors import ErasedError
from txstore.format import names, packfile
from txstore.maintenance import optimize as optimizing

GROUP = b'{"zarr_format": 3, "node_type": "group"}'
SECRET = random.Random(1).randbytes(60)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Versions 0 to 2 have runs of their own; version 3 sets a key, and lists them as one; version 4 is above it."""
    return Path(shutil.copytree(REPOSITORIES / "compaction-output.tx", tmp_path / "data.tx"))


@pytest.fixture
def repo(path: Path) -> txstore.Repository:
    return txstore.Repository(path)


@pytest.fixture
def file(repo: txstore.Repository) -> Path:
    [found] = outputs_of(repo)
    return Path(repo.url, found)


@pytest.fixture
def secret(open_repo: Callable[..., txstore.Repository]) -> txstore.Repository:
    """A repository whose head lists a pack with all runs that lead to `SECRET`."""
    repo = open_repo()
    for number in range(2):
        with repo.begin() as mapping:
            mapping["s/zarr.json"] = GROUP
            for key in range(30):
                mapping[f"k/{number}/c/{key}"] = b"kept"
                mapping[f"s/{number}/c/{key}"] = SECRET
    with listed():
        put(repo, {"small": b"1"})
    assert outputs_of(repo)
    return repo


def overwrite(file: Path, offset: int, content: bytes) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[:offset] + content + whole[offset + len(content) :])


def run_in(file: Path) -> tuple[int, int]:
    frame = packfile.decode_frame(memoryview(file.read_bytes()), packfile.HEAD_SIZE)
    return frame.offset, frame.length


def zero_run(file: Path) -> None:
    offset, length = run_in(file)
    overwrite(file, offset, bytes(length))


def reopened(repo: txstore.Repository) -> txstore.Repository:
    return txstore.Repository(repo.url)


def leaks(repo: txstore.Repository) -> list[str]:
    files = (path for path in Path(repo.url).rglob("*") if path.is_file())
    return [str(path) for path in files if SECRET[10:50] in path.read_bytes()]


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "head": (lambda file: overwrite(file, 0, bytes(64)), "head"),
    "frame": (lambda file: overwrite(file, 64, b"\xff" * 32), "frame"),
    "padding": (lambda file: overwrite(file, sum(run_in(file)), b"\1"), "padding"),
    "run": (zero_run, "run"),
    "one byte of the run": (lambda file: overwrite(file, run_in(file)[0] + 50, b"\xff"), "run"),
    "all of it": (Path.unlink, "missing"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_found_and_made_anew_byte_for_byte(repo, file, damage):
    before, model = file.read_bytes(), content(repo)
    act, part = DAMAGES[damage]
    act(file)
    faults = reopened(repo).verify().faults
    assert {(fault.path, fault.part) for fault in faults} == {(str(file.relative_to(repo.url)), part)}
    if part not in ("padding", "frame"):  # nothing is read by these
        assert repo.head().id in faults[0].commits
    report = reopened(repo).verify(repair=True)
    assert report.ok
    assert report.repairs
    assert file.read_bytes() == before
    assert content(reopened(repo)) == model


def test_each_run_of_a_commit_that_lists_one_is_made_anew(repo):
    """One commit replaces two groups of runs: one by a run in its own file, one by a pack."""
    put(repo, {"d": b"4"})
    put(repo, {"e": b"5"})
    with listed(newer=2):
        put(repo, {"f": b"6"})
    stored, model = repo.engine.commits.head(), content(repo)
    assert len(stored.header.sections) == 2
    own, merged, output, *_ = stored.header.runs
    for run, path in ((own, stored.path), (merged, stored.path), (output, output.pack.path)):
        file = Path(repo.url, path)
        before = file.read_bytes()
        overwrite(file, run.offset, bytes(run.length))
        assert [fault.part for fault in reopened(repo).verify().faults] == ["run"]
        assert reopened(repo).verify(repair=True).ok
        assert file.read_bytes() == before
    assert content(reopened(repo)) == model


def test_without_the_header_that_lists_what_it_was_merged_of_it_stays_damaged(repo, file):
    assert repo.vacuum(keep=2).oldest_kept == 3
    zero_run(file)
    for report in (reopened(repo).verify(), reopened(repo).verify(repair=True)):
        assert {fault.part for fault in report.faults} == {"run"}
    with pytest.raises(txstore.CorruptionError):
        dict(reopened(repo).mapping())


def test_one_that_is_missing_is_told_although_the_commit_that_brought_it_has_expired(repo, file):
    assert repo.vacuum(keep=1).oldest_kept == 4
    file.unlink()
    assert str(file.relative_to(repo.url)) in {fault.path for fault in reopened(repo).verify().faults}


def test_a_header_that_does_not_agree_with_its_packs_is_told(path, tmp_path):
    def reasons(forged: Forged, name: str) -> set[str]:
        forged.write(tmp_path / name)
        return {fault.reason for fault in txstore.Repository(tmp_path / name).verify().faults}

    forged = Forged.read(path)
    for pack in forged.packs.values():
        pack.runs = [run for run in pack.runs if run.name.pack is None or run.name.pack.branch is not None]
    assert "the header does not list this run" in reasons(forged, "unlisted.tx")
    forged = Forged.read(path)
    [output] = [pack for name, pack in forged.packs.items() if name.startswith(names.PACKS)]
    output.frames[0].kind = packfile.FRAME_SEAL
    assert "the header lists a run where no frame holds one" in reasons(forged, "sealed.tx")


def test_it_is_counted_as_history(repo):
    usage = repo.usage()
    packed = sum(size for path, size in tree(repo).items() if path.startswith(("commits/", "packs/")))
    assert usage.live + usage.history + usage.overwritten == packed
    assert usage.orphan == usage.staged == 0


def test_optimize_copies_no_value_of_it_and_a_vacuum_deletes_it_with_the_last_commit_that_lists_it(repo, file):
    model, snapshot = content(repo), repo.engine.snapshots.newest("main")
    uses = optimizing.uses_of(snapshot)
    [use] = [use for name, use in uses.items() if name.path in outputs_of(repo)]
    assert (use.values, use.live, use.length) == (0, 0, file.stat().st_size)
    assert use.runs > 0
    assert use.name not in optimizing.small_or_wasteful(uses, optimizing.SMALL_PACK)
    del snapshot
    repo.vacuum(keep=1)
    assert file.exists()
    repo.optimize()
    assert outputs_of(repo) == []
    repo.vacuum(keep=2)
    assert file.exists()  # an older commit lists it
    repo.vacuum(keep=1)
    put(repo, {"more": b"1"})
    repo.vacuum(keep=1)
    assert not file.exists()
    assert content(reopened(repo)) == model | {"more": b"1"}


def test_a_backup_copies_it_once(repo, file, tmp_path):
    copy = tmp_path / "copy"
    repo.backup(copy)
    there = copy / file.relative_to(repo.url)
    assert there.read_bytes() == file.read_bytes()
    number = there.stat().st_ino
    put(repo, {"more": b"1"})
    assert repo.backup(copy).files == 1
    assert there.stat().st_ino == number
    assert content(txstore.Repository(copy)) == content(repo)
    assert txstore.Repository(copy).verify().faults == []


def test_what_its_run_leads_to_is_erased(secret, tmp_path):
    file, version = Path(secret.url, *outputs_of(secret)), secret.head().version
    secret.backup(tmp_path / "copy")
    before = file.read_bytes()
    assert secret.erase("s").values == 2 * 30 + 1
    after = file.read_bytes()
    assert len(after) == len(before)
    assert after != before
    assert after[:128] == before[:128]  # its frame needs no other checksum
    zero_run(file)
    assert reopened(secret).verify(repair=True).ok
    assert file.read_bytes() == after
    secret.backup(tmp_path / "copy", erase=True)
    for each in (reopened(secret), txstore.Repository(tmp_path / "copy")):
        assert leaks(each) == []
        assert each.verify().faults == []
        mapping = each.mapping(at=version)
        with pytest.raises(ErasedError):
            mapping["s/0/c/7"]
        assert bytes(mapping["k/0/c/7"]) == b"kept"
        assert not [key for key in mapping if key.startswith("s/")]


def test_a_value_that_was_moved_is_found_by_it(secret):
    """What it alone leads to under another name is not erased."""
    with secret.begin() as mapping:
        mapping.nodes.copy("s", "t", secret.mapping())
    with listed():
        brought = put(secret, {"small": b"2"}).version
    del mapping
    gc.collect()
    assert secret.vacuum(keep=1).oldest_kept == brought
    with pytest.raises(txstore.ErasureError, match="'t/0'"):
        secret.erase("s")
