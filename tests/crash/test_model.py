"""The simulated disk: what it promises, and what it may take. The product does the same on it as on a real one."""

import os
import random
import re
import sys
from pathlib import Path

import pytest

import txstore
from tests.crash.disk import ROOT, Disk, Enter, Leave, Move, PowerLoss, Resize, Step, Sync, SyncNames, Write
from tests.crash.system import URL, Process, simulated
from tests.tools.inside import open_named
from txstore.format import names

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the simulated system is a Linux")

FILE, OTHER, FOLDER = 10, 11, 12


def left(*changes, most: int = 300) -> set[tuple]:
    """Everything that a loss of power was seen to leave: tuples of (path, content), None for directories."""
    disk = Disk()
    for change in changes:
        call = "mkdir" if isinstance(change, Enter) and change.inode == FOLDER else "call"
        disk.record(Step(call, "", "", (change,)))
    loss = PowerLoss(disk.start)
    for step in disk.steps:
        loss.advance(step)
    chance = random.Random(1)
    images = [loss.image(choice, chance) for choice in loss.choices(chance, most)]
    return {tuple(Disk(image.tree).tree().items()) for image in images}


def test_a_name_without_a_sync_may_be_there_or_not() -> None:
    assert left(Enter(ROOT, "a", FILE)) == {(), (("a", b""),)}


def test_a_name_is_durable_by_its_directorys_sync_and_not_by_the_files() -> None:
    assert left(Enter(ROOT, "a", FILE), Sync(FILE)) == {(), (("a", b""),)}
    assert left(Enter(ROOT, "a", FILE), SyncNames(ROOT)) == {(("a", b""),)}


def test_content_is_durable_by_the_files_sync_and_not_by_its_directorys() -> None:
    written = Enter(ROOT, "a", FILE), Write(FILE, 0, b"new")
    assert left(*written, SyncNames(ROOT)) == {(("a", content),) for content in (b"", b"new", b"\0\0\0")}
    assert left(*written, Sync(FILE), SyncNames(ROOT)) == {(("a", b"new"),)}


def test_content_is_torn_at_sectors_and_nowhere_else() -> None:
    old, new = b"o" * 1024, b"n" * 1024
    found = left(Enter(ROOT, "a", FILE), SyncNames(ROOT), Write(FILE, 0, old), Sync(FILE), Write(FILE, 0, new))
    halves = {b"o" * 512, b"n" * 512}
    assert {dict(image)["a"] for image in found} == {one + other for one in halves for other in halves}


def test_a_size_may_be_any_that_there_was() -> None:
    found = left(Enter(ROOT, "a", FILE), SyncNames(ROOT), Write(FILE, 0, b"abc"), Resize(FILE, 2))
    assert {len(dict(image)["a"]) for image in found} == {0, 2, 3}


def test_a_move_inside_a_directory_is_one_and_between_two_is_not() -> None:
    file = Enter(ROOT, "a", FILE), SyncNames(ROOT)
    assert left(*file, Move(ROOT, "a", "b", FILE)) == {(("a", b""),), (("b", b""),)}
    found = left(
        Enter(ROOT, "d", FOLDER), Enter(FOLDER, "a", FILE), SyncNames(ROOT), SyncNames(FOLDER),
        Enter(ROOT, "b", FILE), Leave(FOLDER, "a"),
    )  # fmt: skip
    assert {frozenset(dict(image)) for image in found} == {
        frozenset(names) for names in (["d"], ["d", "d/a"], ["d", "b"], ["d", "d/a", "b"])
    }


def test_changes_of_two_names_come_in_any_order() -> None:
    found = left(Enter(ROOT, "a", FILE), Enter(ROOT, "b", OTHER))
    assert {frozenset(dict(image)) for image in found} == {frozenset(names) for names in ((), "a", "b", "ab")}


def test_what_is_in_a_directory_is_lost_with_its_name() -> None:
    assert () in left(Enter(ROOT, "d", FOLDER), Enter(FOLDER, "a", FILE), SyncNames(FOLDER))


def test_the_product_does_the_same_on_a_real_disk(tmp_path: Path) -> None:
    """The tree that a few commits leave is the same, but for what is drawn at random."""

    def write(url: str) -> None:
        repo = txstore.Repository(url)
        for number in range(6):
            tx = repo.begin()
            tx["a"] = b"%d" % number
            tx[f"b/{number}"] = bytes(number * 700)
            tx.commit()
        repo.tags["one"] = repo.head()
        tx = open_named(repo, "run")
        tx["c"] = b"1"
        tx.lifecycle.leave()

    real = tmp_path / "data.tx"
    write(str(real))
    found = {str(path.relative_to(tmp_path)): path for path in tmp_path.rglob("*")}
    expected = sorted(_plain(name, path.stat().st_size if path.is_file() else None) for name, path in found.items())
    with simulated() as system, Process():
        write(URL)
        tree = system.disk.tree()
    assert sorted(_plain(name, None if it is None else len(it)) for name, it in tree.items()) == expected


def _plain(name: str, size: int | None) -> tuple[str, int | None]:
    """Without what is drawn at random, and what this machine's name and user make of a file's size."""
    return re.sub("[0-9a-f]{32}|[0-9]{18}-[0-9a-f]{16}", "*", name), 0 if name.endswith(
        (names.COMMIT_LOCK, names.STAGING_LOCK)
    ) else size


def test_locks_are_granted_as_the_system_does(tmp_path: Path) -> None:
    """A staged file is held while it is open, on the simulated disk as on the real one."""
    real = txstore.Repository(tmp_path / "data.tx").engine.storage
    with simulated():
        held = [_hold(txstore.Repository(URL).engine.storage)]
    os.mkdir(tmp_path / "data.tx")
    held.append(_hold(real))
    assert held == [[True, "BlockingIOError", False, True]] * 2


def _hold(storage) -> list[object]:
    storage.make_directory("", durable=False)
    file = storage.create("file")
    seen: list[object] = [storage.is_held("file")]
    try:
        storage.hold("file").close()
    except OSError as error:
        seen.append(type(error).__name__)
    file.close()
    seen.append(storage.is_held("file"))
    again = storage.hold("file")
    seen.append(storage.is_held("file"))
    again.close()
    return seen
