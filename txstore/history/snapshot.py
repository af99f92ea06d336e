"""Snapshot: an immutable mapping of keys to values at one commit, read where they lie in mapped packs."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Never

from txstore.commit import MAIN, Commit, Stored
from txstore.errors import CorruptionError, ErasedError, SnapshotExpiredError, TxStoreError
from txstore.format import commitfile, packfile
from txstore.format.commitfile import RunName
from txstore.format.constraints import Constraint
from txstore.format.keys import after_prefix, decode_key, directory_prefix, encode_key
from txstore.format.mapping import Hierarchy
from txstore.format.packfile import PackName
from txstore.history.commits import Commits
from txstore.history.declarations import decode as decode_constraints
from txstore.history.erasures import Erasure, read_erasures
from txstore.locks.pins import Pins
from txstore.segments.packs import Missing, OpenPack, Pack, PackSource
from txstore.segments.ranged_packs import open_packs
from txstore.segments.ranged_runs import open_runs
from txstore.segments.runs import NONE_KNOWN, Found, Known, Located, OpenPacks, OpenRun, Runs, names_of
from txstore.storage.foreign import ForeignRange
from txstore.storage.sources import Sources

_NO_SOURCES = Sources()


class _Warm:
    """The runs that the snapshots of one repository have opened last, for the next one, though no reader holds them any
    more.

    Only those in small files, and nothing that they have led to: of what a vacuum deletes then, little stays on the
    disk.
    """

    __slots__ = ("runs",)

    def __init__(self) -> None:
        self.runs: Mapping[RunName, OpenRun] = {}

    def note(self, opened: Known) -> None:
        self.runs = {name: run for name, (run, _) in opened.items() if run.is_light}


class Snapshot(Hierarchy):
    """The keys and values of one commit, as a read-only `Mapping[str, bytes]`.

    No other process can change it, and it blocks no process (I4). Values are views of mapped files; no
    descriptor is held. Safe in threads, and after a fork.

    Raises `CorruptionError` where stored bytes are not what was written, `SnapshotExpiredError` where a vacuum has
    removed them: never a missing key. Values that lie in files outside are read from there, if these are allowed and
    have not changed; else `SourceError` is raised.
    """

    def __init__(
        self,
        stored: Stored | None,
        packs: PackSource,
        url: str,
        sources: Sources = _NO_SOURCES,
        opened: Known = NONE_KNOWN,
        warm: _Warm | None = None,
        erasures: Callable[[], Sequence[Erasure]] = tuple,
        pins: Pins | None = None,
    ) -> None:
        """`opened`: runs of this commit that are open; `pins`: what holds it for one owner, who may let go of it."""
        self._erasures = erasures
        self._pins = pins
        self._shared: Snapshot | None = None  # that this is the own one of: kept, so that others find what it has open
        self.stored = stored
        self.url = url
        self.sources = sources
        self.opened = opened
        self._packs = packs
        self._warm = _Warm() if warm is None else warm

    @cached_property
    def run_names(self) -> tuple[RunName, ...]:
        """How the runs are called, newest first. None of them is opened."""
        return () if self.stored is None else names_of(self.stored.header.runs, self.stored.header.name)

    @cached_property
    def runs(self) -> Runs:
        """The runs of the commit, opened at the first use: making a snapshot can't fail."""
        runs = open_runs(self.run_names, self._packs, self.opened)
        self.opened = runs.opened()
        self._warm.note(self.opened)
        return runs

    def runs_since(self, seq: int) -> Runs:
        """Return the runs that hold anything newer than a seq. No others are opened."""
        return self.runs_named([name for name in self.run_names if name.max_seq > seq])

    def runs_named(self, names: Sequence[RunName]) -> Runs:
        """Return some of the runs. No others are opened."""
        opened = self.opened
        runs = open_runs(names, self._packs, opened)
        if any(name not in opened for name in names):
            known = {**opened, **runs.opened()}
            self.opened = {name: known[name] for name in self.run_names if name in known}
            self._warm.note(self.opened)
        return runs

    def let_go(self) -> None:
        """Neither pin the commit nor map its files any more, though something may hold this: `Snapshots.own`.

        What is read from now on is looked for anew: `SnapshotExpiredError` says that a vacuum has removed it.
        """
        self.opened, self._shared = NONE_KNOWN, None
        self.__dict__.pop("runs", None)
        if self._pins is not None:
            self._pins.drop(self)

    @property
    def commit(self) -> Commit | None:
        """The commit, None for a repository that has none yet."""
        return None if self.stored is None else self.stored.commit

    @property
    def version(self) -> int:
        """The version of the commit; -1 before the first."""
        return -1 if self.stored is None else self.stored.header.version

    @property
    def seq(self) -> int:
        """The number of the commit in its line of history, from 1; 0 where nothing is committed."""
        return 0 if self.stored is None else self.stored.header.seq

    @property
    def oldest_kept(self) -> int:
        """The lowest version that was kept when the commit was made."""
        return 0 if self.stored is None else self.stored.header.oldest_kept

    @property
    def written_constraints(self) -> Mapping[str, Any]:
        """What was declared to be so at every commit, by name, as it is written."""
        return {} if self.stored is None else self.stored.header.constraints

    @property
    def constraints(self) -> Mapping[str, Constraint]:
        """What was declared to be so at every commit, by name. Raises `UnsupportedFormatError` if it is not known."""
        return decode_constraints(self.url, self.written_constraints)

    def __repr__(self) -> str:
        return f"<Snapshot {self.url} {self.commit or '(empty)'}>"

    def lookup(self, key: str) -> Found | None:
        """Return the ref of a live key."""
        found = self.runs.lookup(encode_key(key))
        return found if found is not None and found.kind in packfile.FRAME_OF_REF else None

    def seq_of(self, key: str) -> int | None:
        """Return the seq of the commit that last wrote a live key."""
        found = self.lookup(key)
        return None if found is None else found.seq

    def get_view(self, key: str) -> memoryview | None:
        try:
            value = self.runs.value(key, encode_key(key))
        except (ErasedError, CorruptionError) as error:
            raise self._told(error, key) from error
        return self.sources.read(value) if isinstance(value, ForeignRange) else value

    def view_of(self, key: str, found: Found) -> memoryview:
        """Return the value in a pack that `lookup` has found."""
        try:
            return self.runs.open_pack(found.run, found.pack).view(found.offset, found.length, found.checksum, key)
        except CorruptionError as error:
            raise self._told(error, key) from error

    def at_hand(self, key: str) -> memoryview | None:
        """Return a value for which no request is needed, nor anything else that takes long. None says nothing."""
        runs: Runs | None = self.__dict__.get("runs")  # if they are open
        return None if runs is None else runs.at_hand(encode_key(key))

    def without_request(self, key: str) -> memoryview | None:
        """Return a value if no request is needed. None says nothing where packs are read by ranges."""
        return self.at_hand(key) if self._packs.is_ranged else self.get_view(key)

    def fetch(self, keys: Sequence[str]) -> None:
        """Have the values of keys that exist at hand, by few requests. A reader of a damaged value gets the error."""
        if keys and self._packs.is_ranged:
            with contextlib.suppress(OSError, TxStoreError):
                self.runs.locate(keys)

    def locate(self, keys: Sequence[str]) -> Located:
        """Return where the values of many keys lie; where packs are not mapped, in buffers that they are fetched to.

        The caller compares the checksums, and calls `get_view` for values that do not match.
        """
        return self.runs.locate(keys)

    async def await_located(self, keys: Sequence[str]) -> Located | None:
        """Return what `locate` does, and fetch few small values without a thread. None if that takes one."""
        runs: Runs | None = self.__dict__.get("runs")  # if they are open
        return None if runs is None else await runs.await_located(keys)

    def is_foreign(self, key: str) -> bool:
        """Tell whether a value lies outside: to read it takes as long as it takes where that is."""
        if not self.may_be_foreign:
            return False
        found = self.lookup(key)
        return found is not None and found.kind == packfile.REF_FOREIGN

    @cached_property
    def may_be_foreign(self) -> bool:
        """Whether there may be any value that lies outside."""
        return self.stored is not None and bool(self.stored.header.required & commitfile.FEATURE_FOREIGN)

    def get_part(self, key: str, part: slice) -> memoryview | None:
        """Return a part of a value without comparing the checksum, which covers the whole."""
        found = self._look_for(key)
        if found is None:
            return None
        if found.kind == packfile.REF_FOREIGN:
            return self.sources.read(self.runs.foreign(key, found), part)
        pack = self.runs.open_pack(found.run, found.pack)
        if not pack.may_be_replaced:
            return pack.part(found.offset, found.length, part, key)
        try:
            return pack.view(found.offset, found.length, found.checksum, key)[part]
        except CorruptionError as error:
            raise self._told(error, key) from error

    def size_of(self, key: str) -> int | None:
        found = self._look_for(key)
        if found is not None and found.kind == packfile.REF_FOREIGN:
            return self.runs.foreign(key, found).length
        return None if found is None else found.length

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._look_for(key) is not None

    def last_change(self, path: str) -> int:
        """Return the seq of the commit that has changed something below a path last, deletions included.

        Where that is too long ago to be known, the highest that it can be.
        """
        prefix = directory_prefix(path)
        stop = after_prefix(prefix)
        # up to there, tombstones may be forgotten
        seqs = [self.seq - (self.version - self.oldest_kept) if self.oldest_kept else 0]
        seqs += [each.seq for each in self.runs.changes(prefix.encode(), None if stop is None else stop.encode(), 0)]
        seqs += [seq for each, seq in self.runs.prefixes() if each.startswith(prefix) or prefix.startswith(each)]
        return max(seqs)

    # --- what was erased

    def _look_for(self, key: str) -> Found | None:
        """As `lookup`, but what was erased is not told to be missing."""
        found = self.runs.lookup(encode_key(key))
        if found is not None and found.kind == packfile.REF_ERASED:
            raise self._told(ErasedError(key), key)
        return found if found is not None and found.kind in packfile.FRAME_OF_REF else None

    def _told(self, error: ErasedError | CorruptionError, key: str) -> ErasedError | CorruptionError:
        """Return the error that says who has erased a value, if that is why it can't be read.

        A reader that had opened the run before finds zeros where the value was.
        """
        if isinstance(error, CorruptionError) and not self._is_blank(key):
            return error
        for erasure in self._erasures():
            if erasure.covers(key):
                return ErasedError(key, erasure.by, erasure.time)
        return error

    def _is_blank(self, key: str) -> bool:
        with contextlib.suppress(CorruptionError, OSError):
            found = self.lookup(key)
            if found is not None:
                pack = self.runs.open_pack(found.run, found.pack)
                return not any(pack.part(found.offset, found.length, slice(None), key))
        return False

    def check_not_erased(self, path: str, since: int = 0) -> None:
        """Raise `ErasedError` if anything below a path that the commit had was erased: of what is newer than a seq."""
        prefix = directory_prefix(path)
        for erasure in self._erasures():
            for each in map(directory_prefix, erasure.paths):
                if each.startswith(prefix) or prefix.startswith(each):
                    low = max(prefix, each)
                    stop = after_prefix(low)
                    for change in self.runs.changes(low.encode(), None if stop is None else stop.encode(), since):
                        found = self.runs.lookup(change.key) if change.kind == packfile.REF_ERASED else None
                        if found is not None and found.kind == packfile.REF_ERASED:
                            raise ErasedError(change.key.decode(), erasure.by, erasure.time)

    # zarr 2 accepts a mapping, and reads it, only if these are there.

    def __setitem__(self, key: str, value: object) -> Never:
        raise TypeError("a snapshot is read-only: write to repo.transaction() or repo.begin()")

    def __delitem__(self, key: str) -> Never:
        raise TypeError("a snapshot is read-only: write to repo.transaction() or repo.begin()")

    def keys_between(self, start: str, stop: str | None, *, batch: int = 256) -> Iterator[str]:
        begin, end = start.encode(), None if stop is None else stop.encode()
        while page := self.runs.scan(begin, end, batch):
            for item in page:
                # Not `stored_key`, which would ask for the path of each.
                key = decode_key(item.key)
                if key is None:
                    raise CorruptionError(self.runs.file(item.run).path, reason=f"{item.key!r} is no key")
                yield key
            if len(page) < batch:
                return
            begin = page[-1].key + b"\0"
            batch = min(batch * 4, 4096)


