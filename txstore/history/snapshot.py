"""Reads one commit as an immutable mapping of keys to values, which stay in mapped packs."""

from __future__ import annotations

import contextlib
import copy
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any, Never

from txstore import observing
from txstore.commit import MAIN, Commit, Stored
from txstore.errors import CorruptionError, ErasedError, SnapshotExpiredError, TxStoreError
from txstore.format import commitfile, names, packfile
from txstore.format.commitfile import NOTHING_DECLARED, Declarations, RunName
from txstore.format.constraints import Constraint
from txstore.format.keys import after_prefix, decode_key, directory_prefix, encode_key, is_related
from txstore.format.mapping import Hierarchy
from txstore.format.packfile import PackName
from txstore.format.records import ErasureRecord
from txstore.history.commits import Commits
from txstore.history.declarations import decode_constraints
from txstore.history.erasures import as_erasure
from txstore.locks.pins import Pins
from txstore.segments.packs import Missing, OpenPack, Pack, PackSource
from txstore.segments.ranged_packs import open_packs
from txstore.segments.ranged_runs import open_runs
from txstore.segments.replaced import ReplacedValues, read_record, read_records
from txstore.segments.runs import LATER, NONE_KNOWN, Found, Known, Listed, Located, OpenPacks, OpenRun, Runs, names_of
from txstore.storage.foreign_files import Sources
from txstore.storage.foreign_values import ForeignRange
from txstore.storage.objects.errors import NoListsError

_NO_SOURCES = Sources()


_numbers = itertools.count()

#: Bytes of a part of a value that are looked at: if they are zeros, an erasure may have replaced the value.
_BEGIN = 16


class _Warm:
    """Keeps the sorted runs that a repository's snapshots opened last, so that the next snapshot need not open them.

    It keeps only runs in small files, and none of the packs that they refer to. So little disk space stays in use after
    a vacuum deletes them.
    """

    __slots__ = ("runs",)

    def __init__(self) -> None:
        self.runs: Mapping[RunName, OpenRun] = {}

    def note(self, opened: Known) -> None:
        self.runs = {name: run for name, (run, _) in opened.items() if run.is_light}


