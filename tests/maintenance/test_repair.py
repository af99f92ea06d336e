"""What `verify(repair=True)` restores, what it can't, and that it harms nothing whatever happens meanwhile."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import txstore
from tests.maintenance import small
from tests.maintenance.test_backup import Dying, Killed, contents_of, put
from tests.tools.disk import tree
from txstore.commit import MAIN
from txstore.format import commitfile, encoding, names, packfile
from txstore.history.opening import open_commits, open_storage
from txstore.maintenance.repair import verify_and_repair
from txstore.maintenance.report import Report
from txstore.maintenance.verify import verify
from txstore.storage.local import LocalStorage

LAST = 5


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> tuple[Path, small.Contents]:
    path = tmp_path_factory.mktemp("written") / "data.tx"
    return path, small.build(path)


@pytest.fixture
def path(written, tmp_path) -> Path:
    shutil.copytree(written[0], tmp_path / "data.tx")
    commits = txstore.Repository(tmp_path / "data.tx").engine.commits
    commits.store.head_caches.write(commits.head(), durable=True)
    return tmp_path / "data.tx"


def repaired(path: Path) -> Report:
    return verify_and_repair(open_storage(path))


def commit_file(path: Path, version: int) -> Path:
    return path / names.commit_path(MAIN, version)


def stored_in(path: Path, version: int):
    stored = open_commits(open_storage(path)).files.read(MAIN, version)
    assert stored is not None
    return stored


def overwrite(file: Path, offset: int, content: bytes) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[:offset] + content + whole[offset + len(content) :])


def quarantined(path: Path) -> dict[str, bytes]:
    root = path / names.QUARANTINE
    return {str(f.relative_to(root)): f.read_bytes() for f in root.rglob("*") if f.is_file()}


def test_a_repository_that_is_well_is_not_changed(path):
    def state() -> dict[str, tuple[int, int]]:
        return {str(f): (f.stat().st_mtime_ns, f.stat().st_ino) for f in path.rglob("*")}

    before = state(), tree(path)
    report = txstore.Repository(path).verify(repair=True)
    assert (report.ok, report.repairs, report.repaired) == (True, [], [])
    assert (state(), tree(path)) == before


def runs_of(path: Path) -> list[tuple[int, int, int]]:
    return [
        (version, section.offset, section.length)
        for version in range(LAST + 1)
        for section in stored_in(path, version).header.sections
    ]


def test_every_run_is_rebuilt_byte_for_byte(written, path):
    found = runs_of(path)
    assert len(found) > LAST + 1  # merged ones, too
    for version, offset, length in found:
        file = commit_file(path, version)
        whole = file.read_bytes()
        overwrite(file, offset, bytes(length))
        damaged = file.read_bytes()
        report = repaired(path)
        assert report.ok, (version, offset)
        assert [fault.part for fault in report.repaired] == ["run"]
        assert file.read_bytes() == whole
        assert damaged in quarantined(path).values()
    assert contents_of(path) == written[1]


def test_a_fault_tells_the_commits_that_it_touches(path):
    ids = [commit.id for commit in txstore.Repository(path).log()][::-1]
    file = commit_file(path, 0)
    overwrite(file, file.read_bytes().index(b"zero"), b"ZERO")  # a/c/0, which version 1 writes anew
    (fault,) = txstore.Repository(path).verify().faults
    assert (fault.part, fault.key, fault.commits, fault.commit_count) == ("value", "a/c/0", (ids[0],), 1)
    overwrite(file, file.read_bytes().index(b"oneone"), b"ONE")
    second = txstore.Repository(path).verify().faults[1]
    assert (second.key, second.commits, second.commit_count) == ("a/c/1", tuple(ids), LAST + 1)
    overwrite(file, 8, b"\xff")  # the head: nothing in the pack can be read
    assert max(fault.commit_count for fault in txstore.Repository(path).verify().faults) == LAST + 1


def test_at_most_ten_commits_are_told(tmp_path):
    repo = txstore.Repository(tmp_path / "data.tx", durability="none")
    for number in range(30):
        put(repo, "kept" if number == 0 else "other", b"%d" % number)
    file = commit_file(tmp_path / "data.tx", 0)
    overwrite(file, file.read_bytes().index(b"kept") + 4, b"X")
    (fault,) = repo.verify().faults
    assert (len(fault.commits), fault.commit_count) == (10, 30)
    assert "20 more" in str(fault)


def test_a_run_and_a_value_of_one_pack(path):
    """The run is rebuilt from frames; the value's checksum is in its frame, so the key stays, and is an error."""
    file = commit_file(path, 0)
    overwrite(file, file.read_bytes().index(b"oneone"), b"ONE")
    section = stored_in(path, 0).header.sections[0]
    overwrite(file, section.offset, bytes(section.length))
    report = repaired(path)
    assert [(fault.part, fault.key) for fault in report.faults] == [("value", "a/c/1")]
    with pytest.raises(txstore.CorruptionError):
        txstore.Repository(path).mapping()["a/c/1"]
    assert bytes(txstore.Repository(path).mapping()["a/c/0"]) == b"nought"


