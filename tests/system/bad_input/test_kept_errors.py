"""What failed holds nothing, though its error is kept, as an interactive Python does: a vacuum frees the room."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import txstore
from tests.tools.replaced import replace_storage
from txstore import Repository
from txstore.storage.local import LocalStorage

VALUE = bytes(1 << 20)
Open = Callable[..., Repository]


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def old(open_repo: Open) -> Repository:
    """A repository of two commits, the first of which is to go."""
    repo = open_repo()
    with repo.begin("first") as mapping:
        mapping["a"] = VALUE
    with repo.transaction("second") as store:
        store["x"] = b"1"
        zarr.create_array(store, name="z", data=np.zeros(4), chunks=(2,))
    return repo


def there(told: str, repo: Repository) -> str:
    """Do something in another process."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, txstore; repo = txstore.Repository(sys.argv[1]); {told}", repo.url],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


def overwrite(repo: Repository) -> None:
    there("repo.run(lambda store: store.__setitem__('a', b'now small')); repo.optimize()", repo)


def change(repo: Repository, key: str, branch: str = "main") -> None:
    with repo.begin(branch=branch) as mapping:
        mapping[key] = branch.encode()


@contextmanager
def keeping(*kinds: type[BaseException]) -> Iterator[list[BaseException]]:
    """Keep an error as `sys.last_exc` does, with its traceback."""
    kept: list[BaseException] = []
    with pytest.MonkeyPatch.context() as patch:
        try:
            yield kept
        except kinds as error:
            kept.append(error)
            patch.setattr(sys, "last_exc", error, raising=False)
        assert kept


def vacuum_here(repo: Repository) -> int:
    return txstore.Repository(repo.url).vacuum(keep=1).bytes


def vacuum_there(repo: Repository) -> int:
    return int(there("print(repo.vacuum(keep=1).bytes)", repo))


def mapped(repo: Repository) -> int:
    """Return how many bytes of files this process maps that were deleted: their room is free only when that is over."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    places = [line.split()[0].split("-") for line in lines if repo.url in line and line.endswith("(deleted)")]
    return sum(int(stop, 16) - int(start, 16) for start, stop in places)


def no_room(self: LocalStorage, path: str, *_: object, **__: object) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


class Full(LocalStorage):
    create = rename_noreplace = write_in_place = no_room


def full(repo: Repository) -> Repository:
    """Return the repository on a disk that is full from now on."""
    other = Repository(repo.url)
    replace_storage(other.engine, Full(repo.url))
    return other


def a_write(old: Repository) -> None:
    with keeping(OSError), full(old).transaction("third") as store:
        assert store["a"] == VALUE
        store["b"] = VALUE


def an_interrupt(old: Repository) -> None:
    with keeping(KeyboardInterrupt), old.transaction("third") as store:
        zarr.open_array(store, path="z")[:] = 1
        assert store["a"] == VALUE
        raise KeyboardInterrupt


def a_part(old: Repository) -> None:
    mapping = full(old).begin()
    with keeping(OSError):
        mapping.modify("a", lambda value: VALUE if value is None else bytes(value) + VALUE)
    mapping.rollback()


def a_commit(old: Repository) -> None:
    mapping = old.begin()
    mapping["b"] = b"1"
    mapping.nodes.copy("z", "y")
    with pytest.MonkeyPatch.context() as patch, keeping(OSError):
        patch.setattr(LocalStorage, "rename_noreplace", no_room)
        mapping.commit()
    mapping.rollback()


def a_conflict(old: Repository) -> None:
    with keeping(txstore.ConflictError), old.transaction("third", on_conflict="merge") as store:
        store["x"] = b"2"
        assert store["a"] == VALUE
        change(old, "x")


def a_lock(old: Repository) -> None:
    with old.transaction(lock={"z": ...}), keeping(txstore.LockTimeoutError):
        old.transaction(lock={"z": ...}, lock_timeout=0)


def an_optimize(old: Repository) -> None:
    change(old, "b")
    with keeping(OSError):
        full(old).optimize()


def a_merge(old: Repository) -> None:
    old.branches["dev"] = old.head()  # type: ignore[assignment]
    for branch in ("main", "dev"):
        change(old, "x", branch)
    with keeping(txstore.MergeConflictError):
        old.merge("dev")
    del old.branches["dev"]


@pytest.mark.parametrize("vacuum", [vacuum_here, vacuum_there])
@pytest.mark.parametrize("fail", [a_write, an_interrupt, a_part, a_commit, a_conflict, a_lock, an_optimize, a_merge])
def test_what_failed_holds_nothing(old, fail, vacuum):
    fail(old)
    overwrite(old)
    assert vacuum(old) >= len(VALUE)
    assert mapped(old) < len(VALUE)  # runs in small files may be kept for the next snapshot


def test_a_store_whose_write_failed_is_told_to_begin_anew(old: Repository) -> None:
    store = full(old).transaction()
    assert store["a"] == VALUE
    with keeping(OSError) as kept:
        store["b"] = VALUE
    assert "vacuum" in str(kept[0])
    overwrite(old)
    vacuum_there(old)
    with pytest.raises(txstore.SnapshotExpiredError):
        store["a"]
    store.rollback()
    assert store["a"] == b"now small"


def test_nothing_staged_and_no_descriptor_stays(old: Repository) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with keeping(KeyboardInterrupt), old.transaction("third", lock={"z": ...}) as store:
        store["b"] = VALUE
        raise KeyboardInterrupt
    assert list((Path(old.url) / ".staging").iterdir()) == []
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 2  # of the locks and pins, which the repository keeps
    with old.transaction(lock={"z": ...}, lock_timeout=0):
        pass


def test_frames_of_others_stay_as_they_are(old: Repository) -> None:
    def resolve(conflict: object) -> object:
        seen = conflict
        raise ValueError(seen)

    old.branches["dev"] = old.head()  # type: ignore[assignment]
    for branch in ("main", "dev"):
        change(old, "x", branch)
    with pytest.raises(ValueError, match="x") as caught:
        old.merge("dev", resolve={"x": resolve})  # type: ignore[dict-item]
    assert "seen" in caught.traceback[-1].frame.f_locals


class Local:
    """What a caller holds in a variable."""


@pytest.mark.parametrize("is_merge", [False, True])
def test_the_variables_of_a_caller_go_with_the_error(old: Repository, is_merge: bool) -> None:
    old.branches["dev"] = old.head()  # type: ignore[assignment]
    change(old, "x", "dev")

    def fail() -> weakref.ref[Local]:
        local = Local()
        with pytest.raises((txstore.ConflictError, txstore.MergeConflictError)), old.begin() as mapping:
            mapping["x"] = b"2"
            change(old, "x")
            if is_merge:
                old.merge("dev")
        return weakref.ref(local)

    assert fail()() is None