class Snapshot(Hierarchy):
    """The keys and values of one commit, as a read-only `Mapping[str, bytes]`.

    No other process can change it, and it blocks no process (I4). Values are views of mapped files, without open
    descriptors. Safe in threads, and after a fork.

    A read raises `CorruptionError` if stored bytes differ from the written bytes, and `SnapshotExpiredError` if a
    vacuum has deleted them; neither looks like a missing key. Foreign values are read from their files if `sources`
    allows these files and they have not changed; otherwise the read raises `SourceError`.
    """

    def __init__(
        self,
        stored: Stored | None,
        packs: PackSource,
        url: str,
        sources: Sources = _NO_SOURCES,
        opened: Known = NONE_KNOWN,
        warm: _Warm | None = None,
        erasures: Callable[[], Sequence[ErasureRecord]] = tuple,
        pins: Pins | None = None,
    ) -> None:
        """`opened`: runs of this commit that are open. `pins`: pins the commit for one owner, which may release it."""
        self._erasures = erasures
        self._pins = pins
        self._shared: Snapshot | None = None  # for `own`: the shared snapshot, kept so that others find its open runs
        #: Names this object among all of this process. Of one commit, another object may find that values were erased.
        self.number = next(_numbers)
        self.stored = stored
        self.url = url
        self.sources = sources
        self.opened = opened
        self._packs = packs
        self._warm = _Warm() if warm is None else warm

    @cached_property
    def run_names(self) -> tuple[RunName, ...]:
        """The names of the runs, newest first. This opens no run."""
        return () if self.stored is None else names_of(self.stored.header.runs, self.stored.header.name)

    @cached_property
    def runs(self) -> Runs:
        """The runs of the commit. The first use opens them, so that making a snapshot can't fail."""
        runs = open_runs(self.run_names, self._packs, self.opened)
        self.opened = runs.opened()
        self._warm.note(self.opened)
        return runs

    def runs_since(self, seq: int) -> Runs:
        """Return the runs that have anything newer than a seq. This opens no other runs."""
        return self.runs_named([name for name in self.run_names if name.max_seq > seq])

    def runs_named(self, names: Sequence[RunName]) -> Runs:
        """Return some of the runs. This opens no other runs."""
        opened = self.opened
        runs = open_runs(names, self._packs, opened)
        if any(name not in opened for name in names):
            known = {**opened, **runs.opened()}
            self.opened = {name: known[name] for name in self.run_names if name in known}
            self._warm.note(self.opened)
        return runs

    def let_go(self) -> None:
        """Release the pin and the mapped files, even if the caller still refers to this snapshot: see `Snapshots.own`.

        Later reads open the files again. They raise `SnapshotExpiredError` if a vacuum has deleted them.
        """
        self.opened, self._shared = NONE_KNOWN, None
        self.__dict__.pop("runs", None)
        if self._pins is not None:
            self._pins.drop(self)

    @property
    def commit(self) -> Commit | None:
        """The commit. None if the repository has no commits yet."""
        return None if self.stored is None else self.stored.commit

    @property
    def version(self) -> int:
        """The version of the commit; -1 before the first."""
        return -1 if self.stored is None else self.stored.header.version

    @property
    def seq(self) -> int:
        """The number of the commit in its history, from 1. 0 if there is no commit."""
        return 0 if self.stored is None else self.stored.header.seq

    @property
    def oldest_kept(self) -> int:
        """The oldest kept version at the time of the commit."""
        return 0 if self.stored is None else self.stored.header.oldest_kept

    @property
    def declared(self) -> Declarations:
        """The constraints, views and cursors, as the header encodes them."""
        return NOTHING_DECLARED if self.stored is None else self.stored.header.declared

    @property
    def constraints(self) -> Mapping[str, Constraint]:
        """The declared constraints by name. Raises `UnsupportedFormatError` for an unknown kind of constraint."""
        return decode_constraints(self.url, self.declared.constraints)

    @property
    def cursors(self) -> Mapping[str, Any]:
        """The cursors of feeds by name, as JSON objects of the caller's own."""
        return copy.deepcopy(dict(self.declared.cursors))

    def __repr__(self) -> str:
        return f"<Snapshot {self.url} {self.commit or '(empty)'}>"

    def lookup(self, key: str) -> Found | None:
        """Return the ref of a live key."""
        found = self.runs.lookup(encode_key(key))
        return found if found is not None and found.kind in packfile.FRAME_OF_REF else None

    def replaced_below(self, paths: Iterable[str]) -> Iterator[str]:
        """Yield the keys below paths whose values an erasure of rows has replaced since they were committed."""
        for path in paths:
            yield from (key for key in self.keys_below(path) if (found := self.lookup(key)) and found.is_replaced)

    def seq_of(self, key: str) -> int | None:
        """Return the seq of the commit that last wrote a live key."""
        found = self.lookup(key)
        return None if found is None else found.seq

    def get_view(self, key: str) -> memoryview | None:
        try:
            value = self.runs.value(key, encode_key(key))
        except (ErasedError, CorruptionError) as error:
            value = self._replaced_since(error, key)
        view = self.sources.read(value) if isinstance(value, ForeignRange) else value
        if observing.observer is not None and view is not None:
            observing.observer.count("io.read", view.nbytes)
        return view

    def view_of(self, key: str, found: Found | Listed) -> memoryview:
        """Return the value in a pack that `lookup` has found."""
        try:
            return self.runs.open_pack(found.run, found.pack).view(found.offset, found.length, found.checksum, key)
        except CorruptionError as error:
            return self._replaced_since(error, key)

    def at_hand(self, key: str) -> memoryview | None:
        """Return a value if that needs no request or other slow step. None does not mean that the key is missing."""
        runs: Runs | None = self.__dict__.get("runs")  # if they are open
        return None if runs is None else runs.at_hand(encode_key(key))

    def without_request(self, key: str) -> memoryview | None:
        """Return a value if that needs no request. If packs are read by ranges, None does not mean a missing key."""
        return self.at_hand(key) if self._packs.is_ranged else self.get_view(key)

    def fetch(self, keys: Sequence[str]) -> None:
        """Fetch the values of existing keys with few requests. Errors of damaged values are left to their readers."""
        if keys and self._packs.is_ranged:
            with contextlib.suppress(OSError, TxStoreError):
                self.runs.locate(keys)

    def locate(self, keys: Sequence[str]) -> Located:
        """Return the locations of many keys' values. If packs are not mapped, this fetches the values into buffers.

        The caller compares the checksums, and calls `get_view` for values that do not match.
        """
        located = self.runs.locate(keys)
        if observing.observer is not None:
            _count(located)
        return located

    async def await_located(self, keys: Sequence[str]) -> Located | None:
        """Do as `locate`, but without a thread: only for a few small values. None if a thread is needed."""
        runs: Runs | None = self.__dict__.get("runs")  # if they are open
        located = None if runs is None else await runs.await_located(keys)
        if observing.observer is not None and located is not None:
            _count(located)
        return located

    def is_foreign(self, key: str) -> bool:
        """Tell whether a value is foreign: a read of it takes as long as its own storage needs."""
        if not self.may_be_foreign:
            return False
        found = self.lookup(key)
        return found is not None and found.kind == packfile.REF_FOREIGN

    @cached_property
    def may_be_foreign(self) -> bool:
        """Whether there may be any foreign value."""
        return self.stored is not None and bool(self.stored.header.required & commitfile.FEATURE_FOREIGN)

    def get_part(self, key: str, part: slice) -> memoryview | None:
        """Return a part of a value. This does not compare the checksum, which covers the whole value."""
        view = self._part(key, part)
        if observing.observer is not None and view is not None:
            observing.observer.count("io.read", view.nbytes)
        return view

    def _part(self, key: str, part: slice) -> memoryview | None:
        found = self._look_for(key)
        if found is None:
            return None
        if found.kind == packfile.REF_FOREIGN:
            return self.sources.read(self.runs.foreign(key, found), part)
        pack = self.runs.open_pack(found.run, found.pack)
        if not pack.may_be_replaced:
            view = pack.part(found.offset, found.length, part, key)
            # What an erasure replaces becomes zeros before all runs say so. Then only the whole value's checksum tells.
            replaced = self._packs.replaced
            if any(view[:_BEGIN]) or replaced is None or not replaced.may_be_any():
                return view
        try:
            return pack.view(found.offset, found.length, found.checksum, key)[part]
        except CorruptionError as error:
            return self._replaced_since(error, key)[part]

    def size_of(self, key: str) -> int | None:
        found = self._look_for(key)
        if found is not None and found.kind == packfile.REF_FOREIGN:
            return self.runs.foreign(key, found).length
        return None if found is None else found.length

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._look_for(key) is not None

    def last_change(self, path: str) -> int:
        """Return the seq of the last commit that changed or deleted anything below a path.

        If that commit is too old to be known, return the highest seq that it can have.
        """
        prefix = directory_prefix(path)
        stop = after_prefix(prefix)
        # Up to this seq, tombstones may be missing.
        seqs = [self.seq - (self.version - self.oldest_kept) if self.oldest_kept else 0]
        seqs += [each.seq for each in self.runs.changes(prefix.encode(), None if stop is None else stop.encode(), 0)]
        seqs += [seq for each, seq in self.runs.prefixes() if each.startswith(prefix) or prefix.startswith(each)]
        return max(seqs)

    # --- erased values

    def _look_for(self, key: str) -> Found | None:
        """Do as `lookup`, but raise `ErasedError` for an erased key."""
        found = self.runs.lookup(encode_key(key))
        if found is not None and found.kind == packfile.REF_ERASED:
            raise self._told(ErasedError(key), key)
        return found if found is not None and found.kind in packfile.FRAME_OF_REF else None

    def _replaced_since(self, error: ErasedError | CorruptionError, key: str) -> memoryview:
        """Return the value that has replaced another since its run was opened. Raises what `_told` returns."""
        known = None
        while isinstance(error, CorruptionError):
            found = None
            with contextlib.suppress(NoListsError):  # no record of an erasure is found then: it is damage
                found = self.runs.replacement(encode_key(key))
            if found is None or found == known:
                break
            try:
                return self.runs.stored(key, found)
            except CorruptionError as again:  # perhaps a newer erasure has replaced that one since
                error, known = again, found
        raise self._told(error, key) from error

    def _told(self, error: ErasedError | CorruptionError, key: str) -> ErasedError | CorruptionError:
        """Return an `ErasedError` that names the user who erased a value, if that is why it can't be read.

        A reader that opened the run before the erasure finds zeros in place of the value.
        """
        if isinstance(error, CorruptionError) and not self._is_blank(key):
            return error
        try:
            erasures = self._erasures()
        except (NoListsError, CorruptionError):  # no record says who erased it
            return error
        for erasure in erasures:
            # Of one that erased rows, a key either says itself that it was erased, or has a value.
            if as_erasure(erasure).covers(key) and (isinstance(error, ErasedError) or not erasure.dimensions):
                return as_erasure(erasure).error(key)
        return error

    def _is_blank(self, key: str) -> bool:
        with contextlib.suppress(CorruptionError, OSError):
            found = self.lookup(key)
            if found is not None:
                pack = self.runs.open_pack(found.run, found.pack)
                return not any(pack.part(found.offset, found.length, slice(None), key))
        return False

    def check_not_being_erased(self) -> None:
        """Raise `ErasedError` if an erasure has not ended that may be about values of this commit."""
        if self.stored is None:
            return
        for record in self._erasures():
            if record.finished is None and self.version < record.until.get(self.stored.header.branch, -1):
                for path in filter(self.has_keys_below, record.paths):
                    raise as_erasure(record).error(path)

    def check_not_erased(self, path: str, since: int = 0) -> None:
        """Raise `ErasedError` if a value of the commit below a path was erased, and is newer than a seq."""
        prefix = directory_prefix(path)
        for record in self._erasures():
            # This snapshot may have opened its runs before.
            until = -1 if self.stored is None else record.until.get(self.stored.header.branch, -1)
            # Of rows, what has no other values stays: but until the end of the erasure, nobody can tell.
            is_all = self.version <= until if record.table is None else record.finished is None and self.version < until
            for each in map(directory_prefix, record.paths):
                if each.startswith(prefix) or prefix.startswith(each):
                    low = max(prefix, each)
                    stop = after_prefix(low)
                    for change in self.runs.changes(low.encode(), None if stop is None else stop.encode(), since):
                        if change.kind != packfile.REF_ERASED and not (is_all and change.kind in packfile.FRAME_OF_REF):
                            continue
                        found = self.runs.lookup(change.key)
                        if found is not None and found.kind in (packfile.REF_ERASED, change.kind):
                            raise as_erasure(record).error(change.key.decode())

    # zarr 2 reads from a mapping only if it has these methods.

    def __setitem__(self, key: str, value: object) -> Never:
        raise TypeError("a snapshot is read-only: write to repo.transaction() or repo.begin()")

    def __delitem__(self, key: str) -> Never:
        raise TypeError("a snapshot is read-only: write to repo.transaction() or repo.begin()")

    def keys_between(self, start: str, stop: str | None, *, batch: int = 256) -> Iterator[str]:
        begin, end = start.encode(), None if stop is None else stop.encode()
        while page := self.runs.scan(begin, end, batch):
            for item in page:
                # Not `stored_key`, which would need the path of each key.
                key = decode_key(item.key)
                if key is None:
                    raise CorruptionError(self.runs.file(item.run).path, reason=f"{item.key!r} is no key")
                yield key
            if len(page) < batch:
                return
            begin = page[-1].key + b"\0"
            batch = min(batch * 4, 4096)