@pytest.mark.parametrize("how", ["head", "padding", "frame", "several frames", "torn frame"])
def test_parts_of_packs(written, path, how):
    file = commit_file(path, 0)
    before = file.read_bytes()
    first = packfile.HEAD_SIZE
    if how == "head":
        overwrite(file, 0, os.urandom(64))
    elif how == "padding":
        overwrite(file, before.index(b"oneone") - 3, b"abc")
    elif how == "torn frame":
        overwrite(file, first, os.urandom(40))
    else:
        second = packfile.decode_frame(memoryview(before), first).end
        for start in (first, second) if how == "several frames" else (first,):
            overwrite(file, start + 9, bytes([before[start + 9] ^ 16]))
    report = repaired(path)
    if how == "torn frame":  # nothing is read by it; a backup has the file
        assert [fault.part for fault in report.faults] == ["frame"]
        assert report.repairs == []
        assert contents_of(path) == written[1]
        return
    assert report.ok
    assert {fault.part for fault in report.repaired} == {how.split()[-1].removesuffix("s")}
    assert contents_of(path) == written[1]
    stored = stored_in(path, 0)
    overwrite(file, stored.header.sections[0].offset, bytes(stored.header.sections[0].length))
    assert repaired(path).ok  # the frames that were restored are good for a run
    assert contents_of(path) == written[1]


def _header_of(path: Path) -> tuple[int, int]:
    footer = stored_in(path, LAST).footer
    return footer.header_offset, footer.header_length


def _cut_footer(file: Path, offset: int, length: int) -> None:
    overwrite(file, offset + length, bytes(64))


def _turn_a_bit(file: Path, offset: int, length: int) -> None:
    overwrite(file, offset + 20, bytes([file.read_bytes()[offset + 20] ^ 1]))


def _append(file: Path, offset: int, length: int) -> None:
    file.write_bytes(file.read_bytes() + bytes(100))


@pytest.mark.parametrize("damage", [_cut_footer, _turn_a_bit, _append])
def test_a_head_whose_end_is_damaged_is_rebuilt(written, path, damage: Callable[[Path, int, int], None]):
    file = commit_file(path, LAST)
    damage(file, *_header_of(path))
    damaged = file.read_bytes()
    with pytest.raises(txstore.CorruptionError):
        txstore.Repository(path).mapping()
    report = repaired(path)
    assert report.ok
    assert [repair.path for repair in report.repairs] == [names.commit_path(MAIN, LAST)]
    assert contents_of(path) == written[1]
    assert damaged in quarantined(path).values()
    put(txstore.Repository(path), "more")
    assert txstore.Repository(path).verify().ok


