"""Merges large runs in a background thread, each into a pack of its own, which the next commit installs.

A small commit does not merge large runs. A thread of a process that commits again and again merges them, and the
process's next commit lists the pack, and its run in place of the runs that went into it, if they still stand side by
side then. Otherwise another process has merged them, and the pack is deleted.

I10: the pack has a name below `.staging/` before it has one in `packs/`, and keeps it until the commit is made. Others
leave it alone for as long as it may be installed: where a kernel tells who lives, since this process holds it; anywhere
else, since it is young.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from txstore import processes
from txstore.commit import Stored
from txstore.errors import TxStoreError
from txstore.format import names, packfile
from txstore.format.commitfile import DataPack, RunName
from txstore.format.packfile import PackName
from txstore.segments import compaction
from txstore.segments.ranged_runs import TAIL
from txstore.segments.runs import Runs, find_runs, name_run, names_of
from txstore.steps import step
from txstore.storage import leases
from txstore.storage.interface import Mapped, StagedFile, Storage
from txstore.storage.remote import RemoteStorage

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: Seconds for which a pack may be installed where no process sees which others live, and for which one waits for a
#: branch that this process does not commit to any more: far less than any storage keeps staged data for.
INSTALLED_FOR = leases.KEPT / 2

#: Multiples of the runs' size that the disk must have free: background work must not make a commit fail for want of
#: space.
_LEFT_FREE = 8
#: Opens some runs of a commit.
OpenRuns = Callable[[Sequence[RunName]], Runs]


class OutputPlace(Protocol):
    """How compaction outputs are written to one kind of storage."""

    storage: Storage
    sees_holders: bool  # whether other processes see that this one, which holds an output, lives
    merged_at_once: int
    """Bytes of runs that a small commit merges itself, or a few times as many."""

    def write(self, staged: str, name: PackName, parts: Sequence[Buffer]) -> StagedFile | None:
        """Write a durable pack with a second name below `.staging/`. Return what holds that name. Raises `OSError`."""


class OutputsInFiles:
    """An output gets its name in `packs/` when it is durable."""

    merged_at_once = 256 << 10  # this takes milliseconds

    def __init__(self, storage: Storage, *, sees_holders: bool) -> None:
        self.storage = storage
        self.sees_holders = sees_holders

    @step("write compaction output")
    def write(self, staged: str, name: PackName, parts: Sequence[Buffer]) -> StagedFile:
        storage, directory = self.storage, names.data_pack_directory(name.id)
        file = storage.create(staged)
        try:
            file.write(0, parts)
            file.sync()
            storage.make_directory(directory, durable=True)
            storage.link(staged, name.path)
            for each in (directory, names.PACKS):
                storage.sync_directory(each)
        except BaseException:
            file.close()
            raise
        return file


class OutputsInObjects:
    """A small object below `.staging/` stands for an output, so that a vacuum leaves it alone."""

    merged_at_once = 16 << 10  # they go to the server, and may have to come from there first
    sees_holders = False

    def __init__(self, storage: RemoteStorage) -> None:
        self.storage: Storage = storage
        self._objects = storage.objects

    def write(self, staged: str, name: PackName, parts: Sequence[Buffer]) -> None:
        self._objects.put(staged, [name.id])
        self._objects.put(name.path, parts)


class CompactionOutput:
    """A run in a pack of its own, which is durable. `inputs`: the runs that it was merged of."""

    def __init__(self, place: OutputPlace, repository_id: bytes, inputs: tuple[RunName, ...], content: Mapped) -> None:
        """Write it. Raises `OSError`."""
        name, length = PackName(os.urandom(16)), len(memoryview(content))
        offset, end = packfile.compaction_output_layout(length)
        self.inputs = inputs
        self.data = DataPack(name, end)
        self.run = name_run(content, 0, offset).inside(name)
        self._place, self._storage = place, place.storage
        self._staged = names.staged_run_path(name.id)
        self._file: StagedFile | None = None
        self._began = leases.clock()
        parts = [
            packfile.encode_compaction_output(name.id, repository_id, length),
            content,
            bytes(end - offset - length),
        ]
        try:
            self._file = place.write(self._staged, name, parts)
        except BaseException:
            self.drop()
            raise
        tail = bytes(memoryview(content)[-TAIL:])  # this process is the next to open it
        self._storage.cache.keep(name.id, offset + length - len(tail), tail)

    @property
    def is_old(self) -> bool:
        return leases.clock() - self._began > INSTALLED_FOR

    @property
    def may_be_installed(self) -> bool:
        """Whether others leave it alone: as long as this process lives, if all see that, or else as it is young."""
        return self._place.sees_holders or not self.is_old

    def release(self) -> None:
        """Let go of it: a commit lists it."""
        with contextlib.suppress(OSError):  # then it looks like what the dead leave, and a commit lists it all the same
            self._storage.delete(self._staged)
        self._close()

    def drop(self) -> None:
        """Delete it: no commit will list it."""
        with contextlib.suppress(OSError):  # a vacuum does it, too
            self._storage.delete(self.data.name.path, self._staged)
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()


@dataclass(slots=True)
class _RunMerge:
    """Runs that a thread merges; when it has, the pack that waits for a commit."""

    inputs: tuple[RunName, ...]
    pack: CompactionOutput | None = None
    is_taken: bool = False  # a commit is trying to install it


class CompactionOutputs:
    """The compaction outputs of one opened repository that no commit has installed yet: one for each branch.

    Safe in threads.
    """

    def __init__(self, place: OutputPlace) -> None:
        self._place = place
        self.at_once = place.merged_at_once
        self._merges: dict[str, _RunMerge] = {}  # by branch
        self._unsettled: list[CompactionOutput] = []  # held, and never deleted here: a commit may list them
        self._committed: set[str] = set()  # branches that this process has committed to
        self._lock = processes.new_lock()
        weakref.finalize(self, _drop_all, place.storage, self._merges).atexit = False
        processes.watch(self)

    def after_fork_in_child(self) -> None:
        self._merges.clear()  # they are the parent's
        self._unsettled, self._committed = [], set()

    # --- before and while a commit is made

    def left(self, branch: str, runs: Sequence[RunName]) -> Sequence[RunName]:
        """Return which runs of a commit the next one may merge itself: the ones newer than what a thread merges."""
        with self._lock:
            merge = self._merges.get(branch)
        at = None if merge is None else find_runs(merge.inputs, runs)
        return runs[:at]

    def take(self, branch: str) -> CompactionOutput | None:
        """Return a pack for one commit to install, if it can; `settle` has to be told what came of it."""
        with self._lock:
            merge = self._merges.get(branch)
            if merge is None or merge.pack is None or merge.is_taken:
                return None
            merge.is_taken = True
            return merge.pack

    def settle(self, branch: str, pack: CompactionOutput, made: Stored | None, *, may_be_made: bool) -> None:
        """Note which commit was made; if none was, whether it may have been.

        What was not installed waits for another.
        """
        is_installed = made is not None and pack.data in made.header.packs
        is_known = made is not None or not may_be_made
        with self._lock:
            merge = self._merges.get(branch)
            if merge is not None and merge.pack is pack:
                if is_known and not is_installed:
                    merge.is_taken = False
                    return
                # It is never free in between: if this is interrupted, no thread drops a pack that a commit lists.
                self._unsettled.append(pack)
                del self._merges[branch]
            if not is_known or pack not in self._unsettled:
                return  # I3; or it is the parent's, before a fork
            self._unsettled.remove(pack)
        self._place.storage.dispatch.clean_up_later(pack.release if is_installed else pack.drop)

    # --- when it was made

    def begin(self, stored: Stored, open_runs: OpenRuns) -> None:
        """Begin to merge runs of a commit that was just made, if it is time to.

        Not where a process commits only once: it would end before it comes to install them.
        """
        branch, version = stored.header.branch, stored.header.version
        runs = names_of(stored.header.runs, stored.header.name)
        with self._lock:
            useless = self._pop_useless(branch, runs)
            is_due = branch in self._committed and not version % compaction.STEP and branch not in self._merges
            self._committed.add(branch)
        for pack in useless:
            self._place.storage.dispatch.clean_up_later(pack.drop)
        inputs = tuple(compaction.merged_in_background(runs, self.at_once)) if is_due else ()
        if not inputs:
            return
        self._place.storage.dispatch.expect_cleanup()
        processes.at_exit(_drop_at_exit)
        _in_use.add(self)
        merge = _RunMerge(inputs)
        with self._lock:
            if self._merges.setdefault(branch, merge) is not merge:
                return  # another thread has begun one
        try:
            arguments = stored, merge, [open_runs]
            threading.Thread(target=self._merge, args=arguments, name="txstore merge", daemon=True).start()
        except BaseException as error:
            self.forget(branch)
            if not isinstance(error, RuntimeError):  # the interpreter is ending, or there can be no more threads
                raise

    def forget(self, branch: str) -> None:
        """Drop what waits for a commit of a branch: there will be none."""
        with self._lock:
            merge = self._merges.get(branch)
            if merge is None or merge.is_taken:
                return
            del self._merges[branch]
        if merge.pack is not None:
            self._place.storage.dispatch.clean_up_later(merge.pack.drop)

    def drop_all(self) -> None:
        """Drop what waits, at the end of the process, where other threads may still be committing."""
        for branch in list(self._merges):
            self.forget(branch)

    def _pop_useless(self, branch: str, runs: Sequence[RunName]) -> list[CompactionOutput]:
        """Return packs that no commit will install any more, and forget them; the caller holds the lock.

        `runs` are those of the newest commit of a branch. This process may never commit to the others again.
        """
        useless = []
        for each, merge in list(self._merges.items()):
            pack, is_gone = merge.pack, each == branch and find_runs(merge.inputs, runs) is None
            if pack is None:
                continue
            if merge.is_taken:
                if is_gone:  # the commit that has taken it is about to settle it, or was interrupted
                    self._unsettled.append(pack)
                    del self._merges[each]
            elif is_gone or (pack.is_old if each != branch else not pack.may_be_installed):
                useless.append(pack)
                del self._merges[each]
        return useless

    def _merge(self, stored: Stored, merge: _RunMerge, open_runs: list[OpenRuns]) -> None:
        branch, pack = stored.header.branch, None
        try:
            # No commit waits for it: if it fails, a later commit begins anew.
            with contextlib.suppress(OSError, TxStoreError, RuntimeError):
                # Taken out of the list: a snapshot, which pins its commit, is not needed any longer than that.
                runs = open_runs.pop()(merge.inputs)
                free = self._place.storage.free()
                if free is None or free >= _LEFT_FREE * sum(name.length for name in merge.inputs):
                    content = runs.merge(len(merge.inputs), self._place.storage)
                    pack = CompactionOutput(self._place, stored.header.repository_id, merge.inputs, content)
        finally:
            with self._lock:
                merge.pack = pack
                is_wanted = self._merges.get(branch) is merge
                if pack is None and is_wanted:
                    del self._merges[branch]
            if pack is not None and not is_wanted:
                pack.drop()


_in_use: weakref.WeakSet[CompactionOutputs] = weakref.WeakSet()


def _drop_all(storage: Storage, merges: dict[str, _RunMerge]) -> None:
    """Drop what waits, when the repository object is gone: called by a finalizer."""
    while merges:
        merge = merges.popitem()[1]
        if merge.pack is not None and not merge.is_taken:
            storage.dispatch.clean_up_later(merge.pack.drop)


def _drop_at_exit() -> None:
    for each in processes.all_of(_in_use):
        each.drop_all()