def unpinned(commits: Commits, stored: Stored | None, packs: PackSource | None = None) -> Snapshot:
    """Return a snapshot for upkeep, of which no vacuum knows. `packs`: those of the repository, if they are open."""
    storage = commits.storage
    return Snapshot(stored, packs or open_packs(storage), storage.url, erasures=partial(read_records, storage))


class Snapshots:
    """Makes the snapshots of one repository, and pins them. Handles at the same commit share one snapshot."""

    def __init__(self, commits: Commits, sources: Sources = _NO_SOURCES) -> None:
        self._commits = commits
        self._sources = sources
        self._packs = open_packs(commits.storage)
        self.is_ranged = self._packs.is_ranged
        self._pins = {MAIN: Pins(commits.storage.open_pins)}
        self._last: dict[str, weakref.ref[Snapshot]] = {}  # by branch; weak: a snapshot without readers needs no pin
        self._warm = _Warm()
        self._checks_heads = commits.are_pins_seen
        self._heeded = b""
        self._finished: dict[str, int] = {}  # when each erasure has ended, by the name of its record

    def of(self, stored: Stored | None, *, check: bool = True, parent: Snapshot | None = None) -> Snapshot:
        """Return the snapshot at a commit. Raises `SnapshotExpiredError` if a vacuum has expired the commit.

        Without `check`, only a later read raises that error. `parent` is a snapshot that may have open runs to reuse.
        """
        branch = MAIN if stored is None else stored.header.branch
        if not self.is_ranged and self.heed_erasures():
            parent = None  # its runs may lie in maps of what was replaced
        reference = self._last.get(branch)
        last = None if reference is None else reference()
        if last is not None and _id(last.stored) == _id(stored):
            self._renew()
            return last
        packs: PackSource = self._packs if stored is None else _PacksOfCommit(self, stored)
        opened = NONE_KNOWN if stored is None else self._opened(stored.header.runs, last, parent)
        snapshot = Snapshot(
            stored, packs, self._commits.storage.url, self._sources, opened, self._warm,
            partial(read_records, self._commits.storage),
        )  # fmt: skip
        # I10: pin, look, read. A vacuum first announces what it will delete, then looks for pins.
        self.pins(branch).hold(snapshot, snapshot.seq)
        if stored is not None and check:
            try:
                self.check_kept(stored)
            except BaseException:
                del snapshot, packs  # release the pin now, not when the handler drops this exception
                raise
        self._last[branch] = weakref.ref(snapshot)
        return snapshot

    def of_head(self, stored: Stored | None) -> Snapshot:
        """Return the snapshot at a commit that was just read as the head. Raises `SnapshotExpiredError`.

        If a vacuum sees pins, this has to check that the commit was still kept after it was pinned.
        """
        return self.of(stored, check=self._checks_heads)

    def own(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot of the same commit for one transaction, which releases it when the transaction fails.

        Other handles may still hold `snapshot`. And a caller that keeps the transaction's error may thereby keep all
        objects that the transaction used.
        """
        branch = MAIN if snapshot.stored is None else snapshot.stored.header.branch
        pins = self.pins(branch)
        own = Snapshot(
            snapshot.stored, snapshot._packs, snapshot.url, self._sources, snapshot.opened, self._warm,
            partial(read_records, self._commits.storage), pins,
        )  # fmt: skip
        pins.hold(own, own.seq)
        own._shared = snapshot
        return own

    def pins(self, branch: str) -> Pins:
        """Return this process's pins on a branch."""
        found = self._pins.get(branch)
        # `setdefault` is one atomic step: another thread may be about to do the same.
        return found or self._pins.setdefault(branch, Pins(self._commits.storage.open_pins, branch))

    def _renew(self) -> None:
        for pins in list(self._pins.values()):
            if pins.is_child:
                pins.renew()

    def _opened(self, names: Sequence[RunName], last: Snapshot | None, parent: Snapshot | None = None) -> Known:
        """Return the runs of a commit that are already open. It can't find runs in the commit's own file.

        It keeps no other open runs: a vacuum may have deleted the files below them, which use space while mapped.
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
        """Return the snapshot at the head of a branch. `found` is the head, unless a vacuum has expired it since."""
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
        """Return the snapshot of a new commit. Its committer holds `parent`, the snapshot of its parent.

        If the parent had no version when it was opened, it has taken its version unchanged: the new commit names the
        hash of the parent's header. So the open runs of `parent` are valid. Values are read from the files.
        """
        snapshot = self.of(stored, check=False, parent=parent)
        self._warm.note(snapshot.opened)
        return snapshot

    def ahead(self, stored: Stored) -> Snapshot:
        """Return a snapshot of a commit without a version yet, for a commit that will follow it.

        That commit may fail, so its opened files are kept only if it is made (`made`). It needs no pin: no vacuum can
        run before it has its version, and it needs nothing that an earlier vacuum has expired.
        """
        reference = self._last.get(stored.header.branch)
        opened = self._opened(stored.header.runs, None if reference is None else reference())
        return Snapshot(stored, _PacksAhead(self, self._commits), self._commits.storage.url, self._sources, opened)

    @property
    def replaced(self) -> ReplacedValues | None:
        return self._packs.replaced

    def get(self, name: PackName, missing: Missing | None = None) -> Pack:
        """Open a pack. In a forked child, first pin again the commits that the parent had pinned."""
        self._renew()
        return self._packs.get(name, missing)

    def forget(self, packs: Iterable[bytes]) -> None:
        """Drop caches after maintenance replaced files, so that later reads open the new ones. `packs`: their ids."""
        self._last.clear()
        self._warm.runs = {}
        for pack_id in packs:
            self._commits.storage.cache.forget(pack_id)
        self._packs = open_packs(self._commits.storage)

    def heed_erasures(self) -> bool:
        """Forget what was read before something was erased: it must not be written again. Return whether there was any.

        Where files are mapped, each new snapshot calls this: what an erasure replaces becomes zeros in memory, but not
        in a map of what an earlier erasure had replaced. Elsewhere who writes values of older commits again, or copies
        stored ones, calls it first.
        """
        told, has_unfinished = self._erasures()
        if told == self._heeded and not (self.is_ranged and has_unfinished):
            return False
        if self.is_ranged and has_unfinished:  # this erasure may have replaced files since another reader heeded it
            self._commits.storage.cache.forget_all()
        elif self.is_ranged:
            self._commits.storage.cache.heed(told)
        self.forget(())
        self._heeded = told
        return True

    def as_stored(self, runs: Sequence[RunName]) -> Runs:
        """Open runs for one who writes them again: as they are stored now, and not as a reader opened them before."""
        self.heed_erasures()
        return open_runs(runs, self._packs)

    @property
    def heeds_all_erasures(self) -> bool:
        """Whether no erasure has begun or ended since `heed_erasures`."""
        return self._erasures()[0] == self._heeded

    def _erasures(self) -> tuple[bytes, bool]:
        """Return what stands for the erasures so far, b"" for none; and whether one of them has not ended."""
        found: list[tuple[str, int | None]] = []
        for name in self._commits.storage.list(names.ERASED):
            path = f"{names.ERASED}/{name}"
            if not names.belongs(path):
                continue
            if name not in self._finished:
                # Who needs a damaged one raises that, and not each reader.
                with contextlib.suppress(FileNotFoundError, CorruptionError):
                    finished = read_record(self._commits.storage, path).finished
                    if finished is not None:
                        self._finished[name] = finished
            found.append((name, self._finished.get(name)))
        told = blake2b(repr(sorted(found)).encode(), digest_size=16).digest() if found else b""
        return told, any(finished is None for _, finished in found)

    def check_not_being_erased(self, path: str) -> None:
        """Raise `ErasedError` if an erasure has not ended that is about a path, or what is above or below it."""
        for record in read_records(self._commits.storage):
            if record.finished is None and any(is_related(path, each) for each in record.paths):
                raise as_erasure(record).error(path)

    def check_kept(self, stored: Stored) -> None:
        """Raise `SnapshotExpiredError` if a vacuum has expired a commit."""
        if not self._commits.kept.has(stored):
            raise SnapshotExpiredError(str(stored.commit))

    def explain_missing(self, stored: Stored) -> None:
        """Raise an error that says why a pack of a commit is missing, unless it is damage."""
        self._commits.identity.check_there()
        self.check_kept(stored)


class _PacksOfCommit:
    """The packs of one commit. If a pack is missing, this checks whether a vacuum has expired the commit."""

    __slots__ = ("_missing", "_snapshots", "is_ranged", "replaced")

    def __init__(self, snapshots: Snapshots, commit: Stored) -> None:
        self.is_ranged = snapshots.is_ranged
        self._snapshots = snapshots
        self.replaced = snapshots.replaced
        self._missing = partial(snapshots.explain_missing, commit)

    def get(self, name: PackName, missing: Missing | None = None) -> Pack:
        return self._snapshots.get(name, self._missing)


class _PacksAhead:
    """The packs of a commit without a version yet. Commits directly below it may have none either.

    The files of such commits are staged. They are copied, not mapped: their writer may abort, then rewrite or truncate
    them.
    """

    is_ranged = False

    def __init__(self, snapshots: Snapshots, commits: Commits) -> None:
        self._snapshots = snapshots
        self.replaced = snapshots.replaced
        self._commits = commits
        self._copies: dict[bytes, Pack] = {}

    def get(self, name: PackName, missing: Missing | None = None) -> Pack:
        pack = self._copies.get(name.id)
        if pack is not None:
            return pack
        path = self._commits.staged.path(name.id, 0)
        try:
            content = self._commits.storage.read(path)
        except FileNotFoundError:  # the commit has taken its version
            return self._snapshots.get(name, missing)
        self._copies[name.id] = pack = OpenPack(path, content, name.id)
        return pack


def _id(stored: Stored | None) -> bytes | None:
    return None if stored is None else stored.header.id


def _count(located: Located) -> None:
    """Tell the observer how many bytes are read from where they lie."""
    is_read = (located.table[:, 0] >= 0) | (located.table[:, 0] == LATER)
    observing.count("io.read", int(located.table[is_read, 2].sum()))