@pytest.mark.parametrize("length", [0, 1, 63, 64, 100, 130, None])
def test_a_torn_head_is_moved_away(written, path, length):
    """No header is made for it, although its frames and its run may be whole."""
    file, (offset, header_length) = commit_file(path, LAST), _header_of(path)
    file.write_bytes(file.read_bytes()[: offset + header_length // 2 if length is None else length])
    report = repaired(path)
    assert ["was durable here" in fault.reason for fault in report.faults] == [True]  # it is lost: said once
    assert f"the head is version {LAST - 1} again" in report.repairs[0].action
    assert verify(open_commits(open_storage(path))).ok
    assert contents_of(path) == written[1][:LAST]
    assert f"commits/main/{LAST:010d}" in quarantined(path)


def test_a_torn_head_of_a_copy_is_moved_away_and_told(written, path):
    """Its head cache says that the commit was durable where the copy was made."""
    copy = shutil.copytree(path, path.with_name("copy.tx"))
    file = commit_file(copy, LAST)
    file.write_bytes(file.read_bytes()[:100])
    report = repaired(copy)
    assert not report.ok
    assert ["was durable and is lost" in fault.reason for fault in report.faults] == [True]
    assert contents_of(copy) == written[1][:LAST]


def test_a_header_that_its_footer_contradicts_is_never_made_right_by_another_footer(written, path):
    """Its message has two wrong bits. The header has no checksum of its own: the footer's is all that tells."""
    file = commit_file(path, LAST)
    overwrite(file, file.read_bytes().rindex(b"last"), b"LASt")
    report = repaired(path)
    assert ["was durable here" in fault.reason for fault in report.faults] == [True]
    assert txstore.Repository(path).head().message == "fifth"


def test_commits_that_a_power_loss_has_torn(tmp_path):
    """With durability="none" any of the newest may be torn: the newest that is whole is the head again."""
    path = tmp_path / "data.tx"
    put(txstore.Repository(path), "durable")
    repo = txstore.Repository(path, durability="none")
    for number in range(4):
        put(repo, f"key{number}")
    file = commit_file(path, 2)
    file.write_bytes(bytes(len(file.read_bytes())))
    (path / "heads/main").unlink()
    report = repaired(path)
    assert report.ok
    assert txstore.Repository(path).head().version == 1
    assert sorted(quarantined(path)) == [f"commits/main/{version:010d}" for version in (2, 3, 4)]


def test_a_torn_run_of_a_commit_that_was_not_synced(tmp_path):
    path = tmp_path / "data.tx"
    put(txstore.Repository(path), "durable")
    repo = txstore.Repository(path, durability="none")
    for number in range(3):
        put(repo, f"key{number}")
    file, stored = commit_file(path, 2), stored_in(path, 2)
    overwrite(file, packfile.HEAD_SIZE, bytes(stored.footer.header_offset - packfile.HEAD_SIZE))
    report = repaired(path)
    assert report.ok
    assert txstore.Repository(path).head().version == 1


def test_a_synced_commit_is_not_given_up_for_a_damaged_one_below_it(written, path):
    file, stored = commit_file(path, 2), stored_in(path, 2)
    overwrite(file, packfile.HEAD_SIZE, bytes(stored.footer.header_offset - packfile.HEAD_SIZE))
    report = repaired(path)
    assert not report.ok
    assert txstore.Repository(path).head().version == LAST
    for key, value in written[1][LAST].items():
        with contextlib.suppress(txstore.CorruptionError):
            assert bytes(txstore.Repository(path).mapping()[key]) == value


def test_a_header_in_the_middle_that_is_lost(written, path):
    offset, length = stored_in(path, 3).footer.header_offset, stored_in(path, 3).footer.header_length
    overwrite(commit_file(path, 3), offset + 8, os.urandom(length - 8))
    report = repaired(path)
    assert [(fault.path, fault.part) for fault in report.faults] == [(names.commit_path(MAIN, 3), "header")]
    assert {key: bytes(value) for key, value in txstore.Repository(path).mapping().items()} == written[1][LAST]


def test_a_header_in_the_middle_is_restored_if_the_next_commit_proves_it(written, path):
    file, footer = commit_file(path, 3), stored_in(path, 3).footer
    before = file.read_bytes()
    end = footer.header_offset + footer.header_length
    overwrite(file, end, bytes(64))
    assert repaired(path).ok
    assert file.read_bytes() == before
    overwrite(file, before.index(b"delete"), b"dELete")  # the message
    overwrite(file, end, bytes(64))
    report = repaired(path)
    assert [(fault.path, fault.part) for fault in report.faults] == [(names.commit_path(MAIN, 3), "header")]
    assert report.repairs == []


def test_small_files(written, path):
    contents = {name: (path / name).read_bytes() for name in ("format.json", "zarr.json", "heads/main", "tags/v1")}
    (path / "format.json").unlink()
    (path / "zarr.json").write_bytes(b"{}")
    (path / "heads/main").write_bytes(b"x" * 64)
    overwrite(path / "tags/v1", 12, b"\xff\xff")
    report = repaired(path)
    assert report.ok
    for name in ("format.json", "zarr.json", "tags/v1"):
        assert (path / name).read_bytes() == contents[name], name
    assert {"zarr.json", "heads/main", "tags/v1"} <= set(quarantined(path))
    assert contents_of(path) == written[1]


def test_a_tag_of_which_nothing_is_left(path):
    (path / "tags/v1").write_bytes(bytes(40))
    assert [fault.part for fault in repaired(path).faults] == ["tag"]
    with pytest.raises(txstore.CorruptionError):
        txstore.Repository(path).mapping(tag="v1")


def test_what_does_not_belong_here(written, path):
    put(txstore.Repository(path), "orphan")
    shutil.copy(commit_file(path, LAST + 1), path / "orphan")
    commit_file(path, LAST + 1).unlink()
    (path / names.head_cache_path(MAIN)).unlink()  # it tells of the loss
    put(Fresh(path), "true")
    overwrite(path / "orphan", 0, b"")
    os.rename(path / "orphan", commit_file(path, LAST + 3))
    for name in ("notes.txt", "commits/main/x", "tags/-", "packs/zz", "heads/other"):
        (path / name).write_text("mine")
    (path / "position").mkdir()
    (path / "position/zarr.json").write_text("{}")
    (path / ".nfs0001").write_text("")
    report = repaired(path)
    assert report.ok
    assert list(quarantined(path)) == [f"commits/main/{LAST + 3:010}"]
    strays = {"notes.txt", "commits/main/x", "tags/-", "packs/zz", "heads/other", "position", ".nfs0001"}
    assert set(report.strays) == strays
    assert all((path / name).exists() for name in strays)
    assert bytes(txstore.Repository(path).mapping()["true"]) == b"value"


def Fresh(path: Path) -> txstore.Repository:
    return txstore.Repository(path)


def test_a_newer_format_is_left_alone(path):
    file = commit_file(path, LAST)
    content = bytearray(file.read_bytes())
    footer = commitfile.Footer.decode(bytes(content[-64:]))
    header = bytearray(content[footer.header_offset : -64])
    header[8] = 128  # a required feature
    new = commitfile.Footer(
        len(header), footer.header_offset, len(content), footer.pack_id, encoding.crc32c(bytes(header))
    )
    file.write_bytes(bytes(content[: footer.header_offset]) + bytes(header) + new.encode())
    before = tree(path)
    with pytest.raises(txstore.UnsupportedFormatError):
        repaired(path)
    assert tree(path) == before


def test_a_disk_that_can_not_be_read_is_no_damage(path, monkeypatch):
    before = tree(path)
    real = LocalStorage.read_tail

    def failing(self, name, length):
        if name.endswith(f"{LAST}"):
            raise OSError(5, "Input/output error", name)
        return real(self, name, length)

    monkeypatch.setattr(LocalStorage, "read_tail", failing)
    with pytest.raises(OSError, match="Input/output"):
        repaired(path)
    monkeypatch.undo()
    assert tree(path) == before


@pytest.mark.long
def test_a_repair_that_is_killed_is_run_again(written, path, tmp_path):
    for version, offset, length in runs_of(path):
        overwrite(commit_file(path, version), offset, bytes(length))
    overwrite(commit_file(path, LAST), _header_of(path)[0] + sum(_header_of(path)), bytes(10))
    overwrite(commit_file(path, 1), 0, bytes(64))
    (path / "format.json").write_text("{")
    (path / "notes").write_text("mine")
    overwrite(path / "tags/v1", 9, b"\xff")
    damaged = tmp_path / "damaged"
    shutil.copytree(path, damaged)
    rounds = 0
    for step in range(1000):
        work = tmp_path / "work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(damaged, work)
        Dying.left = 7 * step
        try:
            verify_and_repair(Dying(str(work)))
        except Killed:
            rounds += 1
        else:
            break
        Dying.left = 1 << 60
        for _ in range(2):
            report = repaired(work)
        assert report.ok, (step, [str(fault) for fault in report.faults])
        assert contents_of(work) == written[1]
    Dying.left = 1 << 60
    assert rounds > 5


@pytest.mark.parametrize("left", [2, 1, 0], ids=["the newest", "two", "all"])
def test_nobody_reads_or_writes_an_older_state_where_the_newest_commit_is_gone(tmp_path, left):
    """Until a repair goes on from the newest one that is left. The loss stays on record."""
    path = tmp_path / "data.tx"
    for key in ("a", "b", "c"):
        put(Fresh(path), key)
    head = Fresh(path).head()
    for version in range(left, 3):
        commit_file(path, version).unlink()
    before = tree(path)
    for use in (
        txstore.Repository.head,
        txstore.Repository.log,
        txstore.Repository.mapping,
        lambda repo: put(repo, "d"),
    ):
        with pytest.raises(txstore.CorruptionError, match=f"{head.id} was durable in this version and is not there"):
            use(Fresh(path))
    assert tree(path) == before
    assert [fault.part for fault in Fresh(path).verify().faults] == ["missing"]
    assert [head.id in fault.reason for fault in repaired(path).faults] == [True]
    assert sorted(Fresh(path).mapping()) == ["a", "b", "c"][:left]
    put(Fresh(path), "more")
    assert Fresh(path).verify().ok
    (repair,) = [each for each in Fresh(path).log(operations=True) if each.operation == "repair"]
    assert head.id in str(repair.result["lost"])


@pytest.mark.parametrize("has_header", [True, False])
@pytest.mark.parametrize("has_head_cache", [True, False])
def test_a_file_of_another_version_is_no_commit(written, path, has_header, has_head_cache):
    """No header is made for it: the state that it says would be one that never was."""
    head = txstore.Repository(path).head()
    shutil.copy(commit_file(path, 2), commit_file(path, LAST))
    if not has_header:
        footer = stored_in(path, 2).footer
        overwrite(commit_file(path, LAST), footer.header_offset, bytes(footer.header_length))
    if not has_head_cache:
        (path / names.head_cache_path(MAIN)).unlink()
    content = commit_file(path, LAST).read_bytes()
    report = repaired(path)
    assert [head.id in fault.reason for fault in report.faults] == [True] * has_head_cache
    assert contents_of(path) == written[1][:LAST]
    assert quarantined(path)[f"commits/main/{LAST:010d}"] == content


def test_verify_reads_a_repository_that_only_others_may_write(path):
    assert verify(open_commits(open_storage(path))).ok


def test_a_head_cache_of_another_commit_in_a_version_does_no_harm_to_the_one_that_is_there(path):
    """The other one is missing, which says nothing against this one."""
    commits = txstore.Repository(path).engine.commits
    head = commits.head()
    whole = commit_file(path, LAST).read_bytes()
    head_cache = replace(commits.store.head_caches.of(head, durable=True), commit_id=b"other commit id.")
    (path / names.head_cache_path(MAIN)).write_bytes(head_cache.encode())
    repaired(path)
    assert commit_file(path, LAST).read_bytes() == whole


def test_the_head_of_a_file_that_has_expired_and_is_read_by_a_tagged_commit(repo):
    """Readers refused the file, and no check looked at its head."""
    for number in range(4):
        with repo.begin() as tx:
            tx[f"k{number}"] = b"value"
        if number == 1:
            repo.tags["v1"] = repo.head()
    repo.vacuum(keep=1)
    path = Path(repo.url, "commits/main/0000000000")
    path.write_bytes(b"?" + path.read_bytes()[1:])
    damaged = txstore.Repository(repo.url)
    assert [(fault.part, fault.path) for fault in damaged.verify().faults] == [("head", "commits/main/0000000000")]
    assert damaged.verify(repair=True).ok
    assert damaged.mapping(at="v1")["k0"] == b"value"
