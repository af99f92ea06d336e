"""Compaction outputs in the hands of those who check, repair, count, copy, erase and sweep."""

from __future__ import annotations

import gc
import itertools
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import txstore
from tests import aside
from tests.aside import fill, installed, some
from tests.maintenance.upkeep import content, put, staged, tree
from tests.system.processes.steps import BeforeEach, forked, status_of
from tests.transactions.faults import watch
from txstore.errors import ErasedError
from txstore.format import names, packfile
from txstore.history.publisher import Publisher
from txstore.maintenance import backup
from txstore.maintenance import optimize as optimizing
from txstore.maintenance.report import Fault
from txstore.segments.runs import find_runs


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    aside.inline(monkeypatch)


@pytest.fixture
def repo(inline: None, open_repo: Callable[..., txstore.Repository]) -> txstore.Repository:
    return open_repo()


@pytest.fixture
def apart(inline: None, tmp_path: Path) -> txstore.Repository:
    """One that need not be whole in the end."""
    return txstore.Repository(tmp_path / "apart.tx")


def grown(repo: txstore.Repository) -> dict[str, bytes]:
    """Fill a repository until its head has installed a compaction output."""
    model = fill(repo, 0) | fill(repo, 1) | fill(repo, 2)
    put(repo, {"small": b"1"})
    assert installed(repo)
    return model | {"small": b"1"}


@pytest.fixture
def model(repo: txstore.Repository) -> dict[str, bytes]:
    return grown(repo)


@pytest.fixture
def file(repo: txstore.Repository, model: dict[str, bytes]) -> Path:
    """The compaction output that the head lists."""
    [path] = installed(repo)
    return Path(repo.url, path)


def overwrite(file: Path, offset: int, content: bytes) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[:offset] + content + whole[offset + len(content) :])


def faults(repo: txstore.Repository) -> list[Fault]:
    return txstore.Repository(repo.url).verify().faults


def reopened(repo: txstore.Repository) -> txstore.Repository:
    return txstore.Repository(repo.url)


# --- checking, and repairing