class Snapshots:
    """Makes the snapshots of one repository, and pins them. Handles that stand at the same commit share one."""

    def __init__(self, commits: Commits, sources: Sources = _NO_SOURCES) -> None:
        self._commits = commits
        self._sources = sources
        self._packs = open_packs(commits.storage)
        self.is_ranged = self._packs.is_ranged
        self._pins = {MAIN: Pins(commits.storage.open_pins)}
        self._last: dict[str, weakref.ref[Snapshot]] = {}  # by branch. A snapshot without readers must not stay pinned
        self._warm = _Warm()
        self._checks_heads = commits.storage.capabilities.pins_are_seen

    def of(self, stored: Stored | None, *, check: bool = True, parent: Snapshot | None = None) -> Snapshot:
        """Return the snapshot at a commit. Raises `SnapshotExpiredError` if a vacuum has given that up.

        Without `check`, a reader finds that out. Of `parent`, runs may be open that it has, too.
        """
        branch = MAIN if stored is None else stored.header.branch
        reference = self._last.get(branch)
        last = None if reference is None else reference()
        if last is not None and _id(last.stored) == _id(stored):
            self._renew()
            return last
        packs: PackSource = self._packs if stored is None else _PacksOfCommit(self, stored)
        opened = NONE_KNOWN if stored is None else self._opened(stored.header.runs, last, parent)
        snapshot = Snapshot(
            stored, packs, self._commits.storage.url, self._sources, opened, self._warm,
            partial(read_erasures, self._commits.storage),
        )  # fmt: skip
        # I10: pin, look, read. A vacuum first announces what it will delete, then looks for pins.
        self.pins(branch).hold(snapshot, snapshot.seq)
        if stored is not None and check:
            try:
                self.check_kept(stored)
            except BaseException:
                del snapshot, packs  # its pin goes now, not when the handler drops this exception
                raise
        self._last[branch] = weakref.ref(snapshot)
        return snapshot

    def of_head(self, stored: Stored | None) -> Snapshot:
        """Return the snapshot at what was the head a moment ago. Raises `SnapshotExpiredError`.

        Where a vacuum sees pins, it matters whether the commit was still kept when it was pinned.
        """
        return self.of(stored, check=self._checks_heads)

    def own(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot of the same commit for one transaction alone, which lets go of it when it has failed.

        Others may hold `snapshot`; and the error that a transaction has failed by may hold what the transaction has
        used, for as long as somebody keeps the error.
        """
        branch = MAIN if snapshot.stored is None else snapshot.stored.header.branch
        pins = self.pins(branch)
        own = Snapshot(
            snapshot.stored, snapshot._packs, snapshot.url, self._sources, snapshot.opened, self._warm,
            partial(read_erasures, self._commits.storage), pins,
        )  # fmt: skip
        pins.hold(own, own.seq)
        own._shared = snapshot
        return own

    def pins(self, branch: str) -> Pins:
        """Return what this process reads of a branch."""
        found = self._pins.get(branch)
        # In one step: another thread may be about to do the same.
        return found or self._pins.setdefault(branch, Pins(self._commits.storage.open_pins, branch))

    def _renew(self) -> None:
        for pins in list(self._pins.values()):
            if pins.is_child:
                pins.renew()

    def _opened(self, names: Sequence[RunName], last: Snapshot | None, parent: Snapshot | None = None) -> Known:
        """Return which of a commit's runs are open. Not the ones that came with it: they have other names here.

        No others: what they lead to may have been deleted, and takes space as long as it is mapped.
        """
        if last is not None:
            opened = last.opened
            there = {name: found for name in names if (found := opened.get(name)) is not None}
        else:
            warm = self._warm.runs
            there = {name: (run, OpenPacks()) for name in names if (run := warm.get(name)) is not None}
        if parent is not None and parent is not last:
            opened = parent.opened
            for name in names:
                if name not in there and (found := opened.get(name)) is not None and found[0].is_light:
                    there[name] = found[0], OpenPacks()
        return there

    def newest(self, branch: str, found: Stored | None = None) -> Snapshot:
        """Return the snapshot at the head of a branch, which is `found` unless a vacuum has overtaken it since."""
        head = found or self._commits.head(branch)
        while True:
            try:
                return self.of_head(head)
            except SnapshotExpiredError:
                expired, head = head, self._commits.head(branch)
                if _id(expired) == _id(head):
                    self._commits.branches.check_living(branch)
                    raise

    def made(self, stored: Stored, parent: Snapshot) -> Snapshot:
        """Return the snapshot of a commit that was made just now by the owner of its parent's snapshot.

        If that was on its way to its version then, it has come there as it was: the commit names the hash of its
        header. So its runs are those that were opened. Values are read from the files.
        """
        snapshot = self.of(stored, check=False, parent=parent)
        self._warm.note(snapshot.opened)
        return snapshot

    def ahead(self, stored: Stored) -> Snapshot:
        """Return a snapshot of a commit that is on its way to its version, for a commit that will follow it.

        It may never arrive: so nothing that is opened of it is kept, unless it does (`made`). It needs no pin: as long
        as it is on its way, no vacuum gets its turn, and what any has given up before, it does not need.
        """
        reference = self._last.get(stored.header.branch)
        opened = self._opened(stored.header.runs, None if reference is None else reference())
        return Snapshot(stored, _PacksAhead(self, self._commits), self._commits.storage.url, self._sources, opened)

    def get(self, name: PackName, missing: Missing | None = None) -> Pack:
        """Open a pack; in a forked child, pin first what the parent had pinned."""
        self._renew()
        return self._packs.get(name, missing)

    def forget(self, packs: Iterable[bytes]) -> None:
        """Open anew what is opened from now on: files were replaced. `packs`: their ids."""
        self._last.clear()
        self._warm.runs = {}
        for pack_id in packs:
            self._commits.storage.cache.forget(pack_id)
        self._packs = open_packs(self._commits.storage)

    def check_kept(self, stored: Stored) -> None:
        """Raise `SnapshotExpiredError` if a vacuum has given a commit up."""
        if not self._commits.kept.has(stored):
            raise SnapshotExpiredError(str(stored.commit))

    def explain_missing(self, stored: Stored) -> None:
        """Raise what says why a pack of a commit is missing, if it is not damage."""
        self._commits.identity.check_there()
        self.check_kept(stored)


class _PacksOfCommit:
    """The packs of one commit: one that is missing may be gone with it."""

    __slots__ = ("_missing", "_snapshots", "is_ranged")

    def __init__(self, snapshots: Snapshots, commit: Stored) -> None:
        self.is_ranged = snapshots.is_ranged
        self._snapshots = snapshots
        self._missing = partial(snapshots.explain_missing, commit)

    def get(self, name: PackName, missing: Missing | None = None) -> Pack:
        return self._snapshots.get(name, self._missing)


class _PacksAhead:
    """The packs of a commit that has no version yet; nor may others, right below it, whose files then are staged.

    Such a file is copied, not mapped: its writer may abort, and write or truncate it again.
    """

    is_ranged = False

    def __init__(self, snapshots: Snapshots, commits: Commits) -> None:
        self._snapshots = snapshots
        self._commits = commits
        self._copies: dict[bytes, Pack] = {}

    def get(self, name: PackName, missing: Missing | None = None) -> Pack:
        pack = self._copies.get(name.id)
        if pack is not None:
            return pack
        path = self._commits.staged.path(name.id, 0)
        try:
            content = self._commits.storage.read(path)
        except FileNotFoundError:  # it has its version
            return self._snapshots.get(name, missing)
        self._copies[name.id] = pack = OpenPack(path, content, name.id)
        return pack


def _id(stored: Stored | None) -> bytes | None:
    return None if stored is None else stored.header.id