def run_at(file: Path) -> tuple[int, int]:
    frame = packfile.decode_frame(memoryview(file.read_bytes()), packfile.HEAD_SIZE)
    return frame.offset, frame.length


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "head": (lambda file: overwrite(file, 0, bytes(64)), "head"),
    "frame": (lambda file: overwrite(file, 64, b"\xff" * 32), "frame"),
    "padding before the run": (lambda file: overwrite(file, 100, b"\1"), "padding"),
    "run": (lambda file: overwrite(file, run_at(file)[0], bytes(run_at(file)[1])), "run"),
    "one byte of the run": (lambda file: overwrite(file, run_at(file)[0] + 50, b"\xff"), "run"),
    "all of it": (lambda file: file.unlink(), "missing"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_found_and_made_anew_byte_for_byte(repo, model, file, damage):
    before = file.read_bytes()
    act, part = DAMAGES[damage]
    act(file)
    found = faults(repo)
    assert {fault.part for fault in found} == {part}
    assert {fault.path for fault in found} == {str(file.relative_to(repo.url))}
    if part not in ("padding", "frame"):  # which nobody reads it by
        assert repo.head().id in found[0].commits
    report = reopened(repo).verify(repair=True)
    assert report.ok
    assert report.repairs
    assert file.read_bytes() == before
    assert content(reopened(repo)) == model


def test_a_run_is_made_anew_that_came_with_one_that_the_commit_has_merged_itself(repo):
    """One commit replaces two groups of runs: each run is merged of its own."""
    model = grown(repo)
    big = {f"big/c/{key:04}": b"b" * 40 for key in range(300)}
    model |= fill(repo, 3)
    inputs = some(repo).inputs
    for number in range(2):
        put(reopened(repo), {f"late/{number}": b"1"})  # of other processes: this one then merges their runs
        model |= {f"late/{number}": b"1"}
    assert find_runs(inputs, repo.mapping().run_names) is not None
    put(repo, big)
    model |= big
    stored = repo.engine.commits.head()
    assert len(stored.header.packs) == 1
    assert [section.kind for section in stored.header.sections] == [1, 1]
    run = next(run for run in stored.header.runs if run.pack == stored.header.packs[0].name)
    merged = stored.header.runs[1]
    assert merged.pack is None
    for path, offset, length in (
        (run.pack.path, run.offset, run.length),
        (stored.path, merged.offset, merged.length),
    ):
        before = Path(repo.url, path).read_bytes()
        overwrite(Path(repo.url, path), offset, bytes(length))
        assert [fault.part for fault in faults(repo)] == ["run"]
        assert reopened(repo).verify(repair=True).ok
        assert Path(repo.url, path).read_bytes() == before
    assert content(reopened(repo)) == model


def test_an_own_run_is_made_anew_of_a_commit_that_has_installed_one(repo, model, file):
    stored = repo.engine.commits.head()
    own = stored.header.runs[0]
    path = Path(repo.url, stored.path)
    before = path.read_bytes()
    overwrite(path, own.offset, bytes(own.length))
    assert reopened(repo).verify(repair=True).ok
    assert path.read_bytes() == before


def test_without_what_it_was_merged_of_it_stays_damaged(apart):
    grown(apart)
    file = Path(apart.url, installed(apart)[0])
    gc.collect()
    assert apart.vacuum(keep=1).oldest_kept == 3  # that has brought it: all before it are gone
    overwrite(file, run_at(file)[0], bytes(run_at(file)[1]))
    for report in (reopened(apart).verify(), reopened(apart).verify(repair=True)):
        assert {fault.part for fault in report.faults} == {"run"}
    with pytest.raises(txstore.CorruptionError):
        dict(reopened(apart).mapping())


def test_one_that_is_missing_below_the_oldest_kept_is_told(apart):
    grown(apart)
    [path] = installed(apart)
    for number in range(2):
        put(reopened(apart), {"more": b"%d" % number})
    gc.collect()
    assert reopened(apart).vacuum(keep=1).oldest_kept > 3
    assert installed(apart) == [path]
    Path(apart.url, path).unlink()
    assert path in {fault.path for fault in faults(apart)}


def test_a_run_that_no_header_lists_is_told(apart, monkeypatch):
    """Whoever erases looks through the runs that headers list."""
    real = Publisher._write_header

    def forget(self: Publisher, parent: Any, contents: Any) -> Any:
        kept = [run for run in contents.runs if run.pack is None or run.pack.branch is not None]
        return real(self, parent, contents._replace(runs=tuple(kept)))

    with monkeypatch.context() as patched:
        patched.setattr(Publisher, "_write_header", forget)
        fill(apart, 0)
        fill(apart, 1)
        put(apart, {"small": b"1"})
    assert "the header does not list this run" in {fault.reason for fault in faults(apart)}


def test_a_run_that_is_listed_where_no_frame_holds_one_is_told(apart, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(packfile, "FRAME_RUN", packfile.FRAME_SEAL)
        fill(apart, 0)
        fill(apart, 1)
    put(apart, {"small": b"1"})
    assert "the header lists a run where no frame holds one" in {fault.reason for fault in faults(apart)}


# --- counting, and making room


def test_it_is_history_and_nothing_in_it_is_overwritten(repo, model, file):
    usage = repo.usage()
    packed = sum(size for path, size in tree(repo).items() if path.startswith(("commits/", "packs/")))
    assert usage.live + usage.history == packed
    assert usage.overwritten == usage.orphan == usage.staged == 0
    put(repo, {"more": b"1"})
    repo.vacuum(keep=1)  # of whoever has brought it, nothing is kept
    assert reopened(repo).usage().overwritten < file.stat().st_size


def test_one_that_waits_is_staged(repo):
    fill(repo, 0)
    fill(repo, 1)
    size = some(repo).data.end
    usage = repo.usage()
    assert (usage.staged, usage.orphan) == (size, 0)
    put(repo, {"small": b"1"})
    assert repo.usage().staged == 0


def test_it_is_not_copied_and_goes_when_nobody_lists_it(repo, model, file):
    snapshot = repo.engine.snapshots.newest("main")
    uses = optimizing.uses_of(snapshot)
    [use] = [use for name, use in uses.items() if name.path in installed(repo)]
    assert (use.values, use.live, use.length) == (0, 0, file.stat().st_size)
    assert use.runs > 0
    assert use.name not in optimizing.small_or_wasteful(uses)
    del snapshot
    repo.optimize()
    assert installed(repo) == []
    assert file.exists()  # older commits list it
    repo.vacuum(keep=1)
    put(repo, {"more": b"1"})
    repo.vacuum(keep=1)
    assert not file.exists()
    assert content(reopened(repo)) == model | {"more": b"1"}


def test_a_vacuum_keeps_it_as_long_as_a_kept_commit_lists_it(repo, model, file):
    for number in range(3):
        put(repo, {"more": b"%d" % number})
        repo.vacuum(keep=1)
    assert file.exists() == (str(file.relative_to(repo.url)) in installed(repo))
    assert content(reopened(repo)) == model | {"more": b"2"}


# --- copying


def test_a_backup_has_it_and_copies_it_once(repo, model, file, tmp_path):
    copy = tmp_path / "copy"
    repo.backup(copy)
    there = copy / file.relative_to(repo.url)
    assert there.read_bytes() == file.read_bytes()
    number = there.stat().st_ino
    more = fill(repo, 3) | fill(repo, 4)
    put(repo, {"small": b"2"})
    assert len(repo.engine.commits.head().header.packs) == 1
    made = repo.backup(copy)
    assert made.files == 4 + 1  # three commits and a compaction output; the one that waited when the first was made
    assert there.stat().st_ino == number
    assert content(txstore.Repository(copy)) == content(repo) == model | more | {"small": b"2"}
    assert txstore.Repository(copy).verify().faults == []


def test_a_backup_while_one_waits(repo, tmp_path):
    fill(repo, 0)
    model = fill(repo, 0) | fill(repo, 1)
    some(repo)
    repo.backup(tmp_path / "copy")
    assert not [path for path in tree(txstore.Repository(tmp_path / "copy")) if path.startswith("packs/")]
    put(repo, {"small": b"1"})
    repo.backup(tmp_path / "copy")
    assert content(txstore.Repository(tmp_path / "copy")) == model | {"small": b"1"}
    assert txstore.Repository(tmp_path / "copy").verify().faults == []


def test_a_backup_copies_commits_behind_what_a_compaction_output_leads_to(repo, tmp_path, monkeypatch):
    """What was copied from another branch is in a commit file of that, which nothing else in the copy leads to."""
    fill(repo, 0)
    repo.branches["dev"] = repo.head()
    with repo.begin(branch="dev") as mapping:
        mapping["d/zarr.json"] = GROUP
        mapping.update({f"d/c/{key}": b"of dev" for key in range(aside.KEYS)})
    with repo.begin() as mapping:
        mapping.nodes.copy("d", "e", repo.mapping(branch="dev"))
    some(repo)
    put(repo, {"small": b"1"})
    assert installed(repo)
    del mapping
    gc.collect()
    assert repo.vacuum(keep=1).oldest_kept == 2
    order: list[str] = []
    real = backup._in_order

    def noted(commits: Any, referred: Any) -> Any:
        found = real(commits, referred)
        order.extend(stored.path for stored in found)
        return found

    monkeypatch.setattr(backup, "_in_order", noted)
    repo.backup(tmp_path / "copy")
    copy = txstore.Repository(tmp_path / "copy")
    assert copy.verify().faults == []
    assert bytes(copy.mapping()["e/c/7"]) == b"of dev"
    of_dev = next(path for path in order if not path.startswith("commits/main"))
    assert order.index(of_dev) < order.index(names.commit_path("main", 2))


# --- erasing

GROUP = b'{"zarr_format": 3, "node_type": "group"}'
SECRET = random.Random(1).randbytes(600)


def fill_secrets(repo: txstore.Repository, number: int) -> None:
    with repo.begin() as mapping:
        mapping["s/zarr.json"] = GROUP
        for key in range(aside.KEYS):
            mapping[f"k/{number}/c/{key}"] = b"kept"
            mapping[f"s/{number}/c/{key}"] = SECRET[:60]


def leaks(repo: txstore.Repository) -> list[str]:
    files = (path for path in Path(repo.url).rglob("*") if path.is_file())
    return [str(path) for path in files if SECRET[10:50] in path.read_bytes()]


def test_what_runs_in_compaction_outputs_lead_to_is_erased(repo):
    for number in range(3):
        fill_secrets(repo, number)
    put(repo, {"small": b"1"})
    [path] = installed(repo)
    before = Path(repo.url, path).read_bytes()
    version = repo.head().version
    assert leaks(repo)
    report = repo.erase("s")
    assert report.values == 3 * (aside.KEYS + 1)
    assert leaks(repo) == []
    after = Path(repo.url, path).read_bytes()
    assert len(after) == len(before)
    assert after != before
    assert after[:128] == before[:128]  # its frame needs no other checksum
    assert repo.verify().faults == []
    assert repo.verify(repair=True).faults == []
    for each in (repo, reopened(repo)):
        mapping = each.mapping(at=version)
        with pytest.raises(ErasedError):
            mapping["s/0/c/7"]
        assert bytes(mapping["k/0/c/7"]) == b"kept"
        assert not [key for key in mapping if key.startswith("s/")]


def test_of_what_was_erased_a_damaged_run_is_made_anew(repo):
    for number in range(3):
        fill_secrets(repo, number)
    put(repo, {"small": b"1"})
    file, version = Path(repo.url, installed(repo)[0]), repo.head().version
    repo.erase("s")
    before = file.read_bytes()
    overwrite(file, run_at(file)[0], bytes(run_at(file)[1]))
    assert reopened(repo).verify(repair=True).ok
    assert file.read_bytes() == before
    with pytest.raises(ErasedError):
        reopened(repo).mapping(at=version)["s/0/c/7"]


def test_values_that_were_moved_are_found_in_compaction_outputs(repo):
    """A compaction output is looked beside, too: what it alone leads to under another name is not erased."""
    fill_secrets(repo, 0)
    with repo.begin() as mapping:
        mapping.nodes.copy("s", "t", repo.mapping())
    some(repo)
    put(repo, {"small": b"1"})
    assert installed(repo)
    del mapping
    gc.collect()
    assert repo.vacuum(keep=1).oldest_kept == 2
    assert not repo.engine.storage.exists(names.commit_path("main", 1))
    with pytest.raises(txstore.ErasureError, match="'t/0'"):
        repo.erase("s")


def test_one_that_waits_is_in_nobodys_way(repo):
    """It leads to what is erased, and holds none of it: a commit that installs it later finds marked zeros."""
    other = reopened(repo)
    for number in range(2):
        fill_secrets(repo, number)
    pack = some(repo)
    other.erase("s", timeout=0)
    assert leaks(repo) == []
    put(repo, {"small": b"1"})
    assert pack.data.name.path in installed(repo)
    assert repo.verify().faults == []
    with pytest.raises(ErasedError):
        reopened(repo).mapping(at=1)["s/0/c/7"]
    assert not [key for key in reopened(repo).mapping() if key.startswith("s/")]


def test_a_backup_erases_it_too(repo, tmp_path):
    for number in range(3):
        fill_secrets(repo, number)
    put(repo, {"small": b"1"})
    repo.backup(tmp_path / "copy")
    copy = txstore.Repository(tmp_path / "copy")
    assert leaks(copy)
    repo.erase("s")
    repo.backup(tmp_path / "copy", erase=True)
    assert leaks(copy) == []
    assert txstore.Repository(tmp_path / "copy").verify().faults == []


# --- kills


def commit_with_signal(url: str, step: int, number: int) -> None:
    """Commit until a compaction output is installed, and send oneself a signal before one step of it."""
    repo = txstore.Repository(url, durability="none")
    steps = itertools.count()

    def signal_once(*_: object) -> None:
        if next(steps) == step:
            os.kill(os.getpid(), number)

    watch(repo).before = BeforeEach(signal_once)
    for each in range(3):
        put(repo, {"last": b"%d" % each})


@pytest.mark.long
def test_killed_at_every_step_of_merging_and_adopting(open_repo, inline, tmp_path):
    """What was made is whole, and nothing is left that nobody needs."""
    first = open_repo(durability="none")
    model = fill(txstore.Repository(first.url, durability="none"), 0)
    model |= fill(txstore.Repository(first.url, durability="none"), 1)
    step, killed, lists = 0, True, set[bool]()
    while killed:
        shutil.copytree(first.url, tmp_path / f"{step}.tx")
        repo = txstore.Repository(tmp_path / f"{step}.tx", durability="none")
        with forked(commit_with_signal, repo.url, step, signal.SIGKILL) as process:
            killed = os.WIFSIGNALED(status_of(process))
        assert {key: value for key, value in content(repo).items() if key != "last"} == model
        lists.add(bool(installed(repo)))
        put(repo, {"last": b"z"})
        assert staged(repo) == []
        repo.vacuum()
        assert {path for path in tree(repo) if path.startswith("packs/")} == set(installed(repo))
        assert content(reopened(repo)) == model | {"last": b"z"}
        assert repo.verify().faults == []
        shutil.rmtree(repo.url)
        step += 1
    assert step > 20
    assert lists == {False, True}
